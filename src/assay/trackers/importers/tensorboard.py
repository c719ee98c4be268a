"""Reads scalars from TensorBoard's event files, without TensorBoard.

    file     frames: length u64 | CRC of it | an `Event` message | CRC of it            (CRC-32C, masked)
    Event    wall_time 1, step 2, summary 5 -> values 1 -> tag 1, simple_value 2 or tensor 8; session_log 7

Millions of events differ only in their numbers. So events of equal length are decoded together: parsing the first one
gives the offsets of its numbers and its tag, which hold for all events with the same bytes elsewhere.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.errors import DataError
from assay.records.run import ImportedFrom
from assay.store.metrics.segment import Points
from assay.trackers.importers.foreign_run import ForeignRun, Losses, Series, named_series
from assay.trackers.importers.protobuf import BYTES, FIXED32, FIXED64, VARINT, Field, fields, parts

Offsets = npt.NDArray[np.int64]
EVENT_FILES = "*tfevents*"
_MAX_LAYOUTS = 64
"""Layouts per length that are decoded together; further ones are parsed one by one."""
_FEW = 64
"""So few records are faster one by one."""
_FLOAT, _DOUBLE = 1, 2
"""Numbers of the element types of tensors that are read."""
_DAMAGED = "{} events were damaged"
_CUT = "{} bytes after the last whole event of a file"
_OTHER = "{} values that are no scalars (images, histograms, texts)"


class _Scalars(NamedTuple):
    """Decoded scalars: arrays of equal length, and the names that `tag_ids` count."""

    tag_ids: npt.NDArray[np.int64]
    events: Offsets
    """Index of the event in the file."""
    steps: npt.NDArray[np.int64]
    at_s: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]


def _rows_of(rows: list[tuple[int, int, int, float, float]]) -> _Scalars:
    columns = np.array(rows, [("", np.int64)] * 3 + [("", np.float64)] * 2)
    return _Scalars(*(columns[name] for name in columns.dtype.names or ()))


def _joined(parts: list[_Scalars]) -> _Scalars:
    return _Scalars(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _selected(scalars: _Scalars, chosen: Offsets) -> _Scalars:
    return _Scalars(*(column[chosen] for column in scalars))  # type: ignore[arg-type]


class _Layout(NamedTuple):
    """Where one event has its numbers and its tag, relative to its beginning; all other bytes are its structure."""

    wall_at: int
    step: tuple[int, int]
    """Begin and end of the varint; equal for step 0, which is not written."""
    tag: tuple[int, int]
    value_at: int
    value_kind: str
    """NumPy's name of the value's type."""


def read_tensorboard(folder: Path) -> Iterator[ForeignRun]:
    """Yield a run for each folder with event files, at any depth."""
    for run_dir in sorted({path.parent for path in folder.rglob(EVENT_FILES) if path.is_file()}):
        yield _read_run(folder, run_dir)


def _read_run(root: Path, run_dir: Path) -> ForeignRun:
    losses, tags = Losses(), dict[bytes, int]()
    lives: list[list[_Scalars]] = [[]]
    paths = sorted(path for path in run_dir.glob(EVENT_FILES) if path.is_file())
    first_event = b""
    for path in paths:
        data = path.read_bytes()
        offsets, lengths = _whole_events(data, losses)
        if not first_event and len(offsets):
            first_event = data[offsets[0] : offsets[0] + lengths[0]]
        scalars, starts = _decoded(data, offsets, lengths, tags, losses)
        bounds = np.searchsorted(scalars.events, starts)
        for life, events in enumerate(np.split(np.arange(len(scalars.events)), bounds)):
            if life:
                lives.append([])
            lives[-1].append(_selected(scalars, events))
    name = run_dir.name if run_dir == root else run_dir.relative_to(root).as_posix()
    attempts = [_series(life, list(tags), losses) for life in lives]
    facts = ImportedFrom(
        tool="tensorboard",
        source=str(run_dir),
        # Moving a log folder does not make its runs other ones: its first event has a time in microseconds.
        name=name,
        tool_run_id=f"{run_dir.name}/{paths[0].name}/{first_event[:9].hex()}",
        status="unknown",
        left_out=losses.sentences(),
    )
    return ForeignRun(facts, root.name, {}, [series for series in attempts if series] or [{}])


def _series(life: list[_Scalars], names: list[bytes], losses: Losses) -> Series:
    """Group scalars of consecutive files by tag, in the order of the files."""
    if not life:
        return {}
    tag_ids, _, steps, at_s, values = _joined(life)
    order = np.argsort(tag_ids, kind="stable")
    bounds = np.flatnonzero(np.diff(tag_ids[order])) + 1
    groups = [group for group in np.split(order, bounds) if len(group)]
    return named_series(
        (
            (names[tag_ids[group[0]]].decode("utf-8", "replace"), Points(steps[group], at_s[group], values[group]))
            for group in groups
        ),
        losses,
    )


# Frames


def _whole_events(data: bytes, losses: Losses) -> tuple[Offsets, Offsets]:
    """Return offset and length of each event with valid checksums, and count what is damaged."""
    found: list[tuple[int, int]] = []
    length_at, at, last = struct.Struct("<Q").unpack_from, 0, len(data) - 16
    while at <= last:
        (length,) = length_at(data, at)
        if at + 16 + length > len(data):
            break
        found.append((at + 12, length))
        at += 16 + length
    table = np.array(found, np.int64).reshape(-1, 2)
    offsets, lengths = table[:, 0], table[:, 1]
    octets = np.frombuffer(data, np.uint8)
    # A wrong length makes all that follows unreadable, as these files have no marks to find the next frame by.
    has_length = _checksums_hold(octets, offsets - 12, 8)
    num_framed = len(offsets) if has_length.all() else int(np.argmin(has_length))
    end = int(offsets[num_framed - 1] + lengths[num_framed - 1] + 4) if num_framed else 0
    losses[_CUT] += len(data) - end
    offsets, lengths = offsets[:num_framed], lengths[:num_framed]
    is_whole = np.zeros(num_framed, bool)
    for length in np.unique(lengths).tolist():
        of_length = lengths == length
        is_whole[of_length] = _checksums_hold(octets, offsets[of_length], length)
    losses[_DAMAGED] += int((~is_whole).sum())
    return offsets[is_whole], lengths[is_whole]


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE_LIST = [_crc_of_byte(byte) for byte in range(256)]
_TABLE = np.array(_TABLE_LIST, np.uint32)


def _checksums_hold(octets: npt.NDArray[np.uint8], offsets: Offsets, length: int) -> npt.NDArray[np.bool_]:
    """Return whether the masked CRC-32C behind `length` bytes at each offset is right."""
    if len(offsets) <= _FEW:
        crc = np.array([_crc(octets[at : at + length].tobytes()) for at in offsets.tolist()], np.uint32)
    else:
        crc = ~np.zeros(len(offsets), np.uint32)
        for column in range(length):
            crc = _TABLE[(crc ^ octets[offsets + column]) & 0xFF] ^ (crc >> np.uint32(8))
        crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    holds: npt.NDArray[np.bool_] = masked == _gathered(octets, offsets + length, "<u4")
    return holds


def _crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE_LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _gathered(octets: npt.NDArray[np.uint8], offsets: Offsets, kind: str) -> npt.NDArray[np.generic]:
    """Return the numbers of one type at these offsets."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(octets[offsets[:, None] + np.arange(width)]).view(kind).ravel()


