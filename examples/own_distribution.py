"""Custom distribution of continuous actions: Laplace, whose heavier tails explore further than those of a normal distribution.

From Python: `import own_distribution`, then `lockstep.train("pendulum", policy={"distribution": "laplace"})`. From the command line:

    lockstep train pendulum --env.module own_distribution --policy.distribution laplace

The constructor gets the lowest and highest actions, infinite without bounds, and the section `policy` of the config. All random numbers are drawn in `noise`;
everything else is a function of its arguments, row by row. Samples are clipped to the bounds, or squashed with `policy.squash`, unless the class attribute
`bounded` is True.
"""

# [essential]
import math

import lockstep


class Laplace(lockstep.ContinuousDistribution):
    def __init__(self, low, high, policy):
        self.size = len(low)
        self.initial_outputs = (0.0,) * self.size  # of the policy's output layer: the locations
        # learned, for all observations alike: the logarithms of the scales, which are the standard deviations / √2
        self.initial_log_std = (policy.initial_log_std(self.size) - math.log(2) / 2,) * self.size

    def noise(self, generator, *shape):
        return generator.laplace(size=(*shape, self.size))

    def sample(self, parameters, noise):  # [N, D], [N, K] -> [N, A]
        location, log_scale = parameters.split(self.size, -1)
        return location + log_scale.exp() * noise

    def mode(self, parameters):  # [N, D] -> [N, A]
        return parameters[..., : self.size]

    def log_prob_and_entropy(self, parameters, actions):  # [N, D], [N, A] -> [N], [N]
        location, log_scale = parameters.split(self.size, -1)
        distance = (actions - location).abs() / log_scale.exp()
        log_width = (log_scale + math.log(2)).sum(-1)
        return -distance.sum(-1) - log_width, log_width + self.size


lockstep.register_distribution("laplace", Laplace)
# [end]
