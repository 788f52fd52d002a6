"""Collection of rollouts from an engine with scripted episodes and rewards."""

import itertools
import random

import numpy as np
import pytest
import torch
from tests.watched import choose_actions

from lockstep.algorithm.acting import Actor
from lockstep.algorithm.agent import Agent
from lockstep.algorithm.collect import Shard, _finish, collect, rollout_sizes
from lockstep.algorithm.update import Update
from lockstep.envs.engine import State, Step
from lockstep.envs.spaces import Spaces
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes

STEPS, ROLLOUTS, GAMMA = 4, 7, 0.5
ROWS = STEPS * ROLLOUTS
# Lengths of the episodes, again and again. With a reset row after each, environment 0 ends at rows 2, 5, 10, …
# (row 3, the last of rollout 0, is a reset row) and environment 1 at rows 3 (the last of rollout 0), 5, 8, ….
LENGTHS = ((3, 2, 4), (4, 1, 2), (9, 5))
COUNT = len(LENGTHS)
NOTHING = np.zeros(0, dtype=np.float32)
DISCRETE = Spaces(3, (2,), NOTHING, NOTHING)
CONTINUOUS = Spaces(3, (), np.float32([-1, -1]), np.float32([1, 1]))


class Scripted:
    """Engine with scripted episodes.

    An observation is (environment, episode, step of the episode). Rewards contain distinct powers of two, so that a sum shows its terms.
    """

    def __init__(self, spaces: Spaces = DISCRETE, restarts_episodes: bool = False) -> None:
        self.spaces, self.restarts_episodes = spaces, restarts_episodes
        self.absent = np.zeros(COUNT, dtype=bool)
        self.lost: list[int] = []
        self.taken: list[np.ndarray] = []
        self._place = np.zeros((COUNT, 2))  # episode, step
        self._ended = np.zeros(COUNT, dtype=bool)
        self._observations = np.zeros((COUNT, 3), dtype=np.float32)
        self._answers = (np.zeros(COUNT), np.zeros(COUNT, dtype=bool), np.zeros(COUNT, dtype=bool))

    def _observe(self) -> np.ndarray:
        self._observations[:, 0] = np.arange(COUNT)
        self._observations[:, 1:] = self._place
        return self._observations

    def reset(self) -> np.ndarray:
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        self.taken.append(np.array(actions))
        rewards, terminated, truncated = self._answers  # the same arrays every time, as the contract allows
        for i, lengths in enumerate(LENGTHS):
            rewards[i], terminated[i], truncated[i] = 0, False, False
            if self._ended[i]:
                self._place[i] = self._place[i, 0] + 1, 0
                self._ended[i] = False
                continue
            rewards[i] = reward_of(*self._place[i])
            self._place[i, 1] += 1
            self._ended[i] = self._place[i, 1] == lengths[int(self._place[i, 0]) % len(lengths)]
            (truncated if i == 1 else terminated)[i] = self._ended[i]
        return self._observe(), rewards, terminated, truncated

    def state(self) -> State:
        return {} if self.restarts_episodes else {"place": self._place.copy(), "waiting": self._ended.copy()}

    def restore(self, state: State) -> np.ndarray:
        self._place[:], self._ended[:] = state["place"], state["waiting"]
        return self._observe()

    def restart_episodes(self, iteration: int) -> np.ndarray:
        self._place[:] = [[100 * iteration, 0]] * COUNT
        self._ended[:] = False
        return self._observe()

    def close(self) -> None:
        pass


def reward_of(episode: float, step: float) -> float:
    return 2.0 ** (step + 1) + episode


def timeline() -> list[list[tuple[int, int, bool]]]:
    """Return the expected rows of each environment: episode, step, and whether it is a reset row, derived from `LENGTHS`."""
    rows = []
    for lengths in LENGTHS:
        env_rows: list[tuple[int, int, bool]] = []
        episode = 0
        while len(env_rows) < ROWS:
            length = lengths[episode % len(lengths)]
            env_rows += [(episode, step, False) for step in range(length)] + [(episode, length, True)]
            episode += 1
        rows.append(env_rows[:ROWS])
    return rows


def agent_of(spaces: Spaces = DISCRETE, normalize: bool = True) -> Agent:
    return Agent(
        spaces, PolicyConfig(hidden=(4,), normalize_observations=normalize), normalize, seed=1, dtype=torch.float64
    )


