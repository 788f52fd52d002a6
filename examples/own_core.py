"""Custom recurrent core: a running average of the features, with a learned rate.

From Python: `import own_core`, then `lockstep.train("cartpole", policy={"core": "average"})`. From the command line:

    lockstep train cartpole --env.module own_core --policy.core average

The constructor gets the number of features, `policy.core_size` and `policy.core_layers`. The state is one row of `state_size` numbers per environment,
zeros at the start of an episode. `step` is used for acting and `sequence` for training; both must compute the same.
"""

import torch
from torch import nn

# [essential]
import lockstep


class Average(nn.Module):
    def __init__(self, features, size, layers):
        super().__init__()
        self.output_size = self.state_size = size
        self.inputs, self.rate = nn.Linear(features, size), nn.Parameter(torch.zeros(size))

    def step(self, features, state):  # [B, I], [B, S] -> [B, H], [B, S]
        state = torch.lerp(state, self.inputs(features).tanh(), self.rate.sigmoid())
        return state, state

    def sequence(self, features, state, resets):  # [L, N, I], [N, S], [L, N] -> [L, N, H], [N, S]
        outputs = []
        for row, reset in zip(features, resets, strict=True):
            outputs.append(state := self.step(row, state.masked_fill(reset.unsqueeze(1), 0))[1])
        return torch.stack(outputs), state


lockstep.register_core("average", Average)
# [end]
