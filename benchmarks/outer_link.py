"""Outer steps over slow links, and synchronous training over the same links: `benchmarks/outer_link.py`.

    cluster a: eth0 --- 20 Mbit/s ---+
    cluster b: eth0 --- 20 Mbit/s ---+--- switch --- the S3 server in which clusters meet
    cluster c: eth0 --- 20 Mbit/s ---+

Each cluster is a network namespace with one worker. One recipe is trained twice: synchronously, with one rank for each
cluster, and by clusters that meet after every `--every` steps ('assay train --cluster a --meet s3://...'). For both
halves the benchmark prints the bytes that the busiest cluster's interface sent and received for each step, and the
seconds of a step; both count whole rounds of inner steps with their outer steps. `assay throughput --link` forecasts
both.

The last line is one JSON object. It takes root, `ip` and `tc` (Debian: iproute2), and moto's server.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from assay.base.config import read_config_file
from assay.store.attempts import saved_attempts
from assay.store.home import Home
from assay.store.metrics.segment import SegmentData, read_segment, segment_path
from assay.workflows.run import create_run
from cluster import step_ends_s
from harness import CHECKOUT, Target, assay, describe_machine, last_json, options_of, print_result, workspace
from network_links import Node, linked_nodes, require_namespaces

STORE_RATE = "10gbit"
STORE_PORT, LEADER_PORT = 5000, 29_600
BUCKET = "meeting"
NUM_ROWS, ROW_TOKENS, VOCABULARY = 12_000, 16, 1024
NUM_WEIGHTS = 3_672_320
SETTLING_STEPS = 2
"""The first steps of the synchronous half, which do not count: they connect the ranks and make the buckets."""
SAMPLE_S = 0.2
"""Between two looks at the interfaces' counters."""
TARGETS = {"fewer_bytes": 100.0, "faster_steps": 10.0}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


class Setting(NamedTuple):
    """What is trained, and over which links."""

    clusters: int
    rate: str
    every: int
    bits: int
    outer_steps: int
    synchronous_steps: int
    timeout_s: float


class Half(NamedTuple):
    """What one way of training took."""

    steps: int
    step_s: float
    """Seconds of a step with all that it waits for, on the slowest cluster."""
    sent_bytes: float
    """By the busiest cluster, for each step."""
    received_bytes: float
    pause_s: float = 0.0
    """Seconds of an outer step, on the slowest cluster: a commit, and the wait for all changes."""

    @property
    def carried_bytes(self) -> float:
        """Both ways together."""
        return self.sent_bytes + self.received_bytes

    def __str__(self) -> str:
        return (
            f"{self.steps} steps of {self.step_s:.3f} s; a step sends {self.sent_bytes / 1e6:.4f} MB and "
            f"receives {self.received_bytes / 1e6:.4f} MB"
        ) + (f"; an outer step pauses for {self.pause_s:.2f} s" if self.pause_s else "")


class Traffic(NamedTuple):
    """What the interfaces of some nodes had counted at some moments."""

    at_s: list[float]
    """Monotonic seconds."""
    counted: list[list[tuple[int, int]]]
    """[moment][node]: bytes sent, bytes received."""

    def sample(self, nodes: Sequence[Node]) -> None:
        """Read the counters now."""
        self.at_s.append(time.monotonic())
        self.counted.append([(node.sent_bytes(), node.received_bytes()) for node in nodes])

    def between(self, node: int, from_s: float, to_s: float) -> tuple[float, float]:
        """Return the bytes that a node sent between two moments, and those that it received."""
        counted = np.array(self.counted, np.float64)[:, node]
        sent, received = (np.diff(np.interp([from_s, to_s], self.at_s, of)).item() for of in counted.T)
        return sent, received


