"""Tests of `compiling.recurrence`: the bits of the library are those of NumPy."""

import numpy as np
import pytest

from lockstep.compiling import recurrence
from lockstep.compiling.library import load_interpreter
from lockstep.compiling.recurrence import recur


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (7, 0), (256, 8), (33, 37)])
def test_library_has_the_bits_of_numpy(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], dtype: type, backward: bool
) -> None:
    rng = np.random.default_rng(3)
    steps, width = shape
    rows = rng.standard_normal(shape).astype(dtype)
    rows[steps // 2 :, : width // 2] = -0.0
    factors = rng.choice([0.0, 0.99, -1.1, 1e-30], (steps - 1, width)).astype(dtype)
    load_interpreter()
    compiled, plain = rows.copy(), rows.copy()
    recur(compiled, factors, backward)
    monkeypatch.setattr(recurrence, "loaded_interpreter", lambda: None)
    recur(plain, factors, backward)
    assert compiled.tobytes() == plain.tobytes()
    expected = rows.astype(np.float64)
    for t in range(steps - 1):
        if backward:
            expected[-t - 2] += factors[-t - 1] * expected[-t - 1]
        else:
            expected[t + 1] += factors[t] * expected[t]
    np.testing.assert_allclose(compiled, expected, rtol=1e-4, atol=1e-5)


def test_rows_that_are_not_contiguous() -> None:
    load_interpreter()
    rows, factors = np.arange(6.0).reshape(2, 3).T, np.array([[2.0, 0.5], [1.0, 3.0]]).T.copy().T
    recur(rows, factors)
    assert rows.tolist() == [[0, 3], [1, 5.5], [3, 21.5]]
