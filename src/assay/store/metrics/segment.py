"""The metric segment: append-only file of what one rank of one attempt measured.

A segment is a file that one process appends to. Each call is one `os.write` of one frame, so there is no
thread, no lock and no buffer of ours: what was logged survives SIGKILL, and a reader needs no permission.

    frame    crc32 u32 | num_bytes u32 | kind u32 | id u32 | body, padded to 8 bytes     (little-endian)
    header   JSON: whose segment it is, the names of the phases, both clocks at one moment
    names    JSON: the metric names that scalar frames with this id carry
    scalars  step i64, monotonic seconds f64, one f64 per name
    phase    monotonic seconds f64; from here on the device is in the phase `id`
    event    monotonic seconds f64, JSON text
    span     monotonic seconds f64 of its end, JSON: its name and the seconds of its beginning

The CRC covers everything behind it. A reader stops before a frame that is not whole and says where, so that
the next read goes on there; a damaged stretch that valid frames follow is stepped over and counted.
"""

import contextlib
import json
import os
import socket
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from assay.base.clock import Clock, SystemClock
from assay.base.errors import DamagedDataError, StoreError, unwritten
from assay.records.phase import Phase

PHASES: tuple[Phase, ...] = get_args(Phase)

Steps = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

_HEADER, _NAMES, _SCALARS, _PHASE, _EVENT, _SPAN = 1, 2, 3, 4, 5, 6
_PREFIX = struct.Struct("<III")  # num_bytes, kind, id: what follows the CRC in every frame
_PHASE_FRAME = struct.Struct("<IIId")
_SERIES_FRAME = np.dtype(
    [(name, "<u4") for name in ("crc", "size", "kind", "id")] + [("step", "<i8"), ("at_s", "<f8"), ("value", "<f8")]
)
"""A scalar frame of one metric."""
_SMALLEST_FRAME, _LARGEST_FRAME = 16, 1 << 20
_ALIKE = 16
"""After so many frames of one size, more of them are looked for at once."""
_BLOCK_FRAMES = 1 << 14
"""Frames that are checked at a time: they fit in the processor's cache."""
_MAX_EVENT_CHARS = 32_000
_BEGINNING_BYTES = 1 << 18


def segment_path(run_dir: Path, attempt: int, rank: int, *, of: str = "metrics") -> Path:
    """Return the path of a rank's segment of metrics, or of other events."""
    return run_dir / of / f"attempt-{attempt:04d}" / f"rank-{rank:05d}.seg"


def attempt_and_rank(path: Path) -> tuple[int, int]:
    """Return the attempt and rank of a segment's path."""
    return int(path.parent.name.removeprefix("attempt-")), int(path.stem.removeprefix("rank-"))


def segment_paths(run_dir: Path, *, of: str = "metrics") -> list[Path]:
    """Return the paths of a run's segments, by attempt and rank."""
    return sorted((run_dir / of).glob("attempt-*/rank-*.seg"))


