"""One rank of the matrices in test_plans.py, test_spaces.py and test_curiosity.py: `member.py FOLDER MATRIX PLAN KIND BACKEND RANK SIZE (MEMORY | MEETING) COLUMN …`.

Trains the columns of the matrix, one after the other. Ranks are started once for all columns, because starting takes longer than training.
"""

import dataclasses
import math
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import torch
from tests.envs import sample_vectors
from tests.envs.sample_environments import PREFIX, register
from torch import nn
from torch.distributed import distributed_c10d

from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.config import Config
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.experiment.execute import create_run, execute
from lockstep.experiment.hooks import Iteration
from lockstep.experiment.resolve import resolve
from lockstep.models.registry import register_encoder
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.runtime.checks import resolve_devices
from lockstep.runtime.join import join
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

ITERATIONS, STEPS, COUNT, SHARDS = int(os.environ.get("LOCKSTEP_TEST_ITERATIONS", "3")), 16, 8, 4
PENDULUM = EnvConfig("Pendulum-v1", "gymnasium", COUNT, options={"max_episode_steps": 20})
OWN, SHARED = PlanConfig(), PlanConfig(share_data=True)
VTRACE = PlanConfig(lag=1, correction="vtrace", share_data=True)
ROWS = RolloutConfig(STEPS)
SEQUENCES, RECOMPUTED = RolloutConfig(STEPS, 8), RolloutConfig(STEPS, 8, recompute_states=True)


def sample_env(name: str, **options: float) -> EnvConfig:
    return EnvConfig(f"{PREFIX}/{name}-v0", "gymnasium", COUNT, options=options)