# Events


def _decoded(
    data: bytes, offsets: Offsets, lengths: Offsets, tags: dict[bytes, int], losses: Losses
) -> tuple[_Scalars, Offsets]:
    """Return the scalars in the order of the file, and the indices of the events before which the run restarted."""
    octets, starts = np.frombuffer(data, np.uint8), list[int]()
    found = [_rows_of([])]
    for length in np.unique(lengths).tolist():
        left = np.flatnonzero(lengths == length)
        for _ in range(_MAX_LAYOUTS):
            if len(left) <= _FEW or (layout := _layout(data, int(offsets[left[0]]), length)) is None:
                break
            fits = _fits(octets, offsets[left], length, layout)
            found.append(_extracted(octets, offsets, left[fits], layout, tags))
            left = left[~fits]
        found.append(_parsed(data, offsets, lengths, left, tags, starts, losses))
    scalars = _joined(found)
    order = np.argsort(scalars.events, kind="stable")
    return _selected(scalars, order), np.array(sorted(starts), np.int64)


def _layout(data: bytes, begin: int, length: int) -> _Layout | None:
    """Return the layout of an event with one scalar; None for any other event."""
    wall, step, values = None, None, list[Field]()
    try:
        for field in fields(data, begin, begin + length):
            if (field.number, field.wire_type) == (1, FIXED64):
                wall = field
            elif (field.number, field.wire_type) == (2, VARINT):
                step = field
            elif field.number == 5:
                values += parts(data, field)
        if wall is None or len(values) != 1 or (scalar := _scalar(data, values[0])) is None:
            return None
    except DataError:
        return None
    tag, (value_at, kind) = scalar
    step_range = (0, 0) if step is None else (step.begin - begin, step.end - begin)
    return _Layout(wall.begin - begin, step_range, (tag.begin - begin, tag.end - begin), value_at - begin, kind)


