"""Rows in an object store go through index, split, an epoch of kills and resizes, and the audit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from variants import soaked

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "scale42.py"


def run(folder: Path, *options: str) -> dict[str, Any]:
    """The last line that the benchmark prints."""
    command = [sys.executable, str(PROGRAM), "--folder", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [300_000, *soaked(1_000_000)])
def test_rows_of_an_object_store_are_each_read_once_by_ranks_that_are_killed(
    num_rows: int, tmp_path: Path, s3_url: str
) -> None:
    found = run(tmp_path, "--rows", str(num_rows), "--shards", s3_url, "--made", "1", "--kills", "2")
    assert (found["rows"], found["attempts"]) == (num_rows, 3)
    assert found["audit_cpu_s"] < 10 and found["index_cpu_s"] < 120 and found["held_out_cpu_s"] < 3
    assert found["peak_rank_mb"] < 1024 and found["index_peak_mb"] < 512
