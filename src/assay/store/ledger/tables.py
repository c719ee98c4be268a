"""The ledger's tables. A fact is its record's JSON; beside it stand its natural key and what is sorted by.

Every key is natural (run, attempt, rank, ...), so writing a fact twice is writing it once, and the whole ledger
can be built anew from the folders of the runs. No row refers to another table's: facts may arrive in any order.
"""

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

LAYOUT_VERSION = 1
"""Rises whenever these tables change in a way that an older or newer assay would misread."""

metadata = MetaData()

layout = Table("ledger_layout", metadata, Column("version", Integer, primary_key=True))

runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("created_s", Float, nullable=False),
    Column("record", Text, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("start_step", BigInteger, nullable=False),
    Column("record", Text, nullable=False),
)

failures = Table(
    "failures",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("failure_kind", String, nullable=False),
    Column("signature", String, nullable=False, index=True),
    Column("host", String, nullable=False),
    Column("record", Text, nullable=False),
)
"""What ended an attempt before its time, as its own record says too: here to be counted over all runs."""

notices = Table(
    "notices",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("notice_index", Integer, primary_key=True),
    Column("notice", String, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("record", Text, nullable=False),
)
"""`notice_index`: the line of the run's file of notices, from 0."""

launches = Table(
    "launches",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("record", Text, nullable=False),
)

log_entries = Table(
    "log_entries",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("entry_index", Integer, primary_key=True),
    Column("type", String, nullable=False),
    Column("step", BigInteger),
    Column("record", Text, nullable=False),
)

phase_seconds = Table(
    "phase_seconds",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("held_s", Float, nullable=False),
    Column("record", Text, nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("dataset_fingerprint", String, primary_key=True),
    Column("split", String, primary_key=True),
    Column("auc", Float, key="headline"),
    Column("record", Text, nullable=False),
)
"""`headline`: of the metric that runs of its method are compared by. Its column has the name of the first one,
so that ledgers of every assay are read alike."""

benchmark_results = Table(
    "benchmark_results",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("benchmark", String, primary_key=True),
    Column("version_sha256", String, primary_key=True),
    Column("score", Float, nullable=False),
    Column("record", Text, nullable=False),
)
"""`version_sha256`: over the digests of benchmark, grader and prompts; another version is another line."""

comparisons = Table(
    "comparisons",
    metadata,
    Column("baseline_run_id", String, primary_key=True),
    Column("candidate_run_id", String, primary_key=True),
    Column("record", Text, nullable=False),
)

audits = Table(
    "audits",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("record", Text, nullable=False),
)

campaigns = Table(
    "campaigns",
    metadata,
    Column("campaign", String, primary_key=True),
    Column("created_s", Float, nullable=False),
    Column("record", Text, nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    Column("campaign", String, primary_key=True),
    Column("candidate", String, primary_key=True),
    Column("num_seeds", Integer, primary_key=True),
    Column("is_gate", Integer, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("recommendation", String, nullable=False),
    Column("record", Text, nullable=False),
)
"""Every revision of every look; `is_gate` is 1 for a look that was declared, else 0."""

metric_segments = Table(
    "metric_segments",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("path", String, primary_key=True),
    Column("position", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("num_events", Integer, nullable=False),
    Column("last_at_s", Float, nullable=False),
)
"""How far each segment is folded; `last_at_s` (since the epoch) is the rank's last sign of life."""

metric_events = Table(
    "metric_events",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("path", String, primary_key=True),
    Column("event_index", Integer, primary_key=True),
    Column("at_s", Float, nullable=False),
    Column("text", Text, nullable=False),
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

metric_chunks = Table(
    "metric_chunks",
    metadata,
    Column("series_id", Integer, primary_key=True),
    Column("chunk_index", Integer, primary_key=True),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("points", LargeBinary, nullable=False),
)
