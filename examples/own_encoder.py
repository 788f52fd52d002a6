"""An encoder of your own: features beside their sines of learned frequencies, for values that change quickly over the state.

From a program: `import own_encoder`, then `lockstep.train("cartpole", policy={"encoder": "waves"})`. From the command line:

    lockstep train cartpole --env.module own_encoder --policy.encoder waves

An encoder is called with the number of features, the (channels, height, width) of each image, and the settings of the section `policy`.
"""

import torch
from torch import nn

# [essential]
import lockstep


class Waves(nn.Module):
    def __init__(self, features, images, policy):
        super().__init__()
        self.waves = nn.Linear(features, policy.hidden[-1])
        self.output_size = features + policy.hidden[-1]

    def forward(self, features, images):  # [N, F], a tuple of uint8 [N, C, H, W] -> [N, output_size]
        return torch.cat([features, self.waves(features).sin()], 1)


lockstep.register_encoder("waves", Waves)
# [end]
