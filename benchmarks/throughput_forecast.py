"""Forecasts of `assay throughput` beside the cluster whose lanes sleep: `benchmarks/throughput_forecast.py`.

For each case, as a user would: the recipe is calibrated on one and two workers of this machine, and the steps
of 4 to 32 workers, a node each, are forecast. Then a real cluster trains on as many nodes (`cluster.py`), and
its steps are put beside. The network that is stated is what a run's own probe of its links measures on two
nodes.

The last line printed is one JSON object: `forecast_within_5_percent` and `forecast_within_interval` are
shares of the cells, `forecast_worst_error` is that of a step, `device_hours_worst_error` that of a run in which
ranks die.
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from assay.distributed import link_probe
from assay.distributed.ranks import Ranks
from assay.records.throughput import (
    NetworkLink,
    ThroughputCalibration,
    ThroughputForecast,
    TimedMessage,
    TwoWorkers,
    WorldSizeForecast,
)
from assay.throughput.cluster import measured_link
from cluster import Cluster, MeasuredSteps, Setting, cluster, described, trained
from harness import describe_machine, options_of, print_result
from network_links import forked_at, linked_nodes, require_namespaces

WORKERS = (4, 7, 8, 16, 32)
PORT = 29_555
TIMEOUT_S = 600.0
WITHIN = 0.05
BASE = Setting(0, 0, lane_s=0.25, step_time_sd=0.1, gradient_bytes=250_000, rate="6mbit", steps=14)
"""Workers and nodes are filled in. A message of 32 nodes takes 5 ms of two processors: links have to be so slow
that a share of a gradient takes longer."""
CASES: dict[str, Setting] = {
    "compute": BASE,
    "network": BASE._replace(lane_s=0.15, step_time_sd=0.05, gradient_bytes=2_000_000, rate="40mbit"),
    "buckets": BASE._replace(gradient_bytes=2_000_000, rate="16mbit"),
    "stragglers": BASE._replace(step_time_sd=0.3, steps=50),
    "loader": BASE._replace(
        lane_s=0.05,
        row_s=0.0125,
        rows_per_lane=20,
        group_rows=40,
        steps=50,
        loader={"window_rows": 40, "shuffle_radius_windows": 0},
    ),
    "commits": BASE._replace(lane_s=0.15, gradient_bytes=1_000_000, rate="12mbit", commit_every=2),
}
KILLED = BASE._replace(lane_s=0.15, gradient_bytes=1_000_000, rate="25mbit", commit_every=4, steps=60)
KILLED_WORKERS, KILLED_AT = (4, 8), ((14, 1), (31, 0), (48, 2))
"""Steps, and which rank dies there while it computes: one, two and three steps behind a commit that is durable,
two on average as of deaths that come at any time."""
SLOW_WORKERS, STEP_OF_ONE_S = 32, 12.0
"""What so many nodes keep books for takes this machine's two processors a tenth of a second a step, for which
each node of a cluster has its own. So lanes, rows and links are slower there: by as much as leaves a
calibration of a minute the five steps that it needs."""


class Cell(NamedTuple):
    """A number of workers of a case."""

    forecast: WorldSizeForecast
    measured: MeasuredSteps

    @property
    def forecast_s(self) -> float:
        """A step, commits included."""
        return self.forecast.step_s.value + self.forecast.terms["commits"]

    @property
    def error(self) -> float:
        """As a share of what was measured."""
        return self.forecast_s / self.measured.step_s - 1

    @property
    def is_within_interval(self) -> bool:
        """The measured step lies in the 90% interval."""
        step, commits_s = self.forecast.step_s, self.forecast.terms["commits"]
        assert step.low is not None and step.high is not None, "a forecast has an interval"
        return step.low + commits_s <= self.measured.step_s <= step.high + commits_s


def between_nodes(rate: str) -> NetworkLink:
    """What a link carries and what a message costs, as the probe of a run on two nodes measures it."""
    with tempfile.TemporaryDirectory() as folder, linked_nodes(2, rate) as nodes:
        found = Path(folder) / "found.json"

        def be_rank(rank: int) -> None:
            meeting = f"tcp://{nodes[0].address}:{PORT}"
            ranks = Ranks.join(rank=rank, world_size=2, rendezvous=meeting, num_threads=1)
            assert ranks.outer is not None
            link_probe.WARMUP_ROUNDS, link_probe.ROUNDS = 1, 5  # four megabytes take seconds
            probed = link_probe.probe_links(ranks.outer, torch.device("cpu"))
            spans = [span for span in probed if span[0].startswith("swapped")]
            if rank == 0:
                found.write_text(json.dumps([(int(name.split()[1]), end - begin) for name, begin, end in spans]))
            ranks.leave()

        forked_at(nodes, be_rank)
        messages = [TimedMessage(num_bytes=size, seconds=took) for size, took in json.loads(found.read_text())]
    return measured_link(
        TwoWorkers(num_nodes=2, num_steps=1, step_s=1, contention=1, messages=tuple(messages), added_bytes_per_s=1)
    )


class Forecasts:
    """By the command, with a calibration that is made for the case."""

    def __init__(self, launched: Cluster, seconds: float) -> None:
        self._launched, self._recipe = launched, str(launched.folder / "recipe.yaml")
        calibration = launched.folder / "calibration.json"
        launched.assay(
            "throughput", self._recipe, "--workers", "1", "--measure", str(seconds), "--out", str(calibration)
        )
        self.calibration = ThroughputCalibration.from_json(calibration.read_bytes(), source=calibration)
        assert self.calibration.two_workers is not None, "two workers fit on two processors"
        self._here = measured_link(self.calibration.two_workers)

    def of(self, workers: int, link: NetworkLink, *options: str) -> WorldSizeForecast:
        """A node each."""
        [found] = self.full_forecast(workers, link, *options).sizes
        return found

    def full_forecast(self, workers: int, link: NetworkLink, *options: str) -> ThroughputForecast:
        """Likewise, all that the command says."""
        # What a message costs on this machine the forecast adds by itself.
        latency_s = max(0.0, link.latency_s - self._here.latency_s)
        network = f"{link.bytes_per_s / 1e6:.3f}MB/s,{latency_s * 1e6:.0f}us"
        request = ("--workers", str(workers), "--devices-per-node", "1", "--network", network, *options)
        shown = self._launched.assay("throughput", self._recipe, *request, "--json")
        return ThroughputForecast.from_json(shown, source="assay throughput")


def measured(setting: Setting) -> MeasuredSteps:
    """Of a cluster that trains."""
    [found] = trained(setting, timeout_s=TIMEOUT_S)
    return found


def slowed(setting: Setting) -> Setting:
    """As slow as it may be for `SLOW_WORKERS`."""
    by = STEP_OF_ONE_S / (setting.lanes * max(setting.lane_s, setting.rows_per_lane * setting.row_s))
    mbit = float(setting.rate.removesuffix("mbit")) / by
    return setting._replace(lane_s=setting.lane_s * by, row_s=setting.row_s * by, rate=f"{mbit:g}mbit")


def case_cells(name: str, sizes: Sequence[int], seconds: float) -> list[Cell]:
    """Of all sizes; the slow ones have a calibration of their own."""
    quick = [size for size in sizes if size < SLOW_WORKERS]
    slow = [size for size in sizes if size >= SLOW_WORKERS]
    kinds = ((CASES[name], quick), (slowed(CASES[name]), slow))
    return [cell for setting, some in kinds if some for cell in cells_of(name, setting, some, seconds)]


def cells_of(name: str, setting: Setting, sizes: Sequence[int], seconds: float) -> list[Cell]:
    """Forecast, then measured."""
    print(f"{name}: {setting}\n  workers  forecast                measured  error  binds", flush=True)
    cells = []
    link = between_nodes(setting.rate)
    print(f"  a link of {link.bytes_per_s / 1e6:.3f} MB/s, {1e3 * link.latency_s:.1f} ms")
    with cluster(setting._replace(workers=1, nodes=1)) as created:
        forecasts = Forecasts(created, seconds)
        for size in sizes:
            found = forecasts.of(size, link)
            cells.append(cell := Cell(found, measured(setting._replace(workers=size, nodes=size))))
            step, out = found.step_s, "" if cell.is_within_interval else "  beyond the interval"
            print(
                f"  {size:7}  {cell.forecast_s:.3f} [{step.low:.3f}, {step.high:.3f}]  "
                f"{cell.measured.step_s:8.3f}  {cell.error:+.1%}  {found.binds}{out}\n"
                f"           of {_terms(found)}\n           {described(cell.measured)}",
                flush=True,
            )
    return cells


def _terms(found: WorldSizeForecast) -> str:
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in found.terms.items() if seconds >= 0.0005)


class Killed(NamedTuple):
    """A run whose ranks were killed, from its first step on."""

    hours: float
    restart_s: float
    """The mean, from a death until steps begin."""


def killed(setting: Setting, deaths: Sequence[tuple[int, int]]) -> Killed:
    """Train, and have ranks die; all nodes stay."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as plan:
        plan.write(yaml.safe_dump({"faults": [
            {"type": "kill", "attempt": attempt, "step": step, "rank": rank, "phase": "compute"}
            for attempt, (step, rank) in enumerate(deaths, 1)
        ]}))  # fmt: skip
        plan.flush()
        with cluster(setting._replace(options=("--faults", plan.name))) as created:
            created.start()
            created.wait(TIMEOUT_S)
            attempts = created.attempts()
            assert [item.world_size for item in attempts] == [setting.workers] * (1 + len(deaths)), attempts
            first_steps = [created.first_step_s(attempt) for attempt in attempts]
    ended = [attempt.ended_s for attempt in attempts]
    assert None not in ended
    restarts = [after - end for end, after in zip(ended, first_steps[1:], strict=False) if end is not None]
    return Killed(((ended[-1] or 0.0) - first_steps[0]) / 3600, statistics.fmean(restarts))


