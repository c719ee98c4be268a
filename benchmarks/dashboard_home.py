"""Makes a home of many runs for timing the dashboard: deterministic by its seed, written by the store's own code.

    python benchmarks/dashboard_home.py HOME                                  1,000 runs, 100 M points, about 4 GB
    python benchmarks/dashboard_home.py HOME --points 10_000_000              a tenth of the points
    python benchmarks/dashboard_home.py HOME --runs 10 --points 200_000       a small home, in seconds

Runs come in groups that differ by a patch of the recipe; the runs of a group differ by their seed. Every fifth run
was interrupted and resumed, so that it has points that were rolled back; every twentieth failed, with a cause. Each
metric has a few spikes of one sample. The first runs have checkpoints with results on benchmarks. The last run trains
still: `--live SECONDS` then appends a step every 0.1 s to its segment, as a rank does.
"""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.clock import SystemClock
from assay.records.benchmark import BenchmarkResult, DetectableEffect
from assay.records.commit import AttemptBegan, Commit, LogEntry, RunFinished
from assay.records.cursor import Cursor
from assay.records.evaluation import Estimate
from assay.records.failure import Failure, FailureKind
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor
from assay.records.run import Attempt, Note, PhaseSeconds, Run, RunNotes
from assay.store.attempts import save_attempt
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.fold import append_points
from assay.store.metrics.segment import Points, SegmentHeader, SegmentWriter, segment_path
from assay.training.recipe import Recipe, recipe_sha256
from harness import options_of

LAST_BEGAN_S = 1_795_800_000.0
STEP_S = 0.5
DATASET = "5" * 64
RUN_EVERY_S = 600.0
SEEDS_PER_GROUP = 10
COMMITS_PER_RUN = 10
LAST_TENTH_OF_UNFINISHED = 6
METRICS = {
    "loss": (0.7, 0.2, 0.05),
    "learning_rate": (1e-4, 1e-5, 0.0),
    "gradient_norm": (1.0, 0.4, 0.1),
    "tokens": (32_000.0, 28_000.0, 500.0),
    "step_s": (0.5, 0.5, 0.01),
    "reward": (0.2, 0.7, 0.05),
    "reward_correct": (0.2, 0.65, 0.05),
    "reward_format": (0.5, 0.99, 0.02),
    "length": (200.0, 320.0, 10.0),
    "truncated": (0.02, 0.05, 0.01),
    "zero_std": (0.4, 0.2, 0.05),
    "kl": (0.0, 0.05, 0.01),
    "entropy": (1.2, 0.6, 0.05),
    "distinct": (0.9, 0.8, 0.02),
    "failed_grades": (0.0, 0.0, 0.001),
    "logprob_gap": (0.005, 0.006, 0.001),
    "drift": (0.0, 0.02, 0.002),
    "clipped": (0.01, 0.03, 0.005),
    "token_accuracy": (0.5, 0.7, 0.01),
    "margin": (0.1, 0.5, 0.05),
}
"""Name -> first level, last level and noise."""
FAILURES: tuple[tuple[FailureKind, str, str], ...] = (
    ("out_of_memory", "OutOfMemoryError in trainer.step", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("hang", "hang in communication", "no progress for 600 s"),
    ("loss_not_finite", "loss not finite", "the loss is nan"),
    ("lost_node", "lost node", "node n07 was lost"),
    ("killed_by_signal", "SIGKILL", "SIGKILL"),
)
GRADER = {
    "type": "string_check",
    "name": "correct",
    "operation": "eq",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
}
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4)


