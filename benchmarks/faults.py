"""What a death costs: `python benchmarks/faults.py [--minutes 10] [--quick]`.

    kill -9 to the next step      with standby ranks and with ranks that start cold, in turn
    goodput under kills           one kill a minute, commits as often as pays (`commit_every: auto`), beside the
                                  best that such a schedule allows with the costs that were measured
    protections                   the cost of each and of all together, as benchmarks/trainer.py measures it:
                                  `protection_cost` at two processes, and without the spot check

The last line printed is one JSON object.
"""

import json
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import train_tokenizer
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.records.goodput import Goodput
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats, heartbeat_path
from assay.store.home import Home
from assay.store.ledger.goodput import goodput_of
from assay.store.metrics.segment import read_segment, segment_path
from assay.store.objects import open_store
from assay.workflows.run import create_run
from harness import in_turn, options_of, print_result

WORKERS = 2
WORDS = ["alpha", "beta", "gamma", "delta", "return", "yield", "import", "class", "lambda", "pass"]


def small_dataset(folder: Path, num_rows: int = 4000) -> Path:
    """Rows of random words."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(20, 120))) for _ in range(num_rows)]
    lines = [
        {"text": text, "label": int(text.count("return") > text.count("yield")), "key": f"group-{row // 5}"}
        for row, text in enumerate(texts)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tokenizer = folder / "tokenizer.json"
    train_tokenizer(texts[:500], vocab_size=300).save(str(tokenizer))
    config = BuildConfig(tokenizer=str(tokenizer), key_field="key", rows_per_shard=1000, rows_per_group=100)
    build_dataset([folder / "rows.jsonl"], folder / "dataset", config)
    return folder / "dataset"


def recipe(dataset: Path, *, max_steps: int, commit_every: int | str) -> LoadedConfig:
    encoder = {
        "type": "new", "vocab_size": 300, "hidden_size": 64, "num_layers": 2, "num_heads": 2,
        "intermediate_size": 256, "max_tokens": 256,
    }  # fmt: skip
    tree: dict[str, Any] = {
        "name": "faults",
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.05}},
        "loader": {"lanes": 8, "global_batch_size": 64, "threads": 1},
        "method": {"type": "classify", "encoder": encoder},
        "trainer": {"epochs": 10_000, "max_steps": max_steps, "commit_every": commit_every},
    }
    return LoadedConfig(tree, {})


class KillAtStep:
    """Kills the last rank of the first attempt once it has made some steps; notes when."""

    def __init__(self, run: Run, step: int) -> None:
        self._run, self._step = run, step
        self.killed_s = 0.0

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        self._pids = list(pids)

    def tick(self, attempt: Attempt) -> None:
        if self.killed_s:
            return
        page = Heartbeats(
            heartbeat_path(Path(self._run.run_dir), attempt.attempt, range(attempt.world_size)),
            attempt.world_size,
        )
        if min(beat.step for beat in page.read()) >= self._step:
            self.killed_s = time.time()
            os.kill(self._pids[-1], signal.SIGKILL)
        page.close()

    def attempt_ended(self, attempt: Attempt) -> None:
        pass


class KillEvery:
    """Kills a random rank so many seconds after the last kill, until the time is over."""

    def __init__(self, every_s: float, until_s: float) -> None:
        self._every_s, self._until_s = every_s, until_s
        self._rng = random.Random(1)
        self._next_s = time.monotonic() + every_s
        self.kills = 0

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        self._pids = list(pids)

    def tick(self, attempt: Attempt) -> None:
        if self._next_s < time.monotonic() < self._until_s:
            self._next_s += self._every_s
            self.kills += 1
            os.kill(self._rng.choice(self._pids), signal.SIGKILL)

    def attempt_ended(self, attempt: Attempt) -> None:
        pass


def kill_to_next_step_s(dataset: Path, *, cold: bool) -> float:
    """Seconds from kill -9 of one of two ranks to the end of the first step after the restart."""
    run = create_run(Home.from_environment(), recipe(dataset, max_steps=30, commit_every=10), world_size=WORKERS)
    killer = KillAtStep(run, step=12)
    log = CommitLog(open_store(run.store_url))
    with patch("assay.elastic.supervisor.fork_context", _cold_context) if cold else nullcontext():
        supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[killer], clock=SystemClock())
        supervisor.run(WORKERS)
    second = read_segment(segment_path(Path(run.run_dir), 2, 0))
    assert second.header is not None
    return float(second.header.wall_of(second.step_ends.at_s)[0]) - killer.killed_s


def _cold_context() -> Any:
    """Ranks that import everything for themselves."""
    return multiprocessing.get_context("spawn")


def goodput_under_kills(dataset: Path, *, minutes: float, every_s: float) -> tuple[Goodput, int]:
    """The account of a run of so many minutes in which a rank dies every `every_s` seconds."""
    run = create_run(
        Home.from_environment(), recipe(dataset, max_steps=1_000_000, commit_every="auto"), world_size=WORKERS
    )
    until_s = time.monotonic() + 60 * minutes
    killer = KillEvery(every_s, until_s - every_s / 2)
    home = Home.from_environment()
    from assay.workflows.bookkeeping import (  # not above: every rank imports this file anew
        Bookkeeper,
        writer_of,
    )

    with writer_of(home, run) as writer:
        bookkeeper = Bookkeeper(run, writer, SystemClock())
        supervisor = Supervisor(
            run,
            CommitLog(open_store(run.store_url)),
            policy=RestartPolicy(max_restarts=1000),
            observers=[bookkeeper, killer, _StopAt(until_s)],
            clock=SystemClock(),
        )
        supervisor.run(WORKERS)
    with home.open_ledger() as ledger:
        return goodput_of(ledger, [run]), killer.kills


class _StopAt:
    """Asks the supervisor to stop, as a scheduler does."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        pass

    def tick(self, attempt: Attempt) -> None:
        if time.monotonic() >= self._until_s:
            self._until_s = float("inf")
            os.kill(os.getpid(), signal.SIGTERM)

    def attempt_ended(self, attempt: Attempt) -> None:
        pass