def shard_of(agent: Agent, index: int = 0, restarts_episodes: bool = False) -> Shard:
    specs = Rollout.specs(rollout_sizes(agent, STEPS, COUNT))
    slots = [Rollout(*(torch.zeros(shape, dtype=kind) for shape, kind in specs)) for _ in range(2)]
    return Shard(index, Scripted(agent.spaces, restarts_episodes), slots, seed=1, gamma=GAMMA)


def copy_of(rollout: Rollout) -> Rollout:
    return Rollout(**{name: tensor.clone() for name, tensor in rollout.tensors().items()})


def play(shard: Shard, agent: Agent, iterations: range = range(1, ROLLOUTS + 1)) -> list[Rollout]:
    return [copy_of(collect([shard], agent, iteration)[0]) for iteration in iterations]


@pytest.fixture(name="rollouts")
def fixture_rollouts() -> list[Rollout]:
    agent = agent_of()
    return play(shard_of(agent), agent)


def concatenated(rollouts: list[Rollout], name: str) -> torch.Tensor:
    return torch.cat([rollout.tensors()[name] for rollout in rollouts])


def test_rollouts_hold_the_observations_and_rewards_of_the_engine(rollouts: list[Rollout]) -> None:
    observations = torch.cat([rollout.observations[:-1] for rollout in rollouts])
    for i, rows in enumerate(timeline()):
        assert observations[:, i].tolist() == [[i, episode, step] for episode, step, _ in rows]
        rewards = [0.0 if is_reset else reward_of(episode, step) for episode, step, is_reset in rows]
        assert concatenated(rollouts, "rewards")[:, i].tolist() == rewards


def test_first_observation_is_the_final_one_of_the_previous_rollout(rollouts: list[Rollout]) -> None:
    for before, after in itertools.pairwise(rollouts):
        assert torch.equal(before.observations[-1], after.observations[0])


def test_reset_rows_are_invalid_across_rollouts(rollouts: list[Rollout]) -> None:
    valid = concatenated(rollouts, "valid")
    for i, rows in enumerate(timeline()):
        assert valid[:, i].tolist() == [not is_reset for _, _, is_reset in rows]
    assert not valid[STEPS, 1]  # environment 1 ends in row 3, the last one of the first rollout


def test_terminated_and_truncated_are_distinguished(rollouts: list[Rollout]) -> None:
    ended = concatenated(rollouts, "terminated") | concatenated(rollouts, "truncated")
    assert torch.equal(ended[:-1], ~concatenated(rollouts, "valid")[1:])
    assert not concatenated(rollouts, "truncated")[:, [0, 2]].any()
    assert not concatenated(rollouts, "terminated")[:, 1].any()


def test_returns_and_lengths_of_episodes_across_rollouts(rollouts: list[Rollout]) -> None:
    episodes = concatenated(rollouts, "episodes")
    for i, rows in enumerate(timeline()):
        for t, (episode, step, is_reset) in enumerate(rows):
            length = LENGTHS[i][episode % len(LENGTHS[i])]
            if not is_reset and step == length - 1:
                total = sum(reward_of(episode, earlier) for earlier in range(length))
                assert episodes[t, i].tolist() == [total, length]
            else:
                assert episodes[t, i].isnan().all()


