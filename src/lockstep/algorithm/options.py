"""Options of an update that come from the plan and the rollout section of a config."""

from dataclasses import dataclass

__all__ = ["UpdateOptions"]


@dataclass(frozen=True)
class UpdateOptions:
    """Options for preparing minibatches."""

    share_data: bool = False
    """Draw minibatches from the samples of all shards together (`plan.share_data`)."""
    vtrace: bool = False
    """Correct for samples that older weights collected, by V-trace (`plan.correction`)."""
    fused: bool = False
    """Compute all shards of a rank as one batch (not `plan.exact`)."""
    minibatch_rows: int = 0
    """Number of rows of one shard in a minibatch; 0: not known."""
    recompute_states: bool = False
    """Recompute the initial states of sequences in every epoch (`rollout.recompute_states`)."""
