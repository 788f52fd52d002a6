"""The dynamics of the pendulum, compared with physics, and the rewards of the two tasks."""

import math

import numpy as np
import pytest

from lockstep.envs.catalog import make_one
from lockstep.envs.settings import EnvConfig
from lockstep.envs.tasks.pendulum import GRAVITY, MAX_SPEED, TORQUE, UPRIGHT, Pendulum, advance


def energy(theta: float, omega: float) -> float:
    """Return the energy in J of a mass of 1 kg at a distance of 1 m."""
    return omega**2 / 2 + GRAVITY * math.cos(theta)


@pytest.mark.parametrize(("theta", "omega"), [(0.1, 0.0), (2.0, 1.0), (math.pi - 0.3, -0.5), (-1.0, 3.0)])
def test_energy_is_conserved_without_torque(theta: float, omega: float) -> None:
    before = energy(theta, omega)
    for _ in range(100):
        theta, omega = advance(theta, omega, 0.0)
    assert energy(theta, omega) == pytest.approx(before, abs=2e-3)


def test_the_energy_grows_by_the_work_of_the_torque() -> None:
    theta, omega, work = math.pi, 0.0, 0.0
    before = energy(theta, omega)
    for _ in range(50):
        last = theta
        theta, omega = advance(theta, omega, 3.0)
        work += 3.0 * (theta - last)
    assert energy(theta, omega) - before == pytest.approx(work, abs=2e-3)


def test_the_period_of_a_small_swing() -> None:
    theta, omega, crossings = math.pi - 0.02, 0.0, []
    for step in range(400):
        last = theta - math.pi
        theta, omega = advance(theta, omega, 0.0, 0.01)
        if last < 0 <= theta - math.pi:
            crossings.append(step)
    period = 0.01 * (crossings[-1] - crossings[0]) / (len(crossings) - 1)
    assert period == pytest.approx(2 * math.pi / math.sqrt(GRAVITY), abs=0.01)


def test_the_integrator_is_of_fourth_order() -> None:
    def error(parts: int) -> float:
        theta, omega = 2.0, 0.5
        for _ in range(parts):
            theta, omega = advance(theta, omega, 1.0, 1.0 / parts)
        return abs(theta - exact)

    exact = 0.0
    exact = error(4096)
    assert 12 < error(40) / error(80) < 20  # 2**4 in the limit


def test_constant_torque_does_not_lift_the_pendulum() -> None:
    env = Pendulum(sparse=False)
    env.reset(seed=1)
    env.theta, env.omega = math.pi, 0.0
    angles = []
    for _ in range(100):
        env.step(np.array([1.0], dtype=np.float32))
        angles.append(abs(math.remainder(env.theta - math.pi, 2 * math.pi)))
    assert max(angles) < math.pi / 2 + 0.3  # far from upright, which is at π
    assert TORQUE < GRAVITY


def test_dense_reward() -> None:
    env = Pendulum(sparse=False)
    env.reset(seed=1)
    env.theta, env.omega = 0.0, 0.0
    observation, reward, terminated, truncated, _ = env.step(np.array([0.0], dtype=np.float32))
    assert (observation.tolist(), reward, terminated, truncated) == ([1.0, 0.0, 0.0], 0.0, False, False)
    env.theta, env.omega = 3.0, 5.0  # the angle passes π and wraps around
    observation, reward, *_ = env.step(np.array([2.0], dtype=np.float32))  # clipped to 1
    assert -math.pi <= env.theta < -2.9
    assert reward == pytest.approx(-(env.theta**2 + 0.1 * env.omega**2 + 0.001 * TORQUE**2))
    assert observation == pytest.approx([math.cos(env.theta), math.sin(env.theta), env.omega / MAX_SPEED])


def test_sparse_reward_is_one_while_upright() -> None:
    env = Pendulum(sparse=True)
    env.reset(seed=1)
    for theta, expected in (
        (0.0, 1.0),
        (UPRIGHT - 0.05, 1.0),
        (-UPRIGHT + 0.05, 1.0),
        (UPRIGHT + 0.05, 0.0),
        (math.pi, 0.0),
    ):
        env.theta, env.omega = theta, 0.0
        assert env.step(np.zeros(1, dtype=np.float32))[1] == expected, theta


@pytest.mark.parametrize("env_id", ["pendulum-dense", "pendulum-sparse"])
def test_episodes_are_truncated_after_100_steps_and_start_anywhere(env_id: str) -> None:
    env = make_one(EnvConfig(id=env_id))
    quarters = set()
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        quarters.add((observation[0] > 0, observation[1] > 0))
    assert len(quarters) == 4
    flags = [env.step(env.action_space.high)[2:4] for _ in range(100)]
    assert flags == [(False, False)] * 99 + [(False, True)]
    env.reset()
    for _ in range(100):
        observation, *_ = env.step(env.action_space.high)
        assert env.observation_space.contains(observation)
