"""Check what `python -m build` packs: files, metadata, and the README as the package index shows it."""

import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.quick_compiler import quick_compiler

import lockstep
from lockstep.compiling.compiler import find_compiler, library_name, variants

SOURCE = Path(lockstep.__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.extra("hatchling", "hatch_fancy_pypi_readme", "build")]


class Distribution(NamedTuple):
    """Content of a built wheel and of a built source distribution."""

    wheel: set[str]
    source: set[str]
    metadata: Message
    entry_points: str
    file_name: str
    libraries: dict[str, bytes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    folder = tmp_path_factory.mktemp("dist")
    root = Path(__file__).parents[1]
    # the wheel is built from the unpacked source distribution, as a package index would build it
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(root)]
    environ = os.environ | {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "lab/lockstep"}
    if find_compiler():
        environ["CXX"] = str(quick_compiler(tmp_path_factory.mktemp("compiler")))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    info = f"lockstep_rl-{lockstep.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as sources:
        return Distribution(
            set(archive.namelist()),
            {name.partition("/")[2] for name in sources.getnames()},
            message_from_bytes(archive.read(f"{info}/METADATA")),
            archive.read(f"{info}/entry_points.txt").decode(),
            wheel.name,
            {name: archive.read(name) for name in archive.namelist() if name.endswith(".so")},
        )


def test_wheel_has_the_files_of_the_package_and_no_others(built: Distribution) -> None:
    files = {
        f"lockstep/{path.relative_to(SOURCE)}"
        for path in SOURCE.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {"lockstep/py.typed", "lockstep/report/page.html", "lockstep/presets/cartpole.yaml"} <= files
    files |= {f"lockstep/compiling/{library_name(variant)}" for variant in variants() if find_compiler()}
    assert {name for name in built.wheel if ".dist-info/" not in name} == files
    assert "lockstep = lockstep.__main__:command" in built.entry_points


@pytest.mark.skipif(sys.platform != "linux", reason="only wheels for Linux have libraries")
@pytest.mark.command("g++")
def test_libraries_need_only_an_old_c_library(built: Distribution, root: Path) -> None:
    assert built.file_name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.whl")
    if platform.machine() == "x86_64":
        workflow = (root / ".github" / "workflows" / "release.yml").read_text()
        assert built.file_name.replace(lockstep.__version__, "${TAG#v}") in workflow
    assert len(built.libraries) == len(variants())
    for content in built.libraries.values():
        versions = [tuple(map(int, version.split(b"."))) for version in re.findall(rb"GLIBC_([\d.]+)", content)]
        assert max(versions, default=(0,)) <= (2, 17)
        assert b"libstdc++" not in content


def test_source_distribution_can_be_built_and_tested(built: Distribution) -> None:
    expected = {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE", "tests/conftest.py"}
    assert expected | {"benchmarks/scaling.py", "examples/my_envs.py", "docs/index.md"} <= built.source
    assert not [name for name in built.source if re.match(r"(\.venv|\.cache|runs|site|dist)/", name)]


def test_metadata_describes_the_package(built: Distribution) -> None:
    metadata = built.metadata
    assert (metadata["Name"], metadata["Version"]) == ("lockstep-rl", lockstep.__version__)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("torch")] == ["torch<2.14,>=2.13"]
    assert metadata.get_all("Project-URL") == [
        "Source, https://git.example/lab/lockstep",
        "Documentation, https://git.example/lab/lockstep/tree/HEAD/docs",
        "Changelog, https://git.example/lab/lockstep/blob/HEAD/CHANGELOG.md",
        "Issues, https://git.example/lab/lockstep/issues",
    ]


def test_description_needs_no_files_of_the_repository(built: Distribution) -> None:
    """The package index shows the README alone: no relative link and no local image may remain in it."""
    description = str(built.metadata.get_payload())
    assert built.metadata["Description-Content-Type"] == "text/markdown"
    assert description.startswith("# lockstep\n")
    assert "lockstep train" in description
    assert "tutorial, " in description
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)|<img", description) == []
