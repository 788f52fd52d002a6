"""The `curiosity` section of the config."""

from dataclasses import dataclass
from typing import Literal

from lockstep.ppo.schedules import Schedule

__all__ = ["CuriosityConfig", "Kind"]

Kind = Literal["none", "icm", "rnd", "ngu", "e3b", "re3", "disagreement"]
_EPISODIC = ("ngu", "e3b")


@dataclass(frozen=True)
class CuriosityConfig:
    """Intrinsic rewards for exploration, for tasks with sparse rewards."""

    kind: Kind = "none"
    """Method. `icm`: error of predicting the next features (Pathak et al. 2017); `rnd`: error of predicting the outputs of a random
    network (Burda et al. 2019); `ngu`: distance to earlier observations of the episode, times rnd (Badia et al. 2020); `e3b`: elliptical
    bonus over the episode (Henaff et al. 2022); `re3`: distance to other observations of the rollout (Seo et al. 2021); `disagreement`:
    variance of several predictions (Pathak et al. 2019)."""
    combine: Literal["sum", "two-heads"] = "sum"
    """`sum`: one critic for the sum of both rewards; `two-heads`: a second value head for the intrinsic reward, with its own discount
    factor, whose return does not end with the episode (Burda et al. 2019, section 2.3)."""
    weight: float | str = 1.0
    """Weight of the intrinsic reward or, with two heads, of its advantage: a schedule."""
    extrinsic_weight: float = 1.0
    """Weight of the environment's reward, after the scaling or clipping configured in `ppo`."""
    gamma: float | None = None
    """Discount factor of intrinsic rewards, also for scaling them; required with two heads. None: `ppo.gamma`."""
    normalize_rewards: bool = True
    """Divide intrinsic rewards by the running standard deviation of their discounted return, over all shards."""
    warmup: int = 0
    """Number of first iterations without training, in which the untrained policy acts almost randomly and only the statistics of
    observations are computed. Usually 0 to 50."""
    learning_rate: float | str | None = None
    """Learning rate of the predictor: a schedule. None: that of the policy."""
    share: float = 1.0
    """Fraction of a minibatch that trains the predictor: 1, or 1 divided by a whole number. Smaller with many environments, so that
    novelty does not vanish too fast; 0.25 in Burda et al. (2019)."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of the networks. Images of more than 1,024 numbers are first encoded by convolutions."""
    feature_size: int = 64
    """Size of the features that the networks compute of an observation."""
    channels: int | None = None
    """Number of last channels of every image that are used, such as 1 of 4 stacked frames. None: all."""
    neighbors: int = 10
    """`ngu`, `re3`: number of nearest neighbors."""
    capacity: int = 2_000
    """`ngu`: maximum number of observations of the current episode that are stored per environment."""
    ridge: float = 0.1
    """`e3b`: ridge coefficient λ, the initial diagonal of the covariance matrix."""
    ensemble: int = 5
    """`disagreement`: number of predictors."""
    forward_share: float = 0.2
    """`icm`: weight β of the forward loss; the inverse loss has weight 1 - β."""

    def __post_init__(self) -> None:
        for name in ("weight", "learning_rate"):
            value = getattr(self, name)
            if value is not None:
                Schedule.parse(value, f"curiosity.{name}")
        if self.combine == "two-heads" and self.kind != "none" and self.gamma is None:
            raise ValueError(
                "curiosity.gamma is none: two value heads need a discount factor for intrinsic rewards, such as 0.99"
            )
        for name in ("gamma", "forward_share"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"curiosity.{name} is {value}: it must be between 0 and 1")
        if not 0 < self.share <= 1 or abs(round(1 / self.share) * self.share - 1) > 1e-6:
            raise ValueError(
                f"curiosity.share is {self.share}: it must be 1 divided by a whole number, such as 0.5 or 0.25"
            )
        if len(self.hidden) > 100:
            raise ValueError(f"curiosity.hidden has {len(self.hidden):,} widths: it must have at most 100")
        if not self.hidden or any(not 1 <= width <= 16_384 for width in self.hidden):
            raise ValueError(
                f"curiosity.hidden is {list(self.hidden)}: it must name at least one width, each from 1 to 16,384"
            )
        for name, most in (
            ("feature_size", 16_384),
            ("neighbors", 1_000),
            ("capacity", 1_000_000),
            ("ensemble", 16_384),
            ("channels", 1_000),
        ):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"curiosity.{name} is {value}: it must be from 1 to {most:,}")
        if self.warmup < 0:
            raise ValueError(f"curiosity.warmup is {self.warmup}: it must not be negative")
        if not self.ridge > 0:
            raise ValueError(f"curiosity.ridge is {self.ridge}: it must be above 0")
        if self.neighbors > self.capacity and self.kind == "ngu":
            raise ValueError(
                f"curiosity.neighbors is {self.neighbors}: it must not be above curiosity.capacity, which is {self.capacity}"
            )

    @property
    def two_heads(self) -> bool:
        """True if the critic has a second head."""
        return self.kind != "none" and self.combine == "two-heads"

    @property
    def episodic(self) -> bool:
        """True if the method compares observations within an episode."""
        return self.kind in _EPISODIC