@pytest.mark.parametrize("seed", range(3))
def test_episodes_and_discounted_returns_equal_a_simple_loop(seed: int) -> None:
    """Many environments, whose episodes end in any row and continue across rollouts."""
    steps, count, draw = 9, 40, stream(seed, "test")
    agent, spaces = agent_of(), DISCRETE
    rollouts = [Rollout.empty(Sizes(steps, count, spaces.observation_size, None, (3, 1), torch.float64))]
    engine = Scripted()
    engine.reset, engine.absent = lambda: np.zeros((count, 3)), np.zeros(count, dtype=bool)
    shard = Shard(0, engine, rollouts, 1, GAMMA)
    total, length, gain, waiting = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count, dtype=bool)
    for iteration in range(1, 4):
        rollout = shard.rollout(iteration)
        ends = draw.random((2, steps, count)) < 0.2
        rewards = draw.normal(size=(steps, count))
        gains = np.zeros((steps, count))
        expected = np.full((steps, count, 2), np.nan)
        for t in range(steps):
            for b in range(count):
                if waiting[b]:
                    rewards[t, b], ends[:, t, b] = 0, False
                total[b], length[b], gain[b] = (
                    total[b] + rewards[t, b],
                    length[b] + (not waiting[b]),
                    gain[b] + rewards[t, b],
                )
                gains[t, b] = gain[b]
                gain[b] *= GAMMA
                waiting[b] = ends[:, t, b].any()
                if waiting[b]:
                    expected[t, b] = total[b], length[b]
                    total[b] = length[b] = gain[b] = 0
        rollout.rewards.copy_(torch.from_numpy(rewards))
        rollout.terminated.copy_(torch.from_numpy(ends[0]))
        rollout.truncated.copy_(torch.from_numpy(ends[1]))
        _finish(shard, rollout, agent)
        assert np.array_equal(rollout.episodes, expected, equal_nan=True)
        valid_gains = gains[rollout.valid.numpy()]
        assert rollout.statistics_sums[-3:].tolist() == pytest.approx(
            [len(valid_gains), valid_gains.sum(), np.square(valid_gains).sum()], rel=1e-12
        )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_spoils_only_its_own_episode(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment 0 has episodes of rows 0 to 2, 4 and 5, 7 to 10, …; the reward of row 1 is spoiled."""
    agent = agent_of()
    expected = play(shard_of(agent), agent)
    step, rows = Scripted.step, itertools.count()

    def spoiled(engine: Scripted, actions: np.ndarray) -> Step:
        observations, rewards, terminated, truncated = step(engine, actions)
        if next(rows) == 1:
            rewards[0] = value
        return observations, rewards, terminated, truncated

    monkeypatch.setattr(Scripted, "step", spoiled)
    found = play(shard_of(agent), agent)
    episodes, unspoiled = concatenated(found, "episodes"), concatenated(expected, "episodes").clone()
    assert unspoiled[2, 0].isfinite().all()
    unspoiled[2, 0] = torch.nan  # not counted
    assert torch.equal(episodes.nan_to_num(-1), unspoiled.nan_to_num(-1))
    assert [bool(rollout.statistics_sums.isfinite().all()) for rollout in found] == [False] + [True] * (ROLLOUTS - 1)
    assert torch.equal(found[1].statistics_sums, expected[1].statistics_sums)


def test_values_and_log_probs_are_computed_with_the_collecting_weights(rollouts: list[Rollout]) -> None:
    agent = agent_of()
    for rollout in rollouts:
        normalized = agent.normalize(rollout.observations)
        assert rollout.values.shape == (STEPS + 1, COUNT)
        assert torch.allclose(rollout.values, agent.policy.value(normalized), rtol=0, atol=1e-13)
        expected = torch.distributions.Categorical(logits=agent.policy.act(normalized[:-1])[0]).log_prob(
            rollout.actions
        )
        assert torch.allclose(rollout.log_probs, expected, rtol=0, atol=1e-13)


def test_running_statistics_are_sums_over_valid_rows(rollouts: list[Rollout]) -> None:
    """Observations, then discounted returns `G_t = γ G_{t-1} + r_t`, which start at 0 in each episode and continue across rollouts."""
    observations, valid = (
        torch.cat([rollout.observations[:-1] for rollout in rollouts]),
        concatenated(rollouts, "valid"),
    )
    discounted = np.zeros((ROWS, COUNT))
    for i, rows in enumerate(timeline()):
        for t, (episode, step, is_reset) in enumerate(rows):
            discounted[t, i] = (
                0 if is_reset else sum(reward_of(episode, s) * GAMMA ** (step - s) for s in range(step + 1))
            )
    for k, rollout in enumerate(rollouts):
        part = slice(k * STEPS, (k + 1) * STEPS)
        rows, gains = observations[part][valid[part]], torch.from_numpy(discounted[part])[valid[part]]
        expected = [len(rows), *rows.sum(0), *rows.square().sum(0), len(gains), gains.sum(), gains.square().sum()]
        assert rollout.statistics_sums.tolist() == pytest.approx([float(x) for x in expected], rel=1e-12)


def test_without_normalization_there_are_no_running_statistics() -> None:
    agent = agent_of(normalize=False)
    assert play(shard_of(agent), agent, range(1, 2))[0].statistics_sums.numel() == 0


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_actions_depend_on_the_random_stream_of_shard_and_iteration(spaces: Spaces) -> None:
    agent = agent_of(spaces)
    shard = shard_of(agent, index=3)
    (rollout,) = play(shard, agent, range(5, 6))
    noise = torch.from_numpy(agent.distribution.noise(stream(1, "actions", 3, 5), STEPS, COUNT))
    parameters, _, _ = agent.policy.act(agent.normalize(rollout.observations[2]))
    assert torch.allclose(rollout.actions[2], agent.distribution.sample(parameters, noise[2]), rtol=0, atol=1e-12)
    assert isinstance(shard.engine, Scripted)
    for drawn, env_action in zip(rollout.actions, shard.engine.taken, strict=True):
        assert np.array_equal(env_action, drawn if spaces is DISCRETE else drawn.clamp(-1, 1))
    (other_shard,) = play(shard_of(agent, index=2), agent, range(5, 6))
    (other_iteration,) = play(shard_of(agent, index=3), agent, range(6, 7))
    for other in (other_shard, other_iteration):
        assert not torch.equal(other.actions, rollout.actions)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_fused_shards_collect_the_same_rollouts_with_one_batch_per_step(spaces: Spaces) -> None:
    agent, batches = agent_of(spaces), []
    make = agent.actor

    def counting(noise: np.ndarray, actions: np.ndarray, memory: None) -> Actor:
        actor = make(noise, actions, memory)
        act = actor.act
        actor.act = lambda t, observations, pixels: batches.append(len(observations)) or act(t, observations, pixels)
        return actor

    agent.actor = counting
    separate_shards, fused_shards = ([shard_of(agent, index) for index in (2, 0, 5)] for _ in range(2))
    for iteration in range(1, ROLLOUTS + 1):
        expected = collect(separate_shards, agent, iteration)
        batches.clear()
        fused_rollouts = collect(fused_shards, agent, iteration, fused=True)
        assert batches == [3 * COUNT] * STEPS
        for one, other in zip(expected, fused_rollouts, strict=True):
            for name, tensor in one.tensors().items():
                assert torch.allclose(tensor, other.tensors()[name], rtol=0, atol=1e-13, equal_nan=True), name
    for one, other in zip(separate_shards, fused_shards, strict=True):
        assert np.allclose(one.engine.taken, other.engine.taken, rtol=0, atol=1e-13)


def test_rank_without_shards_collects_no_rollouts() -> None:
    assert collect([], agent_of(), 1) == collect([], agent_of(), 1, fused=True) == []


def same_bits(one: list[Rollout], other: list[Rollout]) -> bool:
    """Return True if all tensors have the same bits, NaN included."""
    pairs = [(a.tensors()[name], b.tensors()[name]) for a, b in zip(one, other, strict=True) for name in a.tensors()]
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


@pytest.mark.parametrize("iteration", range(1, ROLLOUTS))
def test_restored_shard_continues_with_the_same_bits(rollouts: list[Rollout], iteration: int) -> None:
    agent = agent_of()
    stopped = shard_of(agent)
    play(stopped, agent, range(1, iteration + 1))
    saved = {name: tensor.clone() for name, tensor in stopped.state().items()}
    restored = shard_of(agent)
    restored.restore(saved, iteration)
    assert same_bits(play(restored, agent, range(iteration + 1, ROLLOUTS + 1)), rollouts[iteration:])


def test_renewed_engine_starts_new_episodes_in_every_run() -> None:
    agent = agent_of()
    uninterrupted = shard_of(agent, restarts_episodes=True)
    play(uninterrupted, agent, range(1, 3))
    saved = {name: tensor.clone() for name, tensor in uninterrupted.state().items()}
    uninterrupted.restart_episodes(2)
    restored = shard_of(agent, restarts_episodes=True)
    restored.restore(saved, 2)
    one, two = (play(shard, agent, range(3, 5)) for shard in (uninterrupted, restored))
    assert same_bits(one, two)
    assert one[0].observations[0].tolist() == [[i, 200, 0] for i in range(COUNT)]
    assert one[0].valid[0].all()  # nothing is left of episodes that ended in the row before


def test_renew_does_not_change_a_restorable_engine(rollouts: list[Rollout]) -> None:
    agent = agent_of()
    shard = shard_of(agent)
    play(shard, agent, range(1, 3))
    shard.restart_episodes(2)
    assert same_bits(play(shard, agent, range(3, 4)), rollouts[2:3])


def test_no_global_generator_is_used() -> None:
    def states() -> list[bytes]:
        numpy_state = np.random.get_state()[1].tobytes()
        return [torch.get_rng_state().numpy().tobytes(), numpy_state, repr(random.getstate()).encode()]

    before = states()
    for spaces in (DISCRETE, CONTINUOUS):
        for orthogonal in (True, False):
            agent = Agent(spaces, PolicyConfig(orthogonal=orthogonal), True, seed=1, dtype=torch.float32)
            shard = shard_of(agent)
            update = Update(agent, PPOConfig(minibatches=2), Solo(), (0,), seed=1)
            update(collect([shard], agent, 1), 1, 0.0)
            choose_actions(agent, np.zeros((2, 3)), stream(1, "test"))
    assert states() == before
