"""The cost of communication in predictions: bytes, and which way of adding rows is faster."""

import json
import math
import re
from pathlib import Path

import pytest

from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.algorithm.publishers import FAN_OUT, publishers
from lockstep.bench.simulation.network import (
    NETWORKS,
    Cluster,
    Network,
    Rows,
    adds_slices,
    message_seconds,
    received_bytes,
    reduction_seconds,
)
from lockstep.group import reduction
from lockstep.group.reduction import is_chain_faster


def hosts(ranks: int, name: str = "10gbe") -> Cluster:
    """Create a cluster with `ranks` ranks and cores per host."""
    return Cluster(ranks, ranks, NETWORKS[name])


def test_bytes_are_those_of_the_documented_table(root: Path) -> None:
    page = (root / "docs" / "scaling.md").read_text(encoding="utf-8")
    cells = re.findall(
        r"^\| ([\d,]+) ranks, ([\d,]+) elements.*?\| ([\d.]+) (MB|GB) \| ([\d.]+) MB \|$", page, re.MULTILINE
    )
    assert len(cells) == 3
    for ranks, numbers, gathered, unit, sliced in cells:
        count = int(ranks.replace(",", ""))
        rows = Rows(count, 1, int(numbers.replace(",", "")), 4)
        million = 1e9 if unit == "GB" else 1e6
        assert received_bytes(rows, count, slices=False) / million == pytest.approx(float(gathered), abs=0.05)
        assert received_bytes(rows, count, slices=True) / 1e6 == pytest.approx(float(sliced), rel=0.02)


def test_bytes_are_those_that_were_measured(root: Path) -> None:
    for record in json.loads((root / "benchmarks" / "traffic.json").read_text())["records"]:
        rows = Rows(record["ranks"], 1, record["floats"], 4)
        assert received_bytes(rows, record["ranks"], record["way"] == "slices") == pytest.approx(record["predicted"])
        assert adds_slices(rows, in_memory=False) == (record["chosen"] == (record["way"] == "slices"))