class Processes:
    """The commands of one half, one for each cluster."""

    def __init__(self, folder: Path, nodes: Sequence[Node], timeout_s: float) -> None:
        self._folder, self._nodes, self._timeout_s = folder, nodes, timeout_s
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start `assay` on the next node."""
        number = len(self._started)
        self._started.append(_started(self._nodes[number], ("assay", *arguments), environment, self._log(number)))

    def finish(self) -> Traffic:
        """Wait for all; return what their interfaces counted meanwhile."""
        deadline_s, traffic = time.monotonic() + self._timeout_s, Traffic([], [])
        try:
            traffic.sample(self._nodes)
            while any(process.poll() is None for process in self._started):
                if time.monotonic() > deadline_s or any(process.poll() for process in self._started):
                    break
                time.sleep(SAMPLE_S)
                traffic.sample(self._nodes)
            for number, process in enumerate(self._started):
                if process.poll() != 0:
                    raise RuntimeError(f"cluster {number}: exit code {process.poll()}\n{self._log(number).read_text()}")
        finally:
            for process in self._started:
                process.kill()
                process.wait()
        return traffic

    def _log(self, number: int) -> Path:
        return self._folder / f"cluster-{number}.log"


def _started(
    node: Node, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    here = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    source = {"PYTHONPATH": str(CHECKOUT / "src"), "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**here, **source, **environment},
            stdout=file,
            stderr=file,
            preexec_fn=node.enter,
        )


@contextmanager
def meeting_store(folder: Path, node: Node) -> Iterator[str]:
    """Run an S3 server with one bucket on the node; yield its address."""
    endpoint, log = f"http://{node.address}:{STORE_PORT}", folder / "store.log"
    server = _started(node, ("moto.server", "-H", node.address, "-p", str(STORE_PORT)), {}, log)
    make_bucket = ("ip", "netns", "exec", node.namespace, sys.executable, "-c", _MAKE_BUCKET, f"{endpoint}/{BUCKET}")
    try:
        created = subprocess.run(make_bucket, capture_output=True, text=True, check=False)
        if created.returncode:
            raise RuntimeError(f"no S3 server on {node.namespace}:\n{created.stderr}{log.read_text()}")
        yield endpoint
    finally:
        server.kill()
        server.wait()


_MAKE_BUCKET = """
import sys, time, urllib.error, urllib.request
until_s = time.monotonic() + 60
while True:
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="PUT")).close()
        break
    except urllib.error.URLError:
        if time.monotonic() > until_s:
            raise
        time.sleep(0.1)
