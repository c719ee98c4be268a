"""Reads Slurm's job records: `sacct --parsable2`, `sacct --json`, and the text of its job-completion plugin.

Jobs that were cancelled or preempted, or still run, are left out. The unit is the user's job name without digits,
because the jobs of one array fail together.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from assay.base.errors import DataError
from assay.triage.attempts.columns import Columns, columns_of, join_values

FAILED = {"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "BOOT_FAIL", "DEADLINE"}
SUCCEEDED = {"COMPLETED"}
STOPPED = {"PREEMPTED", "CANCELLED", "REVOKED"}
TIMES = ("starttime", "start", "submittime", "submit", "submission", "eligibletime", "eligible", "endtime", "end")
"""A job's times, in order of preference: one that never started was submitted, or has ended."""
UNKNOWN = {"", "0", "None", "Unknown", "N/A"}
MAX_HOSTS = 100_000
"""Maximal number of hosts in one node list."""
MEANINGS: dict[str, Any] = {
    "failed": "failed", "at": "at", "unit": "unit", "factors": ("host", "user", "partition", "account", "name"),
}  # fmt: skip


def sacct_text_columns(source: str, text: str) -> Columns:
    """Read `sacct --parsable2`, with fields named by its header; job steps are left out."""
    head, *lines = [line for line in text.splitlines() if line.strip()]
    names = [name.lower() for name in head.split("|")]
    if "state" not in names:
        raise DataError(f"{source}: sacct wrote no State. Ask for it: sacct --parsable2 --format=JobID,State,...")
    rows = []
    for number, line in enumerate(lines, 2):
        cells = line.split("|")
        if len(cells) != len(names):
            raise DataError(f"{source}, line {number}: {len(cells)} fields, and the head has {len(names)}.")
        job = dict(zip(names, cells, strict=True))
        if "." not in job.get("jobid", job.get("jobidraw", "")):
            rows.append(job | dict(zip(head.split("|"), cells, strict=True)))
    return _columns(source, rows)


def completion_columns(source: str, text: str) -> Columns:
    """Read `JobCompType=jobcomp/filetxt`: one line per job of `Key=value`; names may contain spaces."""
    rows = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        job = {key.lower(): value for key, value in re.findall(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)", line)}
        if "jobid" not in job or "jobstate" not in job:
            raise DataError(f"{source}, line {number}: expected JobId= and JobState= of a completed job.")
        job["user"] = job.get("userid", "").partition("(")[0]
        rows.append({**job, "state": job["jobstate"], "jobname": job.get("name", "")})
    return _columns(source, rows)


def sacct_json_columns(source: str, jobs: list[Any]) -> Columns:
    """Read `sacct --json`, with any version of its schema."""
    rows = []
    for job in jobs:
        if not isinstance(job, dict):
            raise DataError(f"{source}: one of the jobs is no object.")
        state, time = job.get("state", job.get("job_state", "")), job.get("time")
        current = state.get("current", "") if isinstance(state, dict) else state
        times = time if isinstance(time, dict) else {}
        nodes = job.get("nodes", "")
        known = {key: str(value) for key, value in job.items() if isinstance(value, str | int | float)}
        known |= {key: str(_number(value)) for key, value in times.items()}
        known["start"] = known.get("start") or str(_number(job.get("start_time", "")))
        rows.append(
            {
                **known, "jobname": str(job.get("name", "")),
                "state": str(current[0] if isinstance(current, list) and current else current or ""),
                "user": str(job.get("user") or (job.get("association") or {}).get("user", "")),
                "partition": str(job.get("partition", "")), "account": str(job.get("account", "")),
                "nodelist": nodes if isinstance(nodes, str) else "",
            }
        )  # fmt: skip
    return _columns(source, rows)


def hosts_of(node_list: str) -> list[str]:
    """Expand `n[01-03,7],login` to n01, n02, n03, n7, login."""
    found: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", node_list):
        found += _expanded(part)
        if len(found) > MAX_HOSTS:
            raise DataError(f"a node list of over {MAX_HOSTS:,} hosts: {node_list[:60]}")
    return [] if found == ["None assigned"] or found == ["(null)"] else found


def _expanded(part: str) -> list[str]:
    bracket = re.search(r"\[([^\]]*)\]", part)
    if bracket is None:
        return [part.strip()]
    before, after = part[: bracket.start()], part[bracket.end() :]
    numbers: list[str] = []
    for span in bracket[1].split(","):
        low, _, high = span.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal()) or int(high or low) - int(low) >= MAX_HOSTS:
            raise DataError(f"'{part[:60]}' is no list of nodes.")
        numbers += [f"{number:0{len(low)}}" for number in range(int(low), int(high or low) + 1)]
    return [f"{before.strip()}{number}{rest}" for number in numbers for rest in _expanded(after)]


def _number(value: Any) -> Any:
    return value.get("number", "") if isinstance(value, dict) else value


def _columns(source: str, jobs: Iterable[Mapping[str, str]]) -> Columns:
    """Return the jobs that are over; other columns of theirs can be named as factors."""
    rows: list[dict[str, str | None]] = []
    num_stopped = 0
    for job in jobs:
        words = job.get("state", "").split()
        state = words[0].rstrip("+") if words else ""
        num_stopped += state in STOPPED
        if state not in FAILED | SUCCEEDED:
            continue
        name, user = job.get("jobname", ""), job.get("user", "")
        rows.append(
            {
                **job,
                "failed": str(int(state in FAILED)),
                "at": next((job[key] for key in TIMES if job.get(key, "") not in UNKNOWN), ""),
                "unit": f"{user} {re.sub(r'[0-9]+', '#', name)}",
                "host": join_values(hosts_of(job.get("nodelist", ""))),
                "user": user,
                "partition": job.get("partition", ""),
                "account": job.get("account", ""),
                "name": name,
            }
        )
    return columns_of(rows, source, num_stopped=num_stopped, **MEANINGS)
