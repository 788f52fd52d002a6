"""Proof that every rank knows the secret of the run, over the connections that later carry the data.

gloo takes whoever connects to a rank's port first for the expected peer. After the proof, each rank knows that its connections lead to ranks of this run.
"""

import hmac
import secrets

import torch
from torch import Tensor

from lockstep.group.group import RankLost
from lockstep.group.point_to_point import PointToPoint

__all__ = ["authenticate_peers"]

_BYTES = 32
"""Size of a nonce, and of an HMAC with SHA-256."""


def authenticate_peers(p2p: PointToPoint, secret: bytes) -> None:
    """Exchange proofs with every other rank. Every rank calls it.

    Each rank sends a random nonce, and answers with HMAC(secret, sender, receiver, nonce). Raises RankLost for a peer that
    does not have the secret, or that does not answer in time.
    """
    peers = [peer for peer in range(p2p.size) if peer != p2p.rank]
    nonces = {peer: secrets.token_bytes(_BYTES) for peer in peers}
    received = _exchange(p2p, nonces)
    proofs = _exchange(p2p, {peer: _proof(secret, p2p.rank, peer, received[peer]) for peer in peers})
    for peer in peers:
        if not hmac.compare_digest(proofs[peer], _proof(secret, peer, p2p.rank, nonces[peer])):
            # not `make_error`: what this peer has reported in the store does not count
            raise RankLost(f"rank {peer}", "start", "it does not have the secret of the run (see LOCKSTEP_SECRET)")


def _proof(secret: bytes, sender: int, receiver: int, nonce: bytes) -> bytes:
    return hmac.digest(secret, f"lockstep {sender} {receiver} ".encode() + nonce, "sha256")


def _exchange(p2p: PointToPoint, messages: dict[int, bytes]) -> dict[int, bytes]:
    """Send each peer its message, and return those that the peers have sent."""
    tag = p2p.reserve_tags(1)
    inputs = {peer: torch.zeros(_BYTES, dtype=torch.uint8) for peer in messages}
    outputs = {peer: torch.frombuffer(bytearray(message), dtype=torch.uint8) for peer, message in messages.items()}
    works = [(p2p.receive(inputs[peer], peer, tag, "start"), peer) for peer in messages]
    works += [(p2p.send(outputs[peer], peer, tag, "start"), peer) for peer in messages]
    for work, peer in works:
        p2p.wait(work, peer, "start")
    return {peer: _bytes(message) for peer, message in inputs.items()}


def _bytes(message: Tensor) -> bytes:
    return bytes(message.tolist())
