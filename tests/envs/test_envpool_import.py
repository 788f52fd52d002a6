"""Partial import of envpool."""

import json
import subprocess
import sys
from functools import partial
from importlib import import_module
from types import ModuleType

import pytest

from lockstep.envs import envpool_import

pytestmark = pytest.mark.extra("envpool")

IMPORT_ONE_FAMILY = """
import json, sys
from lockstep.envs.catalog import describe_env
from lockstep.envs.choice import FASTER
from lockstep.envs.settings import EnvConfig

fast = [name for name, (_, engine) in FASTER.items() if engine == "envpool"]
for name in fast:
    describe_env(EnvConfig(id=name, engine="envpool"))
imported_drawing = "matplotlib" in sys.modules

import envpool
from envpool import make, list_all_envs

ids = sorted(list_all_envs())
one = make(fast[0], env_type="gymnasium", num_envs=1)
other = envpool.make_gymnasium(fast[0], num_envs=1)
print(json.dumps([imported_drawing, ids, type(one) is type(other), hasattr(envpool, "nothing")]))
"""
DESCRIBE = """
import json, sys
from lockstep.envs.catalog import describe_env
from lockstep.envs.settings import EnvConfig

for name in sys.argv[1:]:
    print(describe_env(EnvConfig(id=name, engine="envpool")).observation_size)
"""


def output_of(program: str, environ: dict[str, str], *arguments: str) -> str:
    """Run a program in a new process, because this one has imported envpool already."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=250).stdout


def test_fast_environments_import_few_families_and_other_code_can_use_all(
    environ: dict[str, str],
) -> None:
    imported_drawing, ids, same_type, has_unknown = json.loads(output_of(IMPORT_ONE_FAMILY, environ))
    assert not imported_drawing
    assert ids == json.loads(
        output_of("import envpool, json; print(json.dumps(sorted(envpool.list_all_envs())))", environ)
    )
    assert same_type
    assert not has_unknown


@pytest.mark.parametrize(
    "env_ids", [("Taxi-v3",), ("Pendulum-v1", "MiniGrid-Empty-5x5-v0"), ("MiniGrid-Empty-5x5-v0", "Pendulum-v1")]
)
def test_environments_of_any_family_are_found(env_ids: tuple[str, ...], environ: dict[str, str]) -> None:
    assert len(output_of(DESCRIBE, environ, *env_ids).splitlines()) == len(env_ids)


@pytest.mark.parametrize("missing", ["envpool.registration", "envpool.entry"])
def test_envpool_without_a_required_module_is_reported(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool_import, "import_module", partial(import_all_but, missing))
    with pytest.raises(ValueError, match=rf"^env.engine is 'envpool': envpool .* has no {missing}.*'envpool>=1.2.5'"):
        envpool_import.registration("NoSuchTask-v0", None)


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("libEGL.so.1", "`apt-get install libegl1 libgl1`, or use engine 'gymnasium'"),
        ("libz.so.1", "or use engine 'gymnasium'"),
    ],
)
def test_envpool_without_a_library_of_the_system_is_reported(
    library: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = f"{library}: cannot open shared object file: No such file or directory"

    def import_without_library(name: str) -> ModuleType:
        if name == "envpool.entry":
            raise ImportError(cause)
        return import_module(name)

    monkeypatch.setattr(envpool_import, "import_module", import_without_library)
    with pytest.raises(ValueError, match="can't be imported") as caught:
        envpool_import.registration("NoSuchTask-v0", None)
    assert str(caught.value).endswith(f" can't be imported: {cause}; {advice}")


def test_envpool_with_other_families_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "envpool.classic_control.registration"
    monkeypatch.setattr(envpool_import, "import_module", partial(import_all_but, missing))
    assert "Pendulum-v1" in envpool_import.registration("Pendulum-v1", "classic_control").list_all_envs()


def import_all_but(missing: str, name: str) -> ModuleType:
    """Import a module, unless it is `missing`."""
    if name == missing:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return import_module(name)
