"""Configs with every choice made, and one line for each config that can't be run."""

import dataclasses
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.envs.functions import register_function
from lockstep.experiment import resolve as resolving
from lockstep.experiment.resolve import compiles, cut_episodes, iterations, resolve


def config_of(**sections: object) -> Config:
    """Return a config of 8 CartPoles and 16 steps, so that an iteration is 128 steps, with `sections` changed."""
    base = {
        "env": {"id": "CartPole-v1", "count": 8},
        "rollout": {"steps": 16},
        "ppo": {"minibatches": 4},
        "run": {"total_steps": 1280},
        "runtime": {"device": "cpu"},
    }
    return decode({name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}, Config())


def test_every_choice_is_made() -> None:
    resolved = resolve(config_of(), 1)
    assert resolved.plan.shards == 1
    assert resolved.env.engine != "auto"
    assert resolved.env.per_rank is None
    assert resolved.runtime.compile == "on"
    assert resolve(resolved, 1) == resolved


def test_environments_per_rank_and_shards_follow_from_the_ranks() -> None:
    resolved = resolve(config_of(env={"id": "CartPole-v1", "count": 8, "per_rank": 4}), 2)
    assert (resolved.env.count, resolved.env.per_rank, resolved.plan.shards) == (8, None, 2)


def test_a_plan_that_has_been_made_already_is_used() -> None:
    config = config_of(plan={"shards": 4})
    assert resolve(config, 2, Plan.make(config.plan, 2)) == resolve(config, 2)


@pytest.mark.parametrize(("steps", "length"), [(16, 16), (32, 32), (48, 24), (34, 17), (37, 1)])
def test_default_sequence_length_is_the_largest_divisor_up_to_32(steps: int, length: int) -> None:
    config = config_of(
        policy={"core": "gru"}, rollout={"steps": steps}, ppo={"minibatches": 1}, run={"total_steps": 8 * steps}
    )
    assert resolve(config, 1).rollout.sequence_length == length


@pytest.mark.parametrize(
    ("count", "steps", "shards", "number"),
    [(8, 256, 1, 32), (8, 256, 8, 32), (64, 256, 1, 32), (8, 64, 1, 8), (8, 4, 1, 1), (4, 100, 4, 5)],
)
def test_default_minibatches_have_64_steps_and_are_at_most_32(count: int, steps: int, shards: int, number: int) -> None:
    config = config_of(
        env={"id": "CartPole-v1", "count": count},
        rollout={"steps": steps},
        ppo={"minibatches": None},
        plan={"shards": shards},
        run={"total_steps": count * steps},
    )
    assert resolve(config, 1).ppo.minibatches == number


def test_default_minibatches_divide_the_sequences_of_a_shard() -> None:
    config = config_of(policy={"core": "gru"}, rollout={"steps": 256}, ppo={"minibatches": None}, plan={"shards": 4})
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=2048))
    assert resolve(config, 1).ppo.minibatches == 16  # 2 environments x 8 sequences of 32 steps


@pytest.mark.parametrize(
    ("env_id", "components"), [("CartPole-v1", 0), ("Pendulum-v1", 1), ("pendulum-sparse", 1), ("BipedalWalker-v3", 4)]
)
@pytest.mark.extra("Box2D")
def test_initial_noise_has_the_same_squared_norm_for_any_number_of_components(env_id: str, components: int) -> None:
    log_std = resolve(config_of(env={"id": env_id, "count": 8}), 1).policy.log_std
    assert log_std is None if components == 0 else components * math.exp(2 * log_std) == pytest.approx(1, abs=2e-3)
    fixed = config_of(env={"id": env_id, "count": 8}, policy={"log_std": -1.5})
    assert resolve(fixed, 1).policy.log_std == -1.5


