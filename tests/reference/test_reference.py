"""Training on one shard in float64 gives the weights of examples/ppo_in_one_file.py."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.cpu_runtime import cpu_runtime

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.collect import collect
from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.config import Config
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.experiment.build import build
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.run.settings import RunConfig
from lockstep.runtime.settings import RuntimeConfig

NAMES = {"trunk": "actor_body", "critic_trunk": "critic_body", "policy_head": "actor_head", "value_head": "critic_head"}


def load_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "reference_ppo", Path(__file__).parents[2] / "examples/ppo_in_one_file.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


reference = load_reference()


def config_of(settings: "reference.Settings") -> Config:
    """Return the config of the same experiment in lockstep."""
    s = settings
    options = {} if s.max_episode_steps is None else {"max_episode_steps": s.max_episode_steps}
    return Config(
        env=EnvConfig(id=s.env_id, engine="gymnasium", count=s.envs, options=options),
        rollout=RolloutConfig(steps=s.steps),
        policy=PolicyConfig(hidden=s.hidden, shared=s.shared, normalize_observations=s.normalize_observations),
        ppo=PPOConfig(
            learning_rate=f"linear({s.learning_rate}, 0)",
            learning_rate_kl=s.learning_rate_kl,
            gamma=s.gamma,
            gae_lambda=s.gae_lambda,
            epochs=s.epochs,
            minibatches=s.minibatches,
            clip=s.clip,
            value_clip=s.value_clip,
            value_coefficient=s.value_coefficient,
            entropy=s.entropy,
            max_grad_norm=s.max_grad_norm,
            normalize_rewards=s.normalize_rewards,
            recompute_advantages=s.recompute_advantages,
        ),
        plan=PlanConfig(shards=1),
        runtime=RuntimeConfig(precision="fp64"),
        run=RunConfig(seed=s.seed),
    )


def weights_of(agent: Agent, shared: bool) -> dict[str, torch.Tensor]:
    """Copy the weights of an agent under the names of the reference."""
    weights = {}
    for name, parameter in agent.policy.named_parameters():
        part, dot, rest = name.partition(".")
        weights[NAMES.get(part, part) + dot + rest] = parameter.detach().clone()
    if shared:  # the reference calls the one trunk by both names
        weights |= {name.replace("actor_body", "critic_body"): weight for name, weight in weights.items()}
    return weights


def largest_difference(settings: "reference.Settings") -> tuple[float, float]:
    """Return the largest difference between the trained weights of both programs, and between trained and initial weights."""
    config = config_of(settings)
    components = build(config, Plan.make(config.plan, 1), cpu_runtime())
    shards, update = components.shards, components.update
    first = weights_of(update.agent, settings.shared)
    for iteration in range(1, settings.iterations + 1):
        rollouts = collect(shards, update.agent, iteration)
        update(rollouts, iteration, (iteration - 1) / settings.iterations)
    components.close()
    found, expected = weights_of(update.agent, settings.shared), reference.train(settings, first).state_dict()
    assert found.keys() == expected.keys()
    distance = max((found[name] - expected[name]).abs().max().item() for name in found)
    moved = max((found[name] - first[name]).abs().max().item() for name in found)
    return distance, moved


CARTPOLE = reference.Settings(
    # episodes of at most 15 steps: many of them are terminated and many truncated
    "CartPole-v1", seed=3, envs=4, steps=32, iterations=6, epochs=3, minibatches=4, learning_rate=3e-3, max_episode_steps=15
)  # fmt: skip
PENDULUM = reference.Settings(
    "Pendulum-v1", seed=5, envs=3, steps=40, iterations=6, epochs=3, minibatches=4, learning_rate=1e-3, max_episode_steps=30,
    shared=True, gamma=0.9, value_clip=0.1, entropy=0.01, normalize_observations=True, normalize_rewards=True,
)  # fmt: skip


RECOMPUTED = dataclasses.replace(PENDULUM, recompute_advantages=True)
ADAPTIVE = dataclasses.replace(RECOMPUTED, learning_rate_kl=1e-4)


@pytest.mark.parametrize(
    "settings",
    [CARTPOLE, PENDULUM, RECOMPUTED, ADAPTIVE],
    ids=["cartpole", "pendulum", "recomputed advantages", "adaptive learning rate"],
)
def test_training_gives_the_weights_of_the_reference(settings: "reference.Settings") -> None:
    distance, moved = largest_difference(settings)
    assert moved > 0.01, "training did nothing, so agreement would say nothing"
    assert distance < 1e-9