def test_times_on_the_loopback_interface_are_about_those_that_were_measured(root: Path) -> None:
    """All ranks share 2 cores, so this includes the cost of sharing. The constants are fitted to these records."""
    ratios = []
    for record in json.loads((root / "benchmarks" / "traffic.json").read_text())["records"]:
        if record["chosen"]:
            cluster = Cluster(record["ranks"], 2, NETWORKS["loopback"], shared_memory=False)
            seconds = reduction_seconds(cluster, range(record["ranks"]), Rows(record["ranks"], 1, record["floats"], 4))
            ratios.append(seconds * 1e3 / sorted(record["milliseconds"])[len(record["milliseconds"]) // 2])
    assert len(ratios) == 12
    assert all(0.5 < ratio < 2 for ratio in ratios), ratios


def test_slices_are_chosen_where_the_groups_choose_them() -> None:
    small, large = reduction.NETWORK_BYTES // 4 // 4 - 1, reduction.NETWORK_BYTES // 4 // 4
    assert [adds_slices(Rows(4, 1, numbers, 4), False) for numbers in (small, large)] == [False, True]
    assert not adds_slices(Rows(2, 1, 10 * large, 4), False), "two rows are gathered, whatever their size"
    floats = reduction.MEMORY_ROW_BYTES // 4
    assert [adds_slices(Rows(reduction.MEMORY_ROWS, 1, numbers, 4), True) for numbers in (floats - 1, floats)] == [
        False,
        True,
    ]
    assert not adds_slices(Rows(reduction.MEMORY_ROWS - 1, 1, floats, 4), True)


@pytest.mark.parametrize(("ranks", "times"), [(4, 1.5), (64, 6), (1024, 20)])
def test_slices_are_faster_for_large_models(ranks: int, times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, cluster = Rows(ranks, 1, 2_000_000, 4), hosts(1)
    sliced = reduction_seconds(cluster, range(ranks), rows)
    monkeypatch.setattr("lockstep.group.reduction.NETWORK_BYTES", math.inf)
    gathered = reduction_seconds(cluster, range(ranks), rows)
    assert gathered > times * sliced


def test_ranks_of_one_host_need_no_network() -> None:
    rows = Rows(4, 1, 10_000, 4)
    slow, fast = ({"ranks": range(4), "rows": rows, "cluster": hosts(4, name)} for name in ("loopback", "10gbe"))
    assert reduction_seconds(**slow) == reduction_seconds(**fast) < 50e-6  # type: ignore[arg-type]
    assert reduction_seconds(hosts(4), [0], rows) == 0.0, "a rank that trains alone sends nothing"
    assert reduction_seconds(hosts(2), range(4), rows) > 10 * reduction_seconds(hosts(4), range(4), rows)
    assert message_seconds(hosts(2), 0, 1, 1e6)[0] < message_seconds(hosts(2), 0, 2, 1e6)[0]
    gloo = Cluster(4, 4, NETWORKS["loopback"], shared_memory=False)
    assert reduction_seconds(gloo, range(4), rows) > 10 * reduction_seconds(hosts(4), range(4), rows)


def test_ranks_of_a_host_share_its_network() -> None:
    rows = Rows(64, 1, 20_000_000, 4)
    clusters = [Cluster(count, count, NETWORKS["10gbe"], shared_memory=False) for count in (1, 32)]
    spread_out, dense = (reduction_seconds(cluster, range(64), rows) for cluster in clusters)
    assert dense > 2 * spread_out


@pytest.mark.parametrize("numbers", [10_000, 2_000_000])
def test_hosts_with_several_ranks_add_rows_along_a_chain(numbers: int) -> None:
    rows, cluster = Rows(64, 1, numbers, 4), hosts(16)
    alone = Cluster(16, 16, NETWORKS["10gbe"], shared_memory=False)
    assert reduction_seconds(alone, range(64), rows) > 4 * reduction_seconds(cluster, range(64), rows)


def test_chain_is_chosen_if_it_saves_more_than_its_latency() -> None:
    assert is_chain_faster([4, 4], 8, 40_000)
    assert is_chain_faster([2, 2], 4, 8_000_000)
    assert not is_chain_faster([1] * 8, 8, 8_000_000), "ranks that share no memory have nothing to share"
    assert not is_chain_faster([8], 8, 8_000_000)
    assert not is_chain_faster([2, 1], 3, 400), "few messages either way"
    assert is_chain_faster([64] * 4, 256, 40_000)
    assert not is_chain_faster([2] * 500, 1000, 40_000_000), "a piece would pass 500 hosts"


def test_times_of_chains_are_about_those_that_were_measured(root: Path) -> None:
    """Both hosts share 2 cores, so a host has one. Less than 1 MB passes the limit of 1 Gbit/s at once."""
    ratios = {}
    for record in json.loads((root / "benchmarks" / "hosts.json").read_text())["records"]:
        if record["way"] == "chain":
            gigabits = float(record["rate"].removesuffix("gbit"))
            count, milliseconds = record["ranks per host"], sorted(record["milliseconds"])
            cluster = Cluster(count, 1, Network(50e-6, gigabits / 8 * 1e9))
            seconds = reduction_seconds(cluster, range(2 * count), Rows(2 * count, 1, record["floats"], 4))
            if gigabits == 10 or record["floats"] == 1_000_000:
                ratios[record["rate"], count, record["floats"]] = seconds * 1e3 / milliseconds[len(milliseconds) // 2]
            assert record["bytes"] == pytest.approx(4 * record["floats"], rel=0.2)
    assert len(ratios) == 12
    assert all(0.5 < ratio < 2 for ratio in ratios.values()), ratios


def test_sources_come_before_the_players_that_they_send_to() -> None:
    sources = publishers(Plan.make(PlanConfig(kind="40:3"), 43), separate=False)
    order = list(sources)
    assert all(source < 3 or order.index(source) < order.index(player) for player, source in sources.items())
    assert max(list(sources.values()).count(source) for source in sources.values()) <= FAN_OUT
