"""Hooks of the build: libraries in the wheel, and addresses in its metadata.

On Linux, the wheel contains the libraries of the interpreter, so that users need no C++ compiler. A wheel that is built without a compiler, or
on another system, has the sources only; they are then compiled at the first start.
"""

import os
import platform
import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_PLATFORM = "manylinux_2_17"
"""The libraries need no newer version of the C library than this one has, and no C++ library."""


class AddressesHook(MetadataHookInterface):
    """Adds `[project.urls]`: those of the repository whose workflow builds the package, as GitHub Actions names it."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the addresses."""
        server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        if not server or not name:
            metadata["urls"] = {}
            return
        source = f"{server}/{name}"
        metadata["urls"] = {
            "Source": source,
            "Documentation": f"{source}/tree/HEAD/docs",
            "Changelog": f"{source}/blob/HEAD/CHANGELOG.md",
            "Issues": f"{source}/issues",
        }


class InterpreterHook(BuildHookInterface[Any]):
    """Builds the libraries, and adds them to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the libraries in a folder for temporary files."""
        compiling = Path(self.root, "src", "lockstep", "compiling")
        compiler = runpy.run_path(str(compiling / "compiler.py"))
        self._folder = Path(tempfile.mkdtemp(prefix="interpreter-"))
        if version == "editable" or platform.libc_ver()[0] != "glibc" or compiler["find_compiler"]() is None:
            return
        libraries = {}
        for variant in compiler["variants"]():
            library = self._folder / compiler["library_name"](variant)
            command = [*compiler["library_command"](variant), str(library)]
            finished = subprocess.run(command, capture_output=True, text=True, check=False)
            if finished.returncode:
                self.app.display_warning(f"the libraries of the interpreter are left out:\n{finished.stderr}")
                return
            libraries[str(library)] = f"lockstep/compiling/{library.name}"
        build_data["force_include"].update(libraries)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_PLATFORM}_{platform.machine()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
