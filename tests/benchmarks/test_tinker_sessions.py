"""The benchmark of the Tinker API, in small: a real server, a real worker, and the same trainer beside them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "tinker_sessions.py"


@pytest.mark.slow
def test_it_measures_steps_acknowledgements_and_memory() -> None:
    printed = subprocess.run(
        [sys.executable, str(BENCHMARK), "--tiny"], capture_output=True, text=True, timeout=280, check=True
    ).stdout
    figures = json.loads(printed.splitlines()[-1])
    assert 0 < figures["acknowledge_p50_ms"] <= figures["acknowledge_p90_ms"] < figures["step_ms"]
    assert figures["step_ratio"] == pytest.approx(figures["step_ms"] / figures["bare_step_ms"], rel=0.01)
    assert figures["server_mb_per_session"] < 5.0
