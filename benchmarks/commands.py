"""What every command costs before it does any work, on the demo's ledger and on one of 1,000 runs.

    python benchmarks/commands.py [--rounds 5] [--starts 3] [--no-offer] [--home build/commands]

The demo's home is made once and kept under `--home`; the larger one is a copy of it with real records of
further runs. Each command is a process of its own; medians. The last part times whole runs from the command to
the end of their first step, in turn with bare PyTorch (`commands_bare.py`), which is where the floor is. The
last line of the output is one JSON object.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import yaml

from assay.base.units import duration_text, number_of
from assay.records.run import Run
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.segment import read_segment, segment_paths
from harness import CHECKOUT, options_of, print_result

NUM_RUNS = 1_000
AS_INSTALLED = "from assay.cli.main import main; main()"
"""What the script `assay` does."""
PROGRAM = CHECKOUT / "programs" / "helpfulness.yaml"
LIMITS_S = {"help": 0.2, "runs": 0.5, "show": 0.5, "plan check": 1.5, "nothing there": 0.4}
"""CPU seconds."""
OFFER_LIMIT_S = 30.0
"""Wall-clock seconds."""
FIRST_STEP_LIMITS_S = {1: 5.0, 2: 6.0}
"""Wall-clock seconds, by workers."""

EMPTY_HOME_COMMANDS = (
    "check resume true",
    "data index no/folder --out out",
    "data build no.jsonl --out out --tokenizer no.json",
    "data show no",
    "data split no",
    "data hold-out no",
    "data score no --reference no --out out",
    "data diff no no2",
    "train no.yaml",
    "train no.yaml --check",
    "train --resume no",
    "train new no",
    "train pilot no.yaml",
    "doctor shapes no.yaml",
    "train import no --model no --training no --out no",
    "runs delete no --yes",
    "runs tag no tag",
    "runs note no words",
    "runs groups no",
    "runs diff no no2",
    "runs export no",
    "eval predict no no.csv",
    "eval chat no --prompt x",
    "runs sink no tensorboard:x",
    "runs import no",
    "train join no",
    "train stop no",
    "train resize no --nodes 2",
    "runs show no",
    "runs goodput no",
    "runs goodput no.yaml",
    "train drill no.yaml",
    "throughput no.yaml",
    "throughput --against no",
    "runs audit no",
    "runs replay no --step 1",
    "runs rollout no --step 1 --row 0",
    "runs rollouts no --step 1",
    "eval run no --suite no.yaml",
    "eval work no",
    "eval history no",
    "eval items no --benchmark b --step 1",
    "eval import no.json",
    "eval coverage no.yaml --suite no2.yaml",
    "decide compare no no2",
    "plan check no.yaml",
    "plan solve no.yaml",
    "plan what-if no.yaml",
    "plan export no.yaml no.json --format csv",
    "plan offer no.yaml",
    "plan risk no.yaml",
    "plan status no",
    "plan review no",
    "decide run no.yaml",
    "ladder no.yaml",
    "decide show no",
    "decide again no",
    "decide proxy no.csv",
    "triage ci no.xml",
    "triage guard no.json",
    "triage failures no.csv",
    "triage fixed no.csv --since 0",
    "triage startup no-run",
    "triage symptoms no.log",
    "triage data no no2",
    "triage slow no.csv",
    "triage slow --ab no no2 no.yaml",
    "triage bisect no no2 no.yaml",
    "triage skew no.csv --value a --location b --work c",
    "triage hang no",
    "scaling fit no.csv",
    "scaling fit no",
    "scaling code-length no no2",
    "report no",
    "serve --models no",
    "serve key create --project p --days no",
    "serve key revoke no",
    "serve worker --runs-at-once no",
    "serve sessions --lease no",
    "check api http://127.0.0.1:9 --base no",
)
"""Each command with a name of something that is not there."""
NEEDS_NOTHING = (
    "demo",
    "runs list",
    "triage overview",
    "train keys",
    "runs keys",
    "serve key list",
    "runs keys --settings",
    "plan new",
    "plan keys",
    "decide keys",
    "decide list",
    "decide power",
    "mcp",
)
"""The others: they are given no name of anything."""


class Cost(NamedTuple):
    """Of one call."""

    cpu_s: float
    wall_s: float
    exit_code: int


def call(arguments: Sequence[str], home: Path, checkout: Path = CHECKOUT) -> Cost:
    """Run a command in a process of its own, from the home's folder, so that nothing lies beside it."""
    environment = {**os.environ, "ASSAY_HOME": str(home.resolve()), "PYTHONPATH": str(checkout / "src")}
    environment.pop("ASSAY_LEDGER", None)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is measured is a warm cache
    began_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", AS_INSTALLED, *arguments],
        env=environment,
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - began_s, process.returncode)


