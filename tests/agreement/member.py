"""One rank of the matrix in test_plans.py: `member.py FOLDER PLAN KIND BACKEND RANK SIZE (MEMORY | MEETING)`.

Trains every column, one after the other. Ranks are started once for all columns: what is compared is what they compute, and
starting takes longer than training.
"""

import dataclasses
import pickle
import sys
from pathlib import Path

from torch.distributed import distributed_c10d

from lockstep.config import Config
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.experiment import create_run, execute, resolve
from lockstep.models.settings import PolicyConfig
from lockstep.plan import PlanConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.runtime.checks import resolve_devices
from lockstep.runtime.place import Place
from lockstep.runtime.runtime import join
from lockstep.runtime.settings import RuntimeConfig

ITERATIONS, STEPS, COUNT, SHARDS = 6, 32, 8, 4
PENDULUM = EnvConfig("Pendulum-v1", "gymnasium", COUNT, options={"max_episode_steps": 20})
TASKS = {
    "discrete": Config(env=EnvConfig("CartPole-v1", "gymnasium-vector", COUNT), policy=PolicyConfig(hidden=(16,))),
    "continuous": Config(
        env=PENDULUM,
        policy=PolicyConfig(hidden=(16,), normalize_observations=True),
        ppo=PPOConfig(normalize_rewards=True, kl_stop=0.00005, learning_rate=1e-3),
    ),
}
COLUMNS = {
    f"{task}-{name}": (task, plan)
    for task in TASKS
    for name, plan in (
        ("own", PlanConfig()),
        ("shared", PlanConfig(share_data=True)),
        ("lag", PlanConfig(lag=1)),
        ("vtrace", PlanConfig(lag=1, correction="vtrace", share_data=True)),
    )
}


def config_of(column: str, plan: str, runtime: RuntimeConfig, folder: Path) -> Config:
    task, settings = COLUMNS[column]
    config = TASKS[task]
    return dataclasses.replace(
        config,
        rollout=RolloutConfig(STEPS),
        ppo=dataclasses.replace(config.ppo, epochs=3, minibatches=2),
        plan=dataclasses.replace(settings, kind=plan, shards=SHARDS),
        runtime=runtime,
        run=RunConfig(
            str(folder),
            column,
            total_steps=COUNT * STEPS * ITERATIONS,
            checkpoint_every=4,
            loggers=(),
            progress="off",
        ),
    )


def refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("a pickled object travels")


def allow_tensors_only() -> None:
    """From now on, whoever pickles or unpickles fails."""
    pickle.dumps = pickle.loads = pickle.dump = pickle.load = refuse
    distributed_c10d._object_to_tensor = distributed_c10d._tensor_to_object = refuse
    distributed_c10d._pickler = distributed_c10d._unpickler = refuse


def main(folder: Path, plan: str, kind: str, backend: str, rank: int, size: int, meeting: str) -> None:
    here = {"memory": int(meeting)} if meeting.isdigit() else {"meeting": meeting}
    settings = resolve_devices(RuntimeConfig(kind, backend=backend))
    with join(Place(rank, size, rank, size, **here), settings) as runtime:
        allow_tensors_only()
        for column in COLUMNS:
            config = resolve(config_of(column, plan, settings, folder), size)
            if rank == 0:
                create_run(config, None, size)
            runtime.group.barrier("start")
            execute(RunFolder(folder / column), config, runtime, 0)


if __name__ == "__main__":
    where, plan, kind, backend, rank, size, meeting = sys.argv[1:]
    main(Path(where), plan, kind, backend, int(rank), int(size), meeting)
