"""The account of every prompt that a run learned from, as a file of the commit that holds its step.

    journal.parquet    a line for every answer: step, lane, row_id, sample | what it was, what it was paid, or
                       why not

Lines come in the order of step, lane and the lane's own rows, so the file is the same at every world size. It
stands among the commit's files: durable before the commit, named there by its digest, and kept when the
commit's weights are retired.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DamagedDataError
from assay.records.commit import Commit
from assay.records.rollout_log import LoggedCompletion, LoggedGroup, PromptCounts
from assay.store.commit_log import ROLLOUT_LOG_NAME
from assay.store.objects import ObjectStore

_GROUP_COLUMNS = {
    "step": pa.int64(),
    "lane": pa.int32(),
    "row_id": pa.uint64(),
    "outcome": pa.string(),
    "graders": pa.string(),
}
_ROLLOUT_COLUMNS = {
    "digest": pa.uint64(),
    "num_tokens": pa.int32(),
    "is_cut": pa.bool_(),
    "reward": pa.float64(),
    "scores": pa.list_(pa.float64()),
    "advantage": pa.float32(),
    "failure_kind": pa.string(),
    "failure": pa.string(),
    "tokens": pa.list_(pa.int32()),
    "logprobs": pa.list_(pa.float32()),
}
_SCHEMA = pa.schema({**_GROUP_COLUMNS, "sample": pa.int32(), **_ROLLOUT_COLUMNS})


def rollout_log_table(groups: Iterable[LoggedGroup]) -> pa.Table:
    """A line for every answer."""
    lines = [(*group[:-1], sample, *rollout) for group in groups for sample, rollout in enumerate(group.completions)]
    columns = zip(*lines, strict=True) if lines else [()] * len(_SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], _SCHEMA)


def rollout_log_file(tables: Sequence[pa.Table]) -> bytes:
    """Those of several ranks and steps as one file."""
    table = pa.concat_tables([_SCHEMA.empty_table(), *tables])
    buffer = io.BytesIO()
    pq.write_table(table.sort_by([("step", "ascending"), ("lane", "ascending")]), buffer, compression="zstd")
    return buffer.getvalue()


def parse_rollout_log(data: bytes) -> list[LoggedGroup]:
    """What is in a file."""
    lines = pq.read_table(io.BytesIO(data)).cast(_SCHEMA).to_pylist()
    return [
        LoggedGroup._make([*key, tuple(map(_parse_rollout, of_group))])
        for key, of_group in groupby(lines, key=itemgetter(*_GROUP_COLUMNS))
    ]


def counted(tables: Iterable[pa.Table]) -> PromptCounts:
    """The prompts in them, by outcome."""
    outcomes = [name for table in tables for name in _group_outcomes(table)]
    return PromptCounts(**{name: outcomes.count(name) for name in set(outcomes)})


def read_rollout_log(store: ObjectStore, commit: Commit) -> list[LoggedGroup]:
    """That of a commit's steps; empty where it has none, `DamagedDataError` where it is not what was
    committed."""
    digest = next((file.sha256 for file in commit.files if file.path == ROLLOUT_LOG_NAME), None)
    if digest is None:
        return []
    key = f"{commit.folder}/{ROLLOUT_LOG_NAME}"
    data = store.get(key)
    if sha256_of_bytes(data) != digest:
        raise DamagedDataError(f"{key} is not what was committed (its sha256 differs): the file was changed.")
    return parse_rollout_log(data)


def _group_outcomes(table: pa.Table) -> Iterator[str]:
    for sample, outcome in zip(table["sample"].to_pylist(), table["outcome"].to_pylist(), strict=True):
        if sample == 0:
            yield outcome


def _parse_rollout(line: dict[str, Any]) -> LoggedCompletion:
    values = {name: line[name] for name in _ROLLOUT_COLUMNS}
    lists = {name: tuple(values[name]) for name in ("scores", "tokens", "logprobs") if values[name] is not None}
    return LoggedCompletion(**{**values, **lists})
