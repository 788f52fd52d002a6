"""The Python API. `import lockstep` exports the public names of this module, such as `lockstep.train`."""

import dataclasses
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.envs.catalog import make_one
from lockstep.envs.functions import Make, is_function, register_function
from lockstep.experiment.arguments import (
    check_start,
    chosen_iteration,
    run_text,
    true_or_false,
    whole_number,
    whole_number_or_none,
)
from lockstep.experiment.execute import open_run
from lockstep.experiment.hooks import Hook, import_hook, importable_hook
from lockstep.experiment.policy import TrainedPolicy, evaluation_seeds, load_policy
from lockstep.experiment.prepare_resume import prepare_resume
from lockstep.experiment.prepare_run import ResolvedRun, prepare_run
from lockstep.experiment.program import compose_config, settings_tree
from lockstep.experiment.resolve import importable, resolve
from lockstep.experiment.start import (
    extended_by,
    is_complete,
    raise_for_exit_code,
    resolve_resume,
    resolve_start,
    run_rank,
    start_warnings,
)
from lockstep.experiment.storing import check_store_of_run
from lockstep.experiment.supervise import supervise
from lockstep.hub.fetching import find_checkpoint
from lockstep.processes.portable import check_portable
from lockstep.report.evaluate import Evaluation, play_episodes
from lockstep.run.evaluations import Choice
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate
from lockstep.run.stop import StoppedEarly, listening
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RESTARTS
from lockstep.runtime.threads import limit_threads, preserve_thread_limits
from lockstep.telemetry.result import result_text

if TYPE_CHECKING:
    from lockstep.report.summary import RunSummary

__all__ = ["Run", "evaluate", "load", "resume", "train"]


