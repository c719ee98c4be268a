"""Reads scalars and hyperparameters from TensorBoard's event files, without TensorBoard.

file     frames: length u64 | CRC of it | an `Event` message | CRC of it            (CRC-32C, masked)
"""

import re
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from assay.records.run import RunStatus
from assay.trackers.importers.foreign_run import ForeignRun, RunBuilder
from assay.trackers.importers.protobuf import message_classes, text_of

Offsets = npt.NDArray[np.int64]
EVENT_FILES = "*tfevents*"
_FEW = 64
"""So few checksums are faster one by one."""
_TYPES = message_classes("""
    message Event {
        double wall_time = 1; int64 step = 2; bytes graph_def = 4; Summary summary = 5; bytes log_message = 6;
        Session session_log = 7; bytes tagged_run_metadata = 8; bytes meta_graph_def = 9;
    }
    message Session { int64 status = 1; }
    message Summary { repeated Value value = 1; }
    message Value {
        bytes tag = 1; float simple_value = 2; bytes image = 4; bytes histo = 5; bytes audio = 6; Tensor tensor = 8;
        Metadata metadata = 9;
    }
    message Tensor {
        int64 dtype = 1; bytes tensor_content = 4; repeated float float_val = 5; repeated double double_val = 6;
    }
    message Metadata { Plugin plugin_data = 1; bytes summary_description = 3; }
    message Plugin { bytes plugin_name = 1; bytes content = 2; }
    message Hparams { SessionStart session_start_info = 3; SessionEnd session_end_info = 4; }
    message SessionStart { repeated Hparam hparams = 1; bytes group_name = 4; double start_time_secs = 5; }
    message SessionEnd { int64 status = 1; double end_time_secs = 2; }
    message Hparam { bytes key = 1; HparamValue value = 2; }
    message HparamValue { double number = 2; bytes string = 3; bool boolean = 4; bytes struct = 5; bytes list = 6; }
""")
_START = 1
"""Status of a session that begins."""
_STATUSES: dict[int, tuple[str, RunStatus]] = {1: ("success", "succeeded"), 2: ("failure", "failed")}
"""Statuses at the end of a session of the hparams plugin."""
_ELEMENTS = {1: "<f4", 2: "<f8"}
"""Element type of a tensor -> NumPy's name of it."""
_KINDS = {"image": "images", "histo": "histograms", "audio": "audio"}
"""Field of a value before there were plugins -> the plugin's name."""
_DAMAGED = "{} events were damaged"


def read_tensorboard(folder: Path) -> Iterator[ForeignRun]:
    """Yield a run for each folder with event files, at any depth."""
    for run_dir in sorted({path.parent for path in folder.rglob(EVENT_FILES) if path.is_file()}):
        reader = _RunReader()
        paths = sorted(path for path in run_dir.glob(EVENT_FILES) if path.is_file())
        for path in paths:
            reader.read(path.read_bytes())
        name = run_dir.name if run_dir == folder else run_dir.relative_to(folder).as_posix()
        # Moving a log folder does not make its runs other ones: its first event has a time in microseconds.
        run_id = f"{run_dir.name}/{paths[0].name}/{reader.first_event[:9].hex()}"
        yield reader.run(experiment=folder.name, source=str(run_dir), name=name, tool_run_id=run_id)


