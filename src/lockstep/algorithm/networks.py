"""All networks of an agent as one module, which is differentiated and replicated."""

from torch import Tensor, nn

from lockstep.curiosity.curiosity import Curiosity, Images
from lockstep.models.policy import Policy

__all__ = ["Networks"]


class Networks(nn.Module):
    """The policy with its critic, and the networks of curiosity."""

    def __init__(self, policy: Policy, curiosity: Curiosity | None) -> None:
        super().__init__()
        self.policy = policy
        self.curiosity = curiosity

    def forward(
        self, inputs: tuple[Tensor | bool | None, ...], columns: Tensor | None = None, images: Images = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return distribution parameters and values of the policy's inputs and, with `columns`, the losses of curiosity."""
        parameters, values = self.policy(*inputs)
        if columns is None or self.curiosity is None:
            return parameters, values, None
        return parameters, values, self.curiosity.loss(columns, images)

    def parameter_groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """Return the trained parameters by name, grouped in `policy`, `value` and, if curiosity has any, `curiosity`."""
        groups = {
            group: {f"policy.{name}": parameter for name, parameter in named.items()}
            for group, named in self.policy.parameter_groups().items()
        }
        curiosity = {} if self.curiosity is None else self.curiosity.trained_parameters()
        if curiosity:
            groups["curiosity"] = {f"curiosity.{name}": parameter for name, parameter in curiosity.items()}
        return groups