"""


def write_recipe(folder: Path) -> Path:
    """Write rows of random tokens, and a recipe of `NUM_WEIGHTS` whose steps compute little."""
    (folder / "rows").mkdir()
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (NUM_ROWS, ROW_TOKENS), dtype=np.int32)
    parts = [f"part-{row // 100}" for row in range(NUM_ROWS)]
    table = pa.table({"input_ids": pa.array(list(tokens)), "shard_id": parts})
    pq.write_table(table, folder / "rows/part-0.parquet", row_group_size=500)
    assay("data", "index", str(folder / "rows"), "--no-label", "--out", str(folder / "dataset"))
    tree: dict[str, Any] = {
        "name": "link",
        "data": {"dataset": str(folder / "dataset"), "split": {"type": "hash", "validation_fraction": 0.01}},
        "loader": {"lanes": 4, "global_batch_size": 4, "window_rows": 64, "threads": 1},
        "method": {
            "type": "sft",
            "train_on": "all",
            "model": {
                "type": "new",
                "vocab_size": VOCABULARY,
                "hidden_size": 256,
                "num_layers": 4,
                "num_heads": 4,
                "intermediate_size": 768,
                "max_tokens": ROW_TOKENS,
                "tie_embeddings": True,
            },
        },
        "trainer": {
            "epochs": 1,
            "commit_every": 1_000_000,
            "spot_check_every": None,
            "optimizer": {"learning_rate": 1e-3},
        },
    }
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tree))
    return recipe


def synchronous(recipe: Path, nodes: Sequence[Node], setting: Setting) -> Half:
    """Train with one rank for each cluster."""
    loaded = read_config_file(recipe, [f"trainer.max_steps={setting.synchronous_steps}"])
    run = create_run(Home.from_environment(), loaded, run_id=f"synchronous-{setting.clusters}")
    processes = Processes(_folder(recipe.parent, run.run_id), nodes, setting.timeout_s)
    for number, node in enumerate(nodes):
        where = ("--node", str(number), "--address", node.address, "--lead", f"{nodes[0].address}:{LEADER_PORT}")
        of_all = ("--workers", str(setting.clusters), "--on", "nodes", "--workers-per-node", "1")
        processes.start(("train", "--resume", run.run_id, *of_all, *where), {})
    traffic = processes.finish()
    ends_s = step_ends_s(_segment(Path(run.run_dir)))
    moments = (ends_s[SETTLING_STEPS], ends_s[setting.synchronous_steps])
    return _half(traffic, [moments] * setting.clusters, setting.synchronous_steps - SETTLING_STEPS)


def semi_synchronous(recipe: Path, nodes: Sequence[Node], endpoint: str, setting: Setting) -> Half:
    """Train as clusters, each in a home of its own, that meet in the store."""
    steps, name = setting.every * setting.outer_steps, f"clusters-{setting.clusters}"
    folder = _folder(recipe.parent, name)
    processes, homes = Processes(folder, nodes, setting.timeout_s), []
    overrides = (f"trainer.max_steps={steps}", *outer_overrides(setting))
    for letter, _ in zip("abcdefgh", nodes, strict=False):
        homes.append(folder / f"home-{letter}")
        here = {"ASSAY_HOME": str(homes[-1]), "AWS_ENDPOINT_URL": endpoint, **CREDENTIALS}
        meets = ("--cluster", letter, "--meet", f"s3://{BUCKET}/{name}", "--run-id", letter)
        processes.start(("train", str(recipe), *overrides, *meets), here)
    traffic = processes.finish()
    segments = [_segment(home / home.name[-1]) for home in homes]
    parts = [number for segment in segments for number in segment.metrics["clusters"].values.tolist()]
    assert parts == [setting.clusters] * len(parts), f"some clusters were late: {parts} parts of outer steps"
    ends_s = [step_ends_s(segment) for segment in segments]
    # Outer steps have numbers, too. From the end of the first to that of the last, each has its inner steps before it.
    first, last = setting.every + 1, (setting.every + 1) * setting.outer_steps
    moments = [(of_cluster[first], of_cluster[last]) for of_cluster in ends_s]
    found = _half(traffic, moments, setting.every * (setting.outer_steps - 1))
    pauses = [
        [of_cluster[end] - of_cluster[end - 1] for end in range(2 * first, last + 1, first)] for of_cluster in ends_s
    ]
    return found._replace(pause_s=max(statistics.fmean(of_cluster) for of_cluster in pauses))


def outer_overrides(setting: Setting) -> tuple[str, ...]:
    """Return the overrides that make outer steps of the recipe."""
    keys = {
        "every": setting.every,
        "clusters": setting.clusters,
        "bits": setting.bits,
        "deadline_s": setting.timeout_s,
    }
    return tuple(f"outer.{key}={value}" for key, value in keys.items())


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def _half(traffic: Traffic, clusters: Sequence[tuple[float, float]], steps: int) -> Half:
    """Return what the steps took; `clusters` holds for each node when they began and ended."""
    moved = [traffic.between(node, *moments) for node, moments in enumerate(clusters)]
    sent, received = max(moved, key=sum)
    return Half(steps, max(to_s - from_s for from_s, to_s in clusters) / steps, sent / steps, received / steps)


def _segment(run_dir: Path) -> SegmentData:
    """Return what the first rank measured, of a run that was not interrupted."""
    [attempt] = saved_attempts(run_dir)
    assert attempt.outcome == "succeeded", attempt
    return read_segment(segment_path(run_dir, attempt.attempt, 0))


def forecasts(recipe: Path, setting: Setting) -> dict[str, float]:
    """Return what `assay throughput` forecasts for a step of each half."""
    link = f"{float(setting.rate.removesuffix('mbit')):g}Mbit/s"
    shown = assay("throughput", str(recipe), *outer_overrides(setting), "--workers", "1", "--link", link, "--json")
    [found] = last_json(shown)["clusters"]
    return {way: found["trainings"][way]["step_s"]["value"] for way in ("synchronous", "outer_steps")}


def measure(recipe: Path, setting: Setting) -> dict[str, float]:
    """Train both ways over the same links; return the figures of this number of clusters."""
    forecast = forecasts(recipe, setting)
    print(f"{setting.clusters} clusters, forecast: {forecast}", flush=True)
    with linked_nodes(setting.clusters, setting.rate, others=(STORE_RATE,)) as (*nodes, store):
        together = synchronous(recipe, nodes, setting)
        print(f"{setting.clusters} clusters, synchronous: {together}", flush=True)
        with meeting_store(recipe.parent, store) as endpoint:
            apart = semi_synchronous(recipe, nodes, endpoint, setting)
    print(f"{setting.clusters} clusters, outer steps: {apart}", flush=True)
    return {
        "fewer_bytes": together.carried_bytes / apart.carried_bytes,
        "faster_steps": together.step_s / apart.step_s,
        "synchronous_step_s": together.step_s,
        "synchronous_forecast_error": forecast["synchronous"] / together.step_s - 1,
        "outer_step_s": apart.step_s,
        "outer_pause_s": apart.pause_s,
        "outer_forecast_error": forecast["outer_steps"] / apart.step_s - 1,
    }


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__)
    parser.add_argument("--clusters", type=int, action="append", help="how many; may be repeated; by default 2 and 3")
    parser.add_argument("--rate", default="20mbit", help="of each cluster's link, each way, as tc has it")
    parser.add_argument("--every", type=int, default=25, help="inner steps between two outer steps")
    parser.add_argument("--bits", type=int, default=4, help="of a weight's change")
    parser.add_argument("--outer-steps", type=int, default=5)
    parser.add_argument("--synchronous-steps", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each half")
    options = parser.parse_args()
    require_namespaces()
    describe_machine()
    figures: dict[str, float] = {}
    with workspace() as folder:
        recipe = write_recipe(folder)
        for clusters in options.clusters or (2, 3):
            setting = Setting(
                clusters,
                options.rate,
                options.every,
                options.bits,
                options.outer_steps,
                options.synchronous_steps,
                options.timeout,
            )
            found = measure(recipe, setting)
            figures |= {f"{name}_{clusters}": value for name, value in found.items()}
    targets = [Target(name, TARGETS[name.rpartition("_")[0]], False) for name in figures if name[:-2] in TARGETS]
    print_result(figures, targets)


if __name__ == "__main__":
    main()
