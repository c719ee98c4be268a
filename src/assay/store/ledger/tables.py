"""The ledger's tables. A fact is its record's JSON; beside it stand its natural key and what is sorted by.

Every key is natural (run, attempt, rank, ...), so writing a fact twice is writing it once, and the whole ledger
can be built anew from the folders of the runs. No row refers to another table's: facts may arrive in any order.

Types and statements are those that SQLite and PostgreSQL share; the two words that they do not are `BYTES` and
`SERIAL`, which each database spells its own way.
"""

from collections.abc import Mapping
from typing import NamedTuple

LAYOUT_VERSION = 1
"""Rises with each released change of these tables."""

STRING, TEXT, INTEGER, BIGINT, FLOAT = "VARCHAR", "TEXT", "INTEGER", "BIGINT", "FLOAT"
BYTES = "<bytes>"
SERIAL = "<serial>"
"""An integer that the database counts up by itself."""


class LedgerTable(NamedTuple):
    """A table by its natural key and what stands beside it, column -> type."""

    name: str
    key: Mapping[str, str]
    other_columns: Mapping[str, str]
    indexed: str = ""
    """A column beside the key by which rows are counted, or several, with commas."""
    unique: tuple[str, ...] = ()
    """The natural key, where the table's own is a number."""
    nullable: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Their names, the key's first."""
        return (*self.key, *self.other_columns)

    def creation(self, column_types: Mapping[str, str]) -> list[str]:
        """The statements that make it; `spelled` is how the database says `BYTES` and `SERIAL`."""
        columns = [
            f"{column} {column_types.get(kind, kind)}{'' if column in self.nullable else ' NOT NULL'}"
            for column, kind in {**self.key, **self.other_columns}.items()
        ]
        keys = [f"PRIMARY KEY ({', '.join(self.key)})"]
        keys += [f"UNIQUE ({', '.join(self.unique)})"] if self.unique else []
        statements = [f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join([*columns, *keys])})"]
        index = f"ix_{self.name}_{self.indexed.split(',')[0]} ON {self.name} ({self.indexed})"
        return statements + ([f"CREATE INDEX IF NOT EXISTS {index}"] if self.indexed else [])


layout = LedgerTable("ledger_layout", {"version": INTEGER}, {})

runs = LedgerTable("runs", {"run_id": STRING}, {"created_s": FLOAT, "record": TEXT})

attempts = LedgerTable("attempts", {"run_id": STRING, "attempt": INTEGER}, {"start_step": BIGINT, "record": TEXT})

failures = LedgerTable(
    "failures",
    {"run_id": STRING, "attempt": INTEGER},
    {"failure_kind": STRING, "signature": STRING, "host": STRING, "record": TEXT},
    indexed="signature",
)
"""What ended an attempt before its time, as its own record says too: here to be counted over all runs."""

incidents = LedgerTable(
    "incidents", {"run_id": STRING, "incident_index": INTEGER}, {"incident": STRING, "at_s": FLOAT, "record": TEXT}
)
"""`incident_index`: the line of the run's file of incidents, from 0."""

launches = LedgerTable("launches", {"run_id": STRING, "number": INTEGER}, {"record": TEXT})

writes = LedgerTable("ledger_writes", {"run_id": STRING}, {"at_s": FLOAT, "host": STRING, "process": STRING})
"""When a run's facts were last brought up to date here, and by what: numbers may be older than its folder."""

log_entries = LedgerTable(
    "log_entries",
    {"run_id": STRING, "entry_index": INTEGER},
    {"type": STRING, "step": BIGINT, "record": TEXT},
    nullable=("step",),
)

phase_seconds = LedgerTable(
    "phase_seconds", {"run_id": STRING, "attempt": INTEGER, "rank": INTEGER}, {"held_s": FLOAT, "record": TEXT}
)

evaluations = LedgerTable(
    "evaluations",
    {"run_id": STRING, "step": BIGINT, "dataset_fingerprint": STRING, "split": STRING},
    {"headline": FLOAT, "record": TEXT},
    nullable=("headline",),
)
"""`headline`: the value of the metric that runs of its method are compared by."""

