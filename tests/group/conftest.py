"""Processes that end with their test."""

from collections.abc import Iterator

import pytest
from tests.group.members import Ranks


@pytest.fixture(name="started")
def fixture_started() -> Iterator[Ranks]:
    ranks: Ranks = []
    yield ranks
    for rank in ranks:
        rank.kill()
        rank.communicate()
