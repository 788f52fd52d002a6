"""Sizes of a cluster of Ray, without a cluster."""

import sys
from types import SimpleNamespace

import pytest

from lockstep.clusters.ray_connection import rank_capacity


@pytest.mark.parametrize(
    ("cpu", "expected"), [(0.1, 10 + 25), (1.0, 1 + 2), (0.3, 3 + 8), (2.0, 0 + 1), (4.0, 0)], ids=str
)
def test_number_of_ranks_that_fit_on_the_nodes(cpu: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": cores}} for cores in (1.0, 2.5)]
    nodes.append({"Alive": False, "Resources": {"CPU": 64.0}})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: nodes))
    assert rank_capacity({"CPU": cpu}) == expected
