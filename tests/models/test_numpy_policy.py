"""Tests of networks in NumPy, compared with PyTorch."""

import numpy as np
import pytest
import torch

from lockstep.distributions.discrete import Categorical
from lockstep.distributions.gaussian import Gaussian
from lockstep.models.flat import FlatParameters
from lockstep.models.numpy_policy import _BLOCK, NumpyPolicy, without_warnings
from lockstep.models.policy import Policy
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

OBSERVATION, HEAD = 5, 3
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def policy_of(dtype: torch.dtype, std_size: int = 0, **settings: object) -> tuple[Policy, FlatParameters]:
    config = PolicyConfig(**{"hidden": (16, 8), "log_std": 0.0, "orthogonal": False, **settings})
    distribution = Gaussian(HEAD) if std_size else Categorical(HEAD)
    policy = Policy(OBSERVATION, distribution, config, torch.Generator().manual_seed(1), dtype)
    return policy, FlatParameters(policy.parameter_groups())


def rows_of(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(stream(1, "test").normal(0, 3, (count, OBSERVATION))).to(dtype)


def head_of(numpy_policy: NumpyPolicy, rows: torch.Tensor) -> np.ndarray:
    return numpy_policy.head(len(rows))(rows.numpy(), np.empty((len(rows), HEAD), dtype=rows.numpy().dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "gelu"])
@pytest.mark.parametrize("count", [1, 8, _BLOCK + 3])
def test_numpy_policies_equal_pytorch(activation: str, shared: bool, dtype: torch.dtype, count: int) -> None:
    policy, _ = policy_of(dtype, activation=activation, shared=shared)
    numpy_policy, rows = NumpyPolicy(policy, activation), rows_of(count, dtype)
    head, values = policy(rows)
    results = (head_of(numpy_policy, rows), *numpy_policy.forward(rows.numpy()), numpy_policy.value(rows.numpy()))
    for result, expected in zip(results, (head, head, values, values), strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected.detach(), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    "settings",
    [
        {"value_hidden": (4,)},
        {"value_hidden": (32, 16, 8)},
        {"head_hidden": (6, 5)},
        {"head_hidden": (6,), "shared": True},
        {"head_hidden": (6,), "hidden": ()},
    ],
)
@pytest.mark.parametrize("count", [1, _BLOCK + 3])
def test_hidden_layers_of_critic_and_heads(count: int, settings: dict[str, object]) -> None:
    policy, _ = policy_of(torch.float64, **settings)
    numpy_policy, rows = NumpyPolicy(policy, "tanh"), rows_of(count, torch.float64)
    head, values = policy(rows)
    results = (head_of(numpy_policy, rows), *numpy_policy.forward(rows.numpy()), numpy_policy.value(rows.numpy()))
    for result, expected in zip(results, (head, head, values, values), strict=True):
        np.testing.assert_allclose(result, expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("std_size", [0, HEAD])
def test_numpy_policies_follow_the_weights(std_size: int) -> None:
    policy, flat = policy_of(torch.float64, std_size)
    numpy_policy, rows = NumpyPolicy(policy, "tanh"), rows_of(4, torch.float64)
    before = head_of(numpy_policy, rows)
    flat.buffer += 0.25
    head, values = policy(rows)
    results = (head_of(numpy_policy, rows), *numpy_policy.forward(rows.numpy()))
    assert not np.array_equal(results[0], before)
    for result, expected in zip(results, (head[:, :HEAD], head, values), strict=True):
        np.testing.assert_allclose(result, expected.detach(), rtol=0, atol=1e-12)
    assert (None if numpy_policy.log_std is None else numpy_policy.log_std.tolist()) == (
        [0.25] * HEAD if std_size else None
    )


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "gelu"])
def test_non_finite_numbers_raise_no_warning(activation: str) -> None:
    policy, _ = policy_of(torch.float32, activation=activation)
    numpy_policy = NumpyPolicy(policy, activation)
    rows = np.full((2, OBSERVATION), [[np.inf], [np.nan]], dtype=np.float32)
    with np.errstate(all="raise"):
        assert numpy_policy.forward(rows)[1][1].isnan()
        assert numpy_policy.value(rows)[1].isnan()
        out = np.zeros((2, HEAD), dtype=np.float32)
        assert np.isnan(without_warnings(numpy_policy.head(2))(rows, out)[1]).all()
        if np.lib.NumpyVersion(np.__version__) >= "2.3.0":  # older versions do not report invalid products
            with pytest.raises(FloatingPointError):
                numpy_policy.head(2)(rows, out)
