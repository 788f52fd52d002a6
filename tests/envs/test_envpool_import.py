"""What of envpool is imported."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.extra("envpool")

PARTLY = """
import json, sys
from lockstep.envs.catalog import describe_env
from lockstep.envs.choice import FASTER
from lockstep.envs.settings import EnvConfig

quick = [name for name, (_, engine) in FASTER.items() if engine == "envpool"]
for name in quick:
    describe_env(EnvConfig(id=name, engine="envpool"))
drew = "matplotlib" in sys.modules

import envpool
from envpool import make, list_all_envs

whole = sorted(list_all_envs())
one = make(quick[0], env_type="gymnasium", num_envs=1)
other = envpool.make_gymnasium(quick[0], num_envs=1)
print(json.dumps([drew, whole, type(one) is type(other), hasattr(envpool, "nothing")]))
"""
OTHER = """
import json, sys
from lockstep.envs.catalog import describe_env
from lockstep.envs.settings import EnvConfig

for name in sys.argv[1:]:
    print(describe_env(EnvConfig(id=name, engine="envpool")).observation_size)
"""


def printed(program: str, environ: dict[str, str], *words: str) -> str:
    """By a process of its own: this one has imported envpool long ago."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=250).stdout


def test_environments_that_it_is_chosen_for_need_no_other_families_and_other_code_finds_all(
    environ: dict[str, str],
) -> None:
    drew, whole, same, nothing = json.loads(printed(PARTLY, environ))
    assert not drew
    assert whole == json.loads(
        printed("import envpool, json; print(json.dumps(sorted(envpool.list_all_envs())))", environ)
    )
    assert same
    assert not nothing


@pytest.mark.parametrize(
    "words", [("Taxi-v3",), ("Pendulum-v1", "MiniGrid-Empty-5x5-v0"), ("MiniGrid-Empty-5x5-v0", "Pendulum-v1")]
)
def test_environments_of_any_family_are_found(words: tuple[str, ...], environ: dict[str, str]) -> None:
    assert len(printed(OTHER, environ, *words).splitlines()) == len(words)
