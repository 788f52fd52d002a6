"""Starts and resumes: what this host is asked for, which fields may change, and which checkpoint is used."""

from pathlib import Path

import pytest

from lockstep.algorithm.non_finite import NonFinite
from lockstep.config import VERSION, Config
from lockstep.config.decode import decode, encode
from lockstep.experiment import start
from lockstep.experiment.execute import open_run
from lockstep.experiment.prepare_resume import prepare_resume
from lockstep.experiment.resolve import resolve
from lockstep.experiment.start import extended_by, raise_for_exit_code, resolve_resume, resolve_start, start_warnings
from lockstep.group.group import RankLost
from lockstep.processes import exit_codes
from lockstep.run.folder import RunFolder
from lockstep.runtime.rank_info import RankInfo

TREE = {
    "env": {"id": "CartPole-v1", "count": 8, "engine": "gymnasium"},
    "rollout": {"steps": 16},
    "ppo": {"minibatches": 4},
    "plan": {"shards": 4},
    "run": {"total_steps": 512},
    "runtime": {"device": "cpu", "compile": "off"},
}
CONFIG = decode(TREE, Config())


def folder_of(path: Path) -> RunFolder:
    return RunFolder.create(path / "run", {"version": VERSION, **encode(CONFIG)}, {})


def test_plan_of_the_ranks_that_the_user_asked_for() -> None:
    resolved = resolve_start(CONFIG, None, 2)
    assert (resolved.ranks, resolved.rank_info, resolved.config) == (2, None, CONFIG)
    assert resolved.plan.players == resolved.plan.trainers == (0, 0, 1, 1)


def test_number_of_ranks_is_at_most_that_of_cores_and_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, ranks in ((1, 1), (3, 3), (64, 4)):
        monkeypatch.setattr(start, "usable_cores", lambda cores=cores: cores)
        assert resolve_start(CONFIG, None, None).ranks == ranks


def test_ranks_that_a_launcher_has_set() -> None:
    place = RankInfo(0, 1, 0, 1)
    assert resolve_start(CONFIG, place, None).ranks == 1
    with pytest.raises(ValueError, match=r"^--ranks is 2: the launcher that started this process has set the number"):
        resolve_start(CONFIG, place, 2)


def test_device_is_resolved() -> None:
    config = decode({"runtime": {"device": "auto", "player_device": "auto"}}, CONFIG)
    runtime = resolve_start(config, None, 1).config.runtime
    assert runtime.device == runtime.player_device
    assert runtime.device in ("cpu", "cuda")


@pytest.mark.parametrize(
    ("tree", "field", "value"),
    [
        ({"plan": {"kind": "one-trainer"}}, ("plan", "kind"), "one-trainer"),
        ({"runtime": {"timeout": 7.0}}, ("runtime", "timeout"), 7.0),
        ({"run": {"progress": "off"}}, ("run", "progress"), "off"),
    ],
)
def test_fields_that_may_change_at_resume(tree: dict, field: tuple[str, str], value: object) -> None:
    extended = extended_by(CONFIG, tree, None)
    section, name = field
    assert getattr(getattr(extended, section), name) == value
    assert extended.env == CONFIG.env
    assert extended.plan.shards == 4


def test_a_new_kind_of_plan_forgets_the_listed_ranks() -> None:
    listed = decode({"plan": {"kind": "ranks", "players": [1], "trainers": [0]}}, CONFIG)
    plan = extended_by(listed, {"plan": {"kind": "coupled"}}, None).plan
    assert (plan.kind, plan.players, plan.trainers) == ("coupled", None, None)


@pytest.mark.parametrize("name", ["ppo.learning_rate", "plan.shards", "env.count", "run.seed"])
def test_fields_of_the_experiment_stay(name: str) -> None:
    section, field = name.split(".")
    with pytest.raises(ValueError, match=f"^{name}: it is part of the experiment and stays as it is"):
        extended_by(CONFIG, {section: {field: 1}}, None)


