"""Plans: assignment of shards to players and trainers."""

import pytest

from lockstep.algorithm.plan import Plan, PlanConfig, default_ranks


def make(kind: str, shards: int | None, ranks: int, **more: object) -> Plan:
    return Plan.make(PlanConfig(kind=kind, shards=shards, **more), ranks)


@pytest.mark.parametrize(("shards", "ranks"), [(1, 1), (4, 1), (4, 2), (4, 3), (4, 4), (6, 3), (64, 7)])
def test_shards_are_split_into_even_contiguous_parts(shards: int, ranks: int) -> None:
    plan = make("coupled", shards, ranks)
    parts = [plan.played_by(rank) for rank in range(ranks)]
    # stacked in rank order they are in shard order: what ordered sums rely on
    assert [shard for part in parts for shard in part] == list(range(shards))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert parts == [plan.trained_by(rank) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("kind", "ranks", "playing", "training"),
    [
        ("coupled", 2, (0, 1), (0, 1)),
        ("one-trainer", 3, (1, 2), (0,)),
        ("one-player", 3, (2,), (0, 1)),
        ("1:1", 2, (1,), (0,)),
        ("2:2", 4, (2, 3), (0, 1)),
        ("3:1", 4, (1, 2, 3), (0,)),
    ],
)
def test_trainers_come_first(kind: str, ranks: int, playing: tuple[int, ...], training: tuple[int, ...]) -> None:
    plan = make(kind, 4, ranks)
    assert plan.playing == playing
    assert plan.training == training
    assert list(plan.players) == sorted(plan.players)
    assert list(plan.trainers) == sorted(plan.trainers)


def test_ranks_may_both_play_and_train() -> None:
    plan = make("ranks", 4, 3, players=(1, 0), trainers=(2, 0))
    assert plan.players == (0, 0, 1, 1)
    assert plan.trainers == (0, 0, 2, 2)


def test_shards_default_to_the_larger_of_players_and_trainers() -> None:
    assert len(make("3:1", None, 4).shards) == 3
    assert len(make("one-player", None, 4).shards) == 3
    assert len(make("coupled", None, 4).shards) == 4
    assert len(make("1:2", None, 3).shards) == 2


@pytest.mark.parametrize(
    ("kind", "shards", "ranks", "line"),
    [
        ("coupled", 1, 2, "plan.shards is 1: 2 trainers need at least one shard each"),
        ("one-player", 1, 3, "plan.shards is 1: 2 trainers need"),
        ("3:1", 2, 4, "plan.shards is 2: 3 players need"),
        ("2:1", 4, 2, "plan.kind is '2:1': it takes exactly 3 ranks, and there are 2; use --ranks 3"),
        ("2:1", 4, 4, "plan.kind is '2:1': it takes exactly 3 ranks"),
        ("one-player", 4, 1, "plan.kind is 'one-player': it takes at least 2 ranks, and there is 1; use --ranks 2"),
    ],
)
def test_invalid_numbers_of_shards_and_ranks_are_reported_in_one_line(
    kind: str, shards: int | None, ranks: int, line: str
) -> None:
    with pytest.raises(ValueError, match="^" + line.replace(".", r"\.")) as caught:
        make(kind, shards, ranks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"shards": 0}, "plan.shards is 0: "),
        ({"kind": "decoupled"}, "plan.kind is 'decoupled': it must be coupled, one-player, one-trainer, ranks or P:T"),
        ({"kind": "0:1"}, "plan.kind is '0:1'"),
        ({"lag": 2}, "plan.lag is 2: it must be 0 or 1"),
        ({"players": (0,)}, "plan.kind is 'coupled': it does not take plan.players"),
        ({"kind": "ranks", "players": (0,)}, "plan.kind is 'ranks': it needs plan.trainers"),
        (
            {"kind": "ranks", "players": (0, 0), "trainers": (0,)},
            "plan.players is [0, 0]: it must name ranks, each once",
        ),
        ({"kind": "ranks", "players": (0,), "trainers": (1,)}, "plan.trainers is [1]: rank 0 must be one of them"),
    ],
)
def test_invalid_fields_are_reported_in_one_line(fields: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        PlanConfig(**fields)
    assert str(caught.value).startswith(line)


def test_rank_without_shards_is_reported_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^plan.players and plan.trainers leave out rank 1 of 3"):
        make("ranks", 2, 3, players=(2,), trainers=(0,))


def test_default_number_of_ranks_of_a_plan() -> None:
    kinds = {"coupled": 1, "one-player": 2, "one-trainer": 2, "2:3": 5}
    assert {kind: default_ranks(PlanConfig(kind=kind), 16) for kind in kinds} == kinds
    assert default_ranks(PlanConfig(kind="ranks", players=(0, 3), trainers=(0,)), 2) == 4


@pytest.mark.parametrize(
    ("kind", "cores", "ranks"),
    [
        ("coupled", 1, 1),
        ("coupled", 2, 2),
        ("coupled", 64, 4),
        ("one-trainer", 1, 2),
        ("one-player", 64, 5),
        ("1:1", 64, 2),
    ],
)
def test_default_number_of_ranks_uses_all_cores_if_shards_are_set(kind: str, cores: int, ranks: int) -> None:
    assert default_ranks(PlanConfig(kind=kind, shards=4), cores) == ranks


@pytest.mark.parametrize("kind", ["coupled", "one-player", "one-trainer", "2:1", "1:2"])
def test_number_of_ranks_of_a_plan(kind: str) -> None:
    assert Plan.make(PlanConfig(kind, shards=4), 3).ranks == 3
