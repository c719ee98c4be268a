"""Replays a step with an operator audit, in a process of its own, for `assay triage symptoms --replay`."""

import os
import subprocess
import sys
from collections.abc import Mapping

from assay.base.errors import DataError
from assay.records.replay import ReplayReport

MAX_MESSAGE_CHARACTERS = 300


def audited_replay(run_id: str, step: int, *, environment: Mapping[str, str], timeout_s: float) -> ReplayReport:
    """Return the report of a replay that audits every operator and searches the rows.

    Each replay has a process of its own, because it sets threads and device modes for the whole process. Raises
    `DataError` if there is no report.
    """
    words = ("runs", "replay", "--audit-ops", "--explain", "--json", "--step", str(step), "--", run_id)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "assay", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **environment},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"the replay of step {step} of run '{run_id}' did not end within {timeout_s:g} s.") from error
    if not done.stdout.strip():
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        last = lines[-1][:MAX_MESSAGE_CHARACTERS] if lines else "no output"
        raise DataError(f"the replay of step {step} of run '{run_id}' ended with exit code {done.returncode}: {last}")
    return ReplayReport.from_json(done.stdout, source=f"replay {run_id}")
