"""The offer of the shipped program, by the command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "programs" / "helpfulness.yaml"
TIMES = {"spent_s", "solve_s"}


def timeless(value: Any) -> Any:
    """Without what a clock said."""
    if isinstance(value, dict):
        return {key: timeless(element) for key, element in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


@pytest.mark.soak
def test_two_offers_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """Schedules that are equally good are many, and names are hashed otherwise in each process."""
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        words = ["plan", "offer", str(PROGRAM), "--out", str(out), "--quick", "--samples", "500"]
        done = subprocess.run(
            [sys.executable, "-m", "assay", *words],
            env={**os.environ, "PYTHONHASHSEED": seed, "ASSAY_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), done.stderr
        found.append([timeless(json.loads((out / name).read_text())) for name in ("offer.json", "plan.json")])
    assert found[0] == found[1]
