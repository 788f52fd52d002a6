"""The model card: its metadata for the Hub, its text, and that no string from a run is interpreted as markup."""

import dataclasses
import re
from typing import Any

import pytest
import yaml

from lockstep.config import Config
from lockstep.report.card import write_card
from lockstep.report.evaluate import Evaluation
from lockstep.report.summary import Evaluated, Machine, ReturnMilestone, RunSummary, Setting

pytest.importorskip("huggingface_hub", reason="pip install 'lockstep-rl[hub]'")

EVALUATED = Evaluated(15, "8a36cb", "most probable", Evaluation([10.0, 20.0, 30.0], [10, 20, 30]))


def summary(**changes: Any) -> RunSummary:
    config = Config()
    run = RunSummary(
        name="first",
        config=dataclasses.replace(
            config, env=dataclasses.replace(config.env, id=changes.pop("env_id", "CartPole-v1"))
        ),
        preset=None,
        expected=None,
        status="finished",
        iteration=15,
        iterations=15,
        env_steps=3678,
        seconds=3.0,
        returns=[],
        final=ReturnMilestone(35.4, 15, 3678, 3.0),
        best=None,
        solved=None,
        evaluated=EVALUATED,
        sampled=None,
        digest="8a36cb",
        checkpoint=15,
        checkpoint_digest="8a36cb",
        settings=[Setting("run.seed", 3, 1, 1), Setting("ppo.epochs", 5, 10, 10)],
        machine=Machine("3.11", "Linux", "secret-host", "a|b", {"torch": "2.13"}, "", None),
        starts=[],
        initial_total_steps=None,
        metrics=[],
    )
    return dataclasses.replace(run, **changes)


def metadata(card: str) -> Any:
    return yaml.safe_load(re.split(r"^---\n", card, maxsplit=2, flags=re.MULTILINE)[1])


def test_a_run_that_ended_early_says_why() -> None:
    config = dataclasses.replace(Config(), run=dataclasses.replace(Config().run, stop_at_return=-150))
    ended = summary(config=config, iteration=9, iterations=73)
    assert "in 9 of 73 iterations, because run.stop_at_return (-150) was reached. The weights" in write_card(
        ended, EVALUATED, "me/first", None
    )
    assert "in 9 of 9 iterations. The weights" in write_card(
        summary(iteration=9, iterations=9), EVALUATED, "me/first", None
    )


def test_the_number_of_episodes_of_a_short_run() -> None:
    card = write_card(summary(final=ReturnMilestone(12.5, 15, 3678, 3.0, 8)), EVALUATED, "me/first", None)
    assert "12.5, last 8 episodes" in card


def test_metadata_for_the_hub() -> None:
    card_data = metadata(write_card(summary(), EVALUATED, "me/first", None))
    assert card_data["library_name"] == "lockstep"
    assert card_data["tags"] == ["reinforcement-learning", "ppo", "lockstep", "CartPole-v1"]
    (model,) = card_data["model-index"]
    (result,) = model["results"]
    assert model["name"] == "first"
    assert result["dataset"] == {"name": "CartPole-v1", "type": "CartPole-v1"}
    assert result["metrics"] == [{"type": "mean_reward", "name": "mean_reward", "value": "20.00 ± 10.00"}]


def test_evaluation_with_sampled_actions_has_a_separate_row() -> None:
    sampled = Evaluated(15, "8a36cb", "drawn", Evaluation([1.0, 3.0], [1, 3]))
    row = "with sampled actions"
    assert row not in write_card(summary(), EVALUATED, "me/first", None)
    card = write_card(summary(sampled=sampled), EVALUATED, "me/first", None)
    assert f"| {row} | 2.00 ± 1.41, 2 episodes (evaluation-sampled.json) |" in card
    assert "20.00 ± 10.00, 95%" in card
    other = dataclasses.replace(sampled, digest="of other weights")
    assert row not in write_card(summary(sampled=other), EVALUATED, "me/first", None)


