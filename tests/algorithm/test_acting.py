"""Acting in NumPy against acting by PyTorch."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from tests.algorithm.test_agent import CONTINUOUS, DISCRETE, SIZE, agent_of, observations, see
from tests.watched import chosen, judged

from lockstep.algorithm.agent import Agent
from lockstep.envs.spaces import Spaces
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream


def by_pytorch(agent: Agent) -> Agent:
    """The same agent, computing as it would on a GPU."""
    agent._numpy_policy = None
    return agent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("spaces", "settings"),
    [(DISCRETE, {}), (CONTINUOUS, {}), (CONTINUOUS, {"squash": True, "log_std": 1.0, "shared": True})],
    ids=["discrete", "clipped", "squashed"],
)
def test_numpy_acts_as_pytorch_does(spaces: Spaces, settings: dict[str, object], dtype: torch.dtype) -> None:
    settings |= {"normalize_observations": True, "orthogonal": False}
    one, other = (agent_of(spaces, dtype=dtype, **settings) for _ in range(2))
    other = by_pytorch(other)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    steps, count = 5, 7
    rows = stream(3, "test").normal(3, 40, (steps + 1, count, SIZE))
    rows[2:] *= 0.01  # some of the normalized are cut off, some are not
    noise = one.distribution.noise(stream(4, "test"), steps, count)
    found = []
    for agent in (one, other):
        see(agent, observations(mean=3.0))
        own = torch.from_numpy(rows).to(dtype)
        taken = torch.zeros(noise.shape, dtype=dtype) if spaces is CONTINUOUS else torch.zeros(steps, count).long()
        actor = agent.actor(noise, taken.numpy())
        given = np.array([actor.act(t, own[t].numpy()).copy() for t in range(steps)])
        results = (actor.log_probs(), agent.values(own), *judged(agent, own, taken))
        found.append([taken.numpy(), given, *(x.numpy() for x in results)])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_acting_on_what_is_not_finite_passes_in_silence() -> None:
    agent = agent_of(normalize_observations=True, squash=True)
    taken = np.zeros((1, 2, 2))
    with np.errstate(all="raise"):
        given = agent.actor(np.zeros((1, 2, 2)), taken).act(0, np.array([[np.inf] * SIZE, [np.nan] * SIZE]))
    assert np.isfinite(given[0]).all()  # the observation is cut off at ±10
    assert np.isnan(given[1]).all()


def test_numpy_acts_only_where_the_networks_compute_in_their_own_precision() -> None:
    config = PolicyConfig(hidden=(8,))
    for autocast, expected in ((nullcontext, True), (partial(torch.autocast, "cpu", torch.bfloat16), False)):
        agent = Agent(CONTINUOUS, config, False, 1, torch.float32, autocast=autocast)
        assert (agent._numpy_policy is not None) is expected
        assert chosen(agent, observations().astype(np.float32), stream(1, "test")).dtype == np.float32
