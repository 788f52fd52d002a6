"""Fixture of processes that are killed at the end of their test."""

from collections.abc import Iterator

import pytest
from tests.group.members import Ranks


@pytest.fixture(name="started")
def fixture_started() -> Iterator[Ranks]:
    """Yield a list to which tests append processes."""
    ranks: Ranks = []
    yield ranks
    for rank in ranks:
        rank.kill()
        rank.communicate()
