"""The model card of a run, for the Hub: what it is, how good, how to play it, and the command that gives it again."""

import re
from collections.abc import Iterable, Iterator
from statistics import fmean, stdev

from lockstep.config.flags import as_text
from lockstep.report.summary import Evaluated, RunSummary

__all__ = ["write_card"]

_TABLE = "| | |\n| --- | --- |"
_TAGS = ("reinforcement-learning", "ppo", "lockstep")


def write_card(run: RunSummary, evaluated: Evaluated, place: str, film: str | None) -> str:
    """The text of README.md: YAML as the Hub reads it, then Markdown. What is from the run is in code spans, where it can't be markup.

    Args:
        run: The facts.
        evaluated: Of the agent that is shared.
        place: `USER/NAME`.
        film: The name of the video beside it; None: there is none.

    Raises ValueError where huggingface_hub is missing.
    """
    parts = [
        f"---\n{_metadata(run, evaluated, place)}\n---",
        f"# PPO on {_code(run.config.env.id)}",
        _opening(run, evaluated),
        "## Outcome",
        *_outcome(run, evaluated),
        *(["## Video", f"[{film}]({film}): an episode by the most probable actions."] if film else []),
        "## Play it",
        *_playing(run, evaluated, place),
        "## The same run again",
        *_again(run, evaluated),
        "## Settings",
        "All that differ from the defaults; `config.json` has every one.",
        _table(
            (s.name, as_text(s.value)) for s in run.settings if s.origin != "default" and not s.name.startswith("run.")
        ),
        "## Versions",
        _table(_versions(run)),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(run: RunSummary, evaluated: Evaluated, place: str) -> str:
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
        model_name=place.partition("/")[2],
        eval_results=[result],
    )
    return data.to_yaml()


def _mean_and_std(evaluated: Evaluated) -> str:
    returns = evaluated.result.returns
    return f"{fmean(returns):.2f} ± {stdev(returns) if len(returns) > 1 else 0.0:.2f}"


def _opening(run: RunSummary, evaluated: Evaluated) -> str:
    preset = f"the preset {_code(run.preset)}" if run.preset else "no preset"
    done = "all" if run.status == "finished" else "not all"
    return (
        f"An agent that lockstep trained on {_code(run.config.env.id)}, with {preset} and seed {run.config.run.seed}: {run.env_steps:,} "
        f"environment steps in {run.iteration:,} of {run.iterations:,} iterations, which are {done} of its budget. These are the weights after "
        f"iteration {evaluated.iteration:,}."
    )


def _outcome(run: RunSummary, evaluated: Evaluated) -> Iterator[str]:
    result = evaluated.result
    interval = "" if result.interval is None else f", 95% interval of the mean ± {result.interval:.4g}"
    rows = [("mean return ± standard deviation", _mean_and_std(evaluated) + interval)]
    rows += [("lowest and highest return", f"{min(result.returns):.5g}, {max(result.returns):.5g}")]
    rows += [("mean length", f"{fmean(result.lengths):.5g} steps")]
    if run.sampled and run.sampled.digest == evaluated.digest:
        count = len(run.sampled.result.returns)
        rows += [("with drawn actions", f"{_mean_and_std(run.sampled)}, {count} episodes (evaluation-sampled.json)")]
    if run.final:
        rows += [("mean return at the end of training", f"{run.final.value:.5g}, last 20 episodes")]
    if run.goal is not None:
        reached = f"after {run.solved.env_steps:,} steps of training" if run.solved else "not reached in training"
        rows += [("return to reach", f"{run.goal:g}: {reached}")]
    yield f"{len(result.returns)} episodes that training never saw, {_code(evaluated.actions)} actions (`evaluation.json`):"
    yield _TABLE + "".join(f"\n| {name} | {value} |" for name, value in rows)
    yield (
        "The interval is the normal approximation, 1.96 s / √n, over episodes of this one run; another seed may end elsewhere. "
        "`metrics.jsonl` has the learning curve."
    )


def _playing(run: RunSummary, evaluated: Evaluated, place: str) -> Iterator[str]:
    module = run.config.env.module
    if module and not re.fullmatch(r"\w+(\.\w+)*", module):
        module = None  # is none, and nobody is to type it
    trusted = f" --env.module {module}" if module else ""
    yield _fence(
        "sh", f"pip install 'lockstep-rl[hub]'\nlockstep play hub:{place}{trusted}\nlockstep eval hub:{place}{trusted}"
    )
    loading = f"import {module}  # registers the environment\n" * bool(module)
    loading += f'import lockstep\n\npolicy = lockstep.load("hub:{place}")\naction = policy.act(observation, info)'
    yield _fence("python", loading)
    if module:
        yield f"Its environment is in the module {_code(module)}, which is not part of this repository; lockstep imports it only if you say so."
    yield "The repository holds safetensors and JSON; nothing in it is run when it is loaded."


def _again(run: RunSummary, evaluated: Evaluated) -> Iterator[str]:
    if run.command is None:
        yield f"A program gave this run its environment, {_code(run.config.env.id)}: it is trained again by that program."
    else:
        yield _fence("sh", run.command)
    yield f"Digest (SHA-256) of the weights and moments after iteration {evaluated.iteration:,}: {_code(evaluated.digest)}"
    if not run.exact:
        yield "Its bits depend on the ranks that carried it (`plan.exact`, `plan.gradients`): another run is equal to rounding only."
    elif run.extended:
        yield (
            f"Its budget was raised from {run.first_steps:,} to {run.config.run.total_steps:,} steps, so it has another course than a run "
            "that begins with this budget, wherever a schedule goes by the budget."
        )
    elif run.command is not None:
        yield (
            "With the packages below, on such a machine, it gives the same digest after that iteration, on any number of ranks, interrupted or "
            "not. Other versions, another processor or another device may round differently."
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
    # in a table a pipe ends the cell, in code too; in code nothing else has a meaning
    return _code(value).replace("|", "\\|")


def _code(value: object) -> str:
    """A code span: in it there is no markup, no link and no HTML."""
    text = " ".join(str(value).split())
    marks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " * (text.startswith("`") or text.endswith("`") or not text)
    return f"{marks}{space}{text}{space}{marks}"


def _fence(language: str, text: str) -> str:
    marks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks}{language}\n{text}\n{marks}"
