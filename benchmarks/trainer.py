"""Our trainer beside a bare DDP loop, HF Trainer and Lightning: `trainer.py [--quick] [--only PART]`.

Each competitor trains the same network on the same rows in a fresh process with one thread; rounds go through
all competitors in turn, so that a change of the machine's mood meets everybody. Three questions:

    what do the protections cost?       ours / a bare DDP loop, same micro-batches, 1 and 2 processes; then each
                                        protection by itself, and all together
    what does length bucketing bring?   samples/s of one epoch: ours, HF Trainer, by length too, Lightning
    what do two workers bring?          samples/s of 2 processes / of 1, a model where compute dominates; beside
                                        two runs that know nothing of each other, which is all that the machine
                                        can do

The last line printed is one JSON object.
"""

import importlib.metadata
import importlib.util
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.clock import SystemClock
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats, heartbeat_path
from assay.store.objects import open_store
from harness import Target, describe_machine, options_of, print_result, workspace
from trainer_rows import write_rows
from trainer_task import LANES, Report, Task, Who

PROCESS = Path(__file__).with_name("trainer_process.py")
WARM_UP_STEPS = 5
"""The first steps allocate; nobody's are counted."""

PEERS: dict[Who, tuple[str, ...]] = {
    "hf_trainer": ("transformers", "accelerate"),
    "hf_group_by_length": ("transformers", "accelerate"),
    "lightning": ("lightning",),
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    """Of ours and bare DDP."""
    peer_rounds: int
    worker_rounds: int
    num_rows: int
    """Of the dataset; all who are compared see the same rows, from its beginning."""
    peer_rows: int
    """the peers."""
    peer_batch_rows: int
    batch_rows: int
    steps: int
    """Measured steps of ours and bare DDP, with one commit among them."""
    protected_steps: int
    """On which each protection is measured apart."""
    hidden_size: int
    num_layers: int
    worker_steps: int
    """Measured steps of one and two workers, with one commit among them."""
    worker_batch_rows: int
    worker_hidden_size: int
    worker_layers: int
    world_sizes: tuple[int, ...] = (1, 2)
    """At which ours and bare DDP are compared."""
    measures_ceiling: bool = True
    """Whether two separate runs are started at once, too."""


FULL = Plan(
    rounds=4, peer_rounds=2, worker_rounds=3, num_rows=8192,
    peer_rows=1024, peer_batch_rows=32, batch_rows=64, steps=50, protected_steps=120,
    hidden_size=128, num_layers=2,
    worker_steps=12, worker_batch_rows=128, worker_hidden_size=256, worker_layers=2,
)  # fmt: skip
QUICK = replace(
    FULL, rounds=1, peer_rounds=1, worker_rounds=1, num_rows=1280, peer_rows=256, steps=10, protected_steps=10,
    worker_steps=3, worker_batch_rows=64, worker_hidden_size=128, world_sizes=(2,), measures_ceiling=False,
)  # fmt: skip
COMMIT_EVERY = 50
"""Steps over which the cost of a commit is spread; half of a recipe's default, so twice its cost."""


class TrainerBenchmark:
    """Starts processes and gathers what they report."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self.plan = plan
        self.dataset = write_rows(folder, plan.num_rows)
        self._num_runs = 0

    def task(self, who: Who, *, steps: int, batch_rows: int | None = None) -> Task:
        plan = self.plan
        # Ours trains one epoch, the bare loop goes on into the next.
        assert steps * (batch_rows or plan.batch_rows) <= plan.num_rows, "the steps do not fit into an epoch"
        return Task(
            who=who,
            dataset=str(self.dataset),
            folder="",
            num_steps=steps,
            batch_rows=batch_rows or plan.batch_rows,
            hidden_size=plan.hidden_size,
            num_layers=plan.num_layers,
            commit_every=WARM_UP_STEPS + steps + 1,
        )

    def run(self, task: Task, world_size: int = 1) -> list[Report]:
        """The reports of all ranks, when all are done."""
        return self.finish(self.start(task, world_size))

    def start(self, task: Task, world_size: int = 1) -> list[subprocess.Popen[str]]:
        self._num_runs += 1
        folder = self._folder / f"run-{self._num_runs:03d}"
        folder.mkdir()
        CommitLog(open_store(str(folder))).begin_attempt(world_size=world_size, now_s=SystemClock().now_s())
        Heartbeats.create(heartbeat_path(folder, 1, range(world_size)), world_size).close()
        task = replace(task, folder=str(folder), world_size=world_size)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return [
            subprocess.Popen(
                [sys.executable, str(PROCESS), replace(task, rank=rank).to_json()],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(world_size)
        ]

    def finish(self, processes: Sequence[subprocess.Popen[str]]) -> list[Report]:
        reports = []
        for process in processes:
            out, errors = process.communicate()
            if process.returncode:
                raise SystemExit(f"{PROCESS.name} ended with exit code {process.returncode}:\n{errors[-3000:]}")
            reports.append(Report.from_json(out.splitlines()[-1]))
        return reports


# Ours beside a bare DDP loop.


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of each step, [round, step]."""

    wall: npt.NDArray[np.float64]
    cpu: npt.NDArray[np.float64]
    """Of all ranks together."""

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Report]], steps: int) -> "StepTimes":
        measured = slice(WARM_UP_STEPS, WARM_UP_STEPS + steps)
        return cls(
            wall=np.array([1000 * np.diff(ranks[0].wall_s)[measured] for ranks in rounds]),
            cpu=np.array([1000 * sum(np.diff(rank.cpu_s)[measured] for rank in ranks) for ranks in rounds]),
        )


