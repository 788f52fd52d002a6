"""`lockstep bench simulate`: predict the speed of plans on many ranks from a finished run."""

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lockstep.algorithm.plan import PlanConfig, default_ranks
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.benchmarks import add_json, parse_ranks, write_json
from lockstep.cli.start import import_env_module_of_run
from lockstep.config import Config
from lockstep.config.decode import decode, encode
from lockstep.config.flags import parse_flags
from lockstep.messages import counted
from lockstep.processes.cores import usable_cores
from lockstep.run.locate import locate

if TYPE_CHECKING:
    from lockstep.bench.simulation.network import Cluster, Network
    from lockstep.bench.simulation.workload import Workload

__all__ = ["main"]

_BACKEND = "runtime.backend"
_NETWORK = re.compile(r"(\d+(?:\.\d*)?),(\d+(?:\.\d*)?)")
_REQUIRED = (
    ("exact", True, "fused shards have no time per shard"),
    ("gradients", "ordered", "the time of DistributedDataParallel is not modelled"),
    ("share_data", False, "the exchange of samples is not modelled"),
)
"""Fields of the plan, with the only value that can be predicted, and the reason."""


def main(argv: Sequence[str]) -> int:
    """Print a table of predictions. Return the exit code. Raises ValueError for bad input."""
    parser = _parser()
    tree, rest = parse_flags(argv, parser.flags)
    args = parser.read(rest)
    _check_flags(tree)
    cluster = _cluster(args)

    from lockstep.bench.simulation.prediction import predict_all
    from lockstep.bench.simulation.table import table
    from lockstep.bench.simulation.workload import read_workload
    from lockstep.experiment.execute import open_run

    folder, measured_config = open_run(locate(args.run))
    config = _changed(measured_config, tree)
    cluster = dataclasses.replace(cluster, shared_memory=config.runtime.backend != "gloo")
    workload, measured_ranks = read_workload(folder, measured_config)
    shards = config.plan.shards if "shards" in tree.get("plan", {}) else workload.shards
    config = dataclasses.replace(config, plan=dataclasses.replace(config.plan, shards=shards))
    ranks = args.ranks or _default_ranks(config.plan, args.scale_shards)
    _check_backend(config.runtime.backend, ranks[-1], cluster)
    workload = _with_rollout_bytes(workload, config, ranks, args.module)
    predictions = predict_all(workload, config.plan, ranks, cluster, args.scale_shards, config.run.seed)
    print("\n".join([*_title(config, workload, measured_ranks, args, cluster), "", *table(predictions)]))
    rows = [dataclasses.asdict(prediction) for prediction in predictions]
    write_json(args, "simulate", ranks[-1], {"config": encode(config), "rows": rows})
    return 0


def _check_flags(tree: Mapping[str, Mapping[str, object]]) -> None:
    names = [f"{section}.{field}" for section, fields in tree.items() for field in fields]
    fixed = next((name for name in names if not name.startswith("plan.") and name != _BACKEND), None)
    if fixed:
        raise ValueError(
            f"--{fixed.replace('_', '-')}: the run fixes this field; only the fields of plan and {_BACKEND} can be predicted"
        )


def _changed(config: Config, tree: Mapping[str, Mapping[str, object]]) -> Config:
    """Return the config of the run with the flags. Another kind of plan removes the lists of ranks. Raises ValueError if it can't be predicted."""
    plan = dict(tree.get("plan", {}))
    if "kind" in plan:
        plan = {"players": None, "trainers": None, **plan}
    config = decode({**tree, "plan": plan}, config)
    for field, value, reason in _REQUIRED:
        found = getattr(config.plan, field)
        if found != value:
            shown = str(value).lower()
            raise ValueError(f"plan.{field} is {str(found).lower()}: {reason}; only {shown} can be predicted")
    return config


def _check_backend(backend: str, ranks: int, cluster: "Cluster") -> None:
    if backend not in ("auto", "shared", "gloo"):
        raise ValueError(
            f"{_BACKEND} is {backend!r}: only auto, shared and gloo can be predicted; add --{_BACKEND} auto"
        )
    if backend == "shared" and ranks > cluster.ranks_per_host:
        raise ValueError(
            f"{_BACKEND} is 'shared': {ranks} ranks are on several hosts, because --ranks-per-host is {cluster.ranks_per_host}; use auto"
        )


