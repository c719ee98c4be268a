"""A ledger of runs that nobody trained: hosts, recipes, versions, failures and step times as planted."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.home import Home

BEGAN_S = 1_795_000_000.0
HOUR_S = 3_600.0


def recorded_fleet(
    home: Home,
    *,
    num_runs: int,
    fails: Callable[[int, str], float],
    step_s: Callable[[int], float] = lambda run: 1.0,
    version_of: Callable[[int], str] = lambda run: "0.1+a",
    driver_of: Callable[[int], str] = lambda run: "550.54",
    hosts: int = 16,
    noise: float = 0.01,
    seed: int = 0,
    common: Mapping[str, Any] = {},
) -> None:
    """One attempt a run of 8 ranks and 100 steps, one an hour. `fails`: run, host -> its chance; `step_s`: run
    -> seconds a step; `common`: what all recipes have besides. A failure comes 5 s after the last commit."""
    rng = np.random.default_rng(seed)
    with home.open_ledger() as ledger:
        for number in range(num_runs):
            host, run_id = f"n{rng.integers(hosts):02}", f"r{number:04}"
            recipe = {
                **common,
                "name": run_id,
                "seed": number,
                "trainer": {**common.get("trainer", {}), "rate": f"{rng.integers(6)}e-4"},
                "data": {**common.get("data", {}), "dataset": f"d{rng.integers(3)}"},
            }
            version, began_s = version_of(number), BEGAN_S + number * HOUR_S
            ledger.record_run(
                Run(
                    run_id=run_id, created_s=began_s, recipe=recipe, recipe_sha256=run_id,
                    dataset_fingerprint=str(recipe["data"]) * 4, code_version=version,
                    run_dir=str(home.run_dir(run_id)), store_url="memory:", num_steps=100,
                )
            )  # fmt: skip
            has_failed = rng.random() < fails(number, host)
            step_times_s = step_s(number) * np.exp(noise * rng.normal())
            lost_s = 5.0 * has_failed
            held_s = 100 * step_times_s + 50.0 + lost_s
            ledger.record_attempt(
                Attempt(
                    run_id=run_id, attempt=1, world_size=8, start_step=0, started_s=began_s,
                    ended_s=began_s + held_s, end_step=100, outcome="failed" if has_failed else "succeeded",
                    hosts=(host,) * 8, devices=tuple(f"cuda:{k}" for k in range(8)), code_version=version,
                    environment=NodeEnvironment(
                        python="3.12.1", kernel="6.8", driver=driver_of(number), image="", user="me",
                        launcher="slurm", job=str(number), partition="low",
                    ),
                    folder="", processor=Processor(model="H100", instructions="", torch="2.6"),
                )
            )  # fmt: skip
            for rank in range(8):
                seconds = {"startup": 50.0, "compute": 90 * step_times_s, "communication": 10 * step_times_s}
                seconds |= {"lost": lost_s} if has_failed else {}
                ledger.record_phase_seconds(
                    PhaseSeconds(run_id=run_id, attempt=1, rank=rank, held_s=held_s, seconds=seconds)
                )