def _scalar(data: bytes, value: Field) -> tuple[Field, tuple[int, str]] | None:
    """Return a value's tag, and where its number lies with its type; None if it is no scalar."""
    tag, number = None, None
    for field in parts(data, value):
        if field.number == 1:
            tag = field
        elif (field.number, field.wire_type) == (2, FIXED32):
            number = (field.begin, "<f4")
        elif (field.number, field.wire_type) == (8, BYTES):
            number = _tensor_scalar(data, field)
    return None if tag is None or number is None else (tag, number)


def _tensor_scalar(data: bytes, tensor: Field) -> tuple[int, str] | None:
    """Return where the only number of a tensor lies; None for other types and sizes."""
    element, content = 0, None
    for field in parts(data, tensor):
        if field.number == 1:
            element = field.integer(data)
        elif field.number in (4, 5, 6):  # its bytes, floats or doubles
            content = field
    kind = {_FLOAT: "<f4", _DOUBLE: "<f8"}.get(element)
    if content is None or kind is None or content.end - content.begin != np.dtype(kind).itemsize:
        return None
    return content.begin, kind


def _fits(octets: npt.NDArray[np.uint8], offsets: Offsets, length: int, layout: _Layout) -> npt.NDArray[np.bool_]:
    """Return which events have the first one's structure."""
    width = np.dtype(layout.value_kind).itemsize
    free = {*range(layout.wall_at, layout.wall_at + 8), *range(*layout.tag)}
    free |= {*range(layout.value_at, layout.value_at + width)}
    first, same = offsets[0], np.ones(len(offsets), bool)
    for column in range(length):
        if column not in free:
            # Of the step only the bits that say how long it is belong to the structure.
            mask = 0x80 if layout.step[0] <= column < layout.step[1] else 0xFF
            same &= (octets[offsets + column] & mask) == (octets[first + column] & mask)
    return same


def _extracted(
    octets: npt.NDArray[np.uint8], offsets: Offsets, events: Offsets, layout: _Layout, tags: dict[bytes, int]
) -> _Scalars:
    begins, (first, end) = offsets[events], layout.step
    steps = np.zeros(len(events), np.int64)
    for shift, column in enumerate(range(first, end)):
        steps |= (octets[begins + column] & 0x7F).astype(np.int64) << (7 * shift)
    width = layout.tag[1] - layout.tag[0]
    # NumPy has no type of width 0.
    names = _gathered(octets, begins + layout.tag[0], f"V{width}").tolist() if width else [b""] * len(events)
    return _Scalars(
        np.array([tags.setdefault(name, len(tags)) for name in names], np.int64),
        events,
        steps,
        _gathered(octets, begins + layout.wall_at, "<f8").astype(np.float64),
        _gathered(octets, begins + layout.value_at, layout.value_kind).astype(np.float64),
    )


def _parsed(
    data: bytes,
    offsets: Offsets,
    lengths: Offsets,
    events: Offsets,
    tags: dict[bytes, int],
    starts: list[int],
    losses: Losses,
) -> _Scalars:
    """Decode events one by one."""
    rows: list[tuple[int, int, int, float, float]] = []
    for event in events.tolist():
        begin = int(offsets[event])
        try:
            rows += _event_rows(data, begin, begin + int(lengths[event]), event, tags, starts, losses)
        except DataError:
            losses[_DAMAGED] += 1
    return _rows_of(rows)


def _event_rows(
    data: bytes, begin: int, end: int, event: int, tags: dict[bytes, int], starts: list[int], losses: Losses
) -> list[tuple[int, int, int, float, float]]:
    at_s, step, found = 0.0, 0, list[Field]()
    for field in fields(data, begin, end):
        if (field.number, field.wire_type) == (1, FIXED64):
            at_s = field.number_of(data)
        elif (field.number, field.wire_type) == (2, VARINT):
            step = field.integer(data)
        elif field.number == 5:
            found += parts(data, field)
        elif field.number == 7 and any(part.number == 1 and part.integer(data) == 1 for part in parts(data, field)):
            starts.append(event)
    rows = []
    for value in found:
        if (scalar := _scalar(data, value)) is None:
            losses[_OTHER] += 1
            continue
        tag, (value_at, kind) = scalar
        number = float(np.frombuffer(data, kind, 1, value_at)[0])
        name = data[tag.begin : tag.end]
        rows.append((tags.setdefault(name, len(tags)), event, step, at_s, number))
    return rows
