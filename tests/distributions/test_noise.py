"""Colored noise against its definition: variance 1, and a power of 1 / f^β at each frequency."""

import numpy as np
import pytest

from lockstep.distributions.gaussian import Gaussian
from lockstep.distributions.joint import joint_of
from lockstep.distributions.noise import colored
from lockstep.randomness import stream

COLUMNS = 4000


def white(steps: int, columns: int = COLUMNS) -> np.ndarray:
    return stream(1, "test").standard_normal((steps, columns))


@pytest.mark.parametrize("steps", [63, 64])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_power_falls_with_frequency(steps: int, exponent: float) -> None:
    noise = colored(white(steps), exponent)
    assert noise.shape == (steps, COLUMNS)
    assert noise.var() == pytest.approx(1, abs=0.05)
    power = np.square(np.abs(np.fft.rfft(noise, axis=0))).mean(1)[1:]
    expected = np.fft.rfftfreq(steps)[1:] ** -exponent
    assert power / power[0] == pytest.approx(expected / expected[0], rel=0.15)


def test_exponent_zero_leaves_white_noise_unchanged() -> None:
    noise = white(16)
    assert colored(noise, 0.0) is noise


def test_one_step_is_unchanged() -> None:
    noise = white(1)
    assert colored(noise, 1.0) is noise


def test_bits_of_a_column_do_not_depend_on_the_others() -> None:
    noise = white(50, 7)
    assert np.array_equal(colored(noise, 1.0)[:, 2:3], colored(noise[:, 2:3], 1.0))


@pytest.mark.parametrize(("choices", "first"), [((), 0), ((3, 2), 5)], ids=["continuous", "joint"])
def test_only_continuous_components_are_colored(choices: tuple[int, ...], first: int) -> None:
    plain, correlated = (
        joint_of(choices, Gaussian(2, 0.0, exponent)).noise(stream(1, "actions"), 64, 3) for exponent in (0.0, 1.0)
    )
    assert np.array_equal(plain[..., :first], correlated[..., :first])
    assert np.array_equal(colored(plain[..., first:], 1.0), correlated[..., first:])


def test_noise_of_a_single_step_is_white() -> None:
    plain, correlated = (Gaussian(2, 0.0, exponent).noise(stream(1, "actions"), 3) for exponent in (0.0, 1.0))
    assert np.array_equal(plain, correlated)