class Shape(NamedTuple):
    """How large the home is."""

    num_runs: int
    num_points: int
    num_checkpoints: int
    num_benchmarks: int
    seed: int
    last_began_s: float
    """When the last run began, seconds since the epoch; each run began 10 minutes after the one before."""

    @property
    def num_steps(self) -> int:
        """Steps of each run."""
        return max(1, self.num_points // (self.num_runs * len(METRICS) * COMMITS_PER_RUN)) * COMMITS_PER_RUN

    @property
    def checkpoints_per_run(self) -> int:
        """Checkpoints with results of each of the first runs."""
        return min(50, self.num_checkpoints)


def make_home(home: Home, shape: Shape) -> None:
    """Write all runs of a home."""
    recipes = [_recipe(group) for group in range(-(-shape.num_runs // SEEDS_PER_GROUP))]
    with home.open_ledger() as ledger:
        for number in range(shape.num_runs):
            recipe = recipes[number // SEEDS_PER_GROUP].model_copy(update={"seed": number % SEEDS_PER_GROUP})
            _make_run(home, ledger, shape, number, recipe)


def _recipe(group: int) -> Recipe:
    return Recipe.model_validate(
        {
            "name": f"grpo-{group:03d}",
            "data": {"dataset": "datasets/math", "split": {"type": "hash", "validation_fraction": 0.1}},
            "loader": {"lanes": 8, "global_batch_size": 64, "layout": {"type": "padded"}},
            "method": {
                "type": "grpo",
                "model": {"type": "pretrained", "path": "models/base"},
                "group_size": 8,
                "sampling": {"max_tokens": 512},
                "rewards": [{"grader": GRADER}],
            },
            "trainer": {
                "commit_every": 100,
                "optimizer": {"learning_rate": LEARNING_RATES[group % len(LEARNING_RATES)]},
            },
        }
    )


def _make_run(home: Home, ledger: Ledger, shape: Shape, number: int, recipe: Recipe) -> None:
    rng = np.random.default_rng([shape.seed, number])
    run_id = f"{recipe.name}-s{recipe.seed}"
    run_dir, tree = home.run_dir(run_id), recipe.model_dump(mode="json")
    run = Run(
        run_id=run_id,
        created_s=shape.last_began_s - RUN_EVERY_S * (shape.num_runs - 1 - number),
        recipe=tree,
        recipe_sha256=recipe_sha256(tree, DATASET),
        dataset_fingerprint=DATASET,
        code_version="0.1.0",
        run_dir=str(run_dir),
        store_url=str(run_dir),
        num_steps=shape.num_steps,
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "run.json").write_text(run.to_json(), encoding="utf-8")
    ledger.record_run(run)
    attempts = _attempts(run, number, is_last=number == shape.num_runs - 1)
    for attempt in attempts:
        save_attempt(run_dir, attempt)
        ledger.record_attempt(attempt)
        _record_phases(ledger, attempt, rng)
        _append_metrics(ledger, attempt, number, run.num_steps, rng)
    ledger.record_log_entries(run_id, dict(enumerate(_log_entries(run, attempts))))
    if number % 7 == 0:
        note = Note(at_s=run.created_s + 60, by="dana", text="watch the <entropy> & the KL here")
        ledger.record_run_notes(RunNotes(run_id=run_id, tags=("sweep", f"week-{number % 4}"), notes=(note,)))
    if number < shape.num_checkpoints // shape.checkpoints_per_run:
        _record_results(ledger, run, recipe, shape, rng)


def _attempts(run: Run, number: int, *, is_last: bool) -> list[Attempt]:
    """Return one attempt; in every fifth run two or three, each of which resumes a tenth before the last one's end."""
    tenth = run.num_steps // COMMITS_PER_RUN
    is_unfinished = is_last or number % 20 == 13
    end = LAST_TENTH_OF_UNFINISHED * tenth if is_unfinished else run.num_steps
    ends = [4 * tenth, 7 * tenth, end][-1 - (number % 5 == 2) - (number % 10 == 2) :]
    starts = [0, *(end - tenth for end in ends[:-1])]
    attempts = []
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        began_s = run.created_s + STEP_S * start + 120.0 * index
        fails = index < len(ends) - 1 or is_unfinished
        is_running = is_last and index == len(ends) - 1
        kind, signature, text = FAILURES[(number // 5 + index) % len(FAILURES)]
        failure = Failure(
            failure_kind=kind,
            run_id=run.run_id,
            attempt=index + 1,
            rank=None if kind == "lost_node" else number % 8,
            host=f"n{number % 16:02d}",
            phase="compute",
            step=end,
            signature=signature,
            text=text,
        )
        outcome = "running" if is_running else "failed" if fails else "succeeded"
        attempts.append(
            Attempt(
                run_id=run.run_id,
                attempt=index + 1,
                world_size=8,
                start_step=start,
                started_s=began_s,
                ended_s=None if is_running else began_s + STEP_S * (end - start) + 90.0,
                end_step=None if is_running else end // tenth * tenth,
                outcome=outcome,
                reason=failure.sentence(run.run_dir) if outcome == "failed" else "",
                failure=failure if outcome == "failed" else None,
                folder=run.run_dir,
                code_version=run.code_version,
                processor=Processor(model="H100", instructions="", torch="2.6"),
                environment=NodeEnvironment(
                    python="3.12.1", kernel="6.8", driver="550.54", image="", user="dana", launcher="slurm",
                    job=str(number), partition="low",
                ),
                hosts=(f"n{number % 16:02d}",) * 8,
                devices=tuple(f"cuda:{rank}" for rank in range(8)),
            )
        )  # fmt: skip
    return attempts


def _record_phases(ledger: Ledger, attempt: Attempt, rng: np.random.Generator) -> None:
    if attempt.ended_s is None:
        return
    held_s = attempt.ended_s - attempt.started_s
    for rank in range(attempt.world_size):
        shares = rng.dirichlet((2, 6, 60, 12, 2))
        seconds = dict(zip(("startup", "data", "compute", "communication", "idle"), held_s * shares, strict=True))
        ledger.record_phase_seconds(
            PhaseSeconds.model_validate(
                {
                    "run_id": attempt.run_id,
                    "attempt": attempt.attempt,
                    "rank": rank,
                    "held_s": held_s,
                    "seconds": seconds,
                }
            )
        )


def _append_metrics(ledger: Ledger, attempt: Attempt, number: int, num_steps: int, rng: np.random.Generator) -> None:
    steps = np.arange(attempt.start_step + 1, _last_step(attempt, num_steps) + 1)
    header = SegmentHeader(attempt.run_id, attempt.attempt, 0, attempt.started_s, 0.0, f"n{number % 16:02d}", 1, ())
    metrics = {
        name: Points(
            steps, np.float64(STEP_S) * (steps - attempt.start_step), _values(name, steps, number, num_steps, rng)
        )
        for name in METRICS
    }
    with ledger.writing() as connection:
        append_points(connection, attempt.run_id, header, metrics)


def _last_step(attempt: Attempt, num_steps: int) -> int:
    if attempt.end_step is None:
        return LAST_TENTH_OF_UNFINISHED * num_steps // COMMITS_PER_RUN
    return attempt.end_step


def _values(
    name: str, steps: npt.NDArray[np.int64], number: int, num_steps: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return a curve to a level of its group, with noise, two spikes of one sample and, for some names, NaN."""
    first, last, noise = METRICS[name]
    last *= 1.0 + 0.03 * (number // SEEDS_PER_GROUP % 7) + 0.005 * (number % SEEDS_PER_GROUP)
    values = last + (first - last) * np.exp(-5.0 * steps / num_steps) + noise * rng.standard_normal(len(steps))
    values[rng.integers(len(steps), size=2)] += 50.0 * noise
    if name in ("reward_format", "margin"):
        values[rng.integers(len(steps), size=len(steps) // 200)] = np.nan
    return np.asarray(values, np.float64)


def _log_entries(run: Run, attempts: list[Attempt]) -> list[LogEntry]:
    interval = run.num_steps // COMMITS_PER_RUN
    entries: list[LogEntry] = []
    for attempt in attempts:
        entries.append(AttemptBegan(attempt=attempt.attempt, world_size=attempt.world_size, began_s=attempt.started_s))
        start = attempt.start_step
        end = _last_step(attempt, run.num_steps)
        entries += [
            Commit(
                attempt=attempt.attempt,
                world_size=attempt.world_size,
                step=step,
                cursor=Cursor(epoch=0, step_in_epoch=step),
                committed_s=attempt.started_s + STEP_S * (step - start),
                folder=f"checkpoints/{step:08d}-{attempt.attempt:04d}",
                files=(),
                weights_digest=f"{step:064d}",
                receipts_from_step=step - interval,
                rows_trained=64 * interval,
            )
            for step in range((start // interval + 1) * interval, end + 1, interval)
        ]
    if attempts[-1].outcome == "succeeded":
        entries.append(RunFinished(attempt=attempts[-1].attempt, step=run.num_steps, weights_digest="f" * 64))
    return entries


def _record_results(ledger: Ledger, run: Run, recipe: Recipe, shape: Shape, rng: np.random.Generator) -> None:
    for checkpoint in range(1, shape.checkpoints_per_run + 1):
        step = run.num_steps * checkpoint // shape.checkpoints_per_run
        for benchmark in range(shape.num_benchmarks):
            share = 0.3 + 0.02 * benchmark + 0.2 * checkpoint / shape.checkpoints_per_run
            share = float(np.clip(share + 0.02 * rng.standard_normal(), 0.01, 0.99))
            half_width = 1.96 * (share * (1 - share) / 500) ** 0.5
            ledger.record_benchmark_result(
                BenchmarkResult(
                    run_id=run.run_id,
                    candidate=recipe.name,
                    seed=recipe.seed,
                    step=step,
                    weights_digest=f"{step:064d}",
                    benchmark=f"bench-{benchmark:02d}",
                    benchmark_sha256=f"{benchmark:064d}",
                    grader_sha256="a" * 64,
                    prompt_sha256="b" * 64,
                    num_items=500,
                    num_failed=0,
                    score=Estimate(value=share, low=share - half_width, high=share + half_width, method="clustered"),
                    could_detect=DetectableEffect(effect=2 * half_width),
                    device_s=30.0,
                    evaluated_s=run.created_s + STEP_S * step + 60.0,
                    items_sha256="c" * 64,
                )
            )


def log_live(home: Home, shape: Shape, seconds: float) -> None:
    """Append a step of all metrics every 0.1 s to the last run's segment, as its rank 0 does."""
    number = shape.num_runs - 1
    recipe = _recipe(number // SEEDS_PER_GROUP)
    run = home.run(f"{recipe.name}-s{number % SEEDS_PER_GROUP}")
    attempt = _attempts(run, number, is_last=True)[-1]
    writer = SegmentWriter(
        segment_path(Path(run.run_dir), attempt.attempt, 0), run_id=run.run_id, attempt=attempt.attempt, rank=0
    )
    rng, step = np.random.default_rng(shape.seed), _last_step(attempt, run.num_steps)
    ends_s = SystemClock().monotonic_s() + seconds
    while SystemClock().monotonic_s() < ends_s:
        step += 1
        at = np.array([step])
        writer.log(step, {name: float(_values(name, at, number, run.num_steps, rng)[0]) for name in METRICS})
        time.sleep(0.1)
    writer.close()


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--points", type=int, default=100_000_000, help="of all runs and metrics together")
    parser.add_argument("--checkpoints", type=int, default=1_000, help="with results on benchmarks")
    parser.add_argument("--benchmarks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--last-began", type=float, default=LAST_BEGAN_S, help="seconds since the epoch, of the last run"
    )
    parser.add_argument("--live", type=float, default=0.0, help="seconds; the home exists already")
    options = parser.parse_args()
    home = Home.at(options.home)
    shape = Shape(
        options.runs, options.points, options.checkpoints, options.benchmarks, options.seed, options.last_began
    )
    if options.live:
        log_live(home, shape, options.live)
        return
    began_s = time.process_time()
    make_home(home, shape)
    num_bytes = sum(path.stat().st_size for path in options.home.rglob("*") if path.is_file())
    print(f"{options.home}: {shape.num_runs} runs, {num_bytes / 1e9:.2f} GB, {time.process_time() - began_s:.1f} s CPU")


if __name__ == "__main__":
    main()
