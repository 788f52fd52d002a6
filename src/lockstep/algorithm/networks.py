"""All networks of an agent as one module: what is trained, replicated and differentiated."""

from torch import Tensor, nn

from lockstep.curiosity.curiosity import Curiosity, Images
from lockstep.models.policy import Policy

__all__ = ["Networks"]


class Networks(nn.Module):
    """The policy with its critic, and what predicts for curiosity."""

    def __init__(self, policy: Policy, curiosity: Curiosity | None) -> None:
        super().__init__()
        self.policy = policy
        self.curiosity = curiosity

    def forward(
        self, inputs: tuple[Tensor | None, ...], columns: Tensor | None = None, images: Images = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Parameters and values of what the policy takes and, if there are `columns`, curiosity's losses."""
        parameters, values = self.policy(*inputs)
        if columns is None or self.curiosity is None:
            return parameters, values, None
        return parameters, values, self.curiosity.loss(columns, images)

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        """Parameters that are trained, by name, by what trains them: `policy`, `value` and, if it trains anything, `curiosity`."""
        found = {
            part: {f"policy.{name}": parameter for name, parameter in named.items()}
            for part, named in self.policy.parts().items()
        }
        own = {} if self.curiosity is None else self.curiosity.parts()
        return (
            found | {"curiosity": {f"curiosity.{name}": parameter for name, parameter in own.items()}} if own else found
        )
