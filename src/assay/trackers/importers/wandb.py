"""Reads W&B's offline runs, without W&B.

    run-ID.wandb    7 bytes, then LevelDB's log format: blocks of 32 KiB with records, cut where a block ends
                    record: CRC-32 | length u16 | kind u8 (whole, first, middle, last part) | a `Record` message

A damaged record costs itself; if its length is damaged too, the rest of its block.
"""

import fnmatch
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from assay.base.errors import DataError
from assay.records.run import RunStatus
from assay.trackers.importers.foreign_run import ForeignRun, RunBuilder, json_or_text
from assay.trackers.importers.protobuf import message_classes, text_of

RUN_FILES = "run-*.wandb"
_MAGIC, _BLOCK = b":W&B", 1 << 15
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_TYPES = message_classes("""
    message Record {
        History history = 2; Config summary = 3; Config config = 5; bytes stats = 7; bytes artifact = 8;
        bytes alert = 10; Metric metric = 12; bytes output_raw = 13; Run run = 17; Exit exit = 18;
        bytes use_artifact = 25;
    }
    message History { repeated Item item = 1; HistoryStep step = 2; }
    message HistoryStep { int64 num = 1; }
    message Item {
        bytes key = 1; repeated bytes nested_key = 2; bool boolean = 4; sint64 integer = 5; double number = 6;
        bytes text = 7; bytes json = 8; bytes value_json = 16;
    }
    message Config { repeated Item update = 1; repeated Item remove = 2; }
    message Metric { bytes name = 1; bytes glob_name = 2; bytes step_metric = 4; }
    message Run {
        bytes run_id = 1; bytes project = 3; Config config = 4; Config summary = 5; bytes run_group = 6;
        bytes job_type = 7; bytes display_name = 8; bytes notes = 9; repeated bytes tags = 10; bytes sweep_id = 12;
        bytes host = 13; Timestamp start_time = 17; BranchPoint branch_point = 23;
    }
    message Timestamp { int64 seconds = 1; int32 nanos = 2; }
    message BranchPoint { bytes run = 1; }
    message Exit { int32 exit_code = 1; }
""")
_TAGS = {"run_group": "group", "job_type": "job_type", "notes": "notes", "sweep_id": "sweep", "host": "host"}
"""Field of a run -> the tag that it becomes."""
_LEFT_OUT = {
    "stats": "{} samples of the system", "artifact": "{} artifacts", "use_artifact": "{} artifacts that it used",
    "alert": "{} alerts", "output_raw": "{} lines of its output",
}  # fmt: skip
"""Field of a record -> how it is counted."""
_DAMAGED = "{} records were damaged"


def read_wandb(folder: Path) -> Iterator[ForeignRun]:
    """Yield a run for each id: a resumed run has several files."""
    readers: dict[tuple[str, str], _RunReader] = {}
    unreadable: list[Path] = []
    for path in sorted(folder.rglob(RUN_FILES), key=lambda path: path.parent.name):
        data = path.read_bytes()
        if not data.startswith(_MAGIC):
            unreadable.append(path)
            continue
        damage = Counter[str]()
        records = list(_records(data, damage))
        identity = _identity(records, path)
        readers.setdefault(identity, _RunReader(*identity, path)).read(records, damage)
    for reader in readers.values():
        yield reader.run()
    if unreadable:
        raise DataError(f"{unreadable[0]}: not a file of W&B: it does not begin with {_MAGIC.decode()}.")


def _records(data: bytes, damage: Counter[str]) -> Iterator[bytes]:
    """Yield whole records; count damaged ones and a cut end."""
    at, beginning = 7, None
    while at + 7 <= len(data):
        rest = _BLOCK - at % _BLOCK
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        if rest < 7 or not kind:
            at += rest
            continue
        body = data[at + 7 : at + 7 + length]
        if at + 7 + length > len(data):
            break
        if length > rest - 7 or kind > _LAST or zlib.crc32(body, zlib.crc32(bytes([kind]))) != crc:
            damage[_DAMAGED] += 1
            # A length that leads to another record, or to the end of the block, is believed.
            at += 7 + length if length <= rest - 7 and kind <= _LAST else rest
            beginning = None
            continue
        at += 7 + length
        if kind in (_FULL, _FIRST):
            beginning = body
        elif beginning is not None:  # None if it was damaged, which is counted
            beginning += body
        if kind in (_FULL, _LAST) and beginning is not None:
            yield beginning
            beginning = None
    damage["{} bytes after the last whole record of a file"] += max(0, len(data) - at)


def _identity(records: list[bytes], path: Path) -> tuple[str, str]:
    """Return the id and the project of a run; the file's name holds the id if the record of the run is damaged."""
    for record in records:
        found = _parsed(record)
        if found is not None and found.HasField("run"):
            return text_of(found.run.run_id), text_of(found.run.project)
    return path.stem.removeprefix("run-"), ""


