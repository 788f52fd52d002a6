"""Event files, as TensorBoard reads them.

A file is a sequence of records: length, its checksum, content, its checksum. The content is a protocol buffer `Event`, of which
only four fields are needed. TensorBoard's own writer takes ten times as long, with a thread beside the training.
"""

import os
import platform
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["EventFile"]

_POLYNOMIAL = 0x82F63B78


class EventFile:
    """One process's file in a folder that TensorBoard looks at; it reads a folder's files in the order of their names."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """`purge_step` hides what earlier files hold at or after that step."""
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        earlier = sum(1 for _ in folder.iterdir())  # a program may stop and go on within a second
        name = f"events.out.tfevents.{int(now):010d}.{platform.node()}.{os.getpid()}.{earlier:04d}"
        self._file = (folder / name).open("xb")
        self._heads: dict[str, bytes] = {}
        begun = b"\x08\x01"  # SessionLog.status = START
        self._write(_event(now, purge_step, b"\x1a\x0dbrain.Event:2"))
        self._write(_event(now, purge_step, b"\x3a\x02" + begun))
        self.flush()

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds a point to the curve of each tag."""
        with np.errstate(over="ignore"):  # what float32 does not hold is infinite there
            numbers = np.array(list(scalars.values()), np.float64).astype("<f4").tobytes()
        summary = b"".join([self._head(tag) + numbers[4 * i : 4 * i + 4] for i, tag in enumerate(scalars)])
        self._write(_event(time.time(), step, b"\x2a" + _varint(len(summary)) + summary))

    def flush(self) -> None:
        """From now on a kill of this process leaves what was added."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self._file.close()

    def _head(self, tag: str) -> bytes:
        """What comes before a float32: a `Summary.Value` with its tag."""
        head = self._heads.get(tag)
        if head is None:
            name = tag.encode()
            inside = b"\x0a" + _varint(len(name)) + name + b"\x15"
            head = self._heads[tag] = b"\x0a" + _varint(len(inside) + 4) + inside
        return head

    def _write(self, content: bytes) -> None:
        length = struct.pack("<Q", len(content))
        self._file.write(b"".join([length, _checksum(length), content, _checksum(content)]))


def _event(wall_time: float, step: int, field: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + field


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


class _Castagnoli:
    """CRC-32C of many bytes at once: it is linear, so each byte adds something that depends on how many come after it."""

    def __init__(self) -> None:
        self._rows: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)[None]
        for _ in range(8):
            self._rows = np.where(self._rows & 1, self._rows >> 1 ^ _POLYNOMIAL, self._rows >> 1).astype(np.uint32)

    def __call__(self, content: bytes) -> int:
        """Of at least four bytes."""
        count = len(content)
        if len(self._rows) < count:
            self._extend(2 * count)
        values = np.frombuffer(content, np.uint8).copy()
        values[:4] ^= 0xFF  # the register begins with ones
        added = self._rows.ravel().take(self._places[-count:] + values)
        return int(np.bitwise_xor.reduce(added)) ^ 0xFFFFFFFF

    def _extend(self, count: int) -> None:
        """Row `d` becomes what each byte adds that `d` bytes come after, for `d` below `count`."""
        rows = [*self._rows]
        while len(rows) < count:
            rows.append(rows[-1] >> 8 ^ rows[0][rows[-1] & 0xFF])
        self._rows = np.stack(rows)
        self._places = np.arange(count - 1, -1, -1) * 256


_castagnoli = _Castagnoli()


def _checksum(content: bytes) -> bytes:
    """Masked, as the format wants it."""
    crc = _castagnoli(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
