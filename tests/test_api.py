"""The Python API."""

import inspect
import os
import pydoc
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import lockstep
from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.config.flags import SHORT
from lockstep.envs.engine import EnvironmentFailed
from lockstep.run.settings import RunConfig
from lockstep.run.stop import SIGNALS

SMALL: dict[str, Any] = {
    "total_steps": 512,
    "rollout": {"steps": 32},
    **{"run.progress": "off", "run.checkpoint_every": 1, "runtime.compile": "off", "ppo.learning_rate": 3e-4},
}


class Guess(gym.Env):
    """Environment with a Dict observation and an action mask that always forbids the second action."""

    observation_space = gym.spaces.Dict(
        {
            "action_mask": gym.spaces.MultiBinary(3),
            "picture": gym.spaces.Box(0, 255, (36, 36), np.uint8),
            "place": gym.spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        return self._seen(), {}

    def step(self, action):
        assert action != 1
        self.left -= 1
        return self._seen(), float(action), self.left == 0, False, {}

    def _seen(self) -> dict[str, Any]:
        place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        picture = np.full((36, 36), self.left, np.uint8)
        return {"action_mask": np.array([1, 0, 1], np.int8), "picture": picture, "place": place}


def make_env() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_dir_lists_the_public_names_without_torch(environ: dict[str, str]) -> None:
    code = "import sys, lockstep; print(dir(lockstep)); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"{sorted(lockstep.__all__)}\n"


def test_help_of_the_package_describes_every_public_name() -> None:
    text = pydoc.render_doc(lockstep, renderer=pydoc.plaintext)
    assert "__getattr__" not in text
    assert "train(preset: str | None = None, *, " in text
    described = text.partition("\nCLASSES\n")[2]
    for name in (*lockstep.__all__, lockstep.__version__):
        assert name == "__version__" or name in described


@pytest.mark.parametrize("name", ["train", "resume", "load", "evaluate"])
def test_help_of_a_function_is_complete(name: str) -> None:
    function = getattr(lockstep, name)
    text = inspect.getdoc(function) or ""
    headings = ["Args:", "Returns:", "Raises:", "Example:"]
    assert [line for line in text.splitlines() if line in headings] == headings
    arguments = text.partition("Args:")[2].partition("Returns:")[0]
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^    \**{parameter}: ", arguments, re.MULTILINE), parameter


def test_help_of_train_has_the_defaults_of_its_settings() -> None:
    tree = encode(Config())
    defaults = {}
    for short, path in SHORT.items():
        section, _, field = path.partition(".")
        defaults[short] = tree[section][field]
    text = inspect.getdoc(lockstep.train) or ""
    for short in ("total_steps", "seed", "out", "plan"):
        assert f"`{short}={defaults[short]!r}`" in text.replace("100_000", "100000")


def test_train_accepts_a_function_as_environment(working_folder: Path) -> None:
    before = [signal.getsignal(number) for number in SIGNALS], torch.get_num_threads()
    torch.set_num_threads(2)
    run = lockstep.train(env=make_env, seed=3, **SMALL)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before[1])
    assert [signal.getsignal(number) for number in SIGNALS] == before[0]
    assert run.config.env.id.endswith("make_env()")
    assert (len(run.metrics), run.stopped, run.digest) == (2, False, run.metrics[-1]["digest"])
    assert run.return_mean is not None
    assert run.load().digest == run.digest
    evaluation = run.evaluate(3)
    assert evaluation == lockstep.evaluate(run.path, 3, env=make_env)
    resumed = lockstep.resume(run.path, env=make_env, total_steps=1024)
    assert len(resumed.metrics) == 4
    uninterrupted = lockstep.train(env=make_env, seed=3, **{**SMALL, "total_steps": 1024})
    assert uninterrupted.digest == resumed.digest


def test_id_and_function_give_the_same_digest() -> None:
    engine = {"engine": "gymnasium"}
    made = lockstep.train(env={"id": make_env, **engine}, **SMALL)
    assert lockstep.train(env={"id": "CartPole-v1", **engine}, **SMALL).digest == made.digest
    config = Config(env=made.config.env.__class__(id="CartPole-v1", engine="gymnasium"))
    assert lockstep.train(config=config, **SMALL).digest == made.digest


def test_a_goal_of_another_environment_is_dropped_with_a_warning(working_folder: Path) -> None:
    config = Config(run=RunConfig(solved_return=5))
    assert (
        lockstep.train(
            config=config, env={"id": "MountainCar-v0", "engine": "gymnasium"}, **SMALL
        ).config.run.solved_return
        == 5
    )
    Path("mine.yaml").write_text("env.id: CartPole-v1\nrun.solved_return: 5\n")
    with pytest.warns(UserWarning, match="run.solved_return 5 is dropped: it was set for CartPole-v1") as caught:
        run = lockstep.train(config="mine.yaml", env={"id": "MountainCar-v0", "engine": "gymnasium"}, **SMALL)
    assert run.config.run.solved_return is None
    assert caught[0].filename == __file__


def test_a_preset_may_be_used_with_another_environment(working_folder: Path) -> None:
    """Its settings stay, its goal is dropped, as on the command line."""
    with pytest.warns(UserWarning, match="run.solved_return 475 is dropped: it was set for CartPole-v1"):
        run = lockstep.train("cartpole", env={"id": "Acrobot-v1", "engine": "gymnasium"}, **SMALL)
    assert (run.config.env.id, run.config.run.solved_return) == ("Acrobot-v1", None)
    assert run.config.plan.shards == 4


def test_policy_with_memory_accepts_dicts_images_and_masks() -> None:
    given = {"id": Guess, "count": 4, "options": {"length": 7}}
    policy = {"core": "gru", "core_size": 8, "hidden": [8]}
    run = lockstep.train(env=given, policy=policy, **{**SMALL, "total_steps": 128})
    loaded = run.load()
    env = Guess(length=9)
    observation, info = env.reset(seed=1)
    loaded.begin()
    state, starts, actions = None, True, []
    for _ in range(9):
        actions.append(loaded.act(observation, info))
        action, state = loaded.predict(observation, state, [starts])
        assert action == actions[-1]
        starts = False
        observation, _, over, _, info = env.step(actions[-1])
    assert over
    assert state is not None
    many = {name: np.stack([part] * 3) for name, part in observation.items()}
    drawn = [loaded.predict(many, np.repeat(state, 3, 0), deterministic=False)[0] for _ in range(20)]
    assert np.shape(drawn) == (20, 3)
    assert set(np.unique(drawn)) == {0, 2}
    fresh = loaded.predict(many, np.repeat(state, 3, 0), episode_start=[True, True, False])[1]
    begun = loaded.predict(many)[1]
    assert fresh is not None
    assert begun is not None
    np.testing.assert_array_equal(fresh[:2], begun[:2])
    assert not np.array_equal(fresh[2], begun[2])
    with pytest.raises(ValueError, match=r"observation\['place'\] has the shape \(3,\): Box"):
        loaded.act({**observation, "place": np.zeros(3)})
    with pytest.raises(ValueError, match="act takes those of one environment"):
        loaded.act(many)


class NoReset(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def step(self, action):
        return 0, 0.0, False, False, {}


class Text(Guess):
    observation_space = gym.spaces.Text(3)


ONE = Guess()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"lerning_rate": 1}, "lerning_rate: unknown key; did you mean ppo.learning_rate?"),
        ({"ppo": {"learning_rat": 1}}, "ppo.learning_rat: unknown key; did you mean ppo.learning_rate?"),
        ({"ppo": 3}, "ppo is 3: it must be a section with fields below it"),
        ({"seed": 1, "run": {"seed": 2}}, "run.seed is given twice"),
        ({"env": 3}, "env is 3: it must be an id, a function"),
        ({"env": Guess()}, "env is an instance of Guess: training needs several environments; give the class"),
        ({"env": lambda: ONE}, "the function returned the same environment twice: it must create a new one at each call"),
        ({"env": lambda: 3}, "the environment can't be created: the function returned 'int', which is not a gymnasium.Env"),
        ({"env": lambda: 1 / 0}, "the environment can't be created: division by zero"),
        ({"env": NoReset}, "the function returned a NoReset, which has no reset"),
        ({"env": Text}, "its observations are Text, which is not supported"),
        ({"env": {"id": Guess, "options": {"size": 3}}}, "env.options has 'size', which"),
        ({"config": Config(), "preset": "cartpole"}, "preset is 'cartpole': a complete Config was given too"),
        ({"preset": "cartpol"}, "cartpol: unknown preset; did you mean cartpole?"),
        ({"env": lambda: Guess(), "ranks": 2, "plan": {"shards": 2}}, "ranks is 2: other processes can't find env "),
        ({"env": {"module": "nothing_of_this_name"}}, "there is no module 'nothing_of_this_name'"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise_one_line_and_write_no_files(
    working_folder: Path, arguments: dict[str, Any], line: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(line)) as raised:
        lockstep.train(**{**arguments, "out": working_folder / "runs"})
    assert "\n" not in str(raised.value)
    assert not (working_folder / "runs").exists()


@pytest.mark.parametrize(
    ("function", "arguments", "line"),
    [
        ("train", {"ranks": "2"}, "ranks is '2': it must be a whole number, at least 1"),
        ("train", {"ranks": 1.5}, "ranks is 1.5: it must be a whole number, at least 1"),
        ("train", {"ranks": 0}, "ranks is 0: it must be a whole number, at least 1"),
        ("train", {"restarts": np.eye(2)}, "restarts is array([[1., 0.], [0., 1.]]): it must be a whole number"),
        ("train", {"restarts": -1}, "restarts is -1: it must be a whole number, at least 0"),
        ("train", {"preset": 3}, "preset is 3: it must be the name of a preset"),
        ("train", {"config": {"seed": 1}}, "config is {'seed': 1}: it must be a Config, or the path"),
        ("resume", {"ranks": None}, "ranks is None: it must be a whole number, at least 1"),
        ("resume", {"iteration": "best"}, "iteration is 'best': it must be a whole number, at least 0"),
        ("resume", {"total_steps": "512"}, "total_steps is '512': it must be a whole number, at least 1"),
        ("resume", {"run": 3}, "run is 3: it must be a Run, a path or a name in runs/"),
        ("load", {"run": None}, "run is None: it must be a Run, a path or a name in runs/"),
        ("load", {"iteration": "bst"}, "iteration is 'bst': it must be the number of an iteration, or \"best\""),
        ("load", {"iteration": 1.0}, "iteration is 1.0: it must be the number of an iteration, or \"best\""),
        ("load", {"sample": "no"}, "sample is 'no': it must be True or False"),
        ("evaluate", {"sample": 1}, "sample is 1: it must be True or False"),
        ("train", {"resume": "no"}, "resume is 'no': it must be True or False"),
        ("load", {"seed": "1"}, "seed is '1': it must be a whole number, at least 0"),
        ("evaluate", {"episodes": 1.5}, "episodes is 1.5: it must be a whole number, at least 1"),
        ("evaluate", {"episodes": 0}, "episodes is 0: it must be a whole number, at least 1"),
        ("evaluate", {"iteration": "bst"}, "iteration is 'bst': it must be the number of an iteration, or \"best\""),
        ("evaluate", {"seed": -1}, "seed is -1: it must be a whole number, at least 0"),
    ],
)  # fmt: skip
def test_arguments_of_other_types_raise_one_line(function: str, arguments: dict[str, Any], line: str) -> None:
    run = {} if function == "train" else {"run": "none"}
    with pytest.raises(ValueError, match=re.escape(line)) as raised:
        getattr(lockstep, function)(**{**run, **arguments})
    assert "\n" not in str(raised.value)


def test_numbers_of_numpy_are_accepted() -> None:
    settings = {**SMALL, "total_steps": np.int64(256), "ppo.learning_rate": np.float64(3e-4)}
    run = lockstep.train(env=make_env, ranks=np.int64(1), seed=np.uint8(3), **settings)  # type: ignore[arg-type]
    assert run.digest == lockstep.train(env=make_env, seed=3, **{**SMALL, "total_steps": 256}).digest
    assert run.load(iteration=np.int64(1), seed=np.int64(2)).digest == run.digest
    assert len(run.evaluate(np.int64(2)).returns) == 2  # type: ignore[arg-type]
    assert len(lockstep.resume(run, total_steps=np.int64(512)).metrics) == 2  # type: ignore[arg-type]


def test_run_of_a_function_requires_the_function(run_cli, working_folder: Path) -> None:
    run = lockstep.train(env=lambda: gym.make("CartPole-v1"), name="mine", **SMALL)
    code = "import lockstep; lockstep.load('runs/mine')"
    words = ("resume", "runs/mine", "--total-steps", 1024)
    for finished in (run_cli(*words), run_cli("eval", "runs/mine")):
        assert (finished.rc, finished.stderr.count("\n")) == (2, 1)
        assert "only the program that defines this function can create the environment" in finished.stderr
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: env.id is '<lambda>()': only the program that defines this function" in done.stderr
    plain = lockstep.train(**SMALL)
    with pytest.raises(ValueError, match="is a run of CartPole-v1: leave it out"):
        lockstep.load(plain, env=make_env)
    assert lockstep.Run("mine", make_env).digest == run.digest


class Breaks(Guess):
    def step(self, action):
        raise KeyError("wheel")


def test_environment_error_is_raised_and_releases_the_run() -> None:
    with pytest.raises(EnvironmentFailed, match="failed: KeyError: 'wheel'"):
        lockstep.train(env=Breaks, name="broken", **SMALL)
    with pytest.raises(EnvironmentFailed):
        lockstep.resume("broken", env=Breaks)


@pytest.mark.parametrize("own_handler", [False, True])
def test_ctrl_c_leaves_a_checkpoint_and_reaches_the_program(own_handler: bool) -> None:
    received, sent = list[int](), list[int]()
    before = signal.getsignal(signal.SIGINT)
    # set in both cases: an earlier test in this process may have installed another handler
    handler = (lambda number, frame: received.append(number)) if own_handler else signal.default_int_handler
    signal.signal(signal.SIGINT, handler)

    class Interrupts(Guess):
        def step(self, action):
            if not sent:  # a second one, a second later, would end the process
                sent.append(signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    arguments: dict[str, Any] = {"env": Interrupts, "name": "stopped", **SMALL}
    try:
        if own_handler:
            assert lockstep.train(**arguments).stopped
            assert received == [signal.SIGINT]
        else:
            with pytest.raises(KeyboardInterrupt):
                lockstep.train(**arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    run = lockstep.Run("stopped", Guess)
    assert run.stopped
    assert run.folder.checkpoints() == [1]
    assert not lockstep.resume(run).stopped


def test_training_works_in_any_thread() -> None:
    runs: list[lockstep.Run] = []
    worker = threading.Thread(target=lambda: runs.append(lockstep.train(env=make_env, **SMALL)))
    worker.start()
    worker.join()
    assert not runs[0].stopped


def test_api_refuses_to_run_under_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(ValueError, match="torchrun started this program as one of 2 ranks"):
        lockstep.train(**SMALL)


MODULE = """
import gymnasium as gym
import lockstep

class Made:
    @staticmethod
    def env(fail=False):
        if fail:
            raise SystemExit(9)
        return gym.make("CartPole-v1")
"""
SCRIPT = """
import sys
sys.path.append("elsewhere")
import lockstep, mine
from lockstep.models.cores import Lstm
small = {"total_steps": 512, "rollout": {"steps": 32}, "run.progress": "off", "plan.shards": 2}
print(*(lockstep.train(env=mine.Made.env, ranks=ranks, **small).digest for ranks in (1, 2)))
class Own(Lstm):
    pass
lockstep.register_core("own", Own)
def refused(**more):
    try:
        lockstep.train(ranks=2, **small, **more)
    except ValueError as error:
        print(error)
refused(env=lambda: mine.Made.env())
refused(policy={"core": "own"})
"""


@pytest.mark.slow
def test_ranks_import_the_function_from_its_module(working_folder: Path, environ: dict[str, str]) -> None:
    (working_folder / "elsewhere").mkdir()
    (working_folder / "elsewhere" / "mine.py").write_text(MODULE)
    (working_folder / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if re.match(r"[0-9a-f]{64} |ranks is", line)]
    assert len(set(lines[0].split())) == 1
    assert "other processes can't find env '<lambda>()'" in lines[1]
    assert "other processes can't find policy.core 'own', which this program defines" in lines[2]
