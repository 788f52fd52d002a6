"""Cache of compiler results: many tests compile the same few kernels, each with an empty kernel cache.

`compiler.py FOLDER COMPILER ARGUMENT …` runs the compiler, and stores its output in FOLDER under a hash of all that it depends on: the
compiler, its arguments, its inputs, PyTorch's version, and the processor. `install` puts it before all others in PATH, as `g++`.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_INPUTS = (".cpp", ".o")
_FILE_NAME = re.compile(rb"\bc[a-z2-7]{51}(?=\.(?:wrapper|kernel)\.cpp)")
_LIMIT = 400
"""Stored outputs, of up to 2 MB each. The least recently used ones are removed."""


def install(cache: Path) -> str:
    """Install the wrapper, and return the value of PATH with which `g++` is the wrapper, or the old value if there is no g++."""
    path, folder = os.environ.get("PATH", ""), cache / "bin"
    outside = os.pathsep.join(entry for entry in path.split(os.pathsep) if entry != str(folder))
    compiler = shutil.which("g++", path=outside)
    if compiler is None:
        return path
    (cache / "objects").mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    made = folder / f"g++.{os.getpid()}"
    made.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {__file__} {cache / "objects"} {compiler} "$@"\n')
    made.chmod(0o755)
    made.replace(folder / "g++")
    for old in sorted((cache / "objects").iterdir(), key=_last_use)[:-_LIMIT]:
        old.unlink(missing_ok=True)
    return os.pathsep.join([str(folder), outside])


def _last_use(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def key_of(compiler: str, arguments: list[str]) -> str | None:
    """Return the hash of all inputs of a compilation, or None if they are not known from the arguments."""
    output = arguments[arguments.index("-o") + 1]
    inputs = [word for word in arguments if not word.startswith("-") and word != output]
    if not all(word.endswith(_INPUTS) and Path(word).is_file() for word in inputs if "/" in word or "." in word):
        return None
    status = Path(compiler).resolve().stat()
    cpuinfo = Path("/proc/cpuinfo").read_text()
    parts = [
        compiler,
        str(status.st_size),
        str(status.st_mtime_ns),
        *re.findall(r"^flags.*|^Features.*", cpuinfo, re.M)[:1],
    ]
    for word in arguments:
        version = Path(word[2:]).parent / "version.py"
        if word.startswith("-I") and word.endswith("/torch/include") and version.is_file():
            parts.append(version.read_text())
    # the folder in which PyTorch compiles is another one every time, and the names of its files are hashes that depend on the folder
    folder, files = str(Path(output).parent), {output, *(word for word in inputs if word.endswith(_INPUTS))}
    parts += [Path(word).suffix if word in files else word.replace(folder, "") for word in arguments]
    contents = [Path(word).read_bytes().replace(folder.encode(), b"") for word in inputs if word.endswith(_INPUTS)]
    contents = [_FILE_NAME.sub(b"", content) for content in contents]
    return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *contents])).hexdigest()


def main(folder: Path, compiler: str, arguments: list[str]) -> int:
    """Run the compiler, unless its output is stored. Return its exit code."""
    key = None
    if arguments.count("-o") == 1 and arguments[-1] != "-o":
        key = key_of(compiler, arguments)
    if key is None:
        os.execv(compiler, [compiler, *arguments])
    stored, output = folder / key, Path(arguments[arguments.index("-o") + 1])
    if stored.is_file():
        shutil.copy(stored, output)
        os.utime(stored)
        return 0
    finished = subprocess.run([compiler, *arguments], capture_output=True, check=False)
    sys.stdout.buffer.write(finished.stdout)
    sys.stderr.buffer.write(finished.stderr)
    if finished.returncode == 0 and output.is_file():
        made = folder / f"{key}.{os.getpid()}"
        shutil.copy(output, made)
        made.replace(stored)
    return finished.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
