"""The log of all prompts and their rollouts, a file of the commit that holds their step.

    journal.parquet    a line for each completion: step, lane, row_id, sample | digest, reward or failure, ...

Lines are in the order of step, lane and the lane's rows, so the file is the same at every world size. It is durable
before the commit, which names it with its digest, and it stays when the commit's weights are deleted.
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
from assay.records.rollout_log import GroupRecord, PromptCounts, RolloutRecord
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


def rollout_log_table(groups: Iterable[GroupRecord]) -> pa.Table:
    """Return a table with a row for each completion."""
    lines = [(*group[:-1], sample, *rollout) for group in groups for sample, rollout in enumerate(group.completions)]
    columns = zip(*lines, strict=True) if lines else [()] * len(_SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], _SCHEMA)


def rollout_log_file(tables: Sequence[pa.Table]) -> bytes:
    """Return the tables of several ranks and steps as one file."""
    table = pa.concat_tables([_SCHEMA.empty_table(), *tables])
    buffer = io.BytesIO()
    pq.write_table(table.sort_by([("step", "ascending"), ("lane", "ascending")]), buffer, compression="zstd")
    return buffer.getvalue()


def parse_rollout_log(data: bytes) -> list[GroupRecord]:
    """Return the groups of a file."""
    lines = pq.read_table(io.BytesIO(data)).cast(_SCHEMA).to_pylist()
    return [
        GroupRecord._make([*key, tuple(map(_parse_rollout, of_group))])
        for key, of_group in groupby(lines, key=itemgetter(*_GROUP_COLUMNS))
    ]


def counted(tables: Iterable[pa.Table]) -> PromptCounts:
    """Return the number of prompts by outcome."""
    outcomes = [name for table in tables for name in _group_outcomes(table)]
    return PromptCounts(**{name: outcomes.count(name) for name in set(outcomes)})


def read_rollout_log(store: ObjectStore, commit: Commit) -> list[GroupRecord]:
    """Return a commit's rollout log; empty if it has none. Raises `DamagedDataError` if its digest differs."""
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


def _parse_rollout(line: dict[str, Any]) -> RolloutRecord:
    values = {name: line[name] for name in _ROLLOUT_COLUMNS}
    lists = {name: tuple(values[name]) for name in ("scores", "tokens", "logprobs") if values[name] is not None}
    return RolloutRecord(**{**values, **lists})
