"""The `ppo` section of the config."""

from dataclasses import dataclass
from typing import Literal

from lockstep.ppo.schedules import Schedule

__all__ = ["PPOConfig"]


@dataclass(frozen=True)
class PPOConfig:
    """PPO's update (Schulman et al. 2017, arXiv:1707.06347). A schedule is a number, or `linear(1, 0)`, `cosine(1, 0)`,
    `piecewise(0: 1, 0.5: 0.1, 1: 0)` over the fraction of the run that is done.
    """

    learning_rate: float | str = "linear(3e-4, 0)"
    """Learning rate of Adam: a schedule. Usually 1e-4 to 1e-3."""
    value_learning_rate: float | str | None = None
    """Learning rate of the critic: a schedule. None: that of the policy. A value requires `policy.shared: false`."""
    learning_rate_kl: float | str | None = 0.01
    """Target of the KL-adaptive learning rate: a schedule. The rate is divided by 1.5 if the KL divergence of an update's last epoch exceeds
    twice this value, and multiplied by 1.5 below half of it. The factor multiplies the schedule. None: off. Usually 0.008 to 0.02."""
    learning_rate_kl_max: float = 1.0
    """Largest factor of the KL-adaptive learning rate. 1: the rate never exceeds its schedule. 100: it adapts in both directions, as in
    rl_games and rsl_rl."""
    gamma: float = 0.99
    """Discount factor per step. Usually 0.9 to 0.999."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation: 0 is one-step TD, 1 is Monte Carlo. Usually 0.9 to 1."""
    epochs: int = 10
    """Passes over the rollouts in one update. Usually 3 to 20."""
    policy_epochs: int | None = None
    """Passes that train the policy. None: `epochs`. A value other than `value_epochs` requires
    `policy.shared: false`."""
    value_epochs: int | None = None
    """Passes that train the critic. None: `epochs`."""
    minibatches: int | None = None
    """Minibatches per epoch. A minibatch has `env.count * rollout.steps / minibatches` steps, an equal number from each shard. None: as many
    as give minibatches of 64 steps, at most 32."""
    surrogate: Literal["clip", "kl"] = "clip"
    """Objective: `clip` is equation 7 of the paper, `kl` its adaptive KL penalty (equation 8)."""
    clip: float | str = 0.2
    """ε of the clipped surrogate: a schedule. Usually 0.1 to 0.3."""
    kl_target: float = 0.01
    """Surrogate `kl`: target of the KL divergence per update, to which the coefficient of the penalty adapts. Usually 0.003 to 0.03."""
    kl_coefficient: float = 1.0
    """Surrogate `kl`: initial coefficient β of the penalty. It adapts quickly."""
    kl_stop: float | None = None
    """KL divergence of a minibatch at which the update of the policy stops early. A critic with its own epochs or learning rate
    continues. None: never. Usually 0.01 to 0.05."""
    value_clip: float | None = None
    """Clip range of the critic's estimates around their old values in the value loss (as in OpenAI Baselines). None: off."""
    value_coefficient: float = 0.5
    """Coefficient of the value loss, which is half the squared error. With separate trunks it matters only through gradient
    clipping."""
    entropy: float | str = 0.0
    """Coefficient of the entropy bonus: a schedule. Usually 0 to 0.02."""
    max_grad_norm: float | None = 0.5
    """Maximum Euclidean norm of the gradient, over all parameters. None: no clipping."""
    separate_grad_norms: bool = False
    """Clip the gradients of policy and critic separately, each to `max_grad_norm`. Requires separate trunks. Off: clip both by their common
    norm, in which large value errors leave little of the policy's gradient."""
    recompute_advantages: bool = True
    """Recompute advantages and value targets before every epoch after the first, with the current critic (Andrychowicz et al. 2021,
    arXiv:2006.05990)."""
    normalize_advantages: bool = True
    """Normalize the advantages of each minibatch, over all shards, to mean 0 and standard deviation 1."""
    clip_rewards: bool = False
    """Train on the sign of rewards, -1, 0 or 1 (Mnih et al. 2015). Reported returns are not clipped."""
    normalize_rewards: bool | None = None
    """Divide rewards by the running standard deviation of the discounted return, over all shards. None: on, unless `clip_rewards` is
    true."""
    adam_epsilon: float = 1e-5
    """Adam's ε."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """Response to a gradient, a loss, an observation or a reward that is not finite. `stop`: end the run with exit code 3. `skip`: leave out the
    gradient steps that are not finite, and count them as `skipped_steps`; three iterations in a row without any other step end the run."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "learning_rate_kl", "value_learning_rate", "clip", "entropy"):
            value = getattr(self, name)
            if value is not None:
                Schedule.parse(value, f"ppo.{name}")
        for name, low, high in (("gamma", 0.0, 1.0), ("gae_lambda", 0.0, 1.0)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"ppo.{name} is {value}: it must be between {low:g} and {high:g}")
        for name in ("epochs", "minibatches", "policy_epochs", "value_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"ppo.{name} is {value}: it must be at least 1")
        for name in (
            "learning_rate_kl",
            "learning_rate_kl_max",
            "kl_stop",
            "kl_target",
            "kl_coefficient",
            "value_clip",
            "max_grad_norm",
            "adam_epsilon",
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str) and not value > 0:
                raise ValueError(f"ppo.{name} is {value}: it must be above 0")
        if self.clip_rewards and self.normalize_rewards:
            raise ValueError("ppo.clip_rewards is true: it excludes ppo.normalize_rewards; set only one of the two")
        if self.value_coefficient < 0:
            raise ValueError(f"ppo.value_coefficient is {self.value_coefficient}: it must not be negative")

    @property
    def minibatch_count(self) -> int:
        """`minibatches` of a resolved config."""
        assert self.minibatches is not None, "the config is not resolved: ppo.minibatches is None"
        return self.minibatches

    @property
    def separate(self) -> bool:
        """True if the critic has its own learning rate, or another number of epochs than the policy."""
        return self.value_learning_rate is not None or self.epochs_of_policy != self.epochs_of_value

    @property
    def epochs_of_policy(self) -> int:
        """Number of epochs that train the policy."""
        return self.policy_epochs or self.epochs

    @property
    def epochs_of_value(self) -> int:
        """Number of epochs that train the critic."""
        return self.value_epochs or self.epochs
