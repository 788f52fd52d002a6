"""The text of the live view."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from lockstep.telemetry.attempts import Start
from lockstep.telemetry.screen import RunFacts, clock, draw, sparkline
from lockstep.telemetry.status import RunStatus

BEGUN = datetime(2030, 1, 1, tzinfo=UTC)
START = Start(BEGUN, 0, 100, 2, "1:1", "here", {})
RUN = RunFacts("first", "CartPole-v1", 475.0, [START])
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


def status_after(last: int = 42, **metrics: object) -> RunStatus:
    status = RunStatus()
    for iteration in range(1, last + 1):
        status.append(
            {**ROW, "iteration": iteration, "seconds": 60.0 + iteration, "return_mean_20": float(iteration), **metrics}
        )
    status.update()
    return status


def view(
    status: RunStatus, width: int = 80, run: RunFacts = RUN, state: str = "", ascii_only: bool = False
) -> list[str]:
    return draw(status, run, state, width, ascii_only).plain.splitlines()


def test_full_view_at_80_columns() -> None:
    assert view(status_after(**PLAYERS, **CURIOUS)) == [
        "first  CartPole-v1, 1:1, 2 ranks",
        "iteration  42/100  ━━━━━━━━━━━━━━━━──────────────────────   42%  1:42, 0:58 left",
        "return     42  best 42  goal 475  ▁▁▁▂▂▂▂▂▂▃▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇▇███",
        "speed      2,000 steps/s  123,456 steps  88 steps per episode",
        "update     kl 0.012  clipped 11.1%  entropy 0.55  explained variance 0.90",
        "curiosity  reward 0.0123 ± 1 per step  weight 0.5  7 per episode",
        "rank 0     █▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒░░░  ▓ learn 80%  ░ wait 10%  █ rollout 5%",
        "players    ███░░░░░░░░░░░░░░░░░░░░░░░░  ░ wait 90%  █ rollout 10%",
        "waiting    rank 0 10%  rank 1 90%",
    ]


def test_view_of_evaluations() -> None:
    status = status_after(3)
    status.append_evaluation({"iteration": 1, "return_mean": float("nan")})
    assert not [line for line in view(status) if line.startswith("evaluated")]
    for iteration, mean in ((2, 12.345), (3, 40.0), (4, 7.0)):
        status.append_evaluation({"iteration": iteration, "return_mean": mean, "sampled_return_mean": 5.5})
    assert view(status)[3] == "evaluated  7 at 4  sampled 5.5  best 40 at 3"
    assert view(status, 30)[3] == "evaluated  7 at 4  sampled 5.5"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_the_view_fits_the_width(width: int) -> None:
    ended = dataclasses.replace(START, ended=BEGUN + timedelta(hours=1), how="failed", why="w" * 200)
    run = dataclasses.replace(RUN, starts=[ended, dataclasses.replace(START, iteration=40)])
    for ascii_only in (False, True):
        lines = view(status_after(**PLAYERS, **CURIOUS), width, run, "state " * 50, ascii_only)
        assert len(lines) == 11
        assert max(map(len, lines)) <= width
        assert all(line.isascii() for line in lines) or not ascii_only


def test_view_before_the_first_iteration_and_the_first_episode() -> None:
    not_started = dataclasses.replace(RUN, starts=[])
    assert view(status_after(0), run=not_started) == [
        "first  CartPole-v1", "iteration  waiting until all ranks are connected"
    ]  # fmt: skip
    assert view(status_after(0))[1:] == ["iteration  none of 100 is done"]
    assert view(status_after(3), run=not_started)[1] == "iteration  3"  # a run without starts.jsonl
    first = view(status_after(1, return_mean_20=None, approx_kl=None, warmup=1.0))
    assert first[2] == "return     no episode has ended yet"
    assert first[4] == "update     warmup: no training yet"


def test_view_of_restarts_and_their_causes() -> None:
    ends = [("stopped", "SIGTERM"), ("failed", "rank 1 is lost"), (None, ""), (None, "")]
    starts = [dataclasses.replace(START, how=how, why=why) for how, why in ends]
    run = dataclasses.replace(RUN, starts=[*starts, dataclasses.replace(START, iteration=40)])
    assert (
        view(status_after(), run=run)[-1] == "starts     resumed 4 times, last from 40  stopped 1  failed 1  killed 2"
    )


def test_view_of_replaced_environments() -> None:
    assert (
        view(status_after(env_faults=2))[-1] == "faults     2 environments replaced  not reproducible from the config"
    )
    assert not any(line.startswith("faults") for line in view(status_after(env_faults=0)))


def test_waiting_times_of_many_ranks() -> None:
    status = status_after(idle=[rank / 64 for rank in range(64)])
    assert view(status)[-1] == "waiting    mean 49%  most 98% (rank 63)"
    assert view(status, 200)[-1].endswith("▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇████████")


def test_single_rank_has_no_waiting_times() -> None:
    assert not any(line.startswith(("waiting", "players")) for line in view(status_after(idle=[0.0])))


def test_sparkline_of_returns() -> None:
    assert sparkline([0.0, 7.0], 8) == "▁█"
    assert sparkline([5.0] * 9, 4) == "▄▄▄▄"
    assert sparkline([float(value) for value in range(80)], 8) == "▁▂▃▄▅▆▇█"


def test_durations_are_formatted_as_clocks() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3723, 360_000)] == [
        "0:00",
        "1:00",
        "1:01",
        "1:02:03",
        "100:00:00",
    ]
