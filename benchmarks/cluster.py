"""A cluster on this machine whose lanes sleep their time: `benchmarks/cluster.py --workers 8 --lane-s 0.2`.

All else is real: each node is a network namespace behind a slow link, with a supervisor of its own as a job of
Slurm would start it ('assay train --on nodes'), ranks, exchanges, commits and restarts. The lanes compute
next to nothing, so 32 nodes fit on two cores. The method that sleeps is a benchmark's own, `asleep/` beside
this file; it is laid into a copy of the source as the architecture page says of any.

Printed are what a step took, and in which phases its ranks were meanwhile; the last line is one JSON object. It
takes root, `ip` and `tc` (Debian: iproute2).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from assay.records.run import Attempt
from assay.store.attempts import saved_attempts
from assay.store.metrics.segment import SegmentData, read_segment, segment_path
from harness import options_of
from network_links import Node, linked_nodes, require_namespaces

HERE = Path(__file__).parent
SRC = HERE.parent / "src"
REGISTRY = "assay/training/methods/registry.py"
ASLEEP = '    Entry("asleep", config="AsleepConfig", method="AsleepMethod"),\n'
READER = "assay/data/dataset/split.py"
READ = "        table = self.dataset.read_row_group(group, columns)\n"
SLEEPS = """\
        import os, time
        time.sleep(float(os.environ["ASLEEP_ROW_S"]) * int(self.num_rows[group]))
"""
"""A loader that is slow sleeps before it reads."""
RUN_ID = "asleep"
LINK_PORT = 29_600
NUM_ROWS = 40_000
SETTLING_STEPS = 3
"""The first of an attempt, which are not measured: connections are made, and DDP makes its buckets anew."""
LEAVE_S = 60.0


class Setting(NamedTuple):
    """What is trained, on what."""

    workers: int
    nodes: int
    """As many workers on each, one more on the first ones where that does not come out even."""
    lanes: int = 32
    lane_s: float = 0.1
    step_time_sd: float = 0.1
    gradient_bytes: int = 1_000_000
    num_stages: int = 4
    row_s: float = 0.0
    """Seconds for which reading a row sleeps."""
    rows_per_lane: int = 2
    group_rows: int = 500
    loader: Mapping[str, int] = {}
    """Keys of the recipe's loader, beside those that follow from the above."""
    rate: str = "100mbit"
    delay: str = ""
    steps: int = 20
    commit_every: int | str = 1_000_000
    seed: int = 0
    slowness: Mapping[int, float] = {}
    """Node -> by how much longer its lanes take."""
    options: Sequence[str] = ()
    """Of 'assay train', for all nodes."""
    overrides: Sequence[str] = ()
    """Of the recipe."""


class MeasuredSteps(NamedTuple):
    """Of one attempt, behind its first ones."""

    attempt: int
    workers: int
    loads: tuple[int, ...]
    steps: int
    step_s: float
    """The mean, commits included."""
    median_step_s: float
    phases: dict[str, float]
    """Seconds a step in each phase, over the ranks: they sum to `step_s`."""
    most_own_s: float
    """What the busiest rank was in `data` and `compute` for, a step."""


