"""Images in rollouts, minibatches and training: stored as bytes, converted to floats inside the networks."""

import pytest
import torch
from tests.algorithm.minibatches import minibatches_of
from tests.envs.sample_environments import PREFIX, register

from lockstep.algorithm import agent as agents
from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import ImageRows
from lockstep.algorithm.collect import Shard, collect, rollout_sizes
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.prepare import Preparation
from lockstep.algorithm.update import Update
from lockstep.envs.catalog import describe_env, make_engine
from lockstep.envs.settings import EnvConfig
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.processes.heartbeat import Heartbeat, own_cells
from lockstep.rollout import Rollout

register()
STEPS, COUNT, SHARDS, GAMMA = 10, 4, 2, 0.9
CONFIG = PPOConfig(epochs=2, minibatches=2)


def config_of(name: str) -> EnvConfig:
    return EnvConfig(f"{PREFIX}/{name}-v0", "gymnasium", COUNT * SHARDS)


def agent_of(name: str, shared: bool = False, core: str = "none") -> Agent:
    policy = PolicyConfig(encoder="impala", core=core, core_size=4, shared=shared)
    return Agent(describe_env(config_of(name)), policy, False, 1, torch.float32)


def shards_of(name: str, agent: Agent, sequence: int = 1) -> list[Shard]:
    sizes, config = rollout_sizes(agent, STEPS, COUNT, sequence), config_of(name)
    return [
        Shard(k, make_engine(config, 1, k, SHARDS), [Rollout.empty(sizes) for _ in range(2)], 1, GAMMA)
        for k in range(SHARDS)
    ]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["Grey", "Stack", "Mixed"])
def test_values_and_log_probabilities_belong_to_the_images_of_the_step(name: str, shared: bool) -> None:
    agent = agent_of(name, shared)
    shard = shards_of(name, agent)[0]
    for iteration in (1, 2):
        (rollout,) = collect([shard], agent, iteration)
        assert rollout.pixels.dtype == torch.uint8
        assert rollout.pixels.shape == (STEPS + 1, COUNT, agent.spaces.pixel_count)
        assert len({bytes(image) for image in rollout.pixels.flatten(0, 1).numpy()}) > STEPS
        parameters, values = agent.policy(rollout.observations.flatten(0, 1), rollout.pixels.flatten(0, 1))
        log_probs = agent.distribution.log_prob(parameters[: STEPS * COUNT], rollout.actions.flatten(0, 1))
        for found in ((rollout.values, rollout.log_probs), agent.evaluate(rollout)[:2]):
            assert torch.allclose(found[0].flatten(), values, rtol=0, atol=1e-5)
            assert torch.allclose(found[1].flatten(), log_probs, rtol=0, atol=1e-5)
    assert torch.equal(shard.pixels, rollout.pixels[-1]), "the next rollout begins with them"


def test_passes_over_many_images_show_that_the_rank_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_IMAGES", 8)
    agent = agent_of("Grey")
    (rollout,) = collect(shards_of("Grey", agent)[:1], agent, 1)
    heartbeat = Heartbeat(own_cells())
    for compute in (agent.evaluate, lambda rollout: agent.values(rollout.observations, rollout.pixels)):
        before = heartbeat.beats
        compute(rollout)
        assert heartbeat.beats >= before + (STEPS + 1) * COUNT // 8


def test_first_image_is_the_final_one_of_the_previous_rollout() -> None:
    agent = agent_of("Stack")
    shard = shards_of("Stack", agent)[0]
    first, second = (collect([shard], agent, iteration)[0] for iteration in (1, 2))
    assert torch.equal(second.pixels[0], first.pixels[-1])


def test_images_are_gathered_from_the_buffers_of_several_shards() -> None:
    shards = [torch.randint(0, 256, (6, 3), dtype=torch.uint8) for _ in range(3)]
    rows = torch.tensor([11, 0, 3, 1, 4, 7, 8, 0])
    images, next_images = torch.cat([shard[:4] for shard in shards]), torch.cat([shard[2:] for shard in shards])
    several, one = ImageRows(shards, 2), ImageRows(shards[:1], 2)  # 2 environments, 2 steps and what the last led to
    assert torch.equal(several[rows], images[rows])
    assert torch.equal(several.next(rows), next_images[rows])
    second = torch.tensor([7, 4, 7])  # rows of one shard alone
    assert torch.equal(several[second], images[second])
    assert torch.equal(several.next(second), next_images[second])
    assert torch.equal(one[rows[1:4]], images[rows[1:4]])
    assert torch.equal(one.next(rows[1:4]), next_images[rows[1:4]])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("share_data", [False, True])
def test_minibatches_hold_the_images_of_their_rows(fused: bool, share_data: bool) -> None:
    agent = agent_of("Mixed")
    rollouts = [collect([shard], agent, 1)[0] for shard in shards_of("Mixed", agent)]
    batch = Preparation(agent, CONFIG, Solo(), range(SHARDS), 1, UpdateOptions(share_data=share_data, fused=fused))(
        rollouts, 1, 0.0
    )
    rows = 0
    for _, _, _, microbatches in minibatches_of(batch):
        for microbatch in microbatches:
            assert microbatch.pixels is not None
            values = agent.policy(microbatch.rows[:, : agent.spaces.observation_size], microbatch.pixels)[1]
            valid = microbatch.rows[:, -1] > 0
            assert torch.allclose(values[valid], microbatch.rows[valid, -2], rtol=0, atol=1e-5), (
                "the weights have not changed"
            )
            rows += len(microbatch.rows)
    assert rows == CONFIG.epochs * SHARDS * STEPS * COUNT


@pytest.mark.parametrize("core", ["none", "gru"])
def test_training_on_images_changes_every_weight(core: str) -> None:
    agent = agent_of("Stack", core=core)
    before = {name: weight.clone() for name, weight in agent.policy.named_parameters()}
    shard = shards_of("Stack", agent, 1 if core == "none" else 5)[0]
    Update(agent, CONFIG, Solo(), (0,), 1)(collect([shard], agent, 1), 1, 0.0)
    assert [name for name, weight in agent.policy.named_parameters() if torch.equal(weight, before[name])] == []
