"""The wire format of protocol buffers, as far as scalars of TensorBoard and W&B need it: no schema, no packages."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from assay.base.errors import DataError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """One field of a message and where its value lies in the data."""

    number: int
    wire_type: int
    begin: int
    end: int

    def integer(self, data: bytes) -> int:
        """Return a varint as a signed 64-bit integer."""
        value, _ = _varint(data, self.begin, self.end)
        return value - 2**64 if value >= 2**63 else value

    def number_of(self, data: bytes) -> float:
        """Return a fixed field as a floating-point number."""
        (value,) = struct.unpack_from("<d" if self.wire_type == FIXED64 else "<f", data, self.begin)
        return float(value)

    def text(self, data: bytes) -> str:
        """Return a string; bytes that are no UTF-8 are replaced."""
        return data[self.begin : self.end].decode("utf-8", "replace")


def fields(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of a message in order. Raises `DataError` if the bytes are none."""
    at, end = begin, len(data) if end is None else end
    while at < end:
        key, at = _varint(data, at, end)
        number, wire_type, start = key >> 3, key & 7, at
        if wire_type == VARINT:
            _, at = _varint(data, at, end)
        elif wire_type == BYTES:
            length, start = _varint(data, at, end)
            at = start + length
        elif wire_type in _SIZES:
            at += _SIZES[wire_type]
        else:
            at = end + 1
        if at > end or not number:
            raise DataError("these bytes are no protocol buffer")
        yield Field(number, wire_type, start, at)


def parts(data: bytes, field: Field) -> Iterator[Field]:
    """Yield the fields of a nested message."""
    if field.wire_type != BYTES:
        raise DataError("a nested message has another wire type")
    return fields(data, field.begin, field.end)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
        shift += 7
    raise DataError("these bytes are no protocol buffer")
