"""A home with something on every page: runs in each state, rollouts, a campaign, a program, coverage, and jobs."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from assay.base.clock import SystemClock
from assay.planning.program.file import read_program
from assay.planning.simulation.offer import make_offer
from assay.records.run import Attempt
from assay.serving.openai.app_state import AppState
from assay.store.followed import FollowedCoverage, FollowedProgram, follow_coverage, follow_program
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.objects import open_store
from assay.workflows.bookkeeping import rebuild_run
from machine import MACHINE
from metric_runs import log_points, metric_run
from one_rank import one_rank_run, train_here
from prompt_rows import grpo_recipe, prompt_dataset
from unit.dashboard.accepted import accept_batch, accept_eval_run, accept_job, launch, validate
from unit.dashboard.test_programs import PROGRAM
from unit.store.ledger.test_goodput import run_of

DAY_S = 86_400.0
MODES = [
    {"name": "found", "owner": "data", "least_effect": 0.9},
    {"name": "slang", "owner": "safety", "least_effect": 0.01},
]
BENCHMARK = {"type": "classification", "name": "loss", "score": "log_loss", "failure_modes": ["found"]}


class FullHome(NamedTuple):
    """What tests need to know of it."""

    home: Home
    secret: str
    """Of a key that may change everything; readers must log in."""
    job_id: str
    """A job that runs."""


def fill(home: Home) -> FullHome:
    """Add to the home of a sample project with its campaign what it lacks."""
    now_s, folder = SystemClock().now_s(), home.folder.parent
    _train_on_rewards(home, folder)
    _log_and_fail(home, now_s)
    _plan(home, folder, now_s)
    api = AppState.of(open_store(str(home.api)), {}, SystemClock())
    job_id = accept_job(api, at_s=now_s - 900, metadata={"team": "blue"})
    validate(api, job_id, at_s=now_s - 890)
    launch(api, job_id, at_s=now_s - 880)
    validate(api, accept_job(api, at_s=now_s - 600), at_s=now_s - 590)
    accept_batch(api, at_s=now_s - 300)
    accept_eval_run(api, at_s=now_s - 200)
    key = api.keys.make(project="default", name="me", scopes=("read", "write", "admin"), lives_s=None)
    return FullHome(home, key.secret, job_id)


def _train_on_rewards(home: Home, folder: Path) -> None:
    trainer = {"max_steps": 6, "commit_every": 3}
    tree = grpo_recipe(prompt_dataset(folder / "prompts"), folder / "base", trainer=trainer, method={})
    run = one_rank_run(tree, home.run_dir("one-rank"))
    train_here(run)
    (home.run_dir("one-rank") / RUN_FILE).write_text(run.to_sealed_json())
    with home.open_ledger() as ledger:
        rebuild_run(ledger, run)


def _log_and_fail(home: Home, now_s: float) -> None:
    """Record a run that was killed once and trains still, as far as anybody knows, and one that failed."""
    run = metric_run(home, "silent", 0, 50)
    steps = np.arange(200)
    log_points(run, 2, 50, loss=2 - steps / 200, gradient_norm=np.ones(200), learning_rate=1e-3 * steps)
    failed = Attempt.model_validate(
        {
            "run_id": "failed", "attempt": 1, "world_size": 2, "start_step": 0, "started_s": now_s - 4200.0,
            "ended_s": now_s - 600.0, "end_step": 4, "outcome": "failed", "reason": "CUDA out of memory", **MACHINE,
        }
    )  # fmt: skip
    with home.open_ledger() as ledger:
        ledger.record_run(run_of("failed").model_copy(update={"created_s": failed.started_s}))
        ledger.record_attempt(failed)


def _plan(home: Home, folder: Path, now_s: float) -> None:
    """Offer a program that began 20 days ago, and name the failure modes that must not get worse."""
    program, plan = folder / "program.yaml", folder / "plan"
    plan.mkdir()
    program.write_text(yaml.safe_dump(PROGRAM))
    (plan / "offer.json").write_text(make_offer(read_program(program).program, num_samples=200).offer.to_json())
    follow_program(home, FollowedProgram(name="small", file=program, folder=plan, start_s=now_s - 20 * DAY_S))
    coverage, suite = folder / "coverage.yaml", folder / "modes.yaml"
    coverage.write_text(yaml.safe_dump({"failure_modes": MODES}))
    suite.write_text(yaml.safe_dump({"name": "s", "benchmarks": [BENCHMARK]}))
    follow_coverage(home, FollowedCoverage(file=coverage, suites=(suite,)))
