"""Exchange of rollouts and agents between players and trainers, with both ranks in one process."""

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from tests.algorithm.test_collect import DISCRETE, agent_of

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.collect import rollout_sizes
from lockstep.algorithm.exchange import Exchange, LastIteration, ReplicasDiffer
from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.algorithm.publishers import FAN_OUT
from lockstep.group.channel import LocalChannel, Spec
from lockstep.group.solo import Solo
from lockstep.rollout import PLAYER_FIELDS, Rollout

STEPS, COUNT = 3, 2
NOTHING = [0.0] * len(PLAYER_FIELDS)


class Rank(Solo):
    """One of two ranks in this process. Source and target of a channel share one object."""

    def __init__(self, rank: int, channels: list[LocalChannel]) -> None:
        super().__init__()
        self.rank, self._channels, self._made = rank, channels, 0

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> LocalChannel | None:
        self._made += 1
        if len(self._channels) < self._made:
            self._channels.append(LocalChannel(specs, depth))
        return self._channels[self._made - 1] if self.rank in (source, target) else None


def make_exchange(group: Solo, plan: Plan, lag: int) -> tuple[Exchange, Agent]:
    agent = agent_of(DISCRETE)
    both = group.rank in plan.training
    acting = agent_of(DISCRETE) if lag and both else agent
    exchange = Exchange(
        group, plan, agent, acting, Rollout.specs(rollout_sizes(agent, STEPS, COUNT)), lag, separate=lag > 0
    )
    exchange.begin(0)
    return exchange, agent


def make_exchange_pair(lag: int) -> tuple[tuple[Exchange, Agent], tuple[Exchange, Agent]]:
    plan = Plan.make(PlanConfig(kind="1:1", shards=2), 2)
    channels: list[LocalChannel] = []
    trainer, player = (make_exchange(Rank(rank, channels), plan, lag) for rank in range(2))
    return trainer, player


def train(agent: Agent, iteration: int) -> None:
    agent.flat.buffer.fill_(iteration)


def first_weight(player: Exchange) -> float:
    return player.acting.flat.buffer[0].item()


@pytest.mark.parametrize("lag", [0, 1])
def test_player_acts_with_the_agent_of_lag_updates_ago(lag: int) -> None:
    (trainer, agent), (player, _) = make_exchange_pair(lag)
    first = first_weight(player)
    used = []
    for iteration in range(1, 6):
        used.append(first_weight(player))
        assert player.route(iteration, NOTHING) == []
        if lag and iteration > 1:  # the update of the last iteration ends only now
            assert trainer.publish(iteration - 1, LastIteration(9)) == LastIteration(9)
        if not lag:
            train(agent, iteration)
            trainer.publish(iteration, LastIteration(9))
        player.publish(iteration, LastIteration(9))
        if lag:
            train(agent, iteration)
    assert used == ([first, 1, 2, 3, 4] if lag == 0 else [first, first, 1, 2, 3])


@pytest.mark.parametrize("lag", [0, 1])
def test_single_rank_acts_with_the_same_agents_as_a_player(lag: int) -> None:
    alone, agent = make_exchange(Solo(), Plan.make(PlanConfig(shards=2), 1), lag)
    first = first_weight(alone)
    used = []
    for iteration in range(1, 6):
        used.append(first_weight(alone))
        alone.route(iteration, NOTHING)
        train(agent, iteration)
        alone.publish(iteration, LastIteration(9))
    assert used == ([first, 1, 2, 3, 4] if lag == 0 else [first, first, 1, 2, 3])


def test_trainer_reads_the_rollout_of_the_player_without_a_copy() -> None:
    (trainer, _), (player, _) = make_exchange_pair(1)
    for iteration in (1, 2, 3):
        for shard in range(2):
            player.slots(shard)[iteration % 2].rewards.fill_(10 * iteration + shard)
        player.route(iteration, [1.0, *range(7)])
        rollouts = trainer.route(iteration, NOTHING)
        assert [rollout.rewards[0, 0].item() for rollout in rollouts] == [10 * iteration, 10 * iteration + 1]
        assert rollouts[0].status.tolist() == [1, 0, 1, 2, 3, 4, 5, 6]
        assert rollouts[0].rewards.data_ptr() == player.slots(0)[iteration % 2].rewards.data_ptr()


def test_running_statistics_are_published() -> None:
    (trainer, agent), (player, player_agent) = make_exchange_pair(0)
    assert agent.observation_statistics is not None
    agent.observation_statistics.mean += 3
    agent.observation_statistics.count += 5
    agent.refresh()
    trainer.publish(1, LastIteration(9))
    player.publish(1, LastIteration(9))
    assert player_agent.digest() == agent.digest()
    observations = torch.ones(1, 3, dtype=torch.float64)
    assert torch.equal(player_agent.normalize(observations), agent.normalize(observations))


