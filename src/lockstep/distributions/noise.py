"""Exploration noise that is correlated over time."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["colored"]


def colored(white: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Give white noise `[T, …]` a power spectrum of 1 / f^β over time, with variance 1 (Timmer & König 1995).

    `exponent` is β: 0 returns white noise, 1 pink noise, 2 red noise (a random walk). Every value remains normally distributed; only the
    correlation over time changes. The lowest frequency, 0, has the power of 1 / T. For on-policy learning see Hollenstein et al. 2024
    (arXiv:2312.11091).
    """
    steps = len(white)
    if exponent == 0 or steps < 2:
        return white
    frequencies = np.fft.rfftfreq(steps)
    frequencies[0] = frequencies[1]
    amplitudes = frequencies ** (-exponent / 2)
    # each amplitude but that of frequency 0 (and of 1/2, if T is even) belongs to two of the T frequencies of a real signal
    counts = np.full(len(amplitudes), 2.0)
    counts[0] = 1
    if steps % 2 == 0:
        counts[-1] = 1
    amplitudes /= np.sqrt((counts * np.square(amplitudes)).sum() / steps)
    spectrum = np.fft.rfft(white, axis=0) * amplitudes.reshape(-1, *[1] * (white.ndim - 1))
    return np.fft.irfft(spectrum, steps, axis=0)
