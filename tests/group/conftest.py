"""Fixture of processes that are killed at the end of their test."""

from collections.abc import Iterator

import pytest
from tests.group.members import Ranks
from tests.warm import Warm


@pytest.fixture(name="started")
def fixture_started(warm: Warm) -> Iterator[Ranks]:
    """Yield a list to which tests append processes."""
    ranks = Ranks(warm)
    yield ranks
    for rank in ranks:
        rank.kill()
        rank.communicate()
