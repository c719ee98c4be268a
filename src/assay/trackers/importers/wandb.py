"""Reads W&B's offline runs, without W&B.

    run-ID.wandb    7 bytes, then LevelDB's log format: blocks of 32 KiB with records, cut where a block ends
                    record: CRC-32 | length u16 | kind u8 (whole, first, middle, last part) | a `Record` message
    Record          history 2, config 5, metric 12, run 17, exit 18

A damaged record costs itself; if its length is damaged too, the rest of its block.
"""

import fnmatch
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.base.errors import DataError
from assay.records.run import ImportedFrom, RunStatus
from assay.trackers.importers.foreign_run import ForeignRun, Losses, SeriesBuilder, json_or_text
from assay.trackers.importers.protobuf import Field, fields, parts

RUN_FILES = "run-*.wandb"
_MAGIC, _BLOCK = b":W&B", 1 << 15
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _CONFIG, _METRIC, _RUN, _EXIT = 2, 5, 12, 17, 18
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
        losses = Losses()
        records = list(_records(data, losses))
        run_id, project = _identity(records, path)
        reader = readers.setdefault((project, run_id), _RunReader(run_id, project, path))
        reader.read(records, losses)
    if unreadable and not readers:
        raise DataError(f"{unreadable[0]}: not a file of W&B: it does not begin with {_MAGIC.decode()}.")
    for reader in readers.values():
        yield reader.run()


def _records(data: bytes, losses: Losses) -> Iterator[bytes]:
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
            losses[_DAMAGED] += 1
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
    losses["{} bytes after the last whole record of a file"] += max(0, len(data) - at)


def _identity(records: list[bytes], path: Path) -> tuple[str, str]:
    """Return the id and the project of a run; the file's name holds the id if the record of the run is damaged."""
    for record in records:
        for field in _fields(record):
            if field.number == _RUN:
                texts = {part.number: part.text(record) for part in parts(record, field) if part.number in (1, 3)}
                return texts.get(1, ""), texts.get(3, "")
    return path.stem.removeprefix("run-"), ""


def _fields(record: bytes) -> list[Field]:
    try:
        return list(fields(record))
    except DataError:
        return []


class _RunReader:
    """Collects the records of one run over its files."""

    def __init__(self, run_id: str, project: str, path: Path) -> None:
        self._source, self._run_id, self._project = path, run_id, project
        self._losses = Losses()
        self._builder = SeriesBuilder(self._losses)
        self._params: dict[str, Any] = {}
        self._tags: dict[str, str] = {}
        self._name = ""
        self._started_s: float | None = None
        self._last_s: float | None = None
        self._exit_code: int | None = None
        self._step_metrics: list[tuple[str, str]] = []
        """Pattern of a metric's name, and the metric that is its step."""

    def read(self, records: list[bytes], losses: Losses) -> None:
        """Read the records of one file."""
        self._losses.update(losses)
        self._exit_code = None
        readers = {
            _HISTORY: self._history,
            _CONFIG: self._config,
            _METRIC: self._metric,
            _RUN: self._run,
            _EXIT: self._exit,
        }
        for record in records:
            try:
                for field in fields(record):
                    if field.number in readers:
                        readers[field.number](record, field)
            except DataError:
                self._losses[_DAMAGED] += 1

    def run(self) -> ForeignRun:
        """Return the run that was read."""
        statuses: dict[int | None, RunStatus] = {None: "unknown", 0: "succeeded"}
        facts = ImportedFrom(
            tool="wandb",
            source=str(self._source),
            tool_run_id=f"{self._project}/{self._run_id}",
            name=self._name or self._run_id,
            status=statuses.get(self._exit_code, "failed"),
            tool_status="" if self._exit_code is None else f"exit code {self._exit_code}",
            tags=self._tags,
            started_s=self._started_s,
            ended_s=None if self._exit_code is None else self._last_s,
            left_out=self._losses.sentences(),
        )
        return ForeignRun(facts, self._project, self._params, [self._builder.series()])

    def _run(self, record: bytes, run: Field) -> None:
        for field in parts(record, run):
            if field.number == 4:
                self._config(record, field)
            elif field.number == 8:
                self._name = field.text(record)
            elif field.number == 9:
                self._tags["notes"] = field.text(record)
            elif field.number in (6, 7):
                self._tags["group" if field.number == 6 else "job_type"] = field.text(record)
            elif field.number == 10:
                self._tags[field.text(record)] = ""
            elif field.number == 17 and self._started_s is None:
                numbers = {part.number: part.integer(record) for part in parts(record, field)}
                self._started_s = numbers.get(1, 0) + numbers.get(2, 0) / 1e9

    def _config(self, record: bytes, config: Field) -> None:
        for update in (field for field in parts(record, config) if field.number == 1):
            (*path, last), value = self._item(record, update)
            if (path or [last])[0] != "_wandb":
                tree = self._params
                for key in path:
                    tree = tree.setdefault(key, {}) if isinstance(tree.get(key, {}), dict) else {}
                tree[last] = value

    def _metric(self, record: bytes, metric: Field) -> None:
        texts = {field.number: field.text(record) for field in parts(record, metric) if field.number in (1, 2, 4)}
        if 4 in texts:
            self._step_metrics.insert(0, (texts.get(2) or texts.get(1, ""), texts[4]))

    def _history(self, record: bytes, history: Field) -> None:
        items = [self._item(record, field) for field in parts(record, history) if field.number == 1]
        row = {".".join(path): value for path, value in items}
        steps = [
            part.integer(record)
            for field in parts(record, history)
            if field.number == 2
            for part in parts(record, field)
        ]
        at_s = row.get("_timestamp")
        at_s = float(at_s) if isinstance(at_s, int | float) else 0.0
        self._last_s = max(at_s, self._last_s or 0.0)
        for name, value in row.items():
            if not name.startswith("_"):
                step = row.get("_step", steps[0] if steps else 0)
                self._builder.add(name, self._own_step(name, row, step), at_s, value)

    def _own_step(self, name: str, row: dict[str, Any], step: object) -> object:
        """Return the step in the metric that `define_metric` made the step of this one."""
        for pattern, step_metric in self._step_metrics:
            if name != step_metric and step_metric in row and (pattern == name or fnmatch.fnmatchcase(name, pattern)):
                return row[step_metric]
        return step

    def _item(self, record: bytes, item: Field) -> tuple[list[str], Any]:
        path: list[str] = []
        value: Any = None
        for field in parts(record, item):
            if field.number in (1, 2):
                path.append(field.text(record))
            elif field.number == 16 or field.number == 8:
                value = json_or_text(field.text(record))
            elif field.number == 4:
                value = bool(field.integer(record))
            elif field.number == 5:
                folded = field.integer(record) & (2**64 - 1)
                value = (folded >> 1) ^ -(folded & 1)
            elif field.number == 6:
                value = field.number_of(record)
            elif field.number == 7:
                value = field.text(record)
        return path or [""], value

    def _exit(self, record: bytes, exit_: Field) -> None:
        codes = [field.integer(record) for field in parts(record, exit_) if field.number == 1]
        self._exit_code = codes[0] if codes else 0
