"""Writer of TensorBoard event files.

A file is a sequence of records. Each record consists of the length of the content, a checksum of the length, the content and a checksum of the
content. The content is a protocol buffer `Event`, of which only four fields are needed. TensorBoard's own writer takes ten times as long and
needs a thread in the training process.
Field numbers are taken from tensorboard/compat/proto/{event,summary,tensor}.proto and plugins/hparams/{plugin_data,api}.proto.
"""

import os
import re
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.files import METRICS_LIMIT, make_folder, open_regular, open_to_append
from lockstep.processes.host_name import host_name

__all__ = ["EventFile"]

_PREFIX = "events.out.tfevents."
_HEADER, _FOOTER = 12, 4
"""Bytes of a record before the content (its length and the checksum of it) and after it (the checksum of the content)."""
_EVENT_START = 20
"""Bytes of an event that hold its time and its step."""
_POLYNOMIAL = 0x82F63B78
_BLOCK = 512
"""Largest number of bytes per step of the checksum; the table takes 1 KB for each of them."""
_NO_TENSOR = b"\x08\x01\x12\x04\x12\x02\x08\x01\x2a\x04" + bytes(4)
"""The float32 tensor [0]. The hparams plugin stores its content in the metadata, but TensorBoard ignores values without
a tensor.
"""


class EventFile:
    """Event file of a folder. All starts of a run append to one file, which TensorBoard shows as one curve.

    With a file per start, TensorBoard would read them in the order of their names, which contain the time, and take each as a restart.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Open the newest event file of `folder`, or create one. TensorBoard hides its points at or after `purge_step`.

        A record that a killed process has written incompletely is removed. If the file is damaged otherwise, another one is created.
        """
        make_folder(folder)
        newest = max(folder.glob(f"{_PREFIX}*"), default=None)
        written = None if newest is None else _scan(newest)
        self.created = newest is None or written is None
        """True if this is a new file."""
        now = time.time()
        if newest is not None and written is not None:
            self._file = open_to_append(newest)
            os.ftruncate(self._file, written.end)
        else:
            # the name sorts after those of other files also if the clock was set back
            second = int(now) if newest is None else max(int(now), _second_of(newest.name) + 1)
            name = f"{_PREFIX}{second:010d}.{host_name()}.{os.getpid()}.0000"
            self._file = open_to_append(folder / name)
        self._pending = bytearray()
        self._prefixes: dict[str, bytes] = {}
        if self.created:
            self._write(_event(now, purge_step, b"\x1a\x0dbrain.Event:2"))
        if newest is not None and (written is None or written.last_step >= purge_step):
            session_start = b"\x08\x01"  # SessionLog.status = START: hides the later points
            self._write(_event(now, purge_step, b"\x3a\x02" + session_start))
        self.flush()

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add one point to the curve of every tag, all in one event."""
        with np.errstate(over="ignore"):  # values beyond the range of float32 become infinite
            values = np.array(list(scalars.values()), np.float64).astype("<f4").tobytes()
        summary = b"".join([self._prefix(tag) + values[4 * i : 4 * i + 4] for i, tag in enumerate(scalars)])
        self._write(_event(time.time(), step, b"\x2a" + _varint(len(summary)) + summary))

    def add_config(self, fields: Mapping[str, bool | float | str]) -> None:
        """Add this run as a row of TensorBoard's HParams tab, with one column per field."""
        hparams = b"".join(
            _field(1, _field(1, name.encode()) + _field(2, _dynamic(value))) for name, value in fields.items()
        )
        start_time = b"\x29" + struct.pack("<d", time.time())  # SessionStartInfo.start_time_secs
        plugin = _field(1, b"hparams") + _field(2, _field(3, hparams + start_time))
        self._add_value(0, "_hparams_/session_start_info", _field(9, _field(1, plugin)) + _field(8, _NO_TENSOR))

    def add_image(self, step: int, tag: str, content: bytes, width: int, height: int) -> None:
        """Add an encoded image of `width` x `height` pixels. TensorBoard plays the bytes of a GIF as an animation."""
        size = b"\x08" + _varint(height) + b"\x10" + _varint(width) + b"\x18\x03"  # three color channels
        self._add_value(step, tag, _field(4, size + _field(4, content)))

    def flush(self) -> None:
        """Hand everything added so far to the operating system, so that killing this process loses none of it."""
        # in one call, so that a kill does not leave a part of a record, after which a running TensorBoard would read nothing more
        while self._pending:
            written = os.write(self._file, self._pending)
            del self._pending[:written]

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._file)

    def _prefix(self, tag: str) -> bytes:
        """Return the bytes of a `Summary.Value` with this tag that precede its float32 value."""
        prefix = self._prefixes.get(tag)
        if prefix is None:
            name = tag.encode()
            content = b"\x0a" + _varint(len(name)) + name + b"\x15"
            prefix = self._prefixes[tag] = b"\x0a" + _varint(len(content) + 4) + content
        return prefix

    def _add_value(self, step: int, tag: str, value: bytes) -> None:
        self._write(_event(time.time(), step, _field(5, _field(1, _field(1, tag.encode()) + value))))

    def _write(self, content: bytes) -> None:
        length = struct.pack("<Q", len(content))
        self._pending += b"".join([length, _checksum(length), content, _checksum(content)])


