"""The GPU benchmark with its small sizes on a CPU: every part but TRL's runs, and its exactness flags are true.

Both SFT parts have the same small sizes, so one of them runs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = ("facts", "sft-141m", "decode", "grpo", "kill")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_prepared_script_runs_all_of_its_parts_on_a_cpu() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), "--tiny", "--only", *PARTS],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert "failed_parts" not in figures
    assert figures["kill_is_undisturbed"] and figures["replay_is_equal"]
    assert figures["sft-141m_ours_tokens_per_s"] > 0 and figures["decode_16_vs_generate"] > 0
