"""The policy in NumPy and as a kernel: comparison with the same policy in PyTorch."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from tests.algorithm.test_agent import CONTINUOUS, DISCRETE, SIZE, agent_of, observations, observe
from tests.models.test_distributions import Laplace
from tests.watched import choose_actions, evaluate_rows

from lockstep.algorithm.agent import Agent
from lockstep.envs.spaces import Spaces
from lockstep.models.registry import register_distribution
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

register_distribution("laplace", Laplace)


def with_pytorch_policy(agent: Agent) -> Agent:
    """Make the agent act through PyTorch, as on a GPU."""
    agent._numpy_policy = None
    return agent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("spaces", "settings"),
    [
        (DISCRETE, {}),
        (CONTINUOUS, {}),
        (CONTINUOUS, {"squash": True, "log_std": 1.0, "shared": True}),
        (CONTINUOUS, {"distribution": "gaussian-state-std"}),
        (CONTINUOUS, {"distribution": "beta"}),
        (CONTINUOUS, {"distribution": "gsde", "sde_sample_freq": 2, "squash": True}),
        (CONTINUOUS, {"distribution": "laplace", "head_hidden": (5,)}),
    ],
    ids=["discrete", "clipped", "squashed", "state", "beta", "gsde", "registered"],
)
def test_numpy_pytorch_and_kernels_give_the_same_actions(
    spaces: Spaces, settings: dict[str, object], dtype: torch.dtype
) -> None:
    settings |= {"normalize_observations": True, "orthogonal": False}
    numpy_agent, pytorch_agent, kernel_agent = (agent_of(spaces, dtype=dtype, **settings) for _ in range(3))
    pytorch_agent = with_pytorch_policy(pytorch_agent)
    kernel_agent.use_kernels()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    if settings.get("distribution") == "beta":
        tolerance *= 10  # its density is steep: α and β are about 50 here
    steps, count = 5, 7
    rows = stream(3, "test").normal(3, 40, (steps + 1, count, SIZE))
    rows[2:] *= 0.01  # some of the normalized are cut off, some are not
    noise = numpy_agent.distribution.noise(stream(4, "test"), steps, count)
    results_of_agents = []
    for agent in (pytorch_agent, numpy_agent, kernel_agent):
        agent.actor(noise.copy(), np.zeros((steps, count, 2) if spaces is CONTINUOUS else (steps, count)))
        agent.flat.buffer *= 1.1  # kernels made for earlier actors use the present weights and statistics
        observe(agent, observations(mean=3.0))
        observed = torch.from_numpy(rows).to(dtype)
        actions = (
            torch.zeros(steps, count, 2, dtype=dtype) if spaces is CONTINUOUS else torch.zeros(steps, count).long()
        )
        actor = agent.actor(noise.copy(), actions.numpy())
        env_actions = np.array([actor.act(t, observed[t].numpy()).copy() for t in range(steps)])
        results = (actor.log_probs(), agent.values(observed), *evaluate_rows(agent, observed, actions))
        results_of_agents.append([actions.numpy(), env_actions, *(x.numpy() for x in results)])
    for results in results_of_agents[1:]:
        for result, pytorch_result in zip(results, results_of_agents[0], strict=True):
            assert result.dtype == pytorch_result.dtype
            np.testing.assert_allclose(result, pytorch_result, rtol=tolerance, atol=tolerance)


JOINT = Spaces(SIZE, (2, 3), np.array([-1.0, -0.1], np.float32), np.array([1.0, 0.1], np.float32), (), 0)


@pytest.mark.parametrize("squash", [False, True])
def test_joint_actions_with_kernels(squash: bool) -> None:
    numpy_agent, kernel_agent = (agent_of(JOINT, dtype=torch.float64, squash=squash) for _ in range(2))
    kernel_agent.use_kernels()
    noise, results = numpy_agent.distribution.noise(stream(4, "test"), 20, 7), []
    for agent in (numpy_agent, kernel_agent):
        actions = np.zeros((20, 7, 4))
        actor = agent.actor(noise.copy(), actions)
        env_actions = [actor.act(t, observations(7)).copy() for t in range(20)]
        results.append([actions, np.array(env_actions), actor.log_probs().numpy()])
    for of_numpy, of_kernels in zip(*results, strict=True):
        np.testing.assert_allclose(of_kernels, of_numpy, rtol=1e-12, atol=1e-12)
    env_actions = results[1][1]
    assert set(env_actions[..., 1].ravel()) == {0, 1, 2}
    assert abs(env_actions[..., 3]).max() <= np.float32(0.1) < abs(results[1][0][..., 3]).max()


@pytest.mark.parametrize("kernels", [False, True])
def test_discrete_actions_exist_if_observations_are_not_finite(kernels: bool) -> None:
    agent = agent_of(DISCRETE)
    if kernels:
        agent.use_kernels()
    actions = np.full((1, 2), 9)
    agent.actor(np.zeros((1, 2, 4)), actions).act(0, np.array([[np.nan] * SIZE, [np.inf] * SIZE]))
    assert actions.tolist() == [[0, 0]]


@pytest.mark.parametrize("kernels", [False, True])
def test_acting_on_non_finite_observations_gives_no_numpy_warning(kernels: bool) -> None:
    agent = agent_of(normalize_observations=True, squash=True)
    if kernels:
        agent.use_kernels()
    actions = np.zeros((1, 2, 2))
    with np.errstate(all="raise"):
        env_actions = agent.actor(np.zeros((1, 2, 2)), actions).act(0, np.array([[np.inf] * SIZE, [np.nan] * SIZE]))
    assert np.isfinite(env_actions[0]).all()  # the observation is cut off at ±10
    assert np.isnan(env_actions[1]).all()


def test_autocast_disables_the_numpy_policy() -> None:
    config = PolicyConfig(hidden=(8,))
    for autocast, expected in ((nullcontext, True), (partial(torch.autocast, "cpu", torch.bfloat16), False)):
        agent = Agent(CONTINUOUS, config, False, 1, torch.float32, autocast=autocast)
        assert (agent._numpy_policy is not None) is expected
        assert choose_actions(agent, observations().astype(np.float32), stream(1, "test")).dtype == np.float32
