"""The live view."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from lockstep.telemetry.attempts import Start
from lockstep.telemetry.screen import About, clock, draw, sparkline
from lockstep.telemetry.status import RunStatus

BEGUN = datetime(2030, 1, 1, tzinfo=UTC)
START = Start(BEGUN, 0, 100, 2, "1:1", "here", {})
KNOWN = About("first", "CartPole-v1", 475.0, [START])
ROW = {
    "env_steps": 123_456, "fps": 2000.0, "length_mean": 87.6, "return_mean": None, "return_mean_20": 87.6,
    "approx_kl": 0.0123, "clip_frac": 0.111, "entropy": 0.55, "explained_variance": 0.9, "learning_rate": 3e-4,
    "t_iter": 1.0, "t_rollout": 0.05, "t_learn": 0.8, "t_sync": 0.05, "t_wait": 0.1, "t_publish": 0.0, "t_record": 0.0,
    "idle": [0.1, 0.9],
}  # fmt: skip
PLAYERS = {"player_t_rollout": 0.1, "player_t_wait": 0.9}
CURIOUS = {
    "intrinsic_reward_mean": 0.0123,
    "intrinsic_reward_std": 1.0,
    "curiosity_weight": 0.5,
    "intrinsic_return": 7.0,
}


def of(last: int = 42, **others: object) -> RunStatus:
    standing = RunStatus()
    for iteration in range(1, last + 1):
        standing.take(
            {**ROW, "iteration": iteration, "seconds": 60.0 + iteration, "return_mean_20": float(iteration), **others}
        )
    standing.settle()
    return standing


def shown(
    standing: RunStatus, width: int = 80, known: About = KNOWN, state: str = "", ascii_only: bool = False
) -> list[str]:
    return draw(standing, known, state, width, ascii_only).plain.splitlines()


def test_everything_at_80_columns() -> None:
    assert shown(of(**PLAYERS, **CURIOUS)) == [
        "first  CartPole-v1, 1:1, 2 ranks",
        "iteration  42/100  ━━━━━━━━━━━━━━━━──────────────────────   42%  1:42, 0:58 left",
        "return     42  best 42  goal 475  ▁▁▁▂▂▂▂▂▂▃▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇▇███",
        "speed      2,000 steps/s  123,456 steps  88 steps an episode",
        "update     kl 0.012  clipped 11.1%  entropy 0.55  explained variance 0.90",
        "curiosity  reward 0.0123 ± 1 a step  weight 0.5  7 an episode",
        "rank 0     █▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒░░░  ▓ learn 80%  ░ wait 10%  █ rollout 5%",
        "players    ███░░░░░░░░░░░░░░░░░░░░░░░░  ░ wait 90%  █ rollout 10%",
        "waiting    rank 0 10%  rank 1 90%",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_it_fits(width: int) -> None:
    ended = dataclasses.replace(START, ended=BEGUN + timedelta(hours=1), how="failed", why="w" * 200)
    known = dataclasses.replace(KNOWN, starts=[ended, dataclasses.replace(START, iteration=40)])
    for ascii_only in (False, True):
        lines = shown(of(**PLAYERS, **CURIOUS), width, known, "state " * 50, ascii_only)
        assert len(lines) == 11
        assert max(map(len, lines)) <= width
        assert all(line.isascii() for line in lines) or not ascii_only


def test_before_there_is_anything() -> None:
    nothing = dataclasses.replace(KNOWN, starts=[])
    assert shown(of(0), known=nothing) == ["first  CartPole-v1", "iteration  its ranks have not met yet"]
    assert shown(of(0))[1:] == ["iteration  the first of 100 goes on"]
    assert shown(of(3), known=nothing)[1] == "iteration  3"  # of a run that has no starts.jsonl
    first = shown(of(1, return_mean_20=None, approx_kl=None, warmup=1.0))
    assert first[2] == "return     no episode has ended yet"
    assert first[4] == "update     warming up: nothing is trained yet"


def test_restarts_and_why() -> None:
    ends = [("stopped", "SIGTERM"), ("failed", "rank 1 is lost"), (None, ""), (None, "")]
    starts = [dataclasses.replace(START, how=how, why=why) for how, why in ends]
    known = dataclasses.replace(KNOWN, starts=[*starts, dataclasses.replace(START, iteration=40)])
    assert shown(of(), known=known)[-1] == ("starts     resumed 4 times, last from 40  stopped 1  failed 1  killed 2")


def test_many_ranks() -> None:
    standing = of(idle=[rank / 64 for rank in range(64)])
    assert shown(standing)[-1] == "waiting    mean 49%  most 98% (rank 63)"
    assert shown(standing, 200)[-1].endswith("▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇████████")


def test_one_rank_waits_for_nobody() -> None:
    assert not any(line.startswith(("waiting", "players")) for line in shown(of(idle=[0.0])))


def test_sparklines() -> None:
    assert sparkline([0.0, 7.0], 8) == "▁█"
    assert sparkline([5.0] * 9, 4) == "▄▄▄▄"
    assert sparkline([float(value) for value in range(80)], 8) == "▁▂▃▄▅▆▇█"


def test_clocks() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3723, 360_000)] == [
        "0:00",
        "1:00",
        "1:01",
        "1:02:03",
        "100:00:00",
    ]
