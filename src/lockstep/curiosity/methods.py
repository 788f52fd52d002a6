"""Curiosity methods by name."""

import torch

from lockstep.curiosity.curiosity import Curiosity
from lockstep.curiosity.disagreement import Disagreement
from lockstep.curiosity.e3b import E3B
from lockstep.curiosity.icm import ICM
from lockstep.curiosity.ngu import NGU
from lockstep.curiosity.re3 import RE3
from lockstep.curiosity.rnd import RND
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.models.layers import seeded
from lockstep.randomness import seed_of

__all__ = ["make_curiosity"]

_METHODS: dict[str, type[Curiosity]] = {
    "icm": ICM,
    "rnd": RND,
    "ngu": NGU,
    "e3b": E3B,
    "re3": RE3,
    "disagreement": Disagreement,
}


def make_curiosity(
    spaces: Spaces, config: CuriosityConfig, squash: bool, seed: int, dtype: torch.dtype
) -> Curiosity | None:
    """Create the method of `curiosity.kind`, with weights from the random stream `curiosity` of the seed; None for `none`."""
    if config.kind == "none":
        return None
    with seeded(torch.Generator().manual_seed(seed_of(seed, "curiosity"))):
        return _METHODS[config.kind](spaces, config, squash, dtype)
