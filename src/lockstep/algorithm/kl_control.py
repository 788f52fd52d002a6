"""Control of the learning rate and of the KL penalty by the measured KL divergence."""

from lockstep.ppo.schedules import Schedule
from lockstep.ppo.settings import PPOConfig

__all__ = ["KLController"]


class KLController:
    """Factor of the learning rate (as in rl_games and rsl_rl) and coefficient of the KL penalty (Schulman et al. 2017, section 4)."""

    def __init__(self, config: PPOConfig) -> None:
        """Start with a factor of 1 and the configured coefficient."""
        self._config = config
        self._rate_target = None if config.learning_rate_kl is None else Schedule.parse(config.learning_rate_kl)
        self.rate_factor = 1.0
        """Factor of the learning rates of policy and critic, with `ppo.learning_rate_kl`."""
        self.coefficient = config.kl_coefficient
        """Coefficient β of the KL penalty, with the surrogate `kl`."""

    def adapt(self, kl: float, progress: float) -> None:
        """Adapt both to the mean KL divergence of the last epoch. `progress` is the fraction of the run that is done."""
        config = self._config
        if self._rate_target is not None:
            target = self._rate_target(progress)
            if kl > 2 * target:
                self.rate_factor = max(self.rate_factor / 1.5, 1e-3)
            elif kl < target / 2:
                self.rate_factor = min(self.rate_factor * 1.5, config.learning_rate_kl_max)
        if config.surrogate == "kl":
            if kl > 1.5 * config.kl_target:
                self.coefficient = min(self.coefficient * 2, 1e4)
            elif kl < config.kl_target / 1.5:
                self.coefficient = max(self.coefficient / 2, 1e-4)