class SegmentWriter:
    """Appends to one segment. For one thread; a call costs a few microseconds and returns after the write."""

    def __init__(self, path: Path, *, run_id: str, attempt: int, rank: int, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._packers: dict[tuple[str, ...], partial[bytes]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._num_bytes = _drop_torn_tail(self._fd, path)
        except OSError as error:
            raise _write_error(path, error) from error
        header = {
            "format": 1,
            "run_id": run_id,
            "attempt": attempt,
            "rank": rank,
            "phases": PHASES,
            "wall_s": self._clock.now_s(),
            "monotonic_s": self._clock.monotonic_s(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._append(_json_frame(_HEADER, 0, b"", header))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of the step that just ended. An empty mapping marks the step's end and no more."""
        names = tuple(values)
        pack = self._packers.get(names) or self._define(names)
        try:
            frame = pack(step, self._clock.monotonic_s(), *values.values())
        except struct.error as error:
            kinds = {name: type(value).__name__ for name, value in values.items()}
            raise TypeError(f"metrics must be numbers and the step an integer: {step!r}, {kinds}") from error
        self._append(frame)

    def log_series(self, name: str, points: "Points") -> None:
        """Record all points of one metric that was measured elsewhere, with their own times."""
        pack = self._packers.get((name,)) or self._define((name,))
        frames = np.zeros(len(points.steps), _SERIES_FRAME)
        frames["size"], frames["kind"], frames["id"] = pack.args
        frames["step"], frames["at_s"], frames["value"] = points
        rows = frames.view(np.uint8).reshape(-1, _SERIES_FRAME.itemsize)[:, 4:]
        bodies = np.ascontiguousarray(rows).view(f"V{_SERIES_FRAME.itemsize - 4}").ravel()
        frames["crc"] = [zlib.crc32(body) for body in bodies.tolist()]
        self._write(frames.tobytes())

    def phase(self, name: Phase) -> None:
        """Record that the device enters a phase."""
        self._append(_PHASE_FRAME.pack(24, _PHASE, PHASES.index(name), self._clock.monotonic_s()))

    def event(self, text: str) -> None:
        """Record a log message, e.g. `resumed at step 300`."""
        at = struct.pack("<d", self._clock.monotonic_s())
        self._append(_json_frame(_EVENT, 0, at, text[:_MAX_EVENT_CHARS]))

    def span(self, name: str, began_s: float, ended_s: float) -> None:
        """Record a span in monotonic seconds, e.g. `rendezvous`."""
        at = struct.pack("<d", ended_s)
        self._append(_json_frame(_SPAN, 0, at, [name, began_s]))

    def sync(self) -> None:
        """Flush the segment to disk (fsync)."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise _write_error(self._path, error) from error

    def close(self) -> None:
        """Sync and release the file; a second call does nothing."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1

    def _define(self, names: tuple[str, ...]) -> partial[bytes]:
        names_id = len(self._packers)
        layout = struct.Struct(f"<IIIqd{len(names)}d")
        pack = partial(layout.pack, layout.size + 4, _SCALARS, names_id)
        self._append(_json_frame(_NAMES, names_id, b"", names))
        self._packers[names] = pack
        return pack

    def _append(self, body: bytes) -> None:
        self._write(zlib.crc32(body).to_bytes(4, "little") + body)

    def _write(self, frames: bytes) -> None:
        try:
            if (written := os.write(self._fd, frames)) < len(frames):
                os.write(self._fd, frames[written:])  # raises what stopped the first write, e.g. ENOSPC
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._num_bytes)
            raise _write_error(self._path, error) from error
        self._num_bytes += len(frames)


class SegmentHeader(NamedTuple):
    """Owner of the segment, and one moment on both clocks."""

    run_id: str
    attempt: int
    rank: int
    wall_s: float
    monotonic_s: float
    host: str
    pid: int
    phases: tuple[Phase, ...]

    def wall_of(self, monotonic_s: Numbers) -> Numbers:
        """Convert moments of the host's monotonic clock to seconds since the epoch."""
        return monotonic_s + (self.wall_s - self.monotonic_s)


class Position(NamedTuple):
    """How far a segment was read, with the definitions so far, to continue reading later."""

    offset: int = 0
    header: SegmentHeader | None = None
    names: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def to_json(self) -> str:
        """Serialize the position as JSON."""
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> "Position":
        """Parse the output of `to_json`."""
        offset, header, names = json.loads(text)
        fields = header and SegmentHeader(*[*header[:-1], tuple(header[-1])])
        return cls(offset, fields, tuple((names_id, tuple(some)) for names_id, some in names))


class Points(NamedTuple):
    """Points of a metric in logged order; three arrays of equal length."""

    steps: Steps
    at_s: Numbers
    """Monotonic seconds."""
    values: Numbers


class PhaseChanges(NamedTuple):
    """The phase changes of a device."""

    at_s: Numbers
    phases: tuple[Phase, ...]


class TimedText(NamedTuple):
    """A log message with its time in monotonic seconds."""

    at_s: float
    text: str


class TimedSpan(NamedTuple):
    """A span in monotonic seconds."""

    name: str
    began_s: float
    ended_s: float


class SegmentData(NamedTuple):
    """Result of a read. `header` is None only if it is incomplete."""

    header: SegmentHeader | None
    metrics: dict[str, Points]
    step_ends: Points
    """One point per `log` call, its step and moment; the values are zeros."""
    phase_changes: PhaseChanges
    events: tuple[TimedText, ...]
    spans: tuple[TimedSpan, ...]
    next: Position
    """Position to continue from once the file has grown."""
    corrupt_bytes: int
    """Skipped bytes that are not frames although frames follow; 0 unless the file is corrupt."""

    def last_at_s(self) -> float:
        """Return the last sign of life that was read, seconds since the epoch; 0.0 without a header."""
        if self.header is None:
            return 0.0
        moments = np.r_[self.step_ends.at_s[-1:], self.phase_changes.at_s[-1:], self.header.monotonic_s]
        return float(self.header.wall_of(moments).max())


def read_beginning(path: Path) -> SegmentData:
    """Read the first 256 KB of a segment, at a cost independent of its length."""
    try:
        with path.open("rb") as file:
            return _decode(file.read(_BEGINNING_BYTES), Position())
    except OSError as error:
        raise _read_error(path, error) from error


def read_segment(path: Path, after: Position = Position()) -> SegmentData:  # noqa: B008 (immutable)
    """Read all whole frames behind `after`. Safe while the segment is written."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(after.offset)
            data = file.read()
    except OSError as error:
        raise _read_error(path, error) from error
    if size < after.offset:
        raise DamagedDataError(
            f"{path}: {size} bytes long, but {after.offset} were read before. A segment only grows: the file "
            "was cut or replaced. Restore it, or fold the run's metrics anew."
        )
    return _decode(data, after)


_FRAME = np.dtype([(name, np.int64) for name in ("offset", "size", "kind", "id")])
_Frames = npt.NDArray[np.void]
"""Whole, checked frames in file order."""
_Logged = dict[str | None, list[tuple[npt.NDArray[np.int64], Points]]]
"""By metric, points with their offsets in the file; None holds the ends of steps."""


def _decode(data: bytes, after: Position) -> SegmentData:
    frames, end, corrupt_bytes = _whole_frames(data)
    header = after.header
    # Each life of the writer begins with a header and its own definitions: almost always there is only one.
    lives = np.cumsum(frames["kind"] == _HEADER)
    names = {(0, names_id): some for names_id, some in after.names}
    last_life = 0
    for index in np.flatnonzero(frames["kind"] <= _NAMES).tolist():
        offset, size, kind, names_id = frames[index].tolist()
        value = json.loads(data[offset + 16 : offset + size])
        last_life = int(lives[index])
        if kind == _HEADER:
            header = _header_of(value)
        else:
            names[last_life, names_id] = tuple(value)
    logged: _Logged = {}
    is_scalar = frames["kind"] == _SCALARS
    offsets, keys = frames["offset"][is_scalar], np.stack([lives[is_scalar], frames["id"][is_scalar]])
    if np.any(keys[:, 1:] != keys[:, :-1]):
        # Sorted once: an imported run may have tens of thousands of names.
        order = np.lexsort(keys[::-1])
        offsets, keys = offsets[order], keys[:, order]
    is_first = np.r_[True, np.any(keys[:, 1:] != keys[:, :-1], axis=0)][: len(offsets)]
    of_names = np.split(offsets, np.flatnonzero(is_first)[1:])
    for (life, names_id), found in zip(keys[:, is_first].T.tolist(), of_names, strict=False):
        if (life, names_id) in names:  # the definition may have been damaged
            _collect_scalars(data, found, names[life, names_id], logged)
    defined = ((names_id, some) for (life, names_id), some in names.items() if life == last_life)
    return SegmentData(
        header=header,
        step_ends=_joined(logged.pop(None, [])),
        metrics={name: _joined(parts) for name, parts in logged.items() if name is not None},
        phase_changes=_phase_changes(data, frames, header),
        events=tuple(TimedText(at_s, text) for at_s, text in _timed(data, frames, _EVENT)),
        spans=tuple(TimedSpan(name, began_s, at_s) for at_s, (name, began_s) in _timed(data, frames, _SPAN)),
        next=Position(after.offset + end, header, tuple(defined)),
        corrupt_bytes=corrupt_bytes,
    )


def _whole_frames(data: bytes) -> tuple[_Frames, int, int]:
    """Return all valid frames, the end of the last one, and the number of corrupt bytes in between."""
    parts: list[_Frames] = []
    start, end, corrupt_bytes = 0, 0, 0
    while True:
        frames = _checked(data, _walk(data, start))
        parts.append(frames)
        if len(frames):
            end = int(frames["offset"][-1] + frames["size"][-1])
        resumed = _next_frame(data, end)
        if resumed is None:
            return parts[0] if len(parts) == 1 else np.concatenate(parts), end, corrupt_bytes
        corrupt_bytes += resumed - end
        start = resumed


def _walk(data: bytes, start: int) -> npt.NDArray[np.int64]:
    """Return offsets of frames, following their lengths up to the first invalid length."""
    parts: list[npt.NDArray[np.int64]] = []
    offsets: list[int] = []
    size_at = struct.Struct("<I").unpack_from
    offset, last, size_before, num_alike = start, len(data) - _SMALLEST_FRAME, 0, 0
    while offset <= last:
        (size,) = size_at(data, offset + 4)
        if size < _SMALLEST_FRAME or size > _LARGEST_FRAME or size & 7:
            break
        num_alike = num_alike + 1 if size == size_before else 0
        size_before = size
        if num_alike == _ALIKE:
            parts += [np.array(offsets, np.int64), _walk_alike(data, offset, size)]
            offset, offsets, num_alike = int(parts[-1][-1]) + size, [], 0
        else:
            offsets.append(offset)
            offset += size
    found = np.concatenate([*parts, np.array(offsets, np.int64)])
    return found[:-1] if offset > len(data) else found


def _walk_alike(data: bytes, start: int, size: int) -> npt.NDArray[np.int64]:
    """Return the offsets of the frames of this size from `start` on, up to the first of another size."""
    sizes = np.frombuffer(data, "<u4", len(data) // 4)[start // 4 + 1 :: size // 4]
    num_frames = block = 1024
    while (sizes[num_frames - block : num_frames] == size).all() and num_frames < len(sizes):
        block *= 2
        num_frames += block
    is_other = np.flatnonzero(sizes[:num_frames] != size)
    num_frames = int(is_other[0]) if len(is_other) else min(num_frames, len(sizes))
    offsets: npt.NDArray[np.int64] = start + size * np.arange(num_frames)
    return offsets


def _checked(data: bytes, offsets: npt.NDArray[np.int64]) -> _Frames:
    """Return the frames before the first with a wrong CRC."""
    parts = [np.zeros(0, _FRAME)]
    for start in range(0, len(offsets), _BLOCK_FRAMES):
        block = offsets[start : start + _BLOCK_FRAMES]
        words = _rows(data, block, 16).view("<u4").astype(np.int64)
        is_whole = np.zeros(len(block), bool)
        for size in np.unique(words[:, 1]).tolist():
            same_size = np.flatnonzero(words[:, 1] == size)
            # Each frame behind its CRC as one `bytes`: cut by NumPy, at a tenth of what slicing in Python costs.
            bodies = _rows(data, block[same_size] + 4, size - 4).view(f"V{size - 4}").ravel().tolist()
            is_whole[same_size] = np.fromiter(map(zlib.crc32, bodies), np.int64, len(bodies)) == words[same_size, 0]
        num_good = len(block) if is_whole.all() else int(np.argmin(is_whole))
        words[:, 0] = block
        parts.append(words[:num_good].view(_FRAME).ravel())
        if num_good < len(block):
            break
    return np.concatenate(parts)


def _rows(data: bytes, offsets: npt.NDArray[np.int64], num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return `num_bytes` from each offset. Offsets and `num_bytes` are multiples of 4."""
    words = np.frombuffer(data, "<u4", len(data) // 4)
    distances = np.diff(offsets)
    if len(distances) and np.all(distances == distances[0]):  # eight times as fast as gathering words
        strides = (int(distances[0]), 4)
        rows = as_strided(words[offsets[0] // 4 :], (len(offsets), num_bytes // 4), strides, writeable=False)
    else:
        rows = words[offsets[:, None] // 4 + np.arange(num_bytes // 4)]
    return np.ascontiguousarray(rows).view(np.uint8)


def _next_frame(data: bytes, corrupt_from: int) -> int | None:
    """Return the offset of the next valid frame at or after corrupt bytes; None if there is none."""
    words = np.frombuffer(data, "<u4", len(data) // 8 * 2).reshape(-1, 2)
    first = corrupt_from // 8
    sizes = words[first:-1, 1].astype(np.int64)
    kinds = words[first + 1 :, 0]
    ends = (first + np.arange(len(sizes))) * 8 + sizes
    plausible = (sizes >= _SMALLEST_FRAME) & (sizes % 8 == 0) & (kinds >= _HEADER) & (kinds <= _SPAN)
    for index in np.flatnonzero(plausible & (ends <= len(data))).tolist():
        offset = (first + index) * 8
        if zlib.crc32(data[offset + 4 : int(ends[index])]) == int(words[first + index, 0]):
            return offset
    return None


def _collect_scalars(data: bytes, offsets: npt.NDArray[np.int64], names: tuple[str, ...], logged: _Logged) -> None:
    """Add the points of scalar frames at these offsets."""
    body = _rows(data, offsets + 16, 16 + 8 * len(names))
    steps = body.view("<i8")[:, 0].copy()
    at_s, *columns = body.view("<f8")[:, 1:].T.copy()
    for name, values in zip((None, *names), (np.zeros(len(steps)), *columns), strict=True):
        logged.setdefault(name, []).append((offsets, Points(steps, at_s, values)))


def _joined(parts: list[tuple[npt.NDArray[np.int64], Points]]) -> Points:
    """Merge points of several frame layouts, in file order."""
    if not parts:
        return Points(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([offsets for offsets, _ in parts]), kind="stable")
    columns = zip(*(points for _, points in parts), strict=True)
    return Points(*(np.concatenate(column)[order] for column in columns))


def _phase_changes(data: bytes, frames: _Frames, header: SegmentHeader | None) -> PhaseChanges:
    chosen = frames[frames["kind"] == _PHASE]
    at_s = _rows(data, chosen["offset"] + 16, 8).view("<f8").ravel()
    names = header.phases if header else PHASES
    return PhaseChanges(at_s, tuple(names[index] for index in chosen["id"].tolist()))


def _timed(data: bytes, frames: _Frames, kind: int) -> Iterator[tuple[float, Any]]:
    """Yield time and content of the frames of one kind."""
    for offset, size, _, _ in frames[frames["kind"] == kind].tolist():
        (at_s,) = struct.unpack_from("<d", data, offset + 16)
        yield at_s, json.loads(data[offset + 24 : offset + size])


def _read_error(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path}: cannot read the metric segment: {error.strerror or error}.")


def _header_of(tree: dict[str, Any]) -> SegmentHeader:
    tree["phases"] = tuple(tree["phases"])
    return SegmentHeader(**{name: tree[name] for name in SegmentHeader._fields})


def _json_frame(kind: int, frame_id: int, before: bytes, value: object) -> bytes:
    """Return a frame without its CRC; spaces pad the JSON to a multiple of 8 bytes."""
    text = before + json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    text += b" " * (-len(text) % 8)
    return _PREFIX.pack(len(text) + 16, kind, frame_id) + text


def _drop_torn_tail(fd: int, path: Path) -> int:
    """Truncate an existing segment after its last valid frame; return its length."""
    num_bytes = os.fstat(fd).st_size
    if num_bytes:
        num_bytes = read_segment(path).next.offset
        os.ftruncate(fd, num_bytes)
    return num_bytes


def _write_error(path: Path, error: OSError) -> StoreError:
    return unwritten(path, error, "Mend the run's folder, then resume; what was logged before is kept.")
