import re
from pathlib import Path

import pytest

from lockstep.config import Config
from lockstep.config.compose import dropped_fields, load, merged_tree


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text("env:\n  id: from-file\nppo:\n  epochs: 20\n  gamma: 0.2\n")
    return path


def test_later_sources_override_earlier_ones_by_field(file: Path) -> None:
    preset = {"env": {"id": "from-preset", "count": 10}, "ppo": {"epochs": 10, "gamma": 0.1, "gae_lambda": 0.1}}
    config = load(preset, file, {"ppo": {"epochs": "30"}})
    assert (config.env.id, config.env.count) == ("from-file", 10)
    assert (config.ppo.epochs, config.ppo.gamma, config.ppo.gae_lambda) == (30, 0.2, 0.1)
    assert config.rollout == Config().rollout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.yaml", "env.id: Acrobot-v1\nppo.gamma: 0.5\nppo:\n  epochs: 7\n"),
        ("b.json", '{"ppo": {"epochs": 7}, "ppo.gamma": 0.5, "env": null, "env.id": "Acrobot-v1"}'),
    ],
)
def test_dotted_keys_are_fields(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    config = load({"env": {"id": "from-preset", "count": 10}, "ppo": {"gamma": 0.1}}, tmp_path / name, {})
    assert (config.env.id, config.env.count, config.ppo.gamma, config.ppo.epochs) == ("Acrobot-v1", 10, 0.5, 7)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ppo.clip: 0.1\nppo:\n  clip: 0.2\n", "{path}: ppo.clip is given twice"),
        ("ppo.clpi: 0.1\n", "{path}: ppo.clpi: unknown key; did you mean ppo.clip?"),
        ("ppo: {nonsense: 1}\n", "{path}: ppo.nonsense: unknown key; the section ppo has no such field"),
        ("pop.clip: 0.1\n", "{path}: pop.clip: unknown key; did you mean ppo.clip?"),
        ("ppo.clip: [1]\n", "{path}: ppo.clip is [1]: it must be a finite number or text"),
        (
            "ppo.clip: 0.1\nppo: 3\n",
            "{path}: ppo is 3: it must be a section with fields below it, such as ppo.learning_rate",
        ),
        ("env.module: os\n", "env.module is 'os': a config file can't import modules"),
    ],
)
def test_dotted_keys_are_checked_like_fields(text: str, line: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ValueError, match=r".") as caught:
        load(None, file, {})
    assert str(caught.value).startswith(line.format(path=file))


def test_the_file_is_named_only_for_values_that_it_sets(file: Path) -> None:
    line = r"ppo.epochs is -1: it must be at least 1"
    for preset, flags in (({}, {"ppo": {"epochs": -1}}), ({"ppo": {"clip": "x"}}, {})):
        with pytest.raises(ValueError, match=r"^ppo\."):
            load(preset, file, flags)
    file.write_text("ppo:\n  epochs: -1\n")
    with pytest.raises(ValueError, match=re.escape(f"{file}: {line}")):
        load(None, file, {})


def test_no_sources_give_the_defaults() -> None:
    assert load(None, None, {}) == Config()


def test_empty_section_of_a_file_keeps_earlier_values(file: Path) -> None:
    file.write_text("ppo:\n")
    assert load({"ppo": {"epochs": 10}}, file, {}).ppo.epochs == 10


def test_options_are_replaced_as_a_whole() -> None:
    preset = {"env": {"options": {"continuous": True}}}
    assert load(preset, None, {"env": {"options": "{wind_power: 5.0}"}}).env.options == {"wind_power": 5.0}


PRESET = {"env": {"id": "A-v1", "options": {"size": 3}, "count": 2}, "run": {"solved_return": 2000, "total_steps": 64}}


