"""Advice of `assay throughput --advise`, followed on a cluster of sleeping lanes: `benchmarks/throughput_advice.py`.

For each case the recipe is calibrated, and the changes that the command ranks are made one after another: a
real cluster trains as it was and with each change. A gain is the share of the time that as many rows take less,
commits included. Changes that are forecast to cost time are not followed.

The last line printed is one JSON object: how many changes were followed, `advice_worst_error`, in points, and
`advice_first_is_best`, the share of cases whose first change gained the most, to `SAME` points.
"""

import json
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from assay.records.throughput import ThroughputAdvice
from cluster import MeasuredSteps, Setting, cluster, described
from harness import describe_machine, options_of
from network_links import require_namespaces
from throughput_forecast import BASE, Forecasts, between_nodes, measured
from throughput_forecast import CASES as FORECAST

WHOLE_RUN = 5_000
"""Steps of the recipe that is forecast: beside so many the start of a run is nothing."""
SAME = 1.0
"""Points: gains that differ by less are as good."""


class Case(NamedTuple):
    """What is trained, and on how many nodes."""

    setting: Setting
    workers: int


NETWORK, LOADER = BASE._replace(lane_s=0.15, gradient_bytes=2_000_000, rate="40mbit"), FORECAST["loader"]
CASES = {
    "network": Case(NETWORK, 8),
    "uneven": Case(BASE._replace(lane_s=0.3), 12),
    "commits": Case(BASE._replace(lane_s=0.1, gradient_bytes=1_000_000, rate="25mbit", commit_every=1), 8),
    "loader": Case(LOADER._replace(steps=30), 4),
    "too-many": Case(NETWORK._replace(gradient_bytes=1_000_000), 20),
}


class Followed(NamedTuple):
    """One change."""

    promised: float
    """Points,"""
    gained: float
    """and what it was."""


def changed(case: Case, advice: ThroughputAdvice) -> Setting:
    """As the command says it: overrides of the recipe, and options of `assay train`."""
    keys = [override for override in advice.overrides if not override.startswith("--")]
    options = [word for override in advice.overrides if override.startswith("--parallel") for word in override.split()]
    size = advice.world_size
    return case.setting._replace(workers=size, nodes=size, overrides=keys, options=options)


def row_s(found: MeasuredSteps, setting: Setting) -> float:
    """Seconds a row."""
    keys = dict(override.split("=") for override in setting.overrides)
    batch = int(keys.get("loader.global_batch_size", setting.lanes * setting.rows_per_lane))
    return found.step_s / batch


def followed(name: str, case: Case, seconds: float, max_changes: int | None = None) -> list[Followed]:
    """Measure the case as it is, then with the first `max_changes` changes that save time, in the advice's order."""
    setting = case.setting._replace(workers=case.workers, nodes=case.workers)
    print(f"{name}: {case.workers} workers, {setting}", flush=True)
    with cluster(setting._replace(workers=1, nodes=1, steps=WHOLE_RUN)) as created:
        forecasts = Forecasts(created, seconds)
        link = between_nodes(setting.rate)
        events = forecasts.full_forecast(case.workers, link, "--advise").advice
    now = measured(setting)
    print(f"  as it is: {described(now)}", flush=True)
    found = []
    for advice in [advice for advice in events if advice.time_saved > 0][:max_changes]:
        then = measured(advised := changed(case, advice))
        gained = 1 - row_s(then, advised) / row_s(now, setting)
        found.append(Followed(100 * advice.time_saved, 100 * gained))
        print(f"  {advice.change}: {found[-1].promised:.1f} points promised, {found[-1].gained:.1f} gained")
        print(f"    {described(then)}", flush=True)
    return found


def first_is_best(found: Sequence[Followed]) -> bool:
    """To `SAME` points."""
    return found[0].gained >= max(item.gained for item in found) - SAME


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="a case; may be repeated")
    parser.add_argument("--seconds", type=float, default=60.0, help="that a calibration measures each")
    options = parser.parse_args()
    require_namespaces()
    describe_machine()
    by_case = {name: followed(name, CASES[name], options.seconds) for name in options.only or CASES}
    errors = [abs(item.gained - item.promised) for found in by_case.values() for item in found]
    figures = {
        "advice_followed": len(errors),
        "advice_worst_error": round(max(errors), 2),
        "advice_first_is_best": statistics.fmean(first_is_best(found) for found in by_case.values() if found),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
