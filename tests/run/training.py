"""Short training runs with a real environment, in this process."""

from functools import partial
from pathlib import Path

from tests.cpu_runtime import cpu_runtime

from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.config import Config
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.experiment.build import RankComponents, build
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.loop import train
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.run.checkpoint import Checkpoint
from lockstep.run.folder import RunFolder
from lockstep.run.run import TrainingRun
from lockstep.run.settings import RunConfig
from lockstep.telemetry.recorder import Recorder

CONFIG = Config(
    env=EnvConfig(id="CartPole-v1", engine="gymnasium", count=4),
    rollout=RolloutConfig(steps=16),
    policy=PolicyConfig(hidden=(8,)),
    ppo=PPOConfig(learning_rate=3e-4, minibatches=2, epochs=2),
    plan=PlanConfig(shards=2),
    run=RunConfig(checkpoint_every=2, loggers=(), progress="off"),
)


def prepared(
    path: Path, config: Config = CONFIG, group: Group | None = None, last: int = 5
) -> tuple[RankComponents, TrainingRun]:
    group = group or Solo()
    folder = RunFolder(path) if path.exists() else RunFolder.create(path, {}, {})
    plan = Plan.make(config.plan, group.size)
    components = build(config, plan, cpu_runtime(group))
    telemetry = partial(Recorder, config=config.run, modules=())
    return components, TrainingRun(
        folder,
        config.run,
        plan=plan,
        lag=config.plan.lag,
        group=group,
        trainers=components.trainers,
        iterations=last,
        open_telemetry=telemetry,
    )


def run_training(components: RankComponents, run: TrainingRun) -> None:
    run.start(components.shards, components.update)
    try:
        train(components.shards, components.exchange, components.update, run)
    finally:
        run.close()


def resume(components: RankComponents, run: TrainingRun, iteration: int) -> None:
    run.resume(Checkpoint(run.folder.checkpoint(iteration)), components.shards, components.update, components.exchange)


def trained(path: Path, **settings: object) -> TrainingRun:
    components, run = prepared(path, **settings)
    run_training(components, run)
    return run
