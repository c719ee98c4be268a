"""Recognizes the format of a source by its content, never by its name.

Parquet | JUnit XML | JSON (sacct, pods, GitHub's jobs, rows) | JSONL | sacct --parsable2 | Slurm's
job-completion text | CSV

JSON is read by pydantic's parser, which rejects lone surrogates; Arrow cannot store these.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.triage.attempts.columns import Columns, columns_of, join_values, joined, text_column
from assay.triage.attempts.junit import junit_columns
from assay.triage.attempts.slurm import completion_columns, sacct_json_columns, sacct_text_columns

LARGEST_BYTES = 2 * 2**30
"""Larger files are rejected."""


def read_sources(files: Sequence[Path]) -> Columns:
    """Read the rows of some files."""
    parts = []
    for file in dict.fromkeys(map(str, files)):
        content = bytes_of(Path(file))
        parts.append(replace(read_columns(file, content), sources={file: sha256_of_bytes(content)}))
    return joined(parts)


def bytes_of(file: Path) -> bytes:
    """Read a file, up to a maximal size."""
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise DataError(f"{file}: over 2 GiB, which no table of attempts is. Give a part of it.")
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}.") from error


def text_of(name: str, content: bytes, *, expected: str) -> str:
    """Decode text; `name` and `expected` are used in errors."""
    if (at := content.find(0)) < 0:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            at = error.start
    what = "is zero, which no text in UTF-8 has" if content[at] == 0 else "is not UTF-8"
    raise DataError(f"{name}: byte {at} {what}. Expected {expected}: convert it (iconv), or give another source.")


def read_columns(name: str, content: bytes) -> Columns:
    """Read a source of any format; `name` is used in errors."""
    if content[:4] == b"PAR1":
        return Columns(name=name, table=_parquet(name, content))
    text = text_of(name, content, expected="Parquet, or text in UTF-8")
    head = text[:4_096].lstrip()
    if not head:
        raise DataError(f"{name}: it is empty.")
    if head[0] == "<":
        return junit_columns(name, text)
    if head[0] in "{[":
        return _json(name, text)
    first_line = head.splitlines()[0]
    if re.match(r"JobId=\d+ ", first_line):
        return completion_columns(name, text)
    names = set(first_line.lower().split("|"))
    if len(names) > 1 and "," not in first_line and names & {"jobid", "jobidraw"}:
        return sacct_text_columns(name, text)
    return Columns(name=name, table=_csv(name, text))


def _parquet(name: str, content: bytes) -> pa.Table:
    import pyarrow.parquet as pq  # here, as most sources are none

    try:
        table = pq.read_table(io.BytesIO(content))
        return pa.table({column: _texts(table[column]) for column in table.column_names})
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: not readable as Parquet: {error}") from error


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_dictionary(kind):
        return _texts(column.cast(kind.value_type))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    return pa.chunked_array([text_column(map(_cell, column.to_pylist()))])


def _cell(value: Any) -> str | None:
    """Convert a value of JSON or Parquet to the text of a cell."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return join_values([_cell(item) or "" for item in value])
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _csv(name: str, text: str) -> pa.Table:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise DataError(f"{name}: not readable as CSV: {error}.") from error
    rows = [row for row in rows if row]
    head = [cell.strip() for cell in rows[0]]
    if len(set(head)) < len(head):
        raise DataError(f"{name}: two columns have one name. Every column of a table has a name of its own.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise DataError(f"{name}, row {number}: {len(row)} cells, and the head has {len(head)}.")
    if len(rows) == 1:
        raise DataError(f"{name}: a head and no rows.")
    return pa.table({name: text_column(cells) for name, cells in zip(head, zip(*rows[1:], strict=True), strict=True)})


def _json(name: str, text: str) -> Columns:
    try:
        tree = tree_of(text)
    except ValueError:
        return _json_lines(name, text)
    if (jobs := jobs_of(tree)) is not None:
        is_github = any(isinstance(job, dict) and "conclusion" in job for job in jobs)
        return github_columns(name, jobs) if is_github else sacct_json_columns(name, jobs)
    if isinstance(tree, dict) and isinstance(tree.get("items"), list):
        return pod_columns(name, tree["items"])
    if isinstance(tree, list) and tree and all(isinstance(row, dict) for row in tree):
        return _rows(name, tree)
    if isinstance(tree, dict) and "\n" not in text.strip():
        return _rows(name, [tree])
    raise DataError(
        f"{name}: JSON of no kind that is known here. Expected rows, the jobs of sacct or of GitHub, or a list of pods."
    )


def tree_of(text: str) -> Any:
    """Return a JSON document, or a list of pages with jobs that follow one another. Raises `ValueError` for others."""
    try:
        return from_json(text)
    except ValueError:
        pages, rest = list[Any](), text.lstrip()
        while rest and '"jobs"' in text:
            _, end = json.JSONDecoder().raw_decode(rest)
            pages.append(from_json(rest[:end]))
            rest = rest[end:].lstrip()
        if jobs_of(pages) is None:
            raise
        return pages


def jobs_of(tree: Any) -> list[Any] | None:
    """Return the jobs of a document or of a list of pages, with the keys of GitHub's API; None if it has none."""
    pages = tree if isinstance(tree, list) else [tree]
    if not pages or not all(isinstance(page, dict) and isinstance(page.get("jobs"), list) for page in pages):
        return None
    return [
        {re.sub("(?<=[a-z])[A-Z]", lambda found: f"_{found[0].lower()}", key): value for key, value in job.items()}
        if isinstance(job, dict)
        else job
        for page in pages
        for job in page["jobs"]
    ]


def _json_lines(name: str, text: str) -> Columns:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = from_json(line)
            except ValueError as error:
                raise DataError(f"{name}, line {number}: not JSON ({error}).") from error
            if not isinstance(row, dict):
                raise DataError(f"{name}, line {number}: expected an object, one a line.")
            rows.append(row)
    return _rows(name, rows)


def _rows(name: str, rows: list[dict[str, Any]]) -> Columns:
    return columns_of([{str(key): _cell(value) for key, value in row.items()} for row in rows], name)


GITHUB_FAILED = {"failure", "timed_out", "startup_failure"}
GITHUB_FACTORS = ("runner", "runner_group", "labels", "workflow", "name", "commit", "branch")


def github_columns(source: str, jobs: list[Any]) -> Columns:
    """Return the jobs that succeeded or failed; cancelled and skipped jobs are left out."""
    rows: list[dict[str, str | None]] = [
        {
            "failed": str(int(job["conclusion"] in GITHUB_FAILED)),
            "at": str(job.get("started_at") or job.get("created_at") or ""), "unit": str(job.get("name", "")),
            "runner": str(job.get("runner_name") or ""), "runner_group": str(job.get("runner_group_name") or ""),
            "labels": join_values([str(label) for label in job.get("labels") or []]),
            "workflow": str(job.get("workflow_name") or ""), "name": str(job.get("name", "")),
            "commit": str(job.get("head_sha") or ""), "branch": str(job.get("head_branch") or ""),
        }
        for job in jobs
        if isinstance(job, dict) and job.get("conclusion") in GITHUB_FAILED | {"success"}
    ]  # fmt: skip
    num_stopped = sum(isinstance(job, dict) and job.get("conclusion") == "cancelled" for job in jobs)
    meanings: dict[str, Any] = {"failed": "failed", "at": "at", "unit": "unit", "factors": GITHUB_FACTORS}
    return columns_of(rows, source, num_stopped=num_stopped, **meanings)


POD_MEANINGS: dict[str, Any] = {
    "failed": "failed", "attempts": "attempts", "at": "at", "unit": "unit",
    "factors": ("host", "image", "namespace", "owner"),
}  # fmt: skip
POD_STOPPED = {"Preempting", "NodeShutdown", "Shutdown", "Terminated"}
"""Reasons for which a node or the scheduler ends a pod; newer versions write a condition `DisruptionTarget`."""


def pod_columns(source: str, items: list[Any]) -> Columns:
    """Return the lives of pods: each restart after an error is a failed one, and the last if its pod is over.

    A last life that was disrupted from outside is left out.
    """
    if not any(_phase(pod) for pod in items):
        raise DataError(f"{source}: none of its items is a pod. Expected: kubectl get pods -o json.")
    num_stopped = sum(_phase(pod) == "Failed" and _was_stopped(pod) for pod in items)
    rows = [row for pod in items if (row := _row(pod))["attempts"] != "0"]
    return columns_of(rows, source, num_stopped=num_stopped, **POD_MEANINGS)


def _was_stopped(pod: Any) -> bool:
    status = _part(pod, "status")
    conditions = status.get("conditions") or []
    return status.get("reason") in POD_STOPPED or any(
        _of(condition, "type") == "DisruptionTarget" and _of(condition, "status") == "True" for condition in conditions
    )


def _num_failed_restarts(status: dict[str, Any]) -> int:
    """Return how often a container was started again, unless its last life ended well."""
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return sum(
        int(_of(container, "restartCount") or 0)
        for container in containers
        if _of(_of(_of(container, "lastState"), "terminated"), "exitCode") != 0
    )


def _phase(pod: Any) -> str:
    return str(_part(pod, "status").get("phase", ""))


def _row(pod: Any) -> dict[str, str | None]:
    metadata, spec, status = (_part(pod, key) for key in ("metadata", "spec", "status"))
    owners = metadata.get("ownerReferences") or [{}]
    owner = str(_of(owners[0], "name") or metadata.get("generateName") or metadata.get("name", ""))
    containers = spec.get("containers") or []
    namespace = str(metadata.get("namespace", ""))
    restarts = _num_failed_restarts(status)
    has_failed = status.get("phase") == "Failed" and not _was_stopped(pod)
    return {
        "failed": str(restarts + has_failed),
        "attempts": str(restarts + (has_failed or status.get("phase") == "Succeeded")),
        "at": str(status.get("startTime") or metadata.get("creationTimestamp") or ""),
        "unit": f"{namespace} {re.sub(r'[0-9]+', '#', owner)}",
        "host": str(spec.get("nodeName") or ""),
        "image": join_values([str(_of(container, "image") or "") for container in containers]),
        "namespace": namespace,
        "owner": owner,
    }


def _part(pod: Any, key: str) -> dict[str, Any]:
    found = pod.get(key) if isinstance(pod, dict) else None
    return found if isinstance(found, dict) else {}


def _of(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