def measured(arguments: str, home: Path, *, rounds: int, limit_s: float, exit_codes: Sequence[int] = (0,)) -> float:
    """The median CPU seconds; a line about it."""
    costs = [call(arguments.split(), home) for _ in range(rounds)]
    wrong = {cost.exit_code for cost in costs} - set(exit_codes)
    assert not wrong, f"assay {arguments}: exit code {wrong}"
    cpu_s = float(statistics.median(cost.cpu_s for cost in costs))
    wall_s = statistics.median(cost.wall_s for cost in costs)
    verdict = "" if cpu_s <= limit_s else "  TOO SLOW"
    print(
        f"  {cpu_s:5.2f} s CPU (limit {limit_s:.1f}) {wall_s:6.2f} s wall   assay {arguments}{verdict}",
        flush=True,
    )
    return cpu_s


def demo_home(folder: Path, checkout: Path = CHECKOUT) -> Path:
    """A home with what a checkout's 'assay demo' leaves; made once."""
    home = folder / "demo"
    if not (home / "made").exists():
        print(f"making the demo's home in {home}: some minutes, once", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        assert call(["demo"], home, checkout).exit_code == 0, "the demo failed"
        (home / "made").touch()
    return home


def large_home(folder: Path, demo: Path) -> Path:
    """The same with `NUM_RUNS` runs: copies of a real run's records, in their folders and in the ledger."""
    home = folder / "large"
    if not (home / "made").exists():
        print(f"making {NUM_RUNS:,} runs in {home}", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(demo, home)
        with Home.at(home).open_ledger() as ledger:
            known = ledger.runs()
            for number in range(NUM_RUNS - len(known)):
                _copy(ledger, known[number % len(known)], home, f"copy-{number:04d}")
        (home / "made").touch()
    return home


def _copy(ledger: Ledger, run: Run, home: Path, run_id: str) -> None:
    folder = home / run_id
    folder.mkdir()
    new = {"run_id": run_id}
    copied = run.model_copy(update={**new, "run_dir": str(folder), "store_url": str(folder)})
    (folder / "run.json").write_bytes(copied.to_sealed_json().encode())
    ledger.record_run(copied)
    for attempt in ledger.attempts(run.run_id):
        ledger.record_attempt(attempt.model_copy(update=new))
    for launch in ledger.launches(run.run_id):
        ledger.record_launch(launch.model_copy(update=new))
    ledger.record_log_entries(run_id, dict(enumerate(ledger.log_entries(run.run_id))))
    for seconds in ledger.phase_seconds(run.run_id):
        ledger.record_phase_seconds(seconds.model_copy(update=new))
    for evaluation in ledger.evaluations(run.run_id):
        ledger.record_evaluation(evaluation.model_copy(update=new))
    audit = ledger.audit(run.run_id)
    if audit is not None:
        ledger.record_audit(audit.model_copy(update=new))


def offer(demo: Path) -> float:
    """Wall-clock seconds of the shipped program's offer; it solves on both cores."""
    cost = call(["plan", "offer", str(PROGRAM), "--out", "offered"], demo)
    assert cost.exit_code in (0, 1), f"assay plan offer: exit code {cost.exit_code}"
    verdict = "" if cost.wall_s <= OFFER_LIMIT_S else "  TOO SLOW"
    took = f"{cost.wall_s:5.1f} s wall (limit {OFFER_LIMIT_S:g}) {cost.cpu_s:5.1f} s CPU"
    print(f"  {took}   assay plan offer{verdict}", flush=True)
    return cost.wall_s


class FirstStep(NamedTuple):
    """Wall-clock seconds to the end of a first step."""

    ours_s: float
    """A run, from the command on."""
    bare_s: float
    """As many processes of bare PyTorch."""


def first_steps(demo: Path, workers: int, *, starts: int) -> Iterator[FirstStep]:
    """Runs of the demo's recipe, and bare PyTorch, in turn."""
    recipe = yaml.safe_load((CHECKOUT / "src/assay/workflows/demo/classifier.yaml").read_text())
    recipe["data"]["dataset"] = str((demo / "demo" / "dataset").resolve())
    recipe["trainer"]["max_steps"] = 16
    (demo / "start.yaml").write_text(yaml.safe_dump(recipe))
    for number in range(starts):
        found = FirstStep(_first_step_s(demo, workers, f"start-{workers}-{number}"), _bare_s(workers))
        took = f"{found.ours_s:.2f} s (limit {FIRST_STEP_LIMITS_S[workers]:.1f})"
        bare = f"bare PyTorch {found.bare_s:.2f} s, {found.ours_s / found.bare_s:.2f} times that"
        print(f"  {number_of(workers, 'worker')}: first step after {took}; {bare}", flush=True)
        yield found


def _first_step_s(demo: Path, workers: int, run_id: str) -> float:
    shutil.rmtree(demo / run_id, ignore_errors=True)
    began_s = time.time()
    options = ["--workers", str(workers), "--run-id", run_id]
    assert call(["train", "start.yaml", *options], demo).exit_code == 0
    ended_s = []
    for path in segment_paths(demo / run_id):
        segment = read_segment(path)
        assert segment.header is not None
        ended_s.append(float(segment.header.wall_of(segment.metrics["loss"].at_s)[0]))
    return max(ended_s) - began_s


def _bare_s(workers: int) -> float:
    script = str(CHECKOUT / "benchmarks" / "commands_bare.py")
    with TemporaryDirectory() as folder:
        location, began_s = str(Path(folder) / "rendezvous"), time.time()
        processes = [
            subprocess.Popen(
                [sys.executable, script, str(rank), str(workers), location], stdout=subprocess.PIPE, text=True
            )
            for rank in range(workers)
        ]
        ended_s = [float(process.communicate()[0]) for process in processes]
    return max(ended_s) - began_s


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each command; of what is not there, at most 3")
    parser.add_argument("--starts", type=int, default=3, help="runs for each number of workers")
    parser.add_argument("--no-offer", dest="offer", action="store_false", help="leave 'assay plan offer' out")
    parser.add_argument("--home", type=Path, default=CHECKOUT / "build" / "commands")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    demo = demo_home(arguments.home.resolve())
    large = large_home(arguments.home.resolve(), demo)
    found: dict[str, list[float]] = {name: [] for name in LIMITS_S}

    def measure(kind: str, command: str, home: Path, exit_codes: Sequence[int] = (0,)) -> None:
        limit_s = LIMITS_S[kind]
        rounds = min(arguments.rounds, 3) if kind == "nothing there" else arguments.rounds
        found[kind].append(measured(command, home, rounds=rounds, limit_s=limit_s, exit_codes=exit_codes))

    measure("help", "--help", demo)
    for home, title in ((demo, "the demo's ledger"), (large, f"a ledger of {NUM_RUNS:,} runs")):
        print(title)
        with Home.at(home).open_ledger() as ledger:
            run_id = ledger.runs()[-1].run_id
        for kind, command in (
            ("runs", "runs"),
            ("runs", "runs --json"),
            ("show", f"runs show {run_id}"),
            ("show", f"runs show {run_id} --json"),
        ):
            measure(kind, command, home)
        for command in EMPTY_HOME_COMMANDS:
            measure("nothing there", command, home, exit_codes=(1, 2))
    print("the shipped program")
    measure("plan check", f"plan check {PROGRAM}", demo)
    offered_s = offer(demo) if arguments.offer else None
    print("from the command to the end of the first step")
    starts = {workers: list(first_steps(demo, workers, starts=arguments.starts)) for workers in (1, 2)}
    ours_s, bare_s = (
        {workers: statistics.median(getattr(step, side) for step in found) for workers, found in starts.items()}
        for side in FirstStep._fields
    )
    print(f"took {duration_text(time.monotonic() - began_s)}")
    result = {
        "help_cpu_s": max(found["help"]),
        "runs_cpu_s": max(found["runs"]),
        "show_cpu_s": max(found["show"]),
        "plan_check_cpu_s": max(found["plan check"]),
        "plan_offer_s": offered_s,
        "no_such_file_cpu_s": max(found["nothing there"]),
        "first_step_s": ours_s[1],
        "first_step_2_s": ours_s[2],
        "bare_first_step_s": bare_s[1],
        "bare_first_step_2_s": bare_s[2],
    }
    print_result({name: value for name, value in result.items() if value is not None}, digits=3)


if __name__ == "__main__":
    main()
