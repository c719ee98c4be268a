"""The benchmark of the dashboard, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from browser import opened_browser

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "dashboard.py"


@pytest.mark.slow
def test_it_times_our_pages_and_what_is_installed_beside_them() -> None:
    with opened_browser():
        pass
    printed = subprocess.run(
        [sys.executable, str(BENCHMARK), "--tiny"], capture_output=True, text=True, timeout=600, check=True
    ).stdout
    figures = json.loads(printed.splitlines()[-1])
    assert figures["peers"]["assay"]["points_read"] == 2_000
    assert {"view_ms", "server_cpu_ms", "kilobytes"} <= set(figures["pages"]["/runs/grpo-001-s9"])
    assert figures["pages"]["largest"]["kilobytes"] < 300
    assert figures["pages"]["start"]["cpu_s"] > 0
    assert figures["zoom"]["zoom_largest_ms"] > 0
    assert figures["live"]["server_share"] > 0 and figures["live"]["heap_megabytes"] > 0
    assert set(figures["training"]) == {"cpu_more", "seconds_more", "step_ms"}