class Run:
    """Folder of a run, with `config`, in which every setting has its final value, metrics and policy."""

    def __init__(self, run: "str | os.PathLike[str] | Run", env: Make | None = None) -> None:
        """Open `run`: a Run, a path or a name in `runs/`. `env` is the function that makes its environment, if any.

        Raises ValueError if there is no such run, if this program has not imported the module of its environment, or if
        `env` is given for a run that was not started with a function.
        """
        self.path: Path = run.path if isinstance(run, Run) else locate(run_text(run))
        self.folder, self.config = open_run(self.path)
        make = env or (run._make if isinstance(run, Run) else None)
        self._make: Make | None = make
        module = self.config.env.module
        if module is not None and module not in sys.modules:
            raise ValueError(
                f"env.module is {module!r} in this run: a run folder can't import modules; import it first if you trust it"
            )
        if make is not None and not is_function(self.config.env.id):
            raise ValueError(f"env was given, but {self.path} is a run of {self.config.env.id}: leave it out")
        if make is not None:
            register_function(make, self.config.env.id)

    @property
    def metrics(self) -> list[dict[str, object]]:
        """Metrics of completed iterations, one dict each, as in `metrics.jsonl`. docs/metrics.md describes the keys."""
        return self.folder.metrics()

    @property
    def stopped(self) -> bool:
        """True if the run has not completed its last iteration. `resume` continues it."""
        return not is_complete(self.folder, self.config, int(self._last("iteration", 0)))

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last 20 training episodes; None before 20 have ended."""
        return self._last("return_mean_20", None)  # type: ignore[no-any-return]

    @property
    def digest(self) -> str:
        """Hash of the agent after the last iteration, equal if all bits are equal. Empty before the first iteration."""
        return str(self._last("digest", ""))

    @property
    def summary(self) -> "RunSummary":
        """Outcome, settings, versions and a command that reproduces the run. Raises ValueError if a file is broken."""
        from lockstep.report.summary import summarize

        return summarize(self.folder)

    def report(self) -> Path:
        """Write `report.html` into the run folder and return its path. Raises ValueError if the run has no data."""
        from lockstep.report.page import write_report

        return write_report(self.folder)

    def load(self, **options: Any) -> TrainedPolicy:
        """Load the policy of the run: the same as `lockstep.load(self, …)`."""
        return load(self, **options)

    def evaluate(self, episodes: int = 20, **options: Any) -> Evaluation:
        """Evaluate the policy of the run: the same as `lockstep.evaluate(self, …)`."""
        return evaluate(self, episodes, **options)

    def _last(self, name: str, default: Any) -> Any:
        """Return a metric of the last completed iteration, or `default` if there is none."""
        rows = self.metrics
        return rows[-1].get(name, default) if rows else default

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def train(
    preset: str | None = None,
    *,
    env: str | Make | Mapping[str, object] | None = None,
    config: Config | str | os.PathLike[str] | None = None,
    ranks: int = 1,
    restarts: int = RESTARTS,
    resume: bool = False,
    on_iteration: Hook | None = None,
    **settings: object,
) -> Run:
    """Train an agent until its budget of environment steps is used up, in a new folder of `runs/`.

    Args:
        preset: The name of a preset; `lockstep presets` lists them. None: the defaults. With another `env`, its goal and `env.options`
            are dropped, with a warning.
        env: A Gymnasium id (default "CartPole-v1"), a function or class that makes an environment, or a dict with fields of the
            section `env`, in which `id` may be such a function: `{"id": make_env, "count": 16}`. The function is called once per
            environment, with `env.options` as keywords; one with a parameter `num_envs` is called once per shard and returns a VectorEnv.
        config: A Config, or a .yaml, .json or .gin file. It overrides the preset, and `settings` override both.
        ranks: The number of processes on this host; 1 trains in this process. With more, the environment must be one that
            other processes can import: an id, or a function of an importable module.
        restarts: The number of restarts from the newest checkpoint, within an hour, after a process died or hung. For several `ranks`.
        resume: If True, continue with the run of this `name` from its newest checkpoint if it exists, and return it unchanged if it is complete. A
            program that is started again then resumes its run. A run with another config is refused.
        on_iteration: A function that is called after every iteration with an `Iteration`: its metrics, a copy of the policy, and `stop()`,
            which ends training. It may return a dict of numbers, which are recorded as metrics. With more ranks, only rank 0 calls it,
            in another process.
        **settings: Fields of the config, in three forms: the short names `total_steps=100_000`, `seed=1`, `out='runs'`,
            `plan='coupled'` (shown with their defaults) and `name`; a section as a dict, `ppo={"learning_rate": 1e-3}`; a single field,
            `**{"ppo.learning_rate": 1e-3}`. `lockstep train --help` lists all fields with their defaults.

    Returns:
        The run. Its `stopped` is True if a signal stopped training early and the program's handler of that signal returned.

    Raises:
        ValueError: A setting is wrong or does not fit the others. The message is one line; nothing has been started.
        EnvironmentFailed: An environment raised an error, or returned values that its spaces do not allow. A RuntimeError, and with several
            ranks only a RuntimeError.
        RankLost: A rank died or timed out. A RuntimeError.
        NonFinite: A loss, a gradient or a weight became NaN or infinite. An ArithmeticError.
        KeyboardInterrupt: Ctrl-C. Like SIGTERM and SIGUSR1, it reaches the program after the iteration and a checkpoint.

    Example:
        >>> run = lockstep.train("cartpole", seed=2, ppo={"learning_rate": 1e-3})
        >>> lockstep.evaluate(run, episodes=20).return_mean
    """
    (ranks, restarts), resume = check_start(ranks, restarts), true_or_false("resume", resume)
    tree, make = settings_tree({**settings, **({} if env is None else {"env": env})})
    composed = compose_config(preset, config, tree)
    hook = _choose_hook(on_iteration, composed, ranks)
    start = resolve_start(composed, None, ranks)
    resolved = resolve(start.config, ranks, start.plan, preset)
    modules = _check_processes(resolved, ranks)
    if make is not None:
        with chdir("."):  # raises ValueError if the function returns the environment that `resolve` has created
            make_one(resolved.env).close()
    for line in start_warnings(start.config, resolved):
        warnings.warn(line, stacklevel=2)
    return _begin(ResolvedRun(composed, resolved, start.plan, preset, resume), make, modules, hook, restarts)


def _begin(run: ResolvedRun, make: Make | None, modules: list[str], hook: Hook | None, restarts: int) -> Run:
    """Create the run, or open it with `resume`, and train it. `make` is the function that makes its environment, if any."""
    folder, _, resume_from = prepare_run(run)
    try:
        opened = Run(Path(str(folder)), make)
        return opened if resume_from is None else _train_to_end(opened, run.plan, resume_from, modules, hook, restarts)
    finally:
        folder.unlock()


def resume(
    run: str | os.PathLike[str] | Run,
    *,
    env: Make | None = None,
    ranks: int = 1,
    restarts: int = RESTARTS,
    iteration: int | None = None,
    total_steps: int | None = None,
    on_iteration: Hook | None = None,
    **settings: object,
) -> Run:
    """Continue a run from a checkpoint, with the same bits as a run that was never stopped.

    Args:
        run: A Run, the path of its folder, or its name in `runs/`.
        env: The function that makes the environment, if the run was started with one.
        ranks: The number of processes, as in `train`. It may differ from that of the first start.
        restarts: The number of restarts after a fault, as in `train`.
        iteration: The checkpoint to continue from. None: the newest; 0: the start.
        total_steps: A larger budget, in environment steps. None: the budget of the run.
        on_iteration: A function that is called after every iteration, as in `train`.
        **settings: Fields that do not change the results, such as `plan` and `runtime`, in the forms of `train`.

    Returns:
        The run. A run that is complete is returned unchanged.

    Raises:
        ValueError: The run or the checkpoint does not exist, or a setting can't be changed. Nothing has been started.
        EnvironmentFailed, RankLost, NonFinite, KeyboardInterrupt: As in `train`.

    Example:
        >>> run = lockstep.resume("runs/first", total_steps=200_000)
        >>> run.digest
    """
    ranks, restarts = check_start(ranks, restarts)
    iteration = whole_number_or_none("iteration", iteration, 0)
    total_steps = whole_number_or_none("total_steps", total_steps, 1)
    path = run.path if isinstance(run, Run) else locate(run_text(run))
    # lock the run before reading its config and checkpoints: another process may be writing them
    with RunFolder.open(path).locked():
        opened, tree = Run(run, env), settings_tree(settings)[0]
        extended = extended_by(opened.config, tree, total_steps)
        if "hooks" not in tree.get("run", {}):
            if extended.run.hooks is not None and on_iteration is None:
                raise ValueError(
                    f"run.hooks is {extended.run.hooks!r} in this run: a run folder can't import modules; give on_iteration or run.hooks again"
                )
            extended = dataclasses.replace(extended, run=dataclasses.replace(extended.run, hooks=None))
        check_store_of_run(opened.config.run, tree.get("run", {}))
        hook = _choose_hook(on_iteration, extended, ranks)
        if opened._make is not None:  # the id contains the function's module, which may have changed since the start
            extended = dataclasses.replace(
                extended, env=dataclasses.replace(extended.env, id=register_function(opened._make))
            )
        start = resolve_resume(extended, None, ranks)
        modules = _check_processes(start.config, ranks)
        resume_from = prepare_resume(opened.folder, opened.config, start.config, iteration, ranks)
        if resume_from is None:
            return opened
        return _train_to_end(Run(opened), start.plan, resume_from, modules, hook, restarts)


def load(
    run: str | os.PathLike[str] | Run,
    *,
    env: Make | None = None,
    iteration: Choice = None,
    sample: bool = False,
    seed: int | None = None,
) -> TrainedPolicy:
    """Load the policy of a run. It acts on NumPy arrays.

    Args:
        run: A Run, the path of its folder or of one checkpoint, its name in `runs/`, or a model on the Hugging Face Hub,
            `hub:USER/NAME` or `hub:USER/NAME@REVISION`. A model is downloaded; no code of it is run.
        env: The function that makes the environment, if the run was started with one. It is called once, for the spaces.
        iteration: The checkpoint. None: the newest; "best": the best evaluation during training or, without evaluations, the highest
            `return_mean_20`.
        sample: If True, `act` samples actions as in training; otherwise it returns the most probable ones.
        seed: The seed for sampling. None: the run's.

    Returns:
        The policy, with `begin`, `act`, `value` and `predict`.

    Raises:
        ValueError: The run or the checkpoint does not exist or is broken, or it does not fit the environment.

    Example:
        >>> policy = lockstep.load("runs/first")
        >>> policy.begin()  # at the start of every episode
        >>> action = policy.act(observation, info)
    """
    seed, sample = whole_number_or_none("seed", seed, 0), true_or_false("sample", sample)
    opened, iteration = _open_checkpoint(run, env, iteration)
    return load_policy(opened.folder, iteration, sample, seed)[1]


def evaluate(
    run: str | os.PathLike[str] | Run,
    episodes: int = 20,
    *,
    env: Make | None = None,
    iteration: Choice = None,
    sample: bool = False,
    seed: int | None = None,
) -> Evaluation:
    """Play episodes with the policy of a run, on seeds that training never used, as `lockstep eval` does.

    Args:
        run: A Run, a path, a name or a model on the Hub, as in `load`.
        episodes: The number of episodes.
        env: The function that makes the environment, if the run was started with one.
        iteration: The checkpoint. None: the newest; "best": the best evaluation during training or, without evaluations, the highest
            `return_mean_20`.
        sample: If True, actions are sampled as in training; otherwise they are the most probable ones.
        seed: The seed of the episodes and of sampling. None: the run's.

    Returns:
        The return and the length, in steps, of every episode, with their mean and its 95% interval.

    Raises:
        ValueError: The number of episodes is not a whole number or is less than 1, or the policy can't be loaded: see `load`.

    Example:
        >>> lockstep.evaluate("runs/first", episodes=100).return_mean
    """
    episodes, seed = whole_number("episodes", episodes, 1), whole_number_or_none("seed", seed, 0)
    sample = true_or_false("sample", sample)
    opened, iteration = _open_checkpoint(run, env, iteration)
    config, policy = load_policy(opened.folder, iteration, sample, seed)
    env_instance = make_one(config.env)
    try:
        with preserve_thread_limits():
            limit_threads(config.runtime.threads)
            seeds = evaluation_seeds(config.run.seed if seed is None else seed, episodes)
            results = list(play_episodes(env_instance, policy.begin, seeds))
    finally:
        env_instance.close()
    return Evaluation([total for total, _ in results], [length for _, length in results])


def _open_checkpoint(run: str | os.PathLike[str] | Run, env: Make | None, iteration: Choice) -> tuple[Run, Choice]:
    """Open a run, and return it with the checkpoint to load."""
    iteration = chosen_iteration(iteration)
    if isinstance(run, Run):
        return Run(run, env), iteration
    path, iteration = find_checkpoint(run_text(run), iteration)
    return Run(path, env), iteration


def _check_processes(config: Config, ranks: int) -> list[str]:
    """Return the modules that ranks in other processes import. Raises ValueError if they can't, or if this process can't be a rank."""
    if ranks > 1:
        return importable(config, f"ranks is {ranks}")
    if config.runtime.bits == "portable":
        check_portable()
    return []


def _choose_hook(on_iteration: Hook | None, config: Config, ranks: int) -> Hook | None:
    """Return the hook of a start, from the argument or `run.hooks`. Raises ValueError if both are given, or ranks can't import it."""
    named = import_hook(config.run.hooks)
    if named is not None and on_iteration is not None:
        raise ValueError(f"run.hooks is {config.run.hooks!r}: on_iteration was given too; remove one of the two")
    if on_iteration is not None and not callable(on_iteration):
        raise ValueError(f"on_iteration is {on_iteration!r}: it must be a function")
    if on_iteration is not None and ranks > 1:
        importable_hook(on_iteration, ranks)
    return on_iteration or named


def _train_to_end(run: Run, plan: Plan, resume_from: int, modules: list[str], hook: Hook | None, restarts: int) -> Run:
    """Train from `resume_from` until the run is complete or stopped. The caller holds the lock of the run folder."""
    folder, config = run.folder, run.config
    with listening():
        if plan.ranks == 1:
            # at its end, listening() passes the signal on to the program
            with _process_state_restored(), suppress(StoppedEarly):
                trained = run_rank(RankInfo(0, 1, 0, 1), folder, config, plan, resume_from, hook)
                if config.run.progress != "off":
                    print(result_text(trained, f"lockstep.resume({str(folder)!r})"), flush=True)
        else:
            name = None if hook is None else importable_hook(hook, plan.ranks)
            raise_for_exit_code(supervise(folder, [plan.ranks], resume_from, modules, name, restarts))
    return run


@contextmanager
def _process_state_restored() -> Iterator[None]:
    """Restore thread limits and unfreeze the garbage collector at the end: training in this process changes both."""
    with preserve_thread_limits():
        try:
            yield
        finally:
            gc.unfreeze()
