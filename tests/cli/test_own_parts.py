"""Parts of policies and games in a user's module that are refused before a run starts."""

import re
from pathlib import Path

import pytest

from lockstep.cli.main import main


def test_head_that_does_not_fit_is_refused_before_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "narrow_head.py").write_text(
        "import lockstep\nfrom torch import nn\n"
        "class Narrow(nn.Linear):\n"
        "    output_size = 7\n"
        "    def __init__(self, inputs, policy):\n"
        "        super().__init__(inputs, 5)\n"
        "lockstep.register_head('narrow', Narrow)\n"
    )
    words = ["train", "cartpole", "--env.module", "narrow_head", "--policy.head"]
    assert main([*words, "narrow"]) == 2
    problem = "it returns 5 numbers for each observation, but its output_size is 7"
    assert capsys.readouterr().err == f"lockstep: policy.head is 'narrow': {problem}\n"
    assert main([*words, "narow"]) == 2
    line = r"lockstep: policy\.head is 'narow': it must be one of mlp, .*narrow, or a name that the module of --env\.module registers\n"
    assert re.fullmatch(line, capsys.readouterr().err)  # other tests register heads too
    assert not (tmp_path / "runs").exists()


PARTS = """
import lockstep
import torch
from torch import nn


class Logarithm(nn.Linear):
    def __init__(self, features, *others):
        super().__init__(features, 8)
        self.output_size = 8

    def forward(self, features, images=()):
        return (-super().forward(features).abs() - 1).log()


class Detached(nn.Module):
    def __init__(self, features, size, layers):
        super().__init__()
        self.output_size = self.state_size = size
        self.inputs = nn.Linear(features, size)

    def step(self, features, state):
        state = (state + self.inputs(features)).tanh()
        return state, state

    def sequence(self, features, state, resets):
        outputs = []
        for row, reset in zip(features, resets):
            outputs.append(state := self.step(row, state.masked_fill(reset.unsqueeze(1), 0))[0])
        return torch.stack(outputs).detach(), state


class Constant(Detached):
    def sequence(self, features, state, resets):
        outputs, state = super().sequence(features, state, resets)
        return self.inputs(features), state


lockstep.register_encoder("logarithm", Logarithm)
lockstep.register_core("detached", Detached)
lockstep.register_core("constant", Constant)
"""


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("encoder", "logarithm", "its forward pass returns NaN for finite observations"),
        ("core", "detached", "its output has no gradient, so that its parameters would not be trained; .*"),
        ("core", "constant", "its methods step and sequence give different results for the same observations; .*"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_trained_are_refused_before_the_run_starts(
    run_cli, tmp_path: Path, kind: str, name: str, problem: str
) -> None:
    (tmp_path / "own_parts.py").write_text(PARTS)
    finished = run_cli("train", "cartpole", "--env.module", "own_parts", f"--policy.{kind}", name)
    assert finished.rc == 2, finished
    assert re.fullmatch(rf"lockstep: policy\.{kind} is '{name}': {problem}\n", finished.stderr), finished.stderr
    assert not (tmp_path / "runs").exists()


FLAGS = (
    *("--env.count", 4, "--rollout.steps", 16, "--total-steps", 192, "--ppo.minibatches", 2),
    *("--plan.shards", 2, "--run.progress", "off", "--name", "run"),
)
GAMES = """
import gymnasium as gym
import numpy as np


class Twins:
    possible_agents = ["first", "second"]
    metadata = {}

    def observation_space(self, agent):
        return gym.spaces.Box(0, 9, (2,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.steps, self.agents = 0, list(self.possible_agents)
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}

    def step(self, actions):
        self.steps += 1
        agents, ends = self.agents, self.steps == 5
        self.agents = [] if ends else agents
        values = [np.full(2, self.steps, np.float32), 1.0, ends, False, {}]
        return tuple({agent: value for agent in agents} for value in values)

    def close(self):
        pass


gym.register("Twins-v0", Twins)
"""


def test_a_registered_game_names_its_engine(run_cli, tmp_path: Path) -> None:
    (tmp_path / "my_games.py").write_text(GAMES)
    words = ("train", "--env.module", "my_games", *FLAGS, "--env", "Twins-v0")
    finished = run_cli(*words)
    assert finished.rc == 2, finished
    problem = "env.id is 'Twins-v0': the environment has several agents; set env.engine to 'pettingzoo'"
    assert finished.stderr == f"lockstep: {problem}\n"
    finished = run_cli(*words, "--env.engine", "pettingzoo")
    assert finished.rc == 0, finished