def test_budget_can_only_grow() -> None:
    assert extended_by(CONFIG, {}, 1024).run.total_steps == 1024
    assert extended_by(CONFIG, {"run": {"total_steps": "1e3"}}, None).run.total_steps == 1000
    assert extended_by(CONFIG, {}, 512) == CONFIG
    with pytest.raises(ValueError, match=r"^total_steps is 511: the run was made for 512, it can only grow"):
        extended_by(CONFIG, {}, 511)


def test_compiled_run_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    config = decode({"runtime": {"compile": "on"}}, CONFIG)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"^runtime.compile is 'on' in this run: there is no C\+\+ compiler here"):
        resolve_resume(config, None, 1)
    assert start_warnings(config, CONFIG) == [
        "there is no C++ compiler here (g++, or what CXX names), so the update has no kernels: the run will be slower"
    ]
    assert start_warnings(CONFIG, CONFIG) == []


@pytest.mark.extra("envpool")
@pytest.mark.parametrize(("every", "engine"), [(50, "envpool"), (5, "gymnasium"), (None, "envpool")])
def test_engine_can_be_evaluated_at_the_chosen_iterations(every: int | None, engine: str) -> None:
    run = {"total_steps": 10**6, "evaluate_every": every, "checkpoint_every": 25}
    config = decode({"env": {"id": "Acrobot-v1", "engine": "auto"}, "run": run}, CONFIG)
    resolved = resolve(config, 1)
    assert resolved.env.engine == engine
    lines = [line for line in start_warnings(config, resolved) if "is faster" in line]
    assert lines == [
        "env.engine is 'gymnasium': 'envpool' is faster, but can be evaluated only at checkpoints; "
        "set run.evaluate_every to a multiple of run.checkpoint_every, which is 25"
    ] * (every == 5)


def test_encoder_without_kernels_by_default_gives_no_warning() -> None:
    config = decode({"policy": {"encoder": "impala"}, "runtime": {"compile": "auto"}}, CONFIG)
    assert start_warnings(config, CONFIG) == []


def test_run_with_kernels_goes_on_without_them_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "resolve_devices", lambda runtime: runtime)
    monkeypatch.setattr(start, "check_runtime", lambda *arguments: None)
    config = decode({"runtime": {"compile": "on", "device": "cuda"}}, CONFIG)
    assert resolve_resume(config, None, 1).config.runtime.compile == "off"


def test_run_without_checkpoints_begins_again(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    _, config = open_run(folder.path)
    assert prepare_resume(folder, config, config, None, 1) == 0
    assert prepare_resume(folder, config, config, 0, 1) == 0
    with pytest.raises(ValueError, match=r"^iteration is 3: .* has checkpoints of none"):
        prepare_resume(folder, config, config, 3, 1)


def test_changed_config_is_saved(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    _, config = open_run(folder.path)
    extended = extended_by(config, {"plan": {"kind": "one-trainer"}}, 1024)
    assert prepare_resume(folder, config, extended, None, 1) == 0
    assert open_run(folder.path)[1] == extended
    with pytest.raises(ValueError, match=r"config.json was changed by another process meanwhile: call resume again"):
        prepare_resume(folder, config, config, None, 1)


@pytest.mark.parametrize(
    ("code", "kind", "start"),
    [
        (
            exit_codes.RANK_LOST,
            RankLost,
            "training has failed because a rank hung or its process ended; the messages on the standard error",
        ),
        (
            exit_codes.NON_FINITE,
            NonFinite,
            "ranks ended with exit code 3; their messages are on the standard error stream",
        ),
        (
            exit_codes.FAILED,
            RuntimeError,
            "ranks ended with exit code 1; their messages are on the standard error stream",
        ),
        (
            exit_codes.BAD_INPUT,
            ValueError,
            "ranks ended with exit code 2; their messages are on the standard error stream",
        ),
    ],
)
def test_exit_code_of_ranks_becomes_an_error(code: int, kind: type[Exception], start: str) -> None:
    with pytest.raises(kind) as caught:
        raise_for_exit_code(code)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(start)
    raise_for_exit_code(exit_codes.DONE)
    raise_for_exit_code(exit_codes.STOPPED_BY_SIGNAL)