def _parsed(record: bytes) -> Any:
    """Return a record's message; None if it is damaged."""
    try:
        return _TYPES["Record"].FromString(record)
    except DecodeError:
        return None


class _RunReader:
    """Collects the records of one run over its files."""

    def __init__(self, run_id: str, project: str, path: Path) -> None:
        self._source, self._run_id, self._project = path, run_id, project
        self._builder = RunBuilder()
        self._params: dict[str, Any] = {}
        self._tags: dict[str, str] = {}
        self._name = ""
        self._started_s: float | None = None
        self._last_s: float | None = None
        self._exit_code: int | None = None
        self._step_metrics: list[tuple[str, str]] = []
        """Pattern of a metric's name, and the metric that is its step."""
        self._rows_have = set[str]()
        self._summary_has = set[str]()
        """Names of the metrics in rows and in the summary."""

    def read(self, records: list[bytes], damage: Counter[str]) -> None:
        """Read the records of one file."""
        for text, num in damage.items():
            self._builder.leave_out(text, num)
        self._exit_code = None
        for record in records:
            if (found := _parsed(record)) is None:
                self._builder.leave_out(_DAMAGED)
                continue
            if found.HasField("history"):
                self._read_row(found.history)
            self._read_config(found.config)
            self._read_summary(found.summary)
            if found.metric.step_metric:
                pattern = found.metric.glob_name or found.metric.name
                self._step_metrics.insert(0, (text_of(pattern), text_of(found.metric.step_metric)))
            if found.HasField("run"):
                self._read_run(found.run)
            if found.HasField("exit"):
                self._exit_code = found.exit.exit_code
            for field, text in _LEFT_OUT.items():
                if found.HasField(field):
                    self._builder.leave_out(text)

    def run(self) -> ForeignRun:
        """Return the run that was read."""
        statuses: dict[int | None, RunStatus] = {None: "unknown", 0: "succeeded"}
        self._builder.leave_out("{} values of the summary that no row has", len(self._summary_has - self._rows_have))
        return self._builder.run(
            experiment=self._project,
            params=self._params,
            tool="wandb",
            source=str(self._source),
            tool_run_id=f"{self._project}/{self._run_id}",
            name=self._name or self._run_id,
            status=statuses.get(self._exit_code, "failed"),
            tool_status="" if self._exit_code is None else f"exit code {self._exit_code}",
            tags=self._tags,
            started_s=self._started_s,
            ended_s=None if self._exit_code is None else self._last_s,
        )

    def _read_run(self, run: Any) -> None:
        self._read_config(run.config)
        self._read_summary(run.summary)
        self._name = text_of(run.display_name)
        self._tags |= {tag: text_of(getattr(run, field)) for field, tag in _TAGS.items() if run.HasField(field)}
        self._tags |= {text_of(tag): "" for tag in run.tags}
        if run.branch_point.run:
            self._tags["forked_from"] = text_of(run.branch_point.run)
        if run.HasField("start_time") and self._started_s is None:
            self._started_s = run.start_time.seconds + run.start_time.nanos / 1e9

    def _read_config(self, config: Any) -> None:
        for item, is_removed in [*((item, False) for item in config.update), *((item, True) for item in config.remove)]:
            (*path, last) = _path_of(item)
            if (path or [last])[0] == "_wandb":
                continue
            tree = self._params
            for key in path:
                tree = tree.setdefault(key, {}) if isinstance(tree.get(key, {}), dict) else {}
            if is_removed:
                tree.pop(last, None)
            else:
                tree[last] = _value_of(item)

    def _read_summary(self, summary: Any) -> None:
        names = (_path_of(item)[0] for item in summary.update)
        self._summary_has |= {name for name in names if not name.startswith("_")}

    def _read_row(self, history: Any) -> None:
        row = {".".join(_path_of(item)): _value_of(item) for item in history.item}
        step, at_s = row.get("_step", history.step.num), row.get("_timestamp", 0.0)
        if isinstance(at_s, int | float):
            self._last_s = max(at_s, self._last_s or 0.0)
        for name, value in row.items():
            if not name.startswith("_"):
                self._rows_have.add(name.partition(".")[0])
                self._builder.add(name, self._own_step(name, row, step), at_s, value)

    def _own_step(self, name: str, row: dict[str, Any], step: object) -> object:
        """Return the step in the metric that `define_metric` made the step of this one."""
        for pattern, step_metric in self._step_metrics:
            if name != step_metric and step_metric in row and (pattern == name or fnmatch.fnmatchcase(name, pattern)):
                return row[step_metric]
        return step


def _path_of(item: Any) -> list[str]:
    return [text_of(key) for key in ([item.key] if item.HasField("key") else []) + [*item.nested_key]] or [""]


def _value_of(item: Any) -> Any:
    """Return the last value that is set."""
    value: Any = None
    for field, found in item.ListFields():
        if field.name in ("value_json", "json"):
            value = json_or_text(text_of(found))
        elif field.name not in ("key", "nested_key"):
            value = text_of(found) if isinstance(found, bytes) else found
    return value
