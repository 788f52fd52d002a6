"""What the names in another program's gin files are called here.

That program is PPO with PyTorch's DistributedDataParallel on a pendulum (`train_ppo.py CONFIG`, `train_ppo_ddp.py CONFIG GPUS`): two networks with
two hidden layers of `train.nhid`, and iterations of `train.num_trajs` episodes of 100 steps, all of which are in every gradient step.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Binding", "Iterations", "translate"]

_SECTIONS = ("train", "Actor", "Critic", "Pendulum")
_EPISODE = 101
"""Rows of an episode: 100 steps, and the one that resets."""
_RENAMED = {
    "train.num_actor_epochs": "ppo.policy_epochs",
    "train.num_critic_epochs": "ppo.value_epochs",
    "train.surrogate_objective": "ppo.surrogate",
    "train.lambda_const": "ppo.gae_lambda",
    "train.gamma": "ppo.gamma",
    "train.normalize_advantages": "ppo.normalize_advantages",
    "train.save_interval": "run.checkpoint_every",
    "train.device": "runtime.device",
    "Actor.lr": "ppo.learning_rate",
    "Actor.episolon": "ppo.clip",  # spelled so
    "Critic.lr": "ppo.value_learning_rate",
}
_WITHOUT_EFFECT = {
    "train.bs": None,  # which the program takes and never looks at
    "train.hardcode_actor": False,
    "Pendulum.use_ode_solver": True,
}
"""Bindings that change nothing, if they have this value (None: any)."""
_WHY = {
    "train.hardcode_actor": "an actor is always the one that is trained",
    "train.max_KL_per_iteration": "it bounds another quantity than ppo.kl_stop, the mean of |log r|",
    "Pendulum.use_ode_solver": "the pendulum is always integrated by Runge-Kutta",
    "Actor.nhid": "train.nhid overrules it",
    "Critic.nhid": "train.nhid overrules it",
    "Actor.loss": "train.surrogate_objective overrules it",
}


class Binding(NamedTuple):
    """`name = value`, in a line of the file."""

    line: int
    name: str
    value: object


class Iterations(NamedTuple):
    """A value of `run.total_steps` in iterations, whose size is known when all parts of the config are merged."""

    number: int


def translate(bindings: Sequence[Binding]) -> Iterator[Binding]:
    """The same with our names. What is not that program's passes as it is.

    Raises ValueError, with the line, for a binding of the program's that has no counterpart.
    """
    theirs = {binding.name: binding for binding in bindings if binding.name.partition(".")[0] in _SECTIONS}
    if theirs:
        line, _, sparse = theirs.get("Pendulum.sparse_reward", Binding(1, "", False))
        yield Binding(line, "env.id", f"pendulum-{'sparse' if sparse else 'dense'}")
        yield Binding(1, "ppo.minibatches", 1)
    for binding in bindings:
        if binding.name in theirs:
            yield from _translated(binding, theirs)
        else:
            yield binding


def _translated(binding: Binding, theirs: dict[str, Binding]) -> Iterator[Binding]:
    line, name, value = binding
    if name in _RENAMED:
        yield Binding(line, _RENAMED[name], value)
    elif name == "train.nhid":
        yield Binding(line, "policy.hidden", [value, value])
    elif name == "train.num_trajs":
        yield Binding(line, "env.count", value)
        yield Binding(line, "rollout.steps", _EPISODE)
    elif name == "train.num_iter":
        iterations, episodes = _whole(binding), theirs.get("train.num_trajs")
        steps = Iterations(iterations) if episodes is None else iterations * _whole(episodes) * _EPISODE
        yield Binding(line, "run.total_steps", steps)
    elif name != "Pendulum.sparse_reward" and not (name in _WITHOUT_EFFECT and _WITHOUT_EFFECT[name] in (None, value)):
        raise ValueError(f"line {line}: {name} has no counterpart" + (f": {_WHY[name]}" if name in _WHY else ""))


def _whole(binding: Binding) -> int:
    if not isinstance(binding.value, int) or isinstance(binding.value, bool):
        raise ValueError(f"line {binding.line}: {binding.name} is {binding.value!r}: it must be a whole number")
    return binding.value