def test_the_text_of_the_card() -> None:
    run = summary()
    card = write_card(run, EVALUATED, "me/first", "replay.mp4")
    assert "| mean return ± standard deviation | 20.00 ± 10.00, 95% interval of the mean ± 11.32 |" in card
    assert f"```sh\n{run.command}\n```" in card
    assert run.command == "lockstep train --seed 3 --ppo.epochs 5"
    assert "lockstep play hub:me/first\n" in card
    assert "[replay.mp4](replay.mp4)" in card
    assert "`8a36cb`" in card
    assert "gives the same digest after that iteration, on any number of ranks" in card
    assert r"| `processor` | `a\|b` |" in card
    assert "secret-host" not in card
    assert "replay" not in write_card(run, EVALUATED, "me/first", None)


@pytest.mark.parametrize(
    ("actions", "words"), [("most probable", "the most probable actions"), ("drawn", "sampled actions")]
)
def test_actions_of_the_evaluation_are_no_code(actions: str, words: str) -> None:
    card = write_card(summary(), dataclasses.replace(EVALUATED, actions=actions), "me/first", None)
    assert f"3 episodes that were not used for training, with {words} (`evaluation.json`):" in card


@pytest.mark.parametrize(
    ("env_id", "extras"),
    [
        ("CartPole-v1", "hub"),
        ("Mine-v0", "hub"),
        ("LunarLander-v3", "hub,box2d"),
        ("lunarlander-no-velocity", "hub,box2d"),
        ("HalfCheetah-v5", "hub,mujoco"),
        ("ALE/Pong-v5", "hub,atari"),
        ("mpe2/simple_spread_v3", "hub,pettingzoo"),
    ],
)
def test_install_line_has_the_extra_of_the_environment(env_id: str, extras: str) -> None:
    card = write_card(summary(env_id=env_id), EVALUATED, "me/first", None)
    assert f"```sh\npip install 'lockstep-rl[{extras}]'\nlockstep play hub:me/first\n" in card


def test_a_run_with_envpool_needs_it_to_be_repeated() -> None:
    config = Config()
    pooled = dataclasses.replace(config, env=dataclasses.replace(config.env, engine="envpool"))
    card = write_card(summary(config=pooled), EVALUATED, "me/first", None)
    assert "```sh\npip install 'lockstep-rl[envpool]'\nlockstep train " in card
    assert "pip install 'lockstep-rl[hub]'\n" in card


def test_the_claim_of_reproducibility_depends_on_the_run() -> None:
    config = Config()
    inexact = dataclasses.replace(config, plan=dataclasses.replace(config.plan, exact=False))
    assert "equal only up to rounding" in write_card(summary(config=inexact), EVALUATED, "me/first", None)
    raised = write_card(summary(initial_total_steps=10), EVALUATED, "me/first", None)
    assert "The budget was raised from 10 to" in raised
    assert "gives the same digest" not in raised
    replaced = write_card(summary(metrics=[{"env_faults": 2}]), EVALUATED, "me/first", None)
    assert "can't be reproduced from its config alone: its environments failed 2 times and were replaced" in replaced
    assert "gives the same digest" not in replaced
    assert "Use that program to repeat the run" in write_card(summary(env_id="make()"), EVALUATED, "me/first", None)


EVIL = [
    "a: b\n---\n# Title",
    "`</code><script>alert(1)</script>",
    "```\n<img src=x onerror=alert(1)>\n```",
    "| [x](javascript:alert(1)) |",
    "{{ 7 * 7 }}",
    "'\"!!python/object:os.system",
]


@pytest.mark.parametrize("evil", EVIL)
def test_no_string_from_a_run_is_interpreted_as_markup(evil: str) -> None:
    settings = [Setting("env.id", evil, "", ""), Setting("ppo.epochs", evil, 10, 10)]
    machine = Machine(evil, evil, "", "", {evil: evil}, "", None)
    run = summary(env_id=evil, settings=settings, machine=machine, preset=None)
    evaluated = dataclasses.replace(EVALUATED, digest=evil, actions=evil)
    card = write_card(run, evaluated, "me/first", None)
    assert metadata(card)["tags"][-1] == evil
    body = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
    plain = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", body, flags=re.DOTALL | re.MULTILINE)  # blocks of code
    plain = re.sub(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", plain)  # spans of code
    assert not re.search(r"<|javascript|Title|\{\{|python/object", plain)
    assert plain.count("\n# ") == 1
