"""Custom head: a residual block with layer normalization between the encoder or the memory and the last linear layer.

From Python: `import own_head`, then `lockstep.train("cartpole", policy={"head": "residual"})`. From the command line:

    lockstep train cartpole --env.module own_head --policy.head residual

The constructor gets the number of inputs, and the section `policy` of the config. It is called for the policy and for the critic.
"""

from torch import nn

# [essential]
import lockstep


class Residual(nn.Module):
    def __init__(self, inputs, policy):
        super().__init__()
        self.block = nn.Sequential(
            nn.LayerNorm(inputs), nn.Linear(inputs, inputs), nn.SiLU(), nn.Linear(inputs, inputs)
        )
        self.output_size = inputs

    def forward(self, inputs):  # [N, I] -> [N, output_size]
        return inputs + self.block(inputs)


lockstep.register_head("residual", Residual)
# [end]