benchmark_results = LedgerTable(
    "benchmark_results",
    {"run_id": STRING, "step": BIGINT, "benchmark": STRING, "version_sha256": STRING},
    {"score": FLOAT, "record": TEXT},
)
"""`version_sha256`: over the digests of benchmark, grader and prompts; another version is another line."""

comparisons = LedgerTable(
    "comparisons", {"baseline_run_id": STRING, "candidate_run_id": STRING}, {"record": TEXT}
)  # fmt: skip

audits = LedgerTable("audits", {"run_id": STRING}, {"record": TEXT})

run_notes = LedgerTable("run_notes", {"run_id": STRING}, {"record": TEXT})

campaigns = LedgerTable("campaigns", {"campaign": STRING}, {"created_s": FLOAT, "record": TEXT})

decisions = LedgerTable(
    "decisions",
    {"campaign": STRING, "candidate": STRING, "num_seeds": INTEGER, "is_gate": INTEGER, "revision": INTEGER},
    {"recommendation": STRING, "record": TEXT},
)
"""Every revision of every look; `is_gate` is 1 for a look that was declared, else 0."""

metric_segments = LedgerTable(
    "metric_segments",
    {"run_id": STRING, "path": STRING},
    {"position": TEXT, "num_bytes": BIGINT, "num_events": INTEGER, "last_at_s": FLOAT},
)
"""How far each segment is folded; `last_at_s` (since the epoch) is the rank's last sign of life."""

metric_events = LedgerTable(
    "metric_events", {"run_id": STRING, "path": STRING, "event_index": INTEGER}, {"at_s": FLOAT, "text": TEXT}
)

metric_series = LedgerTable(
    "metric_series",
    {"series_id": SERIAL},
    {
        "run_id": STRING,
        "attempt": INTEGER,
        "rank": INTEGER,
        "name": STRING,
        "num_points": BIGINT,
        "num_nan": BIGINT,
        "first_step": BIGINT,
        "last_step": BIGINT,
        "last_value": FLOAT,
        "minimum": FLOAT,
        "maximum": FLOAT,
        "bucket_points": BIGINT,
        "overview": BYTES,
    },
    indexed="name",
    unique=("run_id", "attempt", "rank", "name"),
    nullable=("last_value", "minimum", "maximum"),
)
"""One metric of one rank of one attempt. `overview`: the lowest and the highest point of each bucket of
`bucket_points` points, so that any number of runs is drawn without reading their chunks."""

metric_chunks = LedgerTable(
    "metric_chunks",
    {"series_id": INTEGER, "chunk_index": INTEGER},
    {"first_step": BIGINT, "last_step": BIGINT, "points": BYTES},
    indexed="series_id, first_step, last_step, chunk_index",
)
"""Points in the order in which they were logged. The index finds the chunks of a window without reading their rows."""

metric_curves = LedgerTable("metric_curves", {"curve_id": INTEGER}, {"covered": TEXT})
"""What the levels of a curve cover (see `assay.store.metrics.levels`); `curve_id` is the id of its oldest series."""

metric_levels = LedgerTable(
    "metric_levels",
    {"curve_id": INTEGER, "is_lost": INTEGER, "level": INTEGER, "first_bucket": BIGINT, "last_bucket": BIGINT},
    {"nodes": BYTES},
)
"""Blocks of nodes that summarize a curve's points by ranges of 2^level steps; a bucket is a step >> level."""

UNFINISHED = "run_id NOT IN (SELECT run_id FROM log_entries WHERE type = 'finished')"
"""Condition for rows of runs that have not made their last step."""

TABLES = (
    layout, runs, writes, attempts, failures, incidents, launches, log_entries, phase_seconds, evaluations,
    benchmark_results, comparisons, audits, run_notes, campaigns, decisions,
    metric_segments, metric_events, metric_series, metric_chunks, metric_curves, metric_levels,
)  # fmt: skip

CACHES = frozenset({metric_curves.name, metric_levels.name})
"""Tables that are filled from others when they are read. A ledger that was made before them gets them when it opens."""
