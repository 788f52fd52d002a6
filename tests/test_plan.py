"""Who plays and who trains which shard."""

import pytest

from lockstep.plan import Plan, PlanConfig


@pytest.mark.parametrize(("shards", "ranks"), [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3), (64, 8)])
def test_every_shard_is_carried_once_in_equal_neighbouring_parts(shards: int, ranks: int) -> None:
    plan = Plan.coupled(shards, ranks)
    carried = [plan.played_by(rank) for rank in range(ranks)]
    # stacked in rank order they are in shard order: what ordered sums rely on
    assert [shard for own in carried for shard in own] == list(range(shards))
    assert {len(own) for own in carried} == {shards // ranks}
    assert carried == [plan.trained_by(rank) for rank in range(ranks)]


@pytest.mark.parametrize(("shards", "ranks"), [(4, 3), (1, 2), (2, 4)])
def test_ranks_that_do_not_divide_the_shards_give_one_line(shards: int, ranks: int) -> None:
    with pytest.raises(ValueError, match=rf"^plan\.shards is {shards}: {ranks} ranks ") as caught:
        Plan.coupled(shards, ranks)
    assert "\n" not in str(caught.value)


def test_no_shards_give_one_line() -> None:
    with pytest.raises(ValueError, match=r"^plan\.shards is 0: "):
        PlanConfig(shards=0)