def device_hours_errors(seconds: float) -> list[float]:
    """Of whole runs whose ranks are killed; what a restart takes is measured first, by one death."""
    errors = []
    with cluster(KILLED._replace(workers=1, nodes=1)) as created:
        forecasts = Forecasts(created, seconds)
        for size in KILLED_WORKERS:
            setting = KILLED._replace(workers=size, nodes=size)
            restart_s = killed(setting._replace(steps=8), [(6, 1)]).restart_s
            found = killed(setting, KILLED_AT)
            rate = len(KILLED_AT) / (size * found.hours)
            stated = ("--failures", f"{rate}/h", "--restart", f"{restart_s}")
            forecast = forecasts.of(size, between_nodes(setting.rate), *stated)
            hours = forecast.device_hours.value - size * forecasts.calibration.start_s / 3600
            errors.append(hours / (size * found.hours) - 1)
            print(f"  {size} workers: {errors[-1]:+.1%}", flush=True)
            print(f"    forecast {hours:.4f} h, {forecast.failures:.2f} failures, {restart_s:.1f} s to restart")
            print(f"    measured {size * found.hours:.4f} h, {len(KILLED_AT)}, {found.restart_s:.1f} s")
    return errors


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__)
    parser.add_argument("--only", action="append", choices=[*CASES, "kills"], help="a case; may be repeated")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), help="numbers of workers")
    parser.add_argument("--seconds", type=float, default=60.0, help="that a calibration measures each")
    options = parser.parse_args()
    require_namespaces()
    describe_machine()
    sizes = [int(item) for item in options.workers.split(",")]
    request = options.only or [*CASES, "kills"]
    cells = [cell for name in request if name in CASES for cell in case_cells(name, sizes, options.seconds)]
    figures: dict[str, float] = {}
    if cells:
        errors = [abs(cell.error) for cell in cells]
        figures |= {
            "forecast_cells": len(cells),
            "forecast_within_5_percent": statistics.fmean(error <= WITHIN for error in errors),
            "forecast_worst_error": max(errors),
            "forecast_within_interval": statistics.fmean(cell.is_within_interval for cell in cells),
        }
    if "kills" in request:
        figures["device_hours_worst_error"] = max(map(abs, device_hours_errors(options.seconds)))
    print_result(figures, digits=3)


if __name__ == "__main__":
    main()
