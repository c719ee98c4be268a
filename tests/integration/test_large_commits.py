"""A checkpoint that takes its time on its line is committed, read back and restored, in bounded memory."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import large_commit
from slow_s3 import BUCKET, SlowS3

LINE_BYTES_PER_S = 100e6
IN_FLIGHT_BYTES = 350e6
"""What a commit may take besides the state and its copy, whatever its size: parts and ranges on their way."""


def committed(folder: Path, num_bytes: float, bytes_per_s: float) -> dict[str, Any]:
    objects = folder / "objects"
    objects.mkdir()
    with SlowS3(objects, bytes_per_s) as server:
        command = [sys.executable, large_commit.__file__, f"s3://{BUCKET}/run", str(num_bytes)]
        done = subprocess.run(
            [*command, str(folder / "rendezvous")],
            env={**os.environ, **server.environment},
            capture_output=True,
            text=True,
        )
    shutil.rmtree(objects)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [600e6, pytest.param(3e9, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_a_large_checkpoint_goes_over_a_line_of_100_mb_a_second(tmp_path: Path, num_bytes: float) -> None:
    found = committed(tmp_path, num_bytes, LINE_BYTES_PER_S)
    assert found["num_bytes"] >= num_bytes
    in_copy_bytes = num_bytes  # is written while training goes on
    assert found["write"]["grew_bytes"] < in_copy_bytes + IN_FLIGHT_BYTES
    assert found["read_back"]["grew_bytes"] < IN_FLIGHT_BYTES
    assert found["restore"]["grew_bytes"] < IN_FLIGHT_BYTES
