"""`lockstep export`: export the policy of a run as one file that does not need lockstep."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.agents import add_checkpoint
from lockstep.cli.arguments import Arguments
from lockstep.cli.start import import_env_module_of_run
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

__all__ = ["main"]

_FORMATS = ("onnx", "torch")


def main(argv: Sequence[str]) -> int:
    """Write the file, and print its path, its inputs and its outputs. Return the exit code."""
    args = _parse(argv)

    from lockstep.envs.catalog import make_one
    from lockstep.experiment.execute import load_agent, open_run, pick_checkpoint
    from lockstep.export.formats import FORMATS
    from lockstep.export.writing import check_place, export_policy
    from lockstep.runtime.threads import limit_threads

    folder = RunFolder.open(locate(args.run))
    import_env_module_of_run(open_run(folder.path)[1], args.module)
    iteration = pick_checkpoint(folder, args.iteration)
    path = args.out or folder.path / f"policy-{iteration:08d}{FORMATS[args.format].suffix}"
    check_place(path, args.format)
    config, agent = load_agent(folder, iteration)
    limit_threads(config.runtime.threads)
    env = make_one(config.env)
    env.close()
    options = json.dumps(dict(config.env.options))
    metadata = {
        "env_id": config.env.id,
        "env_options": options,
        "iteration": str(iteration),
        "actions": "most probable",
    }
    exported = export_policy(agent, env.observation_space, env.action_space, path, args.format, metadata)
    print(
        f"policy of {config.env.id}, iteration {iteration}; its outputs equal those of the run to {exported.difference:.1g}"
    )
    rows = [("in", port) for port in exported.inputs] + [("out", port) for port in exported.outputs]
    width = max(len(str(port)) for _, port in rows)
    for title, port in rows:
        print(f"{title:<3} {port!s:<{width}}  {port.meaning}")
    print(f"written {exported.path}")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Arguments(
        "export",
        "Exports the policy of a run as one file that does not need lockstep. It maps observations to the most probable actions.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/")
    parser.add_argument(
        "--format",
        type=_parse_format,
        default="onnx",
        metavar="onnx|torch",
        help="onnx, for ONNX Runtime and others, or torch, a program of torch.export (default onnx)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file, FILE.onnx or FILE.pt2 (default RUN/policy-K.onnx or .pt2)"
    )
    add_checkpoint(parser)
    parser.add_argument("--env.module", dest="module", metavar="M", help="module that registers the environment")
    return parser.read(argv)


def _parse_format(text: str) -> str:
    if text not in _FORMATS:
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be {' or '.join(_FORMATS)}")
    return text