def test_another_environment_drops_the_goal_and_the_options_of_the_first(tmp_path: Path) -> None:
    flags = {"env": {"id": "B-v1"}}
    config = load(PRESET, None, flags)
    assert (config.env.id, config.env.options, config.run.solved_return) == ("B-v1", {}, None)
    assert (config.env.count, config.run.total_steps) == (2, 64)
    assert merged_tree(PRESET, None, flags) == {"env": {"id": "B-v1", "count": 2}, "run": {"total_steps": 64}}
    ending = "is dropped: it was set for A-v1, and env.id is B-v1; set"
    assert dropped_fields(PRESET, None, flags) == [
        f"env.options {{'size': 3}} {ending} env.options again if B-v1 needs one",
        f"run.solved_return 2000 {ending} run.solved_return again if B-v1 needs one",
    ]
    path = tmp_path / "b.yaml"
    path.write_text("env.id: B-v1\nrun.solved_return: 7\n")
    assert load(PRESET, path, {}).run.solved_return == 7
    assert load(PRESET, path, {"env": {"id": "C-v1"}}).run.solved_return is None
    assert [line.split()[0] for line in dropped_fields(PRESET, path, {})] == ["env.options"]


@pytest.mark.parametrize(
    ("base", "flags"),
    [
        (PRESET, {"env": {"id": "A-v1"}}),
        (PRESET, {"env": {"count": "4"}}),
        ({"run": PRESET["run"], "env": {"options": {"size": 3}}}, {"env": {"id": "B-v1"}}),
    ],
)
def test_goals_and_options_stay_without_a_change_of_environment(
    base: dict[str, object], flags: dict[str, object]
) -> None:
    config = load(base, None, flags)
    assert (config.env.options, config.run.solved_return) == ({"size": 3}, 2000)
    assert dropped_fields(base, None, flags) == []


def test_another_environment_drops_the_wrappers_and_the_names_of_info() -> None:
    base = {"env": {"id": "A-v1", "wrappers": ["ClipReward(max_reward=1)"], "info_metrics": "is_success"}}
    dropped = dropped_fields(base, None, {"env": {"id": "B-v1"}})
    assert [line.split(" is dropped")[0] for line in dropped] == [
        "env.wrappers ['ClipReward(max_reward=1)']",
        "env.info_metrics is_success",
    ]
    config = load(base, None, {"env": {"id": "B-v1"}})
    assert (config.env.wrappers, config.env.info_metrics) == ((), ())


def test_values_that_a_later_source_sets_are_not_reported_as_dropped() -> None:
    flags = {"env": {"id": "B-v1", "options": "{}"}, "run": {"solved_return": "5"}}
    assert load(PRESET, None, flags).run.solved_return == 5
    assert dropped_fields(PRESET, None, flags) == []
    assert dropped_fields({"env": {"id": "A-v1", "options": {}}, "run": {"solved_return": None}}, None, flags) == []


def test_env_count_and_per_rank_override_each_other() -> None:
    config = load({"env": {"per_rank": 4}}, None, {"env": {"count": "16"}})
    assert (config.env.count, config.env.per_rank) == (16, None)
    config = load({"env": {"count": 16}}, None, {"env": {"per_rank": "4"}})
    assert (config.env.count, config.env.per_rank) == (Config().env.count, 4)


def test_env_count_and_per_rank_in_one_source_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^env.per_rank is '4': it is an alternative to env.count"):
        load(None, None, {"env": {"per_rank": "4", "count": "16"}})


def test_merged_tree_gives_the_same_config(file: Path) -> None:
    preset = {"env": {"per_rank": 3}, "policy": {"hidden": [8]}, "plan": {}}
    flags = {"env": {"count": "16"}, "ppo": {"clip": "linear(0.2, 0)", "kl_stop": "none"}}
    tree = merged_tree(preset, file, flags)
    assert tree == {
        "env": {"id": "from-file", "count": 16},
        "policy": {"hidden": [8]},
        "ppo": {"epochs": 20, "gamma": 0.2, "clip": "linear(0.2, 0)", "kl_stop": None},
    }
    assert load(tree, None, {}) == load(preset, file, flags)
