"""Agent: actions, normalization of observations, state and digest."""

import numpy as np
import pytest
import torch
from tests.watched import choose_actions, evaluate_rows

from lockstep.algorithm.agent import Agent
from lockstep.envs.spaces import Spaces
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

SIZE = 3


def bounds(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


DISCRETE = Spaces(SIZE, (4,), bounds(), bounds())
CONTINUOUS = Spaces(SIZE, (), bounds(-1, 0), bounds(1, 10))


def agent_of(
    spaces: Spaces = CONTINUOUS, seed: int = 1, dtype: torch.dtype = torch.float64, **settings: object
) -> Agent:
    config = PolicyConfig(hidden=(8,), **settings)
    return Agent(spaces, config, normalize_rewards=True, seed=seed, dtype=dtype)


def observations(count: int = 6, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    return stream(1, "test").normal(mean, std, (count, SIZE))


def observe(agent: Agent, rows: np.ndarray) -> None:
    """Merge `rows` into the running statistics of observations."""
    assert agent.observation_statistics is not None
    agent.observation_statistics.merge(
        agent.observation_statistics.sums(torch.from_numpy(rows), torch.ones(len(rows), dtype=torch.bool)),
        agent.observation_statistics.mean,
    )
    agent.refresh()


def test_actions_are_clipped_to_the_bounds() -> None:
    drawn = np.float32([[-3.0, 5.0], [0.5, -0.1], [3.0, 11.0]])
    assert agent_of(dtype=torch.float32).action_transform(3)(drawn).tolist() == [[-1, 5], [0.5, 0], [1, 10]]


def test_squashed_actions_are_scaled_to_the_bounds() -> None:
    agent = agent_of(squash=True)
    drawn = np.array([[0.0, 0.0], [-40.0, 40.0], [np.arctanh(0.5), np.arctanh(-0.5)]])
    # tanh 0, -1, +1, ½, -½ onto [-1, 1] and [0, 10]
    np.testing.assert_allclose(agent.action_transform(3)(drawn), [[0, 5], [-1, 10], [0.5, 2.5]], atol=1e-12)


def test_discrete_actions_are_passed_unchanged() -> None:
    agent = agent_of(DISCRETE)
    actions = choose_actions(agent, observations(), stream(1, "test"))
    assert actions.dtype == np.int64
    assert set(actions.tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_evaluate_and_act_use_the_same_policy(spaces: Spaces) -> None:
    agent = agent_of(spaces)
    steps, count = 4, 5
    rows = torch.from_numpy(stream(3, "test").standard_normal((steps + 1, count, SIZE)))
    noise = agent.distribution.noise(stream(4, "test"), steps, count)
    actions = (
        torch.zeros(noise.shape[:2], dtype=torch.int64) if spaces is DISCRETE else torch.zeros(noise.shape).double()
    )
    actor = agent.actor(noise, actions.numpy())
    for t in range(steps):
        actor.act(t, rows[t].numpy())
    values, log_probs = evaluate_rows(agent, rows, actions)
    assert torch.allclose(actor.log_probs(), log_probs, rtol=0, atol=1e-12)
    assert torch.allclose(agent.values(rows), values, rtol=0, atol=1e-12)
    assert values.shape == (steps + 1, count)
    for t in range(steps):
        parameters, row_values = agent.policy(rows[t])
        expected = (
            torch.distributions.Categorical(logits=parameters)
            if spaces is DISCRETE
            else torch.distributions.Independent(
                torch.distributions.Normal(parameters[:, :2], parameters[:, 2:].exp()), 1
            )
        )
        assert torch.allclose(log_probs[t], expected.log_prob(actions[t]), rtol=0, atol=1e-12)
        assert torch.allclose(values[t], row_values, rtol=0, atol=1e-12)
    assert torch.allclose(values[steps], agent.policy.value(rows[steps]), rtol=0, atol=1e-12)


def test_mode_is_the_most_probable_action() -> None:
    agent, rows = agent_of(), observations()
    mean = agent.policy.act(torch.from_numpy(rows))[0][:, :2].detach().numpy()
    np.testing.assert_array_equal(
        choose_actions(agent, rows), np.clip(mean, CONTINUOUS.action_low, CONTINUOUS.action_high)
    )


def test_networks_receive_normalized_observations() -> None:
    agent = agent_of(normalize_observations=True)
    rows = observations(1000, mean=50.0, std=4.0)
    before = choose_actions(agent, rows)
    assert torch.equal(
        agent.normalize(torch.from_numpy(rows)), torch.from_numpy(rows).clamp(-10, 10)
    )  # nothing seen yet
    observe(agent, rows)
    normalized = agent.normalize(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(normalized.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(normalized.std(0), 1, atol=1e-6)
    assert not np.array_equal(choose_actions(agent, rows), before)
    assert agent.normalize(torch.full((1, SIZE), 1e9, dtype=torch.float64)).tolist() == [[10] * SIZE]


def test_observations_are_unchanged_without_normalization() -> None:
    rows = torch.full((1, SIZE), 1e9, dtype=torch.float64)
    assert agent_of().normalize(rows) is rows


def test_loading_a_state_gives_an_equal_agent() -> None:
    one, two = agent_of(seed=1, normalize_observations=True), agent_of(seed=2, normalize_observations=True)
    observe(one, observations(mean=3.0))
    assert one.digest() != two.digest()
    two.load({name: tensor.clone() for name, tensor in one.state().items()})
    assert one.digest() == two.digest()
    assert np.array_equal(choose_actions(one, observations()), choose_actions(two, observations()))
    observe(two, observations())  # and it is a copy
    assert one.digest() != two.digest()


def test_digest_covers_every_number() -> None:
    agent = agent_of(normalize_observations=True)
    observe(agent, observations())
    digests = {agent.digest()}
    for name, tensor in agent.state().items():
        flat = tensor.view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.full_like(flat[-1], 9))
        digests.add(agent.digest())
        assert len(digests) == 1 + list(agent.state()).index(name) + 1, name


@pytest.mark.parametrize("mismatch", ["missing tensor", "unknown tensor", "shape", "dtype"])
def test_mismatched_state_is_reported_in_one_line_and_not_loaded(mismatch: str) -> None:
    agent, state = agent_of(seed=1), agent_of(seed=2).state()
    name = "policy.value_head.weight"
    match mismatch:
        case "missing tensor":
            del state[name]
        case "unknown tensor":
            name = "policy.third_head.weight"
            state[name] = torch.zeros(1)
        case "shape":
            state[name] = torch.zeros(1, 9, dtype=torch.float64)
        case "dtype":
            state[name] = state[name].float()
    before = agent.digest()
    with pytest.raises(ValueError, match=name) as caught:
        agent.load(state)
    assert "\n" not in str(caught.value)
    assert agent.digest() == before