def test_last_iteration_is_sent_with_the_agent() -> None:
    (trainer, _), (player, _) = make_exchange_pair(1)
    assert player.publish(1, LastIteration(9)) == LastIteration(9)
    assert trainer.publish(1, LastIteration(2)) == LastIteration(2)
    assert player.publish(2, LastIteration(9)) == LastIteration(2)
    assert trainer.publish(2, LastIteration(2)) == LastIteration(2)
    player.confirm(2)


def test_corrupted_weights_are_detected() -> None:
    (trainer, _), (player, _) = make_exchange_pair(0)
    trainer.publish(1, LastIteration(9))
    player._incoming.slot(1)[0][0] += 1
    with pytest.raises(ReplicasDiffer, match="after iteration 1"):
        player.publish(1, LastIteration(9))


@pytest.mark.parametrize("lag", [0, 1])
def test_players_do_not_wait_for_a_failed_update(lag: int) -> None:
    (trainer, _), (player, _) = make_exchange_pair(lag)
    trainer.report_failure(1)
    with pytest.raises(NonFinite, match="a trainer"):
        player.publish(1 + lag, LastIteration(9))


def test_players_save_no_agent_of_a_failed_update() -> None:
    (trainer, _), (player, _) = make_exchange_pair(1)
    trainer.publish(1, LastIteration(9))
    player.publish(1, LastIteration(9))
    player.publish(2, LastIteration(9))  # still of the first update, while the second fails
    with pytest.raises(AssertionError, match="never sent"):
        player.confirm(2)
    trainer.report_failure(2)
    with pytest.raises(NonFinite, match="a trainer"):
        player.confirm(2)


def test_resumed_run_with_lag_starts_with_two_agents() -> None:
    (trainer, agent), (player, player_agent) = make_exchange_pair(1)
    for one in (agent, player_agent):
        train(one, 50)
    trainer.begin(50)
    player.begin(50)
    train(player_agent, 49)  # as the checkpoint has it
    used = []
    for iteration in (51, 52, 53):
        used.append(first_weight(player))
        if iteration > 51:
            trainer.publish(iteration - 1, LastIteration(99))
        player.publish(iteration, LastIteration(99))
        train(agent, iteration)
    assert used == [49, 50, 51]


def make_tree(kind: str, ranks: int, lag: int) -> tuple[Plan, list[tuple[Exchange, Agent]], list[tuple[int, int]]]:
    """Return a plan, every rank's exchange and agent, and source and target of every channel that publishes agents."""
    plan, channels, ends = Plan.make(PlanConfig(kind=kind), ranks), [], []

    class Recorder(Rank):
        def channel(
            self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str
        ) -> LocalChannel | None:
            if phase == "publish" and self.rank == 0:
                ends.append((source, target))
            return super().channel(source, target, specs, depth, phase)

    return plan, [make_exchange(Recorder(rank, channels), plan, lag) for rank in range(ranks)], ends


@pytest.mark.parametrize(("kind", "ranks"), [("one-trainer", 23), ("19:3", 22)])
@pytest.mark.parametrize("lag", [0, 1])
def test_many_players_pass_the_agent_on(kind: str, ranks: int, lag: int) -> None:
    plan, exchanges, ends = make_tree(kind, ranks, lag)
    assert sorted(target for _, target in ends) == list(plan.playing)
    targets = Counter(source for source, _ in ends)
    assert set(plan.training) < set(targets)
    assert max(targets.values()) <= FAN_OUT
    for iteration in range(1, 6):
        for rank in plan.training:
            exchange, agent = exchanges[rank]
            train(agent, iteration)
            exchange.publish(iteration, LastIteration(5))
        for rank in plan.playing:  # a player receives from a lower rank
            exchange, _ = exchanges[rank]
            assert exchange.publish(iteration, LastIteration(9)) == (
                LastIteration(9) if iteration <= lag else LastIteration(5)
            )
            if iteration > lag:
                assert first_weight(exchange) == iteration - lag
    for rank in plan.playing:
        exchanges[rank][0].confirm(5)


def test_players_pass_a_failure_on() -> None:
    plan, exchanges, _ = make_tree("one-trainer", 23, 0)
    exchanges[0][0].report_failure(1)
    for rank in plan.playing:
        with pytest.raises(NonFinite, match="a trainer"):
            exchanges[rank][0].publish(1, LastIteration(9))
