"""Reads GitHub's jobs of workflow runs (`/actions/runs/ID/jobs`): a job is an attempt, its name the unit."""

from typing import Any

from assay.triage.attempts.columns import Columns, columns_of, join_values

FAILED = {"failure", "timed_out", "startup_failure"}
FACTORS = ("runner", "runner_group", "labels", "workflow", "name", "commit", "branch")


def github_columns(source: str, jobs: list[Any]) -> Columns:
    """Return the jobs that succeeded or failed; cancelled and skipped jobs are left out."""
    rows: list[dict[str, str | None]] = [
        {
            "failed": str(int(job["conclusion"] in FAILED)),
            "at": str(job.get("started_at") or job.get("created_at") or ""),
            "unit": str(job.get("name", "")),
            "runner": str(job.get("runner_name") or ""),
            "runner_group": str(job.get("runner_group_name") or ""),
            "labels": join_values([str(label) for label in job.get("labels") or []]),
            "workflow": str(job.get("workflow_name") or ""),
            "name": str(job.get("name", "")),
            "commit": str(job.get("head_sha") or ""),
            "branch": str(job.get("head_branch") or ""),
        }
        for job in jobs
        if isinstance(job, dict) and job.get("conclusion") in FAILED | {"success"}
    ]
    has_times = all(row["at"] for row in rows)
    return columns_of(rows, source, failed="failed", at="at" if has_times else None, unit="unit", factors=FACTORS)
