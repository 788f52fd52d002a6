"""Rules for the whole repository: sizes of files, names, dangerous calls, imports, packaging."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import lockstep

SOURCE = Path(lockstep.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "data", "info", "tmp"}
UNPICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}


def name_of(path: Path) -> str:
    """Return the path of a module relative to `src`."""
    return str(path.relative_to(SOURCE.parent))


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Yield all syntax nodes of all modules, with `file:line`."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{name_of(path)}:{getattr(node, 'lineno', 1)}", node


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression, such as `torch.load`. If it does not start with a name, the result starts with a dot."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def dangers(node: ast.AST) -> Iterator[str]:
    """Yield the names of calls and imports in `node` that could run code from a file."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] in UNPICKLERS)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if module.split(".")[0] in UNPICKLERS:
            yield module
        yield from (f"{module}.{alias.name}" for alias in node.names if (module, alias.name) == ("torch", "load"))
    elif isinstance(node, ast.Call):
        name = dotted(node.func)
        # only bare names: PyTorch's `module.eval()`, `re.compile()` and `torch.compile()` are harmless
        if name in EVALUATORS or name in {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}:
            yield name
        yield from (f"{name}(allow_pickle)" for keyword in node.keywords if keyword.arg == "allow_pickle")


def test_files_are_short() -> None:
    sizes = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in (*MODULES, *TESTS)}
    assert {path: lines for path, lines in sizes.items() if lines > 400} == {}


def test_functions_are_short() -> None:
    sizes = {
        f"{place} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for place, node in nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {place: lines for place, lines in sizes.items() if lines > 60} == {}


def test_training_loop_fits_on_one_screen() -> None:
    assert len((SOURCE / "loop.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_modules_have_specific_names() -> None:
    assert [name_of(path) for path in MODULES if VAGUE & {path.stem, path.parent.name}] == []


def test_nothing_unpickles_or_evaluates() -> None:
    assert [f"{place} {danger}" for place, node in nodes() for danger in dangers(node)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import cloudpickle as c",
        "from pickle import loads",
        "torch.load(path)",
        "from torch import load",
        "eval(text)",
        "exec(text)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader)",
    ],
)
def test_dangerous_code_is_detected(code: str) -> None:
    assert [danger for node in ast.walk(ast.parse(code)) for danger in dangers(node)]


@pytest.mark.parametrize("code", ["policy.eval()", "torch.compile(f)", "re.compile(p)", "json.load(f)", "self.load(f)"])
def test_harmless_calls_are_not_reported(code: str) -> None:
    assert not [danger for node in ast.walk(ast.parse(code)) for danger in dangers(node)]


_FRAGMENT = re.compile(
    r"(What|Who|Whom|Of|Those|That|These|As|In|Where|Whether|Which|How|For|From|To|With|At|By|On|All that|Takes|Gives|Makes|Raises)\b"
)
"""First words of a docstring that is neither a noun phrase nor an imperative sentence."""


def test_docstrings_are_noun_phrases_or_imperative_sentences() -> None:
    fragments = [
        f"{name_of(path)}: {docstring.splitlines()[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for docstring in docstrings(node)
        if _FRAGMENT.match(docstring)
    ]
    assert fragments == []


def docstrings(node: ast.AST) -> list[str]:
    """Return the docstring of a definition and of the names that it assigns."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    values = [
        line.value.value for line in node.body if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    ]
    return [value for value in values if isinstance(value, str) and value]


def test_public_functions_of_ppo_have_docstrings() -> None:
    missing = [
        f"{name_of(path)} {node.name}"
        for path in sorted((SOURCE / "ppo").glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert missing == []


@pytest.mark.parametrize("module", ["lockstep", "lockstep.cli.main", "lockstep.config", "lockstep; lockstep.Config"])
def test_imports_of_the_package_are_light(module: str, environ: dict[str, str]) -> None:
    code = (
        f"import sys, {module}; print(sorted({{'torch', 'gymnasium', 'matplotlib', 'tensorboard'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


_HEAVY = {
    "docstring_parser",
    "google.protobuf",
    "matplotlib",
    "rich",
    "sympy",
    "tensorboard",
    "torch.utils.tensorboard",
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_imports_no_unnecessary_packages(ranks: int, tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, sys\n"
        f"atexit.register(lambda: open(f'{tmp_path}/{{os.getpid()}}.txt', 'w').write(str(sorted({_HEAVY} & set(sys.modules)))))"
    )
    command = [sys.executable, "-m", "lockstep", "train", "cartpole", "--total-steps", "2048", "--ranks", str(ranks)]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])}
    done = subprocess.run(command, env=environ | path, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imported = [path.read_text() for path in tmp_path.glob("*.txt")]
    assert imported == ["[]"] * (1 + ranks)


def test_modules_that_benchmarks_name_in_strings_exist(root: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (root / "benchmarks").glob("*.py")]
    names = {name for text in texts for name in re.findall(r"\"(lockstep(?:\.\w+)+)\"", text)}
    assert names
    assert [name for name in names if importlib.util.find_spec(name) is None] == []


def test_installed_version_is_that_of_the_code() -> None:
    try:
        installed = version("lockstep-rl")
    except PackageNotFoundError:
        pytest.skip("lockstep-rl is not installed here: pip install -e .")
    assert installed == lockstep.__version__


def test_constraints_are_exact_versions_without_paths(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", pin)] == []
    names = [pin.partition("==")[0].lower().replace("_", "-") for pin in pins]
    assert sorted(names) == sorted(set(names))