def best_goodput(found: Goodput, *, every_s: float) -> float:
    """What no policy can beat: restarts as measured, commits as dear as measured, at the best interval."""
    kills = [interruption for interruption in found.interruptions if "killed" in interruption.reason]
    restart_s = statistics.median(interruption.startup_device_s / WORKERS for interruption in kills)
    commit_s, interval_s = found.commit_s or 0.0, found.optimal_commit_s or every_s
    return 1 - (restart_s + interval_s / 2) / every_s - commit_s / interval_s


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the run that is killed once a minute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round, one minute with a kill every 15 s")
    options = parser.parse_args()
    rounds, minutes, every_s = options.rounds, options.minutes, 60.0
    if options.quick:
        rounds, minutes, every_s = 1, 1.0, 15.0
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as name:
        folder = Path(name)
        os.environ["ASSAY_HOME"] = str(folder / "runs")
        dataset = small_dataset(folder)
        times = in_turn(
            {
                "kill_to_next_step_s": lambda _: kill_to_next_step_s(dataset, cold=False),
                "kill_to_next_step_cold_s": lambda _: kill_to_next_step_s(dataset, cold=True),
            },
            rounds,
        )
        print("kill -9 of one of two ranks to the end of the next step, seconds:")
        figures = {name: statistics.median(seconds) for name, seconds in times.items()}
        for name, seconds in times.items():
            print(f"  {name:<25} {figures[name]:.2f}   ({', '.join(f'{item:.2f}' for item in seconds)})")
        found, kills = goodput_under_kills(dataset, minutes=minutes, every_s=every_s)
        best = best_goodput(found, every_s=every_s)
        total_s = sum(found.by_phase.values())
        print(f"\n{kills} kills in {minutes:g} minutes: goodput {found.goodput():.2%}, best possible {best:.2%}")
        print("  " + ", ".join(f"{phase} {s / total_s:.2%}" for phase, s in sorted(found.by_phase.items())))
        print(f"  phases sum to the held time within {abs(total_s / found.held_device_s - 1):.1e}")
        figures |= {"goodput": found.goodput(), "goodput_best": best, "num_kills": float(kills)}
        figures["phases_off"] = abs(total_s / found.held_device_s - 1)
        figures |= protection_cost(quick=options.quick)
    print_result(figures)


def protection_cost(*, quick: bool) -> dict[str, float]:
    """Of each protection and of all together as a share of a bare step; and whole steps beside bare ones."""
    from trainer import FULL, QUICK, TrainerBenchmark, against_bare_ddp, protection_costs

    plan = replace(QUICK, world_sizes=FULL.world_sizes) if quick else FULL
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as name:
        holdout = TrainerBenchmark(Path(name), plan)
        print("\nCPU of each protection, per step of all ranks:")
        costs = protection_costs(holdout)
        print("whole steps, but for the spot check:")
        return costs | against_bare_ddp(holdout)


if __name__ == "__main__":
    main()
