"""Places of values in memory: parts of a concatenation are computed at their place in it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lockstep.compiling.instructions import COPY
from lockstep.compiling.kernels import InterpretedKernel
from lockstep.compiling.trace import trace

X = torch.linspace(-1, 1, 48).view(6, 8)
Formula = Callable[[Tensor], tuple[Tensor, ...]]


def copies(formula: Formula) -> int:
    """Return the number of copies in the program of a formula."""
    words, position, count = trace(formula, (X,))[0].words, 0, 0
    while position < len(words):
        count += words[position] == COPY
        position += words[position + 1]
    return count


def parts(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.cat([x.tanh(), x.exp() * 2, x[:2] @ x.T @ x]),)


def nested(x: Tensor) -> tuple[Tensor, ...]:
    inner = torch.cat([x.tanh(), x.exp()])
    return x.sum(0), torch.cat([x.square(), inner, inner.sum(0, keepdim=True)])


def inside(x: Tensor) -> tuple[Tensor, ...]:
    return ((torch.cat([x.tanh(), x.exp()]) @ x.T).square(),)


def nested_inside(x: Tensor) -> tuple[Tensor, ...]:
    inner = torch.cat([x.tanh(), x.exp()])
    outer = torch.cat([x.square(), inner])
    return inner @ x.T, outer @ x.T, torch.cat([outer @ x.T, x @ x.T])


def read_later(x: Tensor) -> tuple[Tensor, ...]:
    part = x.tanh()
    return x.sum(0), torch.cat([part, x.exp()]), part @ x.T


def twice(x: Tensor) -> tuple[Tensor, ...]:
    part = x.tanh()
    return torch.cat([part, part]), torch.cat([x.exp(), part])


def argument(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.cat([x, x.exp()]),)


def columns(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.cat([x.tanh(), x.exp()], 1),)


def view_of_part(x: Tensor) -> tuple[Tensor, ...]:
    part = x.tanh()
    return torch.cat([part[1:], x.exp()]), part


def overwritten(x: Tensor) -> tuple[Tensor, ...]:
    result = x.new_zeros(8, 8)
    result[1:7] = x * 2
    return (result,)


def overwritten_later(x: Tensor) -> tuple[Tensor, ...]:
    part = x.exp() + x  # computed before the concatenation, and copied over its first part
    result = torch.cat([x.tanh(), x.square()])
    result[:6] = part
    return x.sum(0), result, part @ x.T


def first_is_read_later(x: Tensor) -> tuple[Tensor, ...]:
    part = x.tanh()
    return torch.cat([part, x.exp()]), part @ x.T


def part_of_first_is_read_later(x: Tensor) -> tuple[Tensor, ...]:
    part = x.tanh()
    return torch.cat([torch.cat([part, x.exp()]), x.square()]), part @ x.T


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (parts, 0),
        (nested, 0),
        (inside, 0),
        (nested_inside, 0),
        (read_later, 0),
        (twice, 2),  # a value has one place
        (argument, 1),
        (columns, 2),  # the rows of the parts are not next to each other
        (view_of_part, 1),
        (overwritten, 1),  # it would be filled with zeros afterwards
        (overwritten_later, 1),
        (part_of_first_is_read_later, 1),
        (first_is_read_later, 1),  # the first result may be changed before the others are computed
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_parts_of_a_concatenation_are_not_copied(formula: Formula, expected: int) -> None:
    assert copies(formula) == expected
    for x in (X, X.double()):
        results = InterpretedKernel(formula, (x,))(x)
        for result, eager in zip(results, formula(x), strict=True):
            assert torch.allclose(result, eager.reshape(result.shape), atol=1e-6)
