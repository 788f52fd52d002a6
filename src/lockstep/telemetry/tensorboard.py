"""Event files, as TensorBoard reads them.

A file is a sequence of records: length, its checksum, content, its checksum. The content is a protocol buffer `Event`, of which
only four fields are needed. TensorBoard's own writer takes ten times as long, with a thread beside the training.
Numbers of fields are those of tensorboard/compat/proto/{event,summary,tensor}.proto and plugins/hparams/{plugin_data,api}.proto.
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
_BLOCK = 4096
"""Bytes whose checksum is computed at once; the table of weights has 1 KB for each."""
_NO_TENSOR = b"\x08\x01\x12\x04\x12\x02\x08\x01\x2a\x04" + bytes(4)
"""The float32 tensor [0]: the hparams plugin keeps its content in the metadata, but TensorBoard reads no value without a tensor."""


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

    def add_config(self, fields: Mapping[str, bool | float | str]) -> None:
        """Makes this run a row of TensorBoard's HParams tab, with these columns."""
        hparams = b"".join(
            _part(1, _part(1, name.encode()) + _part(2, _dynamic(value))) for name, value in fields.items()
        )
        begun = b"\x29" + struct.pack("<d", time.time())  # SessionStartInfo.start_time_secs
        plugin = _part(1, b"hparams") + _part(2, _part(3, hparams + begun))
        self._add_value(0, "_hparams_/session_start_info", _part(9, _part(1, plugin)) + _part(8, _NO_TENSOR))

    def add_picture(self, step: int, tag: str, content: bytes, width: int, height: int) -> None:
        """Adds an encoded picture, such as the bytes of a GIF, which TensorBoard plays."""
        size = b"\x08" + _varint(height) + b"\x10" + _varint(width) + b"\x18\x03"  # three colours
        self._add_value(step, tag, _part(4, size + _part(4, content)))

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

    def _add_value(self, step: int, tag: str, value: bytes) -> None:
        self._write(_event(time.time(), step, _part(5, _part(1, _part(1, tag.encode()) + value))))

    def _write(self, content: bytes) -> None:
        length = struct.pack("<Q", len(content))
        self._file.write(b"".join([length, _checksum(length), content, _checksum(content)]))


def _event(wall_time: float, step: int, field: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + field


def _part(field: int, content: bytes) -> bytes:
    """A field that holds bytes, text or a message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _dynamic(value: bool | float | str) -> bytes:
    """A `google.protobuf.Value`."""
    if isinstance(value, bool):
        return b"\x20" + _varint(value)
    return _part(3, value.encode()) if isinstance(value, str) else b"\x11" + struct.pack("<d", value)


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
        register, begin = 0xFFFFFFFF, 0
        first = (len(content) - 4) % _BLOCK + 4  # so that no block has less than four
        for end in range(first, len(content) + 1, _BLOCK):
            register = self._block(content[begin:end], register)
            begin = end
        return register ^ 0xFFFFFFFF

    def _block(self, content: bytes, register: int) -> int:
        """The register after `content`: what it was before acts as if it were added to the first four bytes."""
        count = len(content)
        if len(self._rows) < count:
            self._extend(2 * count)
        values = np.frombuffer(content, np.uint8).copy()
        values[:4] ^= np.frombuffer(struct.pack("<I", register), np.uint8)
        added = self._rows.ravel().take(self._places[-count:] + values)
        return int(np.bitwise_xor.reduce(added))

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
