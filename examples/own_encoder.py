"""Custom encoder: the features and their sines with learned frequencies, for functions that change quickly over the state.

From Python: `import own_encoder`, then `lockstep.train("cartpole", policy={"encoder": "waves"})`. From the command line:

    lockstep train cartpole --env.module own_encoder --policy.encoder waves

The constructor gets the number of features, the (channels, height, width) of each image, and the section `policy` of the config.
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
