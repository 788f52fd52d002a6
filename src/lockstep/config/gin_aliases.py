"""Translation of the names in another program's gin files to config fields.

The program trains a pendulum by PPO with PyTorch's DistributedDataParallel (`train_ppo.py CONFIG`, `train_ppo_ddp.py
CONFIG GPUS`). It has two networks, each with two hidden layers of size `train.nhid`. An iteration collects
`train.num_trajs` episodes of 100 steps, and every gradient step uses all of them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Binding", "Iterations", "translate"]

_SECTIONS = ("train", "Actor", "Critic", "Pendulum")
_EPISODE_ROWS = 101
"""Rows of an episode: 100 steps and the reset row."""
_FIELDS = {
    "train.num_actor_epochs": "ppo.policy_epochs",
    "train.num_critic_epochs": "ppo.value_epochs",
    "train.surrogate_objective": "ppo.surrogate",
    "train.lambda_const": "ppo.gae_lambda",
    "train.gamma": "ppo.gamma",
    "train.normalize_advantages": "ppo.normalize_advantages",
    "train.save_interval": "run.checkpoint_every",
    "train.device": "runtime.device",
    "Actor.lr": "ppo.learning_rate",
    "Actor.episolon": "ppo.clip",  # the program's spelling
    "Critic.lr": "ppo.value_learning_rate",
}
"""Config fields by the program's name, for bindings whose value is used unchanged."""
_WITHOUT_EFFECT = {
    "train.bs": None,  # the program accepts it but never uses it
    "train.hardcode_actor": False,
    "Pendulum.use_ode_solver": True,
}
"""Bindings that have no effect if they have this value (None: any value)."""
_REASONS = {
    "train.hardcode_actor": "the acting policy is always the trained one",
    "train.max_KL_per_iteration": "it limits another quantity than ppo.kl_stop: the mean of |log r|",
    "Pendulum.use_ode_solver": "the pendulum is always integrated by Runge-Kutta",
    "Actor.nhid": "train.nhid overrules it",
    "Critic.nhid": "train.nhid overrules it",
    "Actor.loss": "train.surrogate_objective overrules it",
}
"""Reasons why a binding has no counterpart, for error messages."""


class Binding(NamedTuple):
    """Binding `name = value` with its line in the file."""

    line: int
    name: str
    value: object


class Iterations(NamedTuple):
    """Value of `run.total_steps` in iterations. It is converted to steps after all sources of the config are merged."""

    number: int


def translate(bindings: Sequence[Binding]) -> Iterator[Binding]:
    """Yield the bindings with the names of config fields. Bindings that are not the program's are passed on unchanged.

    Raises ValueError, with the line, if a binding of the program has no counterpart, or if a number is not whole.
    """
    program_bindings = {binding.name: binding for binding in bindings if binding.name.partition(".")[0] in _SECTIONS}
    if program_bindings:
        line, _, sparse = program_bindings.get("Pendulum.sparse_reward", Binding(1, "", False))
        yield Binding(line, "env.id", f"pendulum-{'sparse' if sparse else 'dense'}")
        yield Binding(1, "ppo.minibatches", 1)
    for binding in bindings:
        if binding.name in program_bindings:
            yield from _translate_binding(binding, program_bindings)
        else:
            yield binding


def _translate_binding(binding: Binding, program_bindings: dict[str, Binding]) -> Iterator[Binding]:
    """Yield the config fields that one binding of the program sets. Raises ValueError as `translate` does."""
    line, name, value = binding
    if name in _FIELDS:
        yield Binding(line, _FIELDS[name], value)
    elif name == "train.nhid":
        yield Binding(line, "policy.hidden", [value, value])
    elif name == "train.num_trajs":
        yield Binding(line, "env.count", value)
        yield Binding(line, "rollout.steps", _EPISODE_ROWS)
    elif name == "train.num_iter":
        iterations, episodes = _whole_number(binding), program_bindings.get("train.num_trajs")
        steps = Iterations(iterations) if episodes is None else iterations * _whole_number(episodes) * _EPISODE_ROWS
        yield Binding(line, "run.total_steps", steps)
    elif name != "Pendulum.sparse_reward" and not (name in _WITHOUT_EFFECT and _WITHOUT_EFFECT[name] in (None, value)):
        raise ValueError(
            f"line {line}: {name} has no counterpart" + (f": {_REASONS[name]}" if name in _REASONS else "")
        )


def _whole_number(binding: Binding) -> int:
    """Return the value of a binding. Raises ValueError, with the line, if it is not a whole number."""
    if not isinstance(binding.value, int) or isinstance(binding.value, bool):
        raise ValueError(f"line {binding.line}: {binding.name} is {binding.value!r}: it must be a whole number")
    return binding.value