def per_step(times: npt.NDArray[np.float64]) -> float:
    """Mean over steps of the median over rounds: all rounds have the same rows in the same step."""
    return float(np.median(times, axis=0).mean())


def against_bare_ddp(benchmark: TrainerBenchmark) -> dict[str, float]:
    """Ratios of step times, ours / bare, by world size."""
    steps = benchmark.plan.steps
    runs: dict[tuple[Who, int], list[list[Report]]] = {
        (who, size): [] for size in benchmark.plan.world_sizes for who in ("bare_ddp", "ours")
    }
    for turn in range(benchmark.plan.rounds):
        for who, size in sorted(runs, reverse=bool(turn % 2)):
            task = benchmark.task(who, steps=WARM_UP_STEPS + steps + 1)
            task = replace(task, commit_every=WARM_UP_STEPS + steps // 2)
            runs[who, size].append(benchmark.run(task, size))
    figures: dict[str, float] = {}
    for size in benchmark.plan.world_sizes:
        ours = StepTimes.of(runs["ours", size], steps)
        bare = StepTimes.of(runs["bare_ddp", size], steps)
        wall, cpu = per_step(ours.wall) / per_step(bare.wall), per_step(ours.cpu) / per_step(bare.cpu)
        by_round = np.sort(ours.wall.mean(axis=1) / bare.wall.mean(axis=1))
        print(
            f"  {processes(size)}  bare {per_step(bare.wall):6.1f} ms wall, {per_step(bare.cpu):6.1f} CPU    "
            f"ours {per_step(ours.wall):6.1f} wall, {per_step(ours.cpu):6.1f} CPU    "
            f"ratio {wall:.3f} wall ({by_round[0]:.3f} to {by_round[-1]:.3f} by round), {cpu:.3f} CPU"
        )
        name = "vs_bare_ddp" if size == 2 else "vs_bare_ddp_1_process"
        figures |= {name: wall, f"{name}_cpu": cpu}
    return figures


def protection_costs(benchmark: TrainerBenchmark) -> dict[str, float]:
    """CPU of each protection, and of all together, as a share of the bare step.

    The whole steps of `against_bare_ddp` have all of them but the spot check, which none of so few is due for.
    """
    steps = WARM_UP_STEPS + benchmark.plan.protected_steps
    figures: dict[str, float] = {}
    for size in benchmark.plan.world_sizes:
        task = replace(benchmark.task("protections", steps=steps), commit_every=COMMIT_EVERY)
        reports = benchmark.run(task, size)
        costs = {name: sum(report.costs_ms[name] for report in reports) for name in reports[0].costs_ms}
        bare = costs.pop("bare")
        line = [f"{name} {ms:+.2f} ms ({ms / bare:+.2%})" for name, ms in costs.items()]
        print(f"  {processes(size)}  bare {bare:.1f} ms CPU; " + ", ".join(line))
        figures |= {f"cost_{name}_{size}": ms / bare for name, ms in costs.items()}
        total, without = sum(costs.values()) / bare, (sum(costs.values()) - costs["spot_check"]) / bare
        error = math.hypot(*(report.cost_error_ms for report in reports)) / bare
        print(f"      all together {total:+.2%}, without the spot check {without:+.2%}; error {error:.2%}")
        at = "" if size == 2 else "_1_process"
        figures |= {f"protection_cost{at}": total, f"protection_cost_without_spot_check{at}": without}
        figures[f"protection_cost_error{at}"] = error
    return figures


def processes(count: int) -> str:
    return f"{count} process" + ("es" if count > 1 else "  ")


# Ours beside HF Trainer and Lightning.


def against_peers(benchmark: TrainerBenchmark) -> dict[str, float]:
    """Ratios of samples/s over an epoch, ours / theirs."""
    batch_rows = benchmark.plan.peer_batch_rows
    steps = benchmark.plan.peer_rows // batch_rows
    names: list[Who] = ["ours", *(name for name in PEERS if is_installed(name))]
    seconds: dict[Who, list[float]] = {name: [] for name in names}
    cpu_s: dict[Who, list[float]] = {name: [] for name in names}
    counts: dict[Who, Report] = {}
    for turn in range(benchmark.plan.peer_rounds):
        for name in names if turn % 2 == 0 else names[::-1]:
            report = benchmark.run(benchmark.task(name, steps=steps, batch_rows=batch_rows))[0]
            seconds[name].append(report.wall_s[-1] - report.wall_s[0])
            cpu_s[name].append(report.cpu_s[-1] - report.cpu_s[0])
            counts[name] = report
    rates = {name: counts[name].num_rows / statistics.median(seconds[name]) for name in names}
    for name in names:
        tokens = rates[name] * counts[name].num_tokens / counts[name].num_rows
        cpu_ms = 1000 * statistics.median(cpu_s[name]) / counts[name].num_rows
        print(
            f"  {name:<20}{rates[name]:8.1f} samples/s {tokens:9.0f} useful tokens/s {cpu_ms:7.2f} ms CPU"
            f"/sample    ours is {rates['ours'] / rates[name]:.2f} x"
        )
    figures = {f"vs_{name}": rates["ours"] / rates[name] for name in names[1:]}
    ours_cpu_s = statistics.median(cpu_s["ours"])
    figures |= {f"vs_{name}_cpu": statistics.median(cpu_s[name]) / ours_cpu_s for name in names[1:]}
    tokens_per_row = counts["ours"].num_tokens / counts["ours"].num_rows
    return figures | {"samples_per_s": rates["ours"], "useful_tokens_per_s": rates["ours"] * tokens_per_row}


def is_installed(name: Who) -> bool:
    """Whether a peer's packages are here; says so if not."""
    missing = [package for package in PEERS[name] if importlib.util.find_spec(package) is None]
    if missing:
        print(f"  {name}: skipped, {' and '.join(missing)} not installed ('make bench' installs it)")
    return not missing


# One worker and two.


def two_workers(benchmark: TrainerBenchmark) -> dict[str, float]:
    """Ratio of samples/s, two processes / one; and where the rest went."""
    plan = benchmark.plan
    steps = plan.worker_steps
    task = replace(
        benchmark.task("ours", steps=WARM_UP_STEPS + steps + 1, batch_rows=plan.worker_batch_rows),
        hidden_size=plan.worker_hidden_size,
        num_layers=plan.worker_layers,
        commit_every=WARM_UP_STEPS + steps // 2,
    )
    one, two, apart = [], [], []
    for turn in range(plan.worker_rounds):
        one.append(benchmark.run(task))
        two.append(benchmark.run(task, 2))
        if plan.measures_ceiling and turn % 2 == 0:
            pair = [benchmark.start(task), benchmark.start(task)]
            apart += [benchmark.finish(processes) for processes in pair]
    one_ms, two_ms = (per_step(StepTimes.of(runs, steps).wall) for runs in (one, two))
    figures = {"workers_2_vs_1": one_ms / two_ms}
    rate = 1000 * plan.worker_batch_rows
    print(f"  1 worker {rate / one_ms:.1f} samples/s, 2 workers {rate / two_ms:.1f}: {one_ms / two_ms:.3f} x")
    if apart:
        ceiling = 2 * one_ms / per_step(StepTimes.of(apart, steps).wall)
        figures["workers_2_vs_1_ceiling"] = ceiling
        print(f"  two separate runs at once: {ceiling:.3f} x, the most that this machine has in it")
    for name, runs in (("1 worker ", one), ("2 workers", two)):
        shares = phase_shares(runs, steps)
        print(f"  {name}: " + ", ".join(f"{phase} {share:.2%}" for phase, share in shares.items()))
    return figures


def phase_shares(runs: Sequence[Sequence[Report]], steps: int) -> dict[str, float]:
    """Of the measured steps' time, over all ranks and rounds, by phase."""
    seconds: dict[str, float] = {}
    for report in (report for ranks in runs for report in ranks):
        start_s, stop_s = report.wall_s[WARM_UP_STEPS], report.wall_s[WARM_UP_STEPS + steps]
        ends = [at_s for at_s, _ in report.phases[1:]] + [stop_s]
        for (entered_s, phase), left_s in zip(report.phases, ends, strict=True):
            spent_s = min(left_s, stop_s) - max(entered_s, start_s)
            if spent_s > 0:
                seconds[phase] = seconds.get(phase, 0.0) + spent_s
    total = sum(seconds.values())
    return {phase: spent / total for phase, spent in sorted(seconds.items(), key=lambda item: -item[1])}


# The whole.


class Part(NamedTuple):
    """One question of the module's docstring."""

    name: str
    title: str
    """With the plan's fields."""
    measure: Callable[[TrainerBenchmark], dict[str, float]]


PARTS = (
    Part(
        "ddp",
        "Step time against a bare DDP loop, equal batches, a commit in {plan.steps} steps:",
        against_bare_ddp,
    ),
    Part("protections", "CPU of each protection, per step of all ranks:", protection_costs),
    Part(
        "peers",
        "{plan.peer_rows} rows of very different lengths, {plan.peer_batch_rows} a step, 1 process:",
        against_peers,
    ),
    Part(
        "workers",
        "Two workers, {plan.worker_layers} layers of {plan.worker_hidden_size}, {plan.worker_batch_rows} rows a step:",
        two_workers,
    ),
)


TARGETS = (
    Target("vs_bare_ddp", 1.03, at_most=True),
    Target("protection_cost", 0.03, at_most=True),
    Target("protection_cost_without_spot_check", 0.02, at_most=True),
    Target("vs_hf_trainer", 2.0, at_most=False),
    Target("workers_2_vs_1", 1.9, at_most=False),
)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute; shows that it runs, no more")
    parser.add_argument("--only", choices=[part.name for part in PARTS], help="one question by itself")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    describe_machine()
    figures: dict[str, float] = {}
    with workspace() as folder:
        holdout = TrainerBenchmark(folder, plan)
        print(
            f"Rows of 4 to 512 tokens; {plan.num_layers} layers of {plan.hidden_size}; "
            f"{plan.batch_rows} rows a step in {LANES} lanes; 1 thread a process"
        )
        for part in PARTS:
            if options.only in (None, part.name):
                print("\n" + part.title.format(plan=plan))
                figures |= part.measure(holdout)
    print_result(figures, TARGETS)


if __name__ == "__main__":
    main()
