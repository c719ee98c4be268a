"""The ledger's tables. A fact is its record's JSON; beside it stand its natural key and what is sorted by.

Every key is natural (run, attempt, rank, ...), so writing a fact twice is writing it once, and the whole ledger
can be built anew from the folders of the runs. No row refers to another table's: facts may arrive in any order.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

LAYOUT_VERSION = 1
"""Rises whenever these tables change in a way that an older or newer assay would misread."""

metadata = MetaData()
_Kind = type[TypeEngine[Any]]

layout = Table("ledger_layout", metadata, Column("version", Integer, primary_key=True))


def _table(name: str, key: Mapping[str, _Kind], **beside: _Kind | Column[Any]) -> Table:
    """A table by its natural key and what stands beside it; that is never null unless its column says so."""
    return Table(
        name,
        metadata,
        *(Column(column, kind, primary_key=True) for column, kind in key.items()),
        *(
            kind if isinstance(kind, Column) else Column(column, kind, nullable=False)
            for column, kind in beside.items()
        ),
    )


runs = _table("runs", {"run_id": String}, created_s=Float, record=Text)

attempts = _table("attempts", {"run_id": String, "attempt": Integer}, start_step=BigInteger, record=Text)

failures = _table(
    "failures",
    {"run_id": String, "attempt": Integer},
    failure_kind=String,
    signature=Column("signature", String, nullable=False, index=True),
    host=String,
    record=Text,
)
"""What ended an attempt before its time, as its own record says too: here to be counted over all runs."""

notices = _table("notices", {"run_id": String, "notice_index": Integer}, notice=String, at_s=Float, record=Text)
"""`notice_index`: the line of the run's file of notices, from 0."""

launches = _table("launches", {"run_id": String, "number": Integer}, record=Text)

log_entries = _table(
    "log_entries",
    {"run_id": String, "entry_index": Integer},
    type=String,
    step=Column("step", BigInteger),
    record=Text,
)

phase_seconds = _table(
    "phase_seconds", {"run_id": String, "attempt": Integer, "rank": Integer}, held_s=Float, record=Text
)

evaluations = _table(
    "evaluations",
    {"run_id": String, "step": BigInteger, "dataset_fingerprint": String, "split": String},
    headline=Column("auc", Float, key="headline"),
    record=Text,
)
"""`headline`: of the metric that runs of its method are compared by. Its column has the name of the first one,
so that ledgers of every assay are read alike."""

benchmark_results = _table(
    "benchmark_results",
    {"run_id": String, "step": BigInteger, "benchmark": String, "version_sha256": String},
    score=Float,
    record=Text,
)
"""`version_sha256`: over the digests of benchmark, grader and prompts; another version is another line."""

comparisons = _table("comparisons", {"baseline_run_id": String, "candidate_run_id": String}, record=Text)

audits = _table("audits", {"run_id": String}, record=Text)

remarks = _table("remarks", {"run_id": String}, record=Text)

campaigns = _table("campaigns", {"campaign": String}, created_s=Float, record=Text)

decisions = _table(
    "decisions",
    {"campaign": String, "candidate": String, "num_seeds": Integer, "is_gate": Integer, "revision": Integer},
    recommendation=String,
    record=Text,
)
"""Every revision of every look; `is_gate` is 1 for a look that was declared, else 0."""

metric_segments = _table(
    "metric_segments",
    {"run_id": String, "path": String},
    position=Text,
    num_bytes=BigInteger,
    num_events=Integer,
    last_at_s=Float,
)
"""How far each segment is folded; `last_at_s` (since the epoch) is the rank's last sign of life."""

metric_events = _table(
    "metric_events", {"run_id": String, "path": String, "event_index": Integer}, at_s=Float, text=Text
)

metric_series = Table(
    "metric_series",
    metadata,
    Column("series_id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("name", String, nullable=False, index=True),
    Column("num_points", BigInteger, nullable=False),
    Column("num_nan", BigInteger, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("last_value", Float),
    Column("minimum", Float),
    Column("maximum", Float),
    Column("bucket_points", BigInteger, nullable=False),
    Column("overview", LargeBinary, nullable=False),
    UniqueConstraint("run_id", "attempt", "rank", "name"),
)
"""One metric of one rank of one attempt. `overview`: the lowest and the highest point of each bucket of
`bucket_points` points, so that any number of runs is drawn without reading their chunks."""

metric_chunks = _table(
    "metric_chunks",
    {"series_id": Integer, "chunk_index": Integer},
    first_step=BigInteger,
    last_step=BigInteger,
    points=LargeBinary,
)