class Force(gym.Env[Any, Any]):
    """One step per episode. The last component of an action has the given bounds, the others are between -1 and 1."""

    def __init__(self, low: float, high: float, size: int) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        others = [1.0] * (size - 1)
        self.action_space = gym.spaces.Box(
            np.float32([*(-one for one in others), low]), np.float32([*others, high]), dtype=np.float32
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize(
    ("low", "high", "size", "squash"),
    [
        (-1, 1, 1, False),
        (-2, 2, 7, False),
        (-20, 20, 1, False),
        (-20.5, 20.5, 1, True),
        (0, 41, 1, True),
        (-20, 20, 2, True),  # the noise is smaller with more components
        (-100, 1e39, 1, False),  # infinite in float32
        (3, 3, 1, False),
    ],
)
def test_actions_with_ranges_much_wider_than_the_initial_noise_are_squashed(
    low: float, high: float, size: int, squash: bool
) -> None:
    if "Force-v0" not in gym.registry:
        gym.register("Force-v0", Force)
    env = {"id": "Force-v0", "count": 8, "options": {"low": low, "high": high, "size": size}}
    assert resolve(config_of(env=env), 1).policy.squash is squash
    assert resolve(config_of(env=env, policy={"squash": False}), 1).policy.squash is False


def test_discrete_actions_are_not_squashed() -> None:
    assert resolve(config_of(), 1).policy.squash is False


@pytest.mark.extra("ale_py")
def test_observations_and_rewards_are_normalized_where_that_is_possible() -> None:
    def normalized(**sections: object) -> tuple[bool | None, bool | None]:
        resolved = resolve(config_of(**sections), 1)
        return resolved.policy.normalize_observations, resolved.ppo.normalize_rewards

    game = {"id": "ALE/Pong-v5", "count": 2}
    assert normalized() == (True, True)
    assert normalized(ppo={"clip_rewards": True, "minibatches": 4}) == (True, False)
    assert normalized(env=game, run={"total_steps": 32}, ppo={"minibatches": 1}) == (False, True)
    off = {"policy": {"normalize_observations": False}, "ppo": {"normalize_rewards": False, "minibatches": 4}}
    assert normalized(**off) == (False, False)


@pytest.mark.parametrize(("total_steps", "number"), [(128, 1), (255, 1), (256, 2), (1280, 10)])
def test_number_of_iterations(total_steps: int, number: int) -> None:
    assert iterations(config_of(run={"total_steps": total_steps})) == number


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"plan": {"shards": 3}}, "env.count is 8: it must be divisible by plan.shards, which is 3"),
        ({"ppo": {"minibatches": 5}}, r"ppo.minibatches is 5: .* 8 environments x 16 steps = 128"),
        ({"run": {"total_steps": 127}}, "run.total_steps is 127: one iteration alone takes 128"),
        ({"ppo": {"epochs": 1, "minibatches": 1, "surrogate": "kl"}}, "ppo.epochs is 1: .* at least 2 gradient steps"),
        ({"ppo": {"value_epochs": 2}, "policy": {"shared": True}}, "policy.shared is true: .* separate trunks"),
        ({"policy": {"squash": True}}, "policy.squash is true: CartPole-v1 has discrete actions"),
        ({"policy": {"distribution": "beta"}}, "policy.distribution is 'beta': CartPole-v1 has discrete actions"),
        ({"policy": {"encoder": "nature"}}, "policy.encoder is 'nature': CartPole-v1 has no images"),
        ({"rollout": {"sequence_length": 4}}, "rollout.sequence_length is 4: it is for a policy with memory"),
        (
            {"rollout": {"sequence_length": 5}, "policy": {"core": "lstm"}},
            "rollout.sequence_length is 5: it must divide rollout.steps, which is 16",
        ),
        ({"plan": {"preempt": 0.6}}, "plan.preempt is 0.6: results then .* set plan.exact to false"),
        ({"plan": {"correction": "vtrace"}}, "plan.correction is 'vtrace': .* plan.lag is 0"),
        ({"plan": {"gradients": "ddp"}}, "plan.gradients is 'ddp': the plan has one trainer"),
        (
            {"runtime": {"threads": 1, "player_threads": 2}},
            "runtime.player_threads is 2: this plan has ranks that play",
        ),
        ({"curiosity": {"kind": "rnd", "channels": 4}}, "curiosity.channels is 4: CartPole-v1 has no images"),
        ({"curiosity": {"kind": "rnd", "warmup": 10}}, "curiosity.warmup is 10: the run has 10 iterations"),
        (
            {"runtime": {"compile": "on", "precision": "bf16"}},
            "runtime.compile is 'on': .* but runtime.precision is 'bf16'",
        ),
    ],
)
def test_configs_that_cannot_be_run(sections: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        resolve(config_of(**sections), 1)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize(("compile", "expected"), [("auto", True), ("on", True), ("off", False)])
def test_runs_that_are_compiled(compile: str, expected: bool, images: bool) -> None:
    assert compiles(config_of(runtime={"compile": compile}), images) is expected


@pytest.mark.parametrize(("compile", "expected"), [("auto", False), ("on", True), ("off", False)])
def test_networks_of_images_use_several_threads_if_they_may(compile: str, expected: bool) -> None:
    """Kernels run on one thread."""
    config = config_of(runtime={"compile": compile, "threads": 2})
    assert compiles(config, images=True) is expected
    assert compiles(config, images=False) is (compile != "off")


@pytest.mark.parametrize(("compile", "expected"), [("auto", False), ("on", True)])
def test_impala_has_kernels_only_if_it_is_asked_for(compile: str, expected: bool) -> None:
    """Its max-pooling is slower than PyTorch's."""
    config = config_of(runtime={"compile": compile}, policy={"encoder": "impala"}, run={"total_steps": 10**7})
    assert compiles(config, images=True) is expected


@pytest.mark.parametrize(
    "sections",
    [
        {"policy": {"core": "own"}},
        {"policy": {"encoder": "grid"}},
        {"plan": {"gradients": "ddp"}},
        {"runtime": {"device": "cuda"}},
        {"runtime": {"precision": "bf16"}},
    ],
)
def test_runs_that_cannot_be_compiled(sections: dict[str, object]) -> None:
    assert not compiles(config_of(run={"total_steps": 10**7}, **sections), images=False)


def test_episodes_that_checkpoints_would_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "restarted_episode_limit", lambda env: 500)
    config = config_of(run={"total_steps": 128_000, "checkpoint_every": 10})
    assert "10 x 16 = 160 steps; episodes of CartPole-v1 last up to 500" in str(cut_episodes(config))
    assert "set run.checkpoint_every to 32 or more" in str(cut_episodes(config))
    assert cut_episodes(dataclasses.replace(config, run=dataclasses.replace(config.run, checkpoint_every=313))) is None
    monkeypatch.setattr(resolving, "restarted_episode_limit", lambda env: None)
    assert cut_episodes(config) is None


def test_time_limit_for_episodic_curiosity_is_set_with_a_wrapper() -> None:
    env = {"id": register_function(Limited), "count": 8, "options": {"max_episode_steps": 10}}
    with pytest.raises(ValueError, match=r"have no time limit; set one with env.wrappers, for example TimeLimit\("):
        resolve(config_of(env=env, curiosity={"kind": "ngu"}), 1)
    limited = {**env, "wrappers": ["TimeLimit(max_episode_steps=10)"]}
    assert resolve(config_of(env=limited, curiosity={"kind": "ngu"}), 1).curiosity.kind == "ngu"


class Limited(Force):
    """Environment of a function that takes a time limit and ignores it."""

    def __init__(self, max_episode_steps: int, render_mode: str | None = None) -> None:
        super().__init__(-1, 1, 1)
