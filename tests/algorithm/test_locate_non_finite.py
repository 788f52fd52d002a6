"""The first number of a gradient step that is not finite: a parameter, an input, an operation, or the sum over all microbatches."""

import math

import pytest
import torch
from tests.algorithm.minibatches import minibatches_of
from tests.watched import ROWS, agent_of, rollouts_of

from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.locate_non_finite import Finding, Origin, trace_microbatch, trace_total
from lockstep.algorithm.loss import LOSS_SCALARS
from lockstep.algorithm.numeric_guard import GradientStep
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.prepare import Preparation
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.group.solo import Solo
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import STATISTICS

CONFIG = PPOConfig(epochs=1, minibatches=1)
SCALARS = torch.tensor([0.0, 1.0, 0.2, 0.0, 1.0], dtype=torch.float64)
BOTH = (True, True)


def microbatch_of(agent, shards: int = 1) -> Microbatch:
    prepare = Preparation(agent, CONFIG, Solo(), range(shards), 1, UpdateOptions())
    return next(minibatches_of(prepare(rollouts_of(agent, shards), 3, 0.0))).microbatches[0]


def test_a_finite_step_has_no_finding() -> None:
    agent = agent_of()
    microbatch = microbatch_of(agent)
    assert len(microbatch.rows) == ROWS
    before = agent.digest()
    assert trace_microbatch(agent, CONFIG, microbatch, SCALARS, BOTH) is None
    assert agent.digest() == before
    total = torch.ones(len(agent.flat.buffer) + len(STATISTICS), dtype=torch.float64)
    assert trace_total(agent, total) is None


def test_a_parameter_comes_first() -> None:
    agent = agent_of()
    microbatch = microbatch_of(agent)
    microbatch.rows[3, 0] = math.nan
    weight = agent.flat.parameters["policy.trunk.0.weight"]
    weight.data[2, 1] = math.inf
    found = trace_microbatch(agent, CONFIG, microbatch, SCALARS, BOTH)
    assert found == Finding(Origin.PARAMETER, "the parameter policy.trunk.0.weight is inf at [2, 1]")


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (0, "column 0 of the observations"),
        (2, "column 2 of the observations"),
        (3, "column 0 of the actions"),
        (-5, "the log-probability of the action"),
        (-4, "the advantage"),
        (-3, "the value target"),
        (-2, "the old value estimate"),
    ],
)
def test_an_input_is_named_by_column_and_row(column: int, name: str) -> None:
    agent = agent_of()
    microbatch = microbatch_of(agent)
    microbatch.rows[5, column] = -math.inf
    assert trace_microbatch(agent, CONFIG, microbatch, SCALARS, BOTH) == Finding(Origin.COLUMN, f"{name} is -inf", 5)


def test_inputs_of_curiosity_and_of_the_second_head_have_names() -> None:
    curiosity = CuriosityConfig("icm", hidden=(4,), feature_size=3, combine="two-heads", gamma=0.9)
    layout = agent_of(curiosity=curiosity).layout
    names = [layout.column_name(column) for column in range(layout.width)]
    assert names[3:6] == ["column 0 of the actions", "input 0 of the curiosity loss", "input 1 of the curiosity loss"]
    assert names[-7:-5] == ["the intrinsic value target", "the old intrinsic value estimate"]
    assert len(names) == len(set(names))


def test_the_advantage_statistics_of_the_minibatch_are_inputs() -> None:
    agent = agent_of()
    scalars = SCALARS.clone()
    scalars[LOSS_SCALARS.index("clip")] = math.inf  # no clipping: nothing is wrong
    assert trace_microbatch(agent, CONFIG, microbatch_of(agent), scalars, BOTH) is None
    scalars[LOSS_SCALARS.index("mean")] = math.nan
    found = trace_microbatch(agent, CONFIG, microbatch_of(agent), scalars, BOTH)
    assert found == Finding(Origin.SCALAR, "the mean of the advantages of the minibatch is nan")


def test_an_operation_of_the_loss_is_named_with_the_row() -> None:
    agent = agent_of()
    microbatch = microbatch_of(agent)
    agent.layout.scalars(microbatch.rows).log_probs[7] = -1e4
    found = trace_microbatch(agent, CONFIG, microbatch, SCALARS, BOTH)
    assert found is not None
    assert (found.origin, found.row) == (Origin.OPERATION, 7)
    assert found.text.startswith("the result of aten.exp in the loss (operation ")
    assert "is inf, from inputs of at most 99" in found.text


def test_an_operation_of_a_layer_is_named_with_the_layer() -> None:
    agent = agent_of(dtype=torch.float32)
    microbatch = microbatch_of(agent)
    agent.flat.parameters["policy.value_head.weight"].data.fill_(3e38)
    agent.flat.parameters["policy.critic_trunk.0.bias"].data.fill_(100.0)
    found = trace_microbatch(agent, CONFIG, microbatch, SCALARS.float(), BOTH)
    assert found is not None
    assert (found.origin, found.row) == (Origin.OPERATION, 0)
    assert " in policy.value_head (operation " in found.text


def test_an_operation_of_the_backward_pass_is_found() -> None:
    class Root(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return (0 * rows).sqrt()  # its derivative is infinite

    agent = agent_of()
    agent.policy.critic_trunk.append(Root())
    found = trace_microbatch(agent, CONFIG, microbatch_of(agent), SCALARS, BOTH)
    assert found is not None
    assert found.origin == Origin.OPERATION
    assert "in the backward pass (operation " in found.text


def test_a_sum_over_finite_parts_may_overflow() -> None:
    agent = agent_of()
    size = len(agent.flat.buffer)
    total = torch.ones(size + len(STATISTICS), dtype=torch.float64)
    total[0] = 1e300
    name = next(iter(agent.flat.parameters))
    found = trace_total(agent, total)
    assert found == Finding(
        Origin.TOTAL, f"the norm of the gradient overflows: the largest entry is 1e+300, in that of {name}"
    )
    total[size + 1] = math.inf
    found = trace_total(agent, total)
    assert found is not None
    assert found.text == "value_loss, summed over all shards, is inf"
    total[0] = math.nan
    found = trace_total(agent, total)
    assert found is not None
    assert found.text == f"the gradient of {name}, summed over all shards, is nan"


def test_the_line_names_environment_and_step() -> None:
    agent = agent_of()
    microbatch = microbatch_of(agent)
    places = torch.stack([torch.arange(len(microbatch.rows)) + 100, torch.arange(len(microbatch.rows)) + 1], 1)
    microbatch.rows[5, 1] = math.nan
    step = GradientStep(9, 0, 3, BOTH, 24.0, SCALARS, microbatch, places)
    found = step.trace(agent, CONFIG)
    assert found is not None
    line = "column 1 of the observations is nan in row 5, which is step 6 of environment 105, in epoch 1, minibatch 4 of iteration 9"
    assert step.describe(found) == line
