"""Exchange of texts between ranks, which may have different lengths."""

import torch

from lockstep.group.group import Group

__all__ = ["exchange_texts"]


def exchange_texts(group: Group, text: str, phase: str) -> list[str]:
    """Return the texts of all ranks, in their order. Every rank calls it. Raises RankLost, with `phase`, if one does not in time."""
    content = text.encode()
    lengths = group.gather(torch.tensor([[len(content)]]), phase)[:, 0].tolist()
    row = torch.zeros(1, max(lengths), dtype=torch.uint8)
    row[0, : len(content)] = torch.tensor(list(content), dtype=torch.uint8)  # frombuffer refuses an empty text
    rows = group.gather(row, phase)
    return [bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]
