"""A policy as a pure function of named arrays, from observations to actions of the environment."""

import copy

from gymnasium import Space
from torch import Tensor, nn

from lockstep.algorithm.agent import Agent
from lockstep.export.actions import ActionDecoder
from lockstep.export.observations import ObservationEncoder
from lockstep.export.tensor_spec import NEXT_STATE, STATE, TensorSpec

__all__ = ["Program"]


class Program(nn.Module):
    """Function from named inputs to named outputs, in the order of `inputs` and `outputs`. The first dimension of each is N environments.

    It holds copies of the agent's weights and running statistics. The value is omitted if it would need a second network for images.
    """

    def __init__(self, agent: Agent, observation_space: Space[object], action_space: Space[object]) -> None:
        """Copy the agent. The spaces are those of a single environment."""
        super().__init__()
        self.observation_encoder, self.action_decoder = (
            ObservationEncoder(agent, observation_space),
            ActionDecoder(agent, action_space),
        )
        self.policy = copy.deepcopy(agent.policy).requires_grad_(False)
        self.policy.intrinsic_head = None
        apart = self.policy.critic_trunk is not None and not agent.state_size
        self._separate = apart and self.policy.is_mlp
        self.inputs, self.outputs = list(self.observation_encoder.specs), list(self.action_decoder.specs)
        if apart and not self._separate:
            # unused, so that their weights are not exported
            self.policy.critic_trunk, self.policy.critic_head_layers = nn.Identity(), nn.Sequential()
        else:
            self.outputs.append(
                TensorSpec("value", (), agent.dtype, "expected discounted return, of rewards as training scales them")
            )
        if agent.state_size:
            size = (agent.state_size,)
            self.inputs.append(
                TensorSpec(STATE, size, agent.dtype, f"zeros at an episode's start, then the last step's {NEXT_STATE}")
            )
            self.outputs.append(
                TensorSpec(NEXT_STATE, size, agent.dtype, f"what is remembered: the next step's {STATE}")
            )

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Evaluate the function."""
        rows, pixels = self.observation_encoder(inputs)
        parameters, value, state = self.policy.act(rows, pixels, inputs.get(STATE))
        outputs: dict[str, Tensor] = self.action_decoder(parameters)
        if self._separate:
            value = self.policy.value(rows)
        if value is not None:
            outputs["value"] = value
        if state is not None:
            outputs[NEXT_STATE] = state
        return outputs
