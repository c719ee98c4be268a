"""Runs that logged metrics and did nothing else, in a home on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.home import Home
from assay.store.metrics.segment import Points, SegmentWriter, segment_path
from machine import MACHINE

BEGAN_S = 1_795_000_000.0


def metric_run(home: Home, run_id: str, *starts: int, recipe: dict[str, Any] | None = None) -> Run:
    """Record a run whose attempts began at these steps; the last one still trains."""
    run_dir = home.run_dir(run_id)
    run = Run(
        run_id=run_id, created_s=BEGAN_S, recipe=recipe or {"name": "sample"}, recipe_sha256="c0de" * 16,
        dataset_fingerprint="d1ce" * 16, code_version="0.1.0", run_dir=str(run_dir), store_url=str(run_dir),
        num_steps=1_000_000,
    )  # fmt: skip
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text(run.to_json(), encoding="utf-8")
    with home.open_ledger() as ledger:
        ledger.record_run(run)
        for number, start in enumerate(starts, 1):
            is_last = number == len(starts)
            attempt = Attempt(
                run_id=run_id, attempt=number, world_size=1, start_step=start, started_s=BEGAN_S + number,
                ended_s=None if is_last else BEGAN_S + number + 0.5, end_step=None if is_last else starts[number],
                outcome="running" if is_last else "killed", **MACHINE | {"folder": str(run_dir)},
            )  # fmt: skip
            save_attempt(run_dir, attempt)
            ledger.record_attempt(attempt)
    return run


def log_points(run: Run, attempt: int, first_step: int, **metrics: npt.ArrayLike) -> None:
    """Append points to the segment of rank 0, as the rank does: a value for each step from `first_step` on."""
    writer = SegmentWriter(segment_path(Path(run.run_dir), attempt, 0), run_id=run.run_id, attempt=attempt, rank=0)
    for name, values in metrics.items():
        numbers = np.asarray(values, float)
        steps = np.arange(first_step, first_step + len(numbers))
        writer.log_series(name, Points(steps, steps.astype(float), numbers))
    writer.close()