def _scan(path: Path) -> "_Written | None":
    """Find the end of the last complete record of an event file, and its largest step. Return None if the file is damaged."""
    end, last_step = 0, 0
    try:
        with open_regular(path, METRICS_LIMIT) as file:
            size = os.fstat(file.fileno()).st_size
            while len(header := file.read(_HEADER + _EVENT_START)) >= _HEADER:
                length, checksum = header[:8], header[8:_HEADER]
                if _checksum(length) != checksum:
                    return None
                following = end + _HEADER + int.from_bytes(length, "little") + _FOOTER
                if following > size:
                    break
                last_step = max(last_step, _step_of(header[_HEADER:]))
                end = following
                file.seek(end)
    except OSError:
        return None
    return _Written(end, last_step) if end else None


class _Written(NamedTuple):
    end: int
    """Offset of the end of the last complete record."""
    last_step: int


def _step_of(event: bytes) -> int:
    """Return the step of an event that `_event` has encoded; 0 for another one."""
    step = 0
    if event[:1] == b"\x09" and event[9:10] == b"\x10":
        for index, digit in enumerate(event[10:]):
            step |= (digit & 127) << 7 * index
            if digit < 128:
                break
    return step


def _second_of(name: str) -> int:
    digits = name.removeprefix(_PREFIX).partition(".")[0]
    return int(digits) if re.fullmatch(r"[0-9]{1,10}", digits) else 0


def _event(wall_time: float, step: int, field: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + field


def _field(number: int, content: bytes) -> bytes:
    """Encode a field that holds bytes, text or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _dynamic(value: bool | float | str) -> bytes:
    """Encode a `google.protobuf.Value`."""
    if isinstance(value, bool):
        return b"\x20" + _varint(value)
    return _field(3, value.encode()) if isinstance(value, str) else b"\x11" + struct.pack("<d", value)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


class _Castagnoli:
    """CRC-32C, vectorized over bytes. The CRC is linear: every byte contributes a term that depends only on the number of bytes after it."""

    def __init__(self) -> None:
        self._rows: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)[None]
        for _ in range(8):
            self._rows = np.where(self._rows & 1, self._rows >> 1 ^ _POLYNOMIAL, self._rows >> 1).astype(np.uint32)

    def __call__(self, content: bytes) -> int:
        """Return the CRC-32C of `content`, which must have at least four bytes."""
        register, begin = 0xFFFFFFFF, 0
        first = (len(content) - 4) % _BLOCK + 4  # so that no block has fewer than four bytes
        for end in range(first, len(content) + 1, _BLOCK):
            register = self._block(content[begin:end], register)
            begin = end
        return register ^ 0xFFFFFFFF

    def _block(self, content: bytes, register: int) -> int:
        """Return the register after `content`. The register before it has the same effect as if it were XORed into the first four bytes."""
        count = len(content)
        if len(self._rows) < count:
            self._extend(2 * count)
        values = np.frombuffer(content, np.uint8).copy()
        values[:4] ^= np.frombuffer(struct.pack("<I", register), np.uint8)
        terms = self._rows.ravel().take(self._row_offsets[-count:] + values)
        return int(np.bitwise_xor.reduce(terms))

    def _extend(self, count: int) -> None:
        """Extend the table to `count` rows: row `d` holds the term of each byte value that is followed by `d` bytes."""
        rows = [*self._rows]
        while len(rows) < count:
            rows.append(rows[-1] >> 8 ^ rows[0][rows[-1] & 0xFF])
        self._rows = np.stack(rows)
        self._row_offsets = np.arange(count - 1, -1, -1) * 256


_castagnoli = _Castagnoli()


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C, as the TFRecord format requires."""
    crc = _castagnoli(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
