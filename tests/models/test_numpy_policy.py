"""The networks in NumPy against the networks in PyTorch."""

import numpy as np
import pytest
import torch

from lockstep.models.flat import FlatParameters
from lockstep.models.numpy_policy import _BLOCK, NumpyPolicy, silent
from lockstep.models.policy import Policy
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

OBSERVATION, HEAD = 5, 3
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def policy_of(dtype: torch.dtype, std_size: int = 0, **settings: object) -> tuple[Policy, FlatParameters]:
    config = PolicyConfig(hidden=(16, 8), orthogonal=False, **settings)
    policy = Policy(OBSERVATION, HEAD, std_size, config, torch.Generator().manual_seed(1), dtype)
    return policy, FlatParameters(policy.parts())


def rows_of(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(stream(1, "test").normal(0, 3, (count, OBSERVATION))).to(dtype)


def head_of(inference: NumpyPolicy, rows: torch.Tensor) -> np.ndarray:
    return inference.head(len(rows))(rows.numpy(), np.empty((len(rows), HEAD), dtype=rows.numpy().dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
@pytest.mark.parametrize("count", [1, 8, _BLOCK + 3])
def test_equals_pytorch(activation: str, shared: bool, dtype: torch.dtype, count: int) -> None:
    policy, _ = policy_of(dtype, activation=activation, shared=shared)
    inference, rows = NumpyPolicy(policy, activation), rows_of(count, dtype)
    head, values = policy(rows)
    found = (head_of(inference, rows), *inference.forward(rows.numpy()), inference.value(rows.numpy()))
    for ours, theirs in zip(found, (head, head, values, values), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs.detach(), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("std_size", [0, HEAD])
def test_follows_the_weights(std_size: int) -> None:
    policy, flat = policy_of(torch.float64, std_size)
    inference, rows = NumpyPolicy(policy, "tanh"), rows_of(4, torch.float64)
    before = head_of(inference, rows)
    flat.buffer += 0.25
    head, values = policy(rows)
    found = (head_of(inference, rows), *inference.forward(rows.numpy()))
    assert not np.array_equal(found[0], before)
    for ours, theirs in zip(found, (head[:, :HEAD], head, values), strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), rtol=0, atol=1e-12)
    assert (None if inference.log_std is None else inference.log_std.tolist()) == ([0.25] * HEAD if std_size else None)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_what_is_not_finite_passes_in_silence(activation: str) -> None:
    policy, _ = policy_of(torch.float32, activation=activation)
    inference = NumpyPolicy(policy, activation)
    rows = np.full((2, OBSERVATION), [[np.inf], [np.nan]], dtype=np.float32)
    with np.errstate(all="raise"):
        assert inference.forward(rows)[1][1].isnan()
        assert inference.value(rows)[1].isnan()
        out = np.zeros((2, HEAD), dtype=np.float32)
        assert np.isnan(silent(inference.head(2))(rows, out)[1]).all()
        with pytest.raises(FloatingPointError):
            inference.head(2)(rows, out)