def _default_ranks(config: PlanConfig, weak: bool) -> list[int]:
    """Return 1, 2, 4 and so on, as far as the plan and its shards allow."""
    from lockstep.bench.simulation.prediction import MOST_RANKS, plan_of

    assert config.shards is not None
    least = default_ranks(dataclasses.replace(config, shards=None), 1)
    found = [1]
    for count in sorted({least, *(2**power for power in range(1, MOST_RANKS.bit_length()))} - {1}):
        try:
            plan_of(config, count, config.shards, weak)
        except ValueError:
            continue  # the plan does not have this number of ranks, or there are too few shards
        found.append(count)
    return found


def _with_rollout_bytes(workload: "Workload", config: Config, ranks: Sequence[int], module: str | None) -> "Workload":
    """Set the size of a rollout if the plan sends rollouts. It follows from the spaces of the environment, of which one is created."""
    if config.plan.kind == "coupled" or ranks == [1]:
        return workload
    import_env_module_of_run(config, module)
    from lockstep.envs.catalog import describe_env

    spaces, count = describe_env(config.env), config.env.count // workload.shards
    numbers = spaces.observation_size + spaces.action_size + 3  # reward, value, log-probability
    # three flags, and return and length of an episode in float64
    row = workload.itemsize * numbers + spaces.pixel_count + 3 + 16
    return dataclasses.replace(workload, rollout_bytes=float(config.rollout.steps * count * row))


def _cluster(args: argparse.Namespace) -> "Cluster":
    from lockstep.bench.simulation.network import Cluster

    cores = args.cores_per_host or usable_cores()
    return Cluster(args.ranks_per_host or cores, cores, _network(args.network))


def _title(
    config: Config, workload: "Workload", measured_ranks: int, args: argparse.Namespace, cluster: "Cluster"
) -> list[str]:
    env, plan = config.env, config.plan
    assert plan.shards is not None
    shards = f"{counted(plan.shards, 'shard')}{' per rank that plays' * args.scale_shards}"
    iterations, ranks = len(workload.costs.rollout), counted(measured_ranks, "rank")
    return [
        f"{env.id}: {shards} of {env.count // workload.shards} environments x {config.rollout.steps} steps",
        f"measured: {iterations} iterations on {ranks}",
        f"predicted: plan {plan.kind}, lag {plan.lag}; hosts of {cluster.cores_per_host} cores and {cluster.ranks_per_host} ranks, {args.network}",
    ]


def _parser() -> Arguments:
    parser = Arguments(
        "bench simulate",
        "Predicts the speed of an experiment on up to 4,096 ranks, from the times that a finished run has recorded. Takes the flags of plan and "
        f"--{_BACKEND} as well.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/, best of 1 rank")
    parser.add_argument(
        "--ranks",
        type=parse_ranks,
        metavar="N,N,…",
        help="numbers of ranks, at most 4,096 (default 1,2,4 and so on); 1 plays and trains, whatever the plan",
    )
    parser.add_argument(
        "--scale-shards",
        action="store_true",
        help="weak scaling: every rank that plays has the shards of the run (default: strong scaling, the same shards on all numbers of ranks)",
    )
    parser.add_argument(
        "--cores-per-host", type=whole_number(1), metavar="C", help="cores of a host (default: those of this host)"
    )
    parser.add_argument(
        "--ranks-per-host", type=whole_number(1), metavar="R", help="ranks on a host (default: one per core)"
    )
    parser.add_argument(
        "--network",
        default="10gbe",
        metavar="NAME",
        help="network between hosts: loopback, 10gbe (default), 25gbe, 100gbe, or its latency in microseconds and the gigabits per second of a "
        "host, such as 30,40",
    )
    parser.add_argument("--env.module", dest="module", metavar="M", help="module that registers the environment")
    add_json(parser)
    return parser


def _network(text: str) -> "Network":
    from lockstep.bench.simulation.network import NETWORKS, Network

    if text in NETWORKS:
        return NETWORKS[text]
    match = _NETWORK.fullmatch(text)
    if match is None or not float(match[2]) > 0:
        raise ValueError(
            f"--network is {text!r}: it must be one of {', '.join(NETWORKS)}, or microseconds and gigabits per second, such as 30,40"
        )
    return Network(float(match[1]) * 1e-6, float(match[2]) * 1e9 / 8)
