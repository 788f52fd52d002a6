"""Model card of a run for the Hugging Face Hub: description, results, how to use the agent, and the command that repeats the run."""

import re
from collections.abc import Iterable, Iterator
from statistics import fmean, stdev

from lockstep.config.flags import as_text
from lockstep.envs.families import extra_of
from lockstep.messages import counted
from lockstep.report.summary import Evaluated, RunSummary

__all__ = ["write_card"]

_TABLE = "| | |\n| --- | --- |"
_ACTIONS = {"most probable": "the most probable actions", "drawn": "sampled actions"}
"""Text for the kinds of actions of an evaluation."""
_TAGS = ("reinforcement-learning", "ppo", "lockstep")


def write_card(run: RunSummary, evaluated: Evaluated, repository: str, video: str | None) -> str:
    """Return the text of README.md: YAML metadata for the Hub, then Markdown.

    Strings from the run are put into code spans, so that none of them is interpreted as markup. `evaluated` is the evaluation of the agent
    that is shared, `repository` is `USER/NAME`, and `video` a file name in the repository. Raises ValueError if huggingface_hub is not
    installed.
    """
    parts = [
        f"---\n{_metadata(run, evaluated, repository)}\n---",
        f"# PPO on {_code(run.config.env.id)}",
        _introduction(run, evaluated),
        "## Results",
        *_results(run, evaluated),
        *(["## Video", f"[{video}]({video}): an episode with the most probable actions."] if video else []),
        "## Use the agent",
        *_usage(run, repository),
        "## Repeat the run",
        *_repeat(run, evaluated),
        "## Settings",
        "Settings that differ from the defaults; `config.json` has all settings.",
        _table(
            (s.name, as_text(s.value)) for s in run.settings if s.origin != "default" and not s.name.startswith("run.")
        ),
        "## Versions",
        _table(_versions(run)),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(run: RunSummary, evaluated: Evaluated, repository: str) -> str:
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError:
        raise ValueError("a model card needs huggingface_hub; pip install 'lockstep-rl[hub]'") from None
    env_id, kind = run.config.env.id, "reinforcement-learning"
    result = EvalResult(
        task_type=kind,
        task_name=kind,
        dataset_type=env_id,
        dataset_name=env_id,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=_mean_and_std(evaluated),
    )
    data = ModelCardData(
        library_name="lockstep",
        pipeline_tag=kind,
        tags=[*_TAGS, env_id],
        model_name=repository.partition("/")[2],
        eval_results=[result],
    )
    return data.to_yaml()


def _mean_and_std(evaluated: Evaluated) -> str:
    returns = evaluated.result.returns
    return f"{fmean(returns):.2f} ± {stdev(returns) if len(returns) > 1 else 0.0:.2f}"


def _introduction(run: RunSummary, evaluated: Evaluated) -> str:
    preset = f"the preset {_code(run.preset)}" if run.preset else "no preset"
    state = "finished" if run.status == "finished" else "not finished"
    reason = f", {run.early_end}" if run.early_end else ""
    return (
        f"An agent that lockstep trained on {_code(run.config.env.id)}, with {preset} and seed {run.config.run.seed}. Training is {state}: "
        f"{run.env_steps:,} environment steps in {run.iteration:,} of {run.iterations:,} iterations{reason}. The weights are those after iteration "
        f"{evaluated.iteration:,}."
    )


def _results(run: RunSummary, evaluated: Evaluated) -> Iterator[str]:
    result = evaluated.result
    interval = "" if result.interval is None else f", 95% interval of the mean ± {result.interval:.4g}"
    rows = [("mean return ± standard deviation", _mean_and_std(evaluated) + interval)]
    rows += [("lowest and highest return", f"{min(result.returns):.5g}, {max(result.returns):.5g}")]
    rows += [("mean length", f"{fmean(result.lengths):.5g} steps")]
    if run.sampled and run.sampled.digest == evaluated.digest:
        count = len(run.sampled.result.returns)
        rows += [("with sampled actions", f"{_mean_and_std(run.sampled)}, {count} episodes (evaluation-sampled.json)")]
    if run.final:
        episodes = counted(run.final.episodes, "episode")
        rows += [("mean return at the end of training", f"{run.final.value:.5g}, last {episodes}")]
    if run.goal is not None:
        reached = f"reached after {run.solved.env_steps:,} training steps" if run.solved else "not reached in training"
        rows += [("target return", f"{run.goal:g}: {reached}")]
    actions = _ACTIONS.get(evaluated.actions) or f"{_code(evaluated.actions)} actions"
    yield f"{len(result.returns)} episodes that were not used for training, with {actions} (`evaluation.json`):"
    yield _TABLE + "".join(f"\n| {name} | {value} |" for name, value in rows)
    yield (
        "The interval is the normal approximation, 1.96 s / √n, over episodes of this single run; a run with another seed may have another "
        "mean. `metrics.jsonl` has the learning curve."
    )


def _usage(run: RunSummary, repository: str) -> Iterator[str]:
    module = run.config.env.module
    if module and not re.fullmatch(r"\w+(\.\w+)*", module):
        module = None  # not a module name: do not put it into a command that users copy
    option = f" --env.module {module}" if module else ""
    extras = ",".join(filter(None, ("hub", extra_of(run.config.env.id))))
    yield _fence(
        "sh",
        f"pip install 'lockstep-rl[{extras}]'\nlockstep play hub:{repository}{option}\nlockstep eval hub:{repository}{option}",
    )
    program = f"import {module}  # registers the environment\n" * bool(module)
    program += f'import lockstep\n\npolicy = lockstep.load("hub:{repository}")\naction = policy.act(observation, info)'
    yield _fence("python", program)
    if module:
        yield (
            f"The environment is defined in the module {_code(module)}, which is not part of this repository; lockstep imports the module only "
            "if you name it."
        )
    yield "The repository contains safetensors and JSON files; loading the agent executes no code from it."


def _repeat(run: RunSummary, evaluated: Evaluated) -> Iterator[str]:
    if run.command is None:
        yield f"The environment {_code(run.config.env.id)} was defined by a program. Use that program to repeat the run."
    else:
        # agents play in environments of Gymnasium, so only training needs this extra
        install = "pip install 'lockstep-rl[envpool]'\n" if run.config.env.engine == "envpool" else ""
        yield _fence("sh", install + run.command)
    yield (
        f"Digest (SHA-256) of the weights and running statistics after iteration {evaluated.iteration:,}: {_code(evaluated.digest)}"
    )
    if run.env_faults:
        yield (
            f"This run can't be reproduced from its config alone: its environments failed {counted(run.env_faults, 'time')} "
            "and were replaced (`env.on_fault`)."
        )
    elif run.preempts:
        yield (
            "This run can't be reproduced from its config alone: slow ranks took fewer steps than fast ones (`plan.preempt`)."
        )
    elif not run.exact:
        yield (
            "The bits of this run depend on the number of ranks (`plan.exact`, `plan.gradients`): another run is equal only up to rounding."
        )
    elif run.extended:
        yield (
            f"The budget was raised from {run.initial_total_steps:,} to {run.config.run.total_steps:,} steps by `resume`. A run that starts with the "
            "larger budget gives other numbers if a schedule depends on the budget."
        )
    elif run.command is not None:
        yield (
            "On such a machine, with the package versions below, the command gives the same digest after that iteration, on any number of "
            "ranks, interrupted or not. Other versions, another processor or another device may round differently."
        )


def _versions(run: RunSummary) -> Iterator[tuple[str, object]]:
    machine = run.machine
    for name, value in (("python", machine.python), ("system", machine.system), ("processor", machine.processor)):
        if value:
            yield name, value
    yield from machine.packages.items()


def _table(rows: Iterable[tuple[str, object]]) -> str:
    return _TABLE + "".join(f"\n| {_cell(name)} | {_cell(value)} |" for name, value in rows)


def _cell(value: object) -> str:
    # a pipe ends the cell even inside a code span; no other character has a meaning there
    return _code(value).replace("|", "\\|")


def _code(value: object) -> str:
    """Return `value` as a code span, in which markup, links and HTML are not interpreted."""
    text = " ".join(str(value).split())
    marks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " * (text.startswith("`") or text.endswith("`") or not text)
    return f"{marks}{space}{text}{space}{marks}"


def _fence(language: str, text: str) -> str:
    marks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks}{language}\n{text}\n{marks}"
