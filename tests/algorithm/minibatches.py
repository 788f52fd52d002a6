"""The minibatches of a batch, epoch by epoch, as an update takes them."""

from collections.abc import Iterator

from lockstep.algorithm.batch import Batch, Minibatch


def minibatches_of(batch: Batch) -> Iterator[Minibatch]:
    """Iterate over all minibatches."""
    for epoch in range(len(batch.advantage_statistics)):
        batch.begin_epoch(epoch)
        yield from batch.minibatches_of(epoch)