class Tiny(nn.Module):
    """Registered encoder with a single small layer."""

    def __init__(self, features: int, images: tuple[tuple[int, int, int], ...], config: PolicyConfig) -> None:
        super().__init__()
        self.output_size = 8
        self.layer = nn.Linear(features + sum(map(math.prod, images)), 8)

    def forward(self, features: torch.Tensor, images: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.layer(torch.cat([features, *(image.flatten(1) / 255 for image in images)], 1)).tanh()


def recurrent(core: str, **settings: object) -> PolicyConfig:
    return PolicyConfig(hidden=(16,), core=core, core_size=8, **settings)  # type: ignore[arg-type]


TASKS = {
    "discrete": Config(env=EnvConfig("CartPole-v1", "gymnasium-vector", COUNT), policy=PolicyConfig(hidden=(16,))),
    "continuous": Config(
        env=PENDULUM,
        policy=PolicyConfig(hidden=(16,), normalize_observations=True),
        ppo=PPOConfig(normalize_rewards=True, kl_stop=0.00005, learning_rate=1e-3),
    ),
    "spoiled": Config(
        env=sample_env("Spoiled", share=0.3),
        policy=PolicyConfig(hidden=(16,), normalize_observations=True),
        ppo=PPOConfig(normalize_rewards=True, on_non_finite="skip"),
    ),
    "lstm": Config(
        env=EnvConfig("CartPole-v1", "gymnasium", COUNT),
        rollout=SEQUENCES,
        policy=recurrent("lstm"),
        ppo=PPOConfig(recompute_advantages=True),
    ),
    "gru": Config(
        env=PENDULUM,
        rollout=RECOMPUTED,
        policy=recurrent(
            "gru", core_layers=2, normalize_observations=True, shared=True, distribution="gaussian-state-std"
        ),
    ),
    "gsde": Config(
        env=PENDULUM,
        policy=PolicyConfig(hidden=(16,), distribution="gsde", sde_sample_freq=3, normalize_observations=True),
    ),
    "impala": Config(env=sample_env("Stack"), policy=PolicyConfig(encoder="impala", shared=True)),
    "image": Config(env=sample_env("Stack"), policy=PolicyConfig(encoder="tiny")),
    "dict": Config(
        env=sample_env("Mixed"),
        rollout=SEQUENCES,
        policy=recurrent("mingru", encoder="tiny", normalize_observations=True, head_hidden=(12,)),
    ),
    "masked": Config(
        env=sample_env("Parts"),
        rollout=SEQUENCES,
        policy=recurrent("lstm", value_hidden=(24,), normalize_observations=True, noise_exponent=0.5),
        ppo=PPOConfig(separate_grad_norms=True),
    ),
    "vector": Config(
        env=EnvConfig(sample_vectors.WALK, "gymnasium-vector", COUNT, options={"mode": "SAME_STEP", "noise": 1.0}),
        policy=PolicyConfig(hidden=(16,)),
    ),
    "wrapped": Config(
        env=dataclasses.replace(
            PENDULUM, wrappers=("FrameStackObservation(stack_size=3)", "RescaleAction(min_action=-1, max_action=1)")
        ),
        policy=PolicyConfig(
            hidden=(16,), value_hidden=(24, 8), activation="gelu", normalize_observations=True, distribution="beta"
        ),
    ),
}
METHODS = ("icm", "rnd", "ngu", "e3b", "re3", "disagreement")
SMALL = {"hidden": (16,), "feature_size": 8, "capacity": 10, "neighbors": 3}
TWO_HEADS = {"combine": "two-heads", "gamma": 0.95, "weight": "linear(1, 0.5)", "extrinsic_weight": 2.0}
for method in METHODS:
    task = "continuous" if method in ("icm", "e3b") else "discrete"
    TASKS[method] = dataclasses.replace(TASKS[task], curiosity=CuriosityConfig(method, **SMALL))
    TASKS[f"{method} with memory"] = dataclasses.replace(
        TASKS["gru" if task == "continuous" else "lstm"], curiosity=CuriosityConfig(method, **SMALL)
    )
TASKS |= {
    "two heads": dataclasses.replace(
        TASKS["discrete"],
        ppo=PPOConfig(recompute_advantages=True),
        curiosity=CuriosityConfig("rnd", share=0.5, warmup=1, **SMALL, **TWO_HEADS),
    ),
    "rnd of images": dataclasses.replace(TASKS["image"], curiosity=CuriosityConfig("rnd", channels=1, **SMALL)),
    "icm of dict": dataclasses.replace(TASKS["dict"], curiosity=CuriosityConfig("icm", **SMALL, **TWO_HEADS)),
}
MATRICES = {
    "curiosity": {
        **{method: (method, OWN) for method in METHODS},
        **{f"{method}-memory": (f"{method} with memory", SHARED) for method in METHODS},
        "heads-own": ("two heads", OWN),
        "heads-vtrace": ("two heads", VTRACE),
        "image-shared": ("rnd of images", SHARED),
        "dict-own": ("icm of dict", OWN),
    },
    "plans": {
        **{
            f"{task}-{name}": (task, plan)
            for task in ("discrete", "continuous")
            for name, plan in (("own", OWN), ("shared", SHARED), ("lag", PlanConfig(lag=1)), ("vtrace", VTRACE))
        },
        "spoiled-own": ("spoiled", OWN),
        "spoiled-vtrace": ("spoiled", VTRACE),
    },
    "spaces": {
        f"{task}-{name}": (task, plan)
        for task, plans in (
            ("lstm", {"own": OWN, "shared": SHARED, "vtrace": VTRACE}),
            ("gru", {"own": OWN, "shared": SHARED}),
            ("impala", {"own": OWN}),
            ("image", {"shared": SHARED, "vtrace": VTRACE}),
            ("dict", {"own": OWN, "shared": SHARED}),
            ("masked", {"own": OWN, "vtrace": VTRACE}),
            ("gsde", {"own": OWN, "vtrace": VTRACE}),
            ("wrapped", {"own": OWN, "shared": SHARED}),
            ("vector", {"own": OWN}),
        )
        for name, plan in plans.items()
    },
}


def config_of(matrix: str, column: str, plan: str, runtime: RuntimeConfig, folder: Path) -> Config:
    task, settings = MATRICES[matrix][column]
    config = TASKS[task]
    return dataclasses.replace(
        config,
        rollout=config.rollout if config.rollout.sequence_length else ROWS,
        ppo=dataclasses.replace(
            config.ppo, epochs=3 if matrix == "plans" else 2, minibatches=8 if task == "spoiled" else 2
        ),
        plan=dataclasses.replace(settings, kind=plan, shards=SHARDS),
        runtime=runtime,
        run=RunConfig(
            str(folder),
            column,
            total_steps=COUNT * STEPS * ITERATIONS,
            checkpoint_every=2,
            loggers=(),
            progress="off",
        ),
    )


def read_policy(iteration: Iteration) -> dict[str, float]:
    """Hook that uses the policy. It must not change the run, so ranks with it have the digests of a rank without."""
    return {"value": iteration.policy.value(np.ones(iteration.policy.observation_space.shape, np.float32))}


def refuse_pickling(*arguments: object, **options: object) -> None:
    raise AssertionError("an object is pickled")


def forbid_pickling() -> None:
    """Make pickle and the object collectives of torch.distributed raise an error."""
    pickle.dumps = pickle.loads = pickle.dump = pickle.load = refuse_pickling
    distributed_c10d._object_to_tensor = distributed_c10d._tensor_to_object = refuse_pickling
    distributed_c10d._pickler = distributed_c10d._unpickler = refuse_pickling


def main(
    folder: Path, matrix: str, plan: str, kind: str, backend: str, rank: int, size: int, meeting: str, *columns: str
) -> None:
    rank_address = {"memory": int(meeting)} if meeting.isdigit() else {"rendezvous": meeting}
    register()
    sample_vectors.register()
    register_encoder("tiny", Tiny)
    settings = resolve_devices(
        RuntimeConfig(kind, backend=backend, device=os.environ.get("LOCKSTEP_TEST_DEVICE", "cpu"))
    )
    with join(RankInfo(rank, size, rank, size, **rank_address), settings) as runtime:
        forbid_pickling()
        for column in columns:
            config = resolve(config_of(matrix, column, plan, settings, folder), size)
            if rank == 0:
                create_run(config, None, size)
            runtime.group.barrier("start")
            hook = read_policy if size > 1 and column.startswith("wrapped") else None
            execute(RunFolder(folder / column), config, Plan.make(config.plan, size), runtime, 0, hook)


if __name__ == "__main__":
    where, matrix, plan, kind, backend, rank, size, meeting, *columns = sys.argv[1:]
    main(Path(where), matrix, plan, kind, backend, int(rank), int(size), meeting, *columns)
