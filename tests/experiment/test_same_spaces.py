"""Check that all ranks have environments with the same spaces."""

import dataclasses

import numpy as np
import pytest
from tests.threaded import on_ranks

from lockstep.envs.spaces import Spaces
from lockstep.experiment.same_spaces import SpacesDiffer, check_same_spaces
from lockstep.group.group import Group

BOUND = np.ones(2, np.float32)
SPACES = Spaces(5, (3, 4), -BOUND, BOUND)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"observation_size": 6}, "6 instead of 5 numbers per observation"),
        ({"images": ((1, 2, 3),)}, "6 instead of 0 bytes of images per observation"),
        ({"choices": (3,)}, "1 instead of 2 choices per action"),
        ({"choices": (4, 3)}, "other bounds, options or shapes"),
        ({"action_high": 2 * BOUND}, "other bounds, options or shapes"),
        ({"mask_size": 1}, "other bounds, options or shapes"),
    ],
)
def test_all_ranks_raise_the_same_error(other: dict[str, object], difference: str) -> None:
    def check(group: Group, _: object) -> str:
        spaces = dataclasses.replace(SPACES, **other) if group.rank == 1 else SPACES
        with pytest.raises(SpacesDiffer) as error:
            check_same_spaces(group, spaces, "X-v0")
        return str(error.value)

    messages = on_ranks([[0], [1], [2]], check)
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"env.id is 'X-v0': rank 1 has other spaces than rank 0 ({difference}); ")


def test_equal_spaces_pass() -> None:
    assert on_ranks([[0], [1]], lambda group, _: check_same_spaces(group, SPACES, "X-v0")) == [None, None]