class _RunReader:
    """Collects the events of one run over its files."""

    def __init__(self) -> None:
        self.first_event = b""
        self._builder = RunBuilder()
        self._params: dict[str, Any] = {}
        self._facts: dict[str, Any] = {"status": "unknown"}
        self._plugins: dict[bytes, bytes] = {}
        """Tag -> plugin: only the first value of a tag names its plugin."""

    def read(self, data: bytes) -> None:
        """Read the events of one file."""
        parse, add = _TYPES["Event"].FromString, self._builder.add
        offsets, lengths = _whole_events(data, self._builder)
        for begin, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            self.first_event = self.first_event or data[begin : begin + length]
            try:
                event = parse(data[begin : begin + length])
            except DecodeError:
                self._builder.leave_out(_DAMAGED)
                continue
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    add(text_of(value.tag), event.step, event.wall_time, value.simple_value)
                else:
                    self._read_value(event, value)
            if not event.HasField("summary"):
                self._read_other(event)

    def run(self, **facts: Any) -> ForeignRun:
        """Return the run that was read."""
        return self._builder.run(tool="tensorboard", params=self._params, **self._facts, **facts)

    def _read_value(self, event: Any, value: Any) -> None:
        """Read a value that is no plain number: the tensor of one, hyperparameters, or what is left out."""
        plugin = value.metadata.plugin_data
        name = text_of(self._plugins.setdefault(value.tag, plugin.plugin_name))
        if name == "hparams" and self._read_hparams(plugin.content):
            return
        if value.metadata.summary_description:
            self._builder.leave_out("{} descriptions of metrics")
        if (number := _scalar_of(value.tensor)) is not None:
            self._builder.add(text_of(value.tag), event.step, event.wall_time, number)
            return
        kind = next((kind for field, kind in _KINDS.items() if value.HasField(field)), name)
        kind = kind if re.fullmatch(r"\w{1,40}", kind) else "of an unknown kind"
        self._builder.leave_out(f"{{}} values that are no scalars: {kind}")

    def _read_hparams(self, content: bytes) -> bool:
        """Read the hyperparameters of a session and its end; return False if there are none in the content."""
        try:
            found = _TYPES["Hparams"].FromString(content)
        except DecodeError:
            return False
        start, end = found.session_start_info, found.session_end_info
        for hparam in start.hparams:
            values = hparam.value.ListFields()
            value = values[0][1] if values else None
            self._params[text_of(hparam.key)] = text_of(value) if isinstance(value, bytes) else value
        if start.group_name:
            self._facts["tags"] = {"group": text_of(start.group_name)}
        if start.start_time_secs:
            self._facts["started_s"] = start.start_time_secs
        if end.status in _STATUSES:
            self._facts["tool_status"], self._facts["status"] = _STATUSES[end.status]
            self._facts["ended_s"] = end.end_time_secs
        return bool(found.HasField("session_start_info") or found.HasField("session_end_info"))

    def _read_other(self, event: Any) -> None:
        if event.session_log.status == _START:
            self._builder.begin_life()
        for field in ("graph_def", "log_message", "tagged_run_metadata", "meta_graph_def"):
            if event.HasField(field):
                self._builder.leave_out(f"{{}} events of kind {field}")


def _scalar_of(tensor: Any) -> float | None:
    """Return the only number of a tensor; None for other types and sizes."""
    element, content = _ELEMENTS.get(tensor.dtype), tensor.tensor_content
    numbers = [*tensor.float_val, *tensor.double_val] if element else []
    if element and len(content) == np.dtype(element).itemsize:
        numbers += np.frombuffer(content, element).tolist()
    return numbers[0] if len(numbers) == 1 else None


# Frames


def _whole_events(data: bytes, builder: RunBuilder) -> tuple[Offsets, Offsets]:
    """Return offset and length of each event with valid checksums, and count what is damaged."""
    offsets_found, lengths_found = array("q"), array("q")
    length_at, at, last = struct.Struct("<Q").unpack_from, 0, len(data) - 16
    while at <= last:
        (length,) = length_at(data, at)
        if at + 16 + length > len(data):
            break
        offsets_found.append(at + 12)
        lengths_found.append(length)
        at += 16 + length
    offsets, lengths = np.asarray(offsets_found), np.asarray(lengths_found)
    octets = np.frombuffer(data, np.uint8)
    # A wrong length makes all that follows unreadable, as these files have no marks to find the next frame by.
    has_length = _checksums_hold(octets, offsets - 12, 8)
    num_framed = len(offsets) if has_length.all() else int(np.argmin(has_length))
    end = int(offsets[num_framed - 1] + lengths[num_framed - 1] + 4) if num_framed else 0
    builder.leave_out("{} bytes after the last whole event of a file", len(data) - end)
    offsets, lengths = offsets[:num_framed], lengths[:num_framed]
    is_whole = np.zeros(num_framed, bool)
    for length in np.unique(lengths).tolist():
        of_length = lengths == length
        is_whole[of_length] = _checksums_hold(octets, offsets[of_length], length)
    builder.leave_out(_DAMAGED, int((~is_whole).sum()))
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
    stored = np.ascontiguousarray(octets[offsets[:, None] + length + np.arange(4)]).view("<u4").ravel()
    holds: npt.NDArray[np.bool_] = masked == stored
    return holds


def _crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE_LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
