"""Files as other trackers leave them, made without those trackers."""

import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from assay.store.home import Home
from assay.store.metrics.curves import metric_series
from assay.store.metrics.segment import read_segment, segment_path
from assay.trackers.importers.folder import import_runs

Bits = list[tuple[int, int, int]]


def imported(home: Home, source: Path, tool: str | None = None) -> list[Any]:
    """Import with a ledger that is opened for it alone."""
    with home.open_ledger() as ledger:
        return list(import_runs(home, ledger, source, tool))


def points(home: Home, run_id: str, name: str, *, lost: bool = False) -> Bits:
    """Return a metric's points of a run in the ledger as bits, so that NaN equals NaN."""
    with home.open_ledger() as ledger:
        curve = metric_series(ledger, run_id, name, max_points=10**7, lost=lost)
    return bits(zip(curve.steps.tolist(), curve.at_s.tolist(), curve.values.tolist(), strict=True))


def stored(home: Home, run_id: str) -> dict[str, Bits]:
    """Return all points of a run's first life, by metric, in the order in which they were appended."""
    path = segment_path(home.run_dir(run_id), 1, 0)
    metrics = read_segment(path).metrics if path.exists() else {}
    return {
        name: bits(zip(found.steps.tolist(), found.at_s.tolist(), found.values.tolist(), strict=True))
        for name, found in metrics.items()
    }


def bits(rows: Iterable[tuple[float, float, float]]) -> Bits:
    return [(int(step), *np.array([at_s, value], float).view(np.int64).tolist()) for step, at_s, value in rows]


# Protocol buffers


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def message(*fields: tuple[int, Any]) -> bytes:
    """Encode fields: int as varint, float as double, `np.float32`, str, bytes or a nested message."""
    out = b""
    for number, value in fields:
        if isinstance(value, np.float32):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


# TensorBoard


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", crc32c(length)) + event + struct.pack("<I", crc32c(event))


def scalar_event(tag: str, step: int, at_s: float, value: float) -> bytes:
    return message((1, at_s), (2, step), (5, message((1, message((1, tag), (2, np.float32(value)))))))


def tensor_event(tag: str, step: int, at_s: float, value: float) -> bytes:
    """As TensorFlow 2 writes scalars: a tensor of one double, with the plugin's name."""
    tensor = message((1, 2), (2, b""), (4, struct.pack("<d", value)))
    return message((1, at_s), (2, step), (5, message((1, message((1, tag), (8, tensor), (9, plugin("scalars")))))))


def plugin(name: str, content: bytes = b"") -> bytes:
    """The metadata of a value that a plugin shows."""
    return message((1, message((1, name), (2, content))))


def event_file(folder: Path, events: Iterable[bytes], name: str = "events.out.tfevents.1.host.1.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with path.open("ab") as file:
        file.write(b"".join(map(frame, events)))
    return path


# W&B


def wandb_file(folder: Path, records: Iterable[bytes], run_id: str = "abc") -> Path:
    """Write records in LevelDB's log format."""
    folder.mkdir(parents=True, exist_ok=True)
    out = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        is_first = True
        while is_first or record:
            if (rest := 32768 - len(out) % 32768) < 7:
                out += bytes(rest)
                continue
            part, record = record[: rest - 7], record[rest - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not record]
            crc = zlib.crc32(part, zlib.crc32(bytes([kind])))
            out += struct.pack("<IHB", crc, len(part), kind) + part
            is_first = False
    path = folder / f"run-{run_id}.wandb"
    path.write_bytes(out)
    return path


def wandb_run(run_id: str = "abc", **config: Any) -> bytes:
    items = [(1, message((1, key), (16, json.dumps(value)))) for key, value in config.items()]
    start = message((1, 1_700_000_000))
    return message((17, message((1, run_id), (3, "proj"), (4, message(*items)), (8, "my run"), (10, "t"), (17, start))))


def wandb_row(step: int, at_s: float, **values: Any) -> bytes:
    row = {**values, "_step": step, "_timestamp": at_s}
    items = [(1, message((2, name), (16, json.dumps(value)))) for name, value in row.items()]
    return message((2, message(*items, (2, message((1, step))))))


def wandb_exit(code: int) -> bytes:
    return message((18, message((1, code), (2, 3))))


# MLflow


def mlflow_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT, lifecycle_stage TEXT);
            CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, name TEXT, status TEXT, start_time BIGINT, end_time BIGINT,
                lifecycle_stage TEXT, artifact_uri TEXT, experiment_id INTEGER);
            CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT, step BIGINT, is_nan BOOLEAN,
                PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
            CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
            CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
            CREATE TABLE experiment_tags (key TEXT, value TEXT, experiment_id INTEGER);
            CREATE TABLE inputs (input_uuid TEXT, destination_id TEXT);
            INSERT INTO experiments VALUES (1, 'tuning', 'active');
            INSERT INTO runs VALUES ('aa', 'bold-cat', 'FINISHED', 1700000000500, 1700000100000, 'active', NULL, 1);
            INSERT INTO runs VALUES ('bb', 'sad-cat', 'KILLED', 1700000000500, NULL, 'active', 's3://far/away', 1);
            INSERT INTO runs VALUES ('cc', 'gone', 'FINISHED', 1700000000500, NULL, 'deleted', NULL, 1);
            INSERT INTO params VALUES ('lr', '0.1', 'aa'), ('deep.er', 'x', 'aa');
            INSERT INTO tags VALUES ('team', 'red', 'aa');
            """
        )


def log_mlflow(path: Path, run_id: str, rows: Iterable[tuple[str, int, int, float]]) -> None:
    """Add rows of name, step, time in ms and value."""
    with closing(sqlite3.connect(path)) as database:
        for name, step, at_ms, value in rows:
            is_nan = value != value
            row = (name, 0.0 if is_nan else value, at_ms, run_id, step, is_nan)
            database.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
        database.commit()


def mlflow_folder(folder: Path, metric_lines: dict[str, str], *, status: int = 3) -> None:
    run_dir = folder / "7" / "aa"
    for kind in ("metrics", "params", "tags"):
        (run_dir / kind).mkdir(parents=True)
    (folder / "7" / "meta.yaml").write_text("experiment_id: '7'\nname: tuning\nlifecycle_stage: active\n")
    (run_dir / "meta.yaml").write_text(
        f"run_id: aa\nrun_name: bold-cat\nstatus: {status}\nstart_time: 1700000000500\nend_time: null\n"
        "lifecycle_stage: active\n"
    )
    (run_dir / "params" / "lr").write_text("0.1")
    for name, lines in metric_lines.items():
        (run_dir / "metrics" / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / "metrics" / name).write_text(lines)


# trackio


def trackio_database(path: Path, rows: Iterable[tuple[str, int, str, dict[str, Any]]]) -> None:
    """Write rows of run, step, time and values."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
                run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL);
            CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
                config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));
            INSERT INTO configs VALUES (1, 'id-a', 'a', '{"lr": 0.1, "_Created": "2026-01-01T00:00:00+00:00"}', '');
            """
        )
        for run, step, time, values in rows:
            database.execute(
                "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)",
                (f"id-{run}", time, run, step, json.dumps(values)),
            )
        database.commit()