class Cluster:
    """A run and the nodes that train it."""

    def __init__(self, folder: Path, slots: Sequence[Node], setting: Setting) -> None:
        self.folder, self.slots, self._setting = folder, slots, setting
        self.run_dir = folder / "home" / RUN_ID
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        """By number."""
        self.lent: list[subprocess.Popen[bytes]] = []
        here = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
        self._environment = {
            **here,  # in a node it is found anew
            "PYTHONPATH": str(_copied_source(folder)),
            "ASSAY_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
            "ASLEEP_ROW_S": str(setting.row_s),
        }
        _write_rows(folder / "rows", setting.group_rows)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(_recipe(folder, setting)))
        self.assay("data", "index", str(folder / "rows"), "--no-label", "--out", str(folder / "dataset"))
        self._python(_MAKE_RUN, str(folder / "recipe.yaml"), *setting.overrides)

    def start(self) -> None:
        """All nodes of the allocation."""
        for number in range(self._setting.nodes):
            self.nodes[number] = self._started(number, self._train(number))

    def lend(self, slot: int) -> "subprocess.Popen[bytes]":
        """Start 'assay train join' at this place."""
        self.lent.append(self._started(slot, ["train", "join", RUN_ID]))
        return self.lent[-1]

    def wait(self, timeout_s: float) -> None:
        """Until the run is over on every node of the allocation that was not killed; raises what they said."""
        deadline_s = time.monotonic() + timeout_s
        for number, node in self.nodes.items():
            code = node.wait(max(1.0, deadline_s - time.monotonic()))
            if code not in (0, 75, -9):
                raise RuntimeError(f"node {number} ended with exit code {code}:\n{self.words(number)}")

    def words(self, slot: int) -> str:
        """What a place printed."""
        return self._words(slot).read_text(errors="replace")

    def close(self) -> None:
        """Nobody is left."""
        for process in (*self.nodes.values(), *self.lent):
            process.kill()
            process.wait()

    def attempts(self) -> list[Attempt]:
        """Those on record."""
        return saved_attempts(self.run_dir)

    def last_commit(self) -> int:
        """Step of the newest; 0 where there is none."""
        steps = [int(path.name.partition("-")[0]) for path in self.run_dir.glob("checkpoints/*-*")]
        return max(steps, default=0)

    def until(self, is_so: Callable[[], bool], timeout_s: float = 240.0) -> None:
        """Poll; raises where a node ends instead, or nothing comes of it."""
        deadline_s = time.monotonic() + timeout_s
        while not is_so():
            gone = [number for number, node in self.nodes.items() if node.poll() not in (None, 0, 75, -9)]
            if gone or time.monotonic() > deadline_s:
                output = "\n".join(self.words(number) for number in gone or self.nodes)
                raise RuntimeError(f"waited in vain; of the nodes, {gone} failed:\n{output}")
            time.sleep(0.05)

    def assay(self, *arguments: str) -> str:
        """What a command prints, of the copy that knows the method."""
        return self._python("from assay.cli.main import main; main()", *arguments)

    def measured(self, attempt: Attempt) -> MeasuredSteps:
        """What the steps of an attempt took."""
        segments = [
            read_segment(segment_path(self.run_dir, attempt.attempt, rank)) for rank in range(attempt.world_size)
        ]
        return _measured(attempt, segments)

    def first_step_s(self, attempt: Attempt) -> float:
        """When an attempt began its first step: seconds since the Unix epoch."""
        segment = read_segment(segment_path(self.run_dir, attempt.attempt, 0))
        assert segment.header is not None, attempt
        began_s, phases = segment.phase_changes
        return float(segment.header.wall_of(began_s)[list(phases).index("data")])

    def last_step_s(self, attempt: Attempt) -> float:
        """When an attempt ended its last step, likewise."""
        segment = read_segment(segment_path(self.run_dir, attempt.attempt, 0))
        assert segment.header is not None, attempt
        ended_s = np.array([max(step_ends_s(segment).values())])
        return float(segment.header.wall_of(ended_s)[0])

    def _train(self, node: int) -> list[str]:
        setting = self._setting
        options = {
            "node": node,
            "address": self.slots[node].address,
            "lead": f"{self.slots[0].address}:{LINK_PORT}",
            "workers-per-node": -(-setting.workers // setting.nodes),
        }
        return [
            "train",
            "--resume",
            RUN_ID,
            "--workers",
            str(setting.workers),
            "--on",
            "nodes",
            *(f"--{name}={value}" for name, value in options.items()),
            *setting.options,
        ]

    def _started(self, slot: int, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        slowness = str(self._setting.slowness.get(slot, 1.0))
        with self._words(slot).open("ab") as words:
            return subprocess.Popen(
                [sys.executable, "-m", "assay", *command],
                env={**self._environment, "ASLEEP_SLOWNESS": slowness},
                stdout=words,
                stderr=words,
                preexec_fn=self.slots[slot].enter,
            )

    def _words(self, slot: int) -> Path:
        return self.folder / f"node-{slot}.log"

    def _python(self, program: str, *arguments: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


_MAKE_RUN = f"""
import sys
from pathlib import Path
from assay.base.config import read_config_file
from assay.workflows.run import create_run
from assay.store.home import Home
create_run(Home.from_environment(), read_config_file(Path(sys.argv[1]), sys.argv[2:]), run_id="{RUN_ID}")
"""


def _copied_source(folder: Path) -> Path:
    """`src`, with the method that sleeps in place of all others, for which many fork servers have no room."""
    source = folder / "src"
    shutil.copytree(SRC, source, ignore=shutil.ignore_patterns("*.pyc.*", "*.egg-info"))
    shutil.copytree(HERE / "asleep", source / "assay/training/methods/asleep")
    lines = (source / REGISTRY).read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith("    Entry("))
    others = [line for line in lines if not line.startswith("    Entry(")]
    (source / REGISTRY).write_text("".join([*others[:first], ASLEEP, *others[first:]]))
    reader = (source / READER).read_text()
    assert reader.count(READ) == 1, "the reader of row groups is another one"
    (source / READER).write_text(reader.replace(READ, SLEEPS + READ))
    return source


def _write_rows(folder: Path, group_rows: int) -> None:
    """Seeded, of 1 to 8 tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, NUM_ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = rng.integers(0, 1000, int(offsets[-1]), dtype=np.int32)
    folder.mkdir()
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    table = pa.table({"input_ids": lists, "shard_id": [f"part-{row // 100}" for row in range(NUM_ROWS)]})
    pq.write_table(table, folder / "part-0.parquet", row_group_size=group_rows)


def _recipe(folder: Path, setting: Setting) -> dict[str, object]:
    batch, window_rows = setting.rows_per_lane * setting.lanes, max(64, 2 * setting.rows_per_lane)
    return {
        "name": RUN_ID,
        "seed": setting.seed,
        "data": {"dataset": str(folder / "dataset"), "split": {"type": "hash", "validation_fraction": 0.01}},
        "loader": {
            "lanes": setting.lanes,
            "global_batch_size": batch,
            "window_rows": window_rows,
            "threads": 1,
            **setting.loader,
        },
        "method": {
            "type": "asleep",
            "lane_s": setting.lane_s,
            "lane_rows": setting.rows_per_lane,
            "step_time_sd": setting.step_time_sd,
            "gradient_bytes": setting.gradient_bytes,
            "num_stages": setting.num_stages,
        },
        "trainer": {
            "epochs": 1000,
            "max_steps": setting.steps,
            "commit_every": setting.commit_every,
            "spot_check_every": None,
            "optimizer": {"learning_rate": 0.01},
        },
    }


def _measured(attempt: Attempt, segments: Sequence[SegmentData]) -> MeasuredSteps:
    """From one step's end to another's, by rank 0; each rank's phases between its own ends of the two."""
    ends = [step_ends_s(segment) for segment in segments]
    steps = sorted(set.intersection(*(set(of_rank) for of_rank in ends)))[SETTLING_STEPS - 1 :]
    if len(steps) < 3:
        raise RuntimeError(
            f"attempt {attempt.attempt} made too few steps to measure, for the first {SETTLING_STEPS} do not "
            "count. Give more --steps."
        )
    first, last = steps[0], steps[-1]
    by_rank = [_phases(segment, of_rank[first], of_rank[last]) for segment, of_rank in zip(segments, ends, strict=True)]
    names = sorted({name for phases in by_rank for name in phases})
    took_s = np.diff([ends[0][step] for step in steps])
    return MeasuredSteps(
        attempt=attempt.attempt,
        workers=attempt.world_size,
        loads=attempt.loads,
        steps=len(took_s),
        step_s=float(np.mean(took_s)),
        median_step_s=float(np.median(took_s)),
        phases={name: statistics.fmean(of_rank.get(name, 0.0) for of_rank in by_rank) / len(took_s) for name in names},
        most_own_s=max(entry.get("data", 0.0) + entry.get("compute", 0.0) for entry in by_rank) / len(took_s),
    )


def step_ends_s(segment: SegmentData) -> dict[int, float]:
    """When each step ended; what an evaluation writes down of it comes later."""
    steps, first = np.unique(segment.step_ends.steps, return_index=True)
    return dict(zip(steps.tolist(), segment.step_ends.at_s[first].tolist(), strict=True))


def _phases(segment: SegmentData, from_s: float, to_s: float) -> dict[str, float]:
    """Seconds of a rank in each phase."""
    began_s, names = segment.phase_changes
    ends_s = [*began_s[1:], np.inf]
    found: dict[str, float] = {}
    for name, begins, ends in zip(names, began_s, ends_s, strict=True):
        spent_s = min(float(ends), to_s) - max(float(begins), from_s)
        if spent_s > 0:
            found[name] = found.get(name, 0.0) + spent_s
    return found


@contextmanager
def cluster(setting: Setting, *, spare: int = 0) -> Iterator[Cluster]:
    """Its nodes are not started yet; `spare`: places for nodes that may be lent."""
    with (
        tempfile.TemporaryDirectory(prefix="assay-cluster-") as folder,
        linked_nodes(setting.nodes + spare, setting.rate, setting.delay) as locations,
    ):
        created = Cluster(Path(folder), locations, setting)
        try:
            yield created
        finally:
            created.close()


def trained(setting: Setting, *, timeout_s: float) -> list[MeasuredSteps]:
    """What the steps of each attempt took that made enough of them, from the first to the last one."""
    with cluster(setting) as created:
        created.start()
        created.wait(timeout_s)
        return [created.measured(attempt) for attempt in created.attempts()]


def described(found: MeasuredSteps) -> str:
    """A line for a person."""
    phases = ", ".join(f"{name} {seconds:.3f}" for name, seconds in found.phases.items())
    loads = f"{min(found.loads)} to {max(found.loads)} lanes" if found.loads else "lanes in rounds"
    return (
        f"attempt {found.attempt}: {found.workers} workers of {loads}, {found.steps} steps of "
        f"{found.step_s:.3f} s (median {found.median_step_s:.3f}): {phases}; the busiest works "
        f"{found.most_own_s:.3f} s"
    )


def _options() -> argparse.Namespace:
    parser = options_of(__doc__)
    parser.add_argument("--workers", type=int, default=8, help="ranks")
    parser.add_argument("--nodes", type=int, help="namespaces that they are spread over; by default, one each")
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--lane-s", type=float, default=0.1, help="mean seconds of a lane's forward and backward")
    parser.add_argument("--step-time-sd", type=float, default=0.1, help="of its logarithm: the time is lognormal")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="of the gradient")
    parser.add_argument("--stages", type=int, default=4, help="parts whose gradients are ready one after another")
    parser.add_argument("--rate", default="100mbit", help="of each node's link, each way, as tc has it")
    parser.add_argument("--delay", default="", help="of each node's link (5ms), where the kernel has netem")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--commit-every", default="1000000", help="steps, or auto; by default at the end only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", action="append", default=[], metavar="NODE:FACTOR", help="lanes take longer there")
    parser.add_argument("--share", choices=["equal", "speed"], default="equal")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--faults", help="a fault plan (YAML)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds")
    return parser.parse_args()


def main() -> None:
    """Train and print."""
    options = _options()
    require_namespaces()
    everything = options.commit_every
    faults = ("--faults", str(Path(options.faults).resolve())) if options.faults else ()
    setting = Setting(
        workers=options.workers,
        nodes=options.nodes or options.workers,
        lanes=options.lanes,
        lane_s=options.lane_s,
        step_time_sd=options.step_time_sd,
        gradient_bytes=options.bytes,
        num_stages=options.stages,
        rate=options.rate,
        delay=options.delay,
        steps=options.steps,
        commit_every=everything if everything == "auto" else int(everything),
        seed=options.seed,
        slowness={int(node): float(by) for node, _, by in (slow.partition(":") for slow in options.slow)},
        options=("--share", options.share, "--parallel", options.parallel, *faults),
    )
    found = trained(setting, timeout_s=options.timeout)
    for item in found:
        print(described(item))
    print(json.dumps(_rounded(found[-1])))


def _rounded(found: MeasuredSteps) -> dict[str, object]:
    phases = {f"{name}_s": round(seconds, 4) for name, seconds in found.phases.items()}
    figures = {name: round(value, 4) if isinstance(value, float) else value for name, value in found._asdict().items()}
    del figures["phases"]
    return {**figures, **phases}


if __name__ == "__main__":
    main()
