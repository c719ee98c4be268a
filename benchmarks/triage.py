"""Does `assay triage` name what is at fault, and nobody where nothing is?

    python benchmarks/triage.py [--quick [N]] [--only failures,size,changes,logs,fixed]

failures  made-up fleets (`triage_fleets.py`) of 500 attempts with a culprit of one of seven kinds, and
          without; beside it a G-test
size      100,000 attempts x 8 factors, and all that `assay triage` asks of 1,000 runs on record, each by
          the command itself, in a process of its own
changes   steps of two standard deviations in published benchmark results; noise alone (`triage_series.py`);
          beside it t-tests of neighbours
logs      real logs of failed CI jobs; beside it the last line with "error"
fixed     looked at after every attempt; beside it Fisher's exact test at each look

Times are CPU-seconds, which other work on the machine disturbs least. What needs the published data is left
out and named where $ASSAY_DATA is not there. The last line printed is one JSON object.
"""

import csv
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from assay.base.config import read_config_file, validated
from assay.records.failure_causes import FailureDiagnosis
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.training.recipe import Recipe
from assay.triage.attempts.sources import read_sources
from assay.triage.attempts.table import AttemptTable, ColumnNames, table_of
from assay.triage.failures.diagnose import diagnose
from assay.triage.failures.fixed import check_fix
from assay.triage.slow.detect import find_levels
from assay.triage.symptoms.logs import read_log
from fleet_ledger import recorded_fleet
from harness import CHECKOUT, PUBLISHED_DATA, options_of, print_result
from triage_fleets import CULPRITS, FACTORS, Fleet, random_fleet
from triage_peers import LEVEL, first_significant, g_test, last_error, t_test_changes
from triage_series import NOISES, benchmark_histories, with_step

RECIPE = CHECKOUT / "recipes" / "production.yaml"
COLUMNS = ColumnNames(failed="failed", at="at", unit="recipe", factors=FACTORS)
FLEETS_OF_SD = {0.0: 70, 0.5: 100, 1.5: 70}
"""By how much the log-odds of recipes differ (independent, as the tests have it, clustered), and fleets of each
kind of culprit: over all kinds the share named is known to within 3 points."""
USUAL_SD = 0.5
CALLS = 5
"""Of `assay triage`."""
LEAST_CHANGE = math.log1p(0.005)
NEAR_STEPS, NEAR_LINES = 3, 5

Series = Float64[np.ndarray, " row"]
Detector = Callable[[Series], list[int]]
"""Positions of a series at which its level changes."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of(__doc__)
    parser.add_argument(
        "--quick", type=int, nargs="?", default=1, const=40, metavar="N",
        help="an N-th of all tries; without N a fortieth, to see that it works",
    )  # fmt: skip
    parser.add_argument("--only", help="comma-separated parts")
    options = parser.parse_args(arguments)
    parts = options.only.split(",") if options.only else list(PARTS)
    if options.quick < 1:
        parser.error(f"--quick {options.quick}: expected a number from 1 on")
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"--only {', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    found = dict[str, float]()
    for part in parts:
        print(f"\n{part}")
        began_s = time.process_time()
        found |= PARTS[part](options.quick)
        print(f"  ({time.process_time() - began_s:.0f} CPU-seconds)", flush=True)
    print_result(found, digits=4)


def failures(quick: int) -> dict[str, float]:
    """`named`, `false_culprits`, `g_test_false_culprits`."""
    by_sd = {sd: _culprits(sd, max(fleets // quick, 1)) for sd, fleets in FLEETS_OF_SD.items()}
    print("  nobody at fault: accused in            attempts    ours   (no region named)   G-test")
    ours, peers = list[float](), list[float]()
    for number, unit_sd, fleets in ((500, 0.0, 400), (500, 1.5, 400), (2_000, 1.5, 200)):
        shares = np.mean([_accused(number, unit_sd, seed) for seed in range(max(fleets // quick, 2))], axis=0)
        columns = "   ".join(f"{share:12.1%}" for share in shares)
        print(f"  {fleets // quick or 2:4} fleets, unit sd {unit_sd:<18} {number:8} {columns}")
        ours, peers = [*ours, shares[0]], [*peers, shares[2]]
    return {
        "named": by_sd[USUAL_SD],
        "false_culprits": max(ours[:2]),
        "g_test_false_culprits": max(peers[:2]),
        "false_culprits_2000": ours[2],
        "g_test_false_culprits_2000": peers[2],
    }


class _Named(NamedTuple):
    """How often a culprit was found."""

    first: bool
    in_first_tie_set: bool
    names_in_it: int
    g_test_first: bool
    g_test_in_three: bool


def _culprits(unit_sd: float, fleets: int) -> float:
    """The share of culprits in the first tie set, over all kinds; prints it kind by kind."""
    print(
        f"  {fleets} fleets each, unit sd {unit_sd}   ours: first   or tied   names in the set (median)   ",
        end="",
    )
    print("G-test: first   in three")
    everything = list[_Named]()
    for kind, culprit in enumerate(CULPRITS):
        found = [_named(culprit, unit_sd, 10_000 * (kind + 1) + seed) for seed in range(fleets)]
        everything += found
        _print_named("+".join(culprit), found)
    _print_named("all", everything)
    return float(np.mean([item.in_first_tie_set for item in everything]))


def _print_named(name: str, found: Sequence[_Named]) -> None:
    shares = [float(np.mean(column)) for column in zip(*found, strict=True)]
    sizes = [item.names_in_it for item in found if item.names_in_it]
    median = float(np.median(sizes)) if sizes else 0.0
    ours = f"{shares[0]:12.1%} {shares[1]:9.1%} {median:26.0f}"
    print(f"    {name:28} {ours}   {shares[3]:15.1%} {shares[4]:10.1%}", flush=True)


def _named(culprit: tuple[str, ...], unit_sd: float, seed: int) -> _Named:
    fleet = random_fleet(500, culprit, unit_sd=unit_sd, rng=np.random.default_rng(seed))
    table = _table(fleet)
    found, peer = _diagnosis(table), g_test(table)
    first = [found.causes[0].factors, *found.causes[0].ties] if found.causes else []
    return _Named(
        first=first[:1] == [fleet.culprit],
        in_first_tie_set=fleet.culprit in first,
        names_in_it=len(first),
        g_test_first=peer.p_value <= LEVEL and peer.regions[0] == fleet.culprit,
        g_test_in_three=peer.p_value <= LEVEL and fleet.culprit in peer.regions,
    )


def _accused(number: int, unit_sd: float, seed: int) -> tuple[bool, bool, bool]:
    """Whether a table without a culprit has one: ours, ours without naming it, the G-test."""
    table = _table(random_fleet(number, (), unit_sd=unit_sd, rng=np.random.default_rng(500_000 + seed)))
    verdict = _diagnosis(table).verdict
    return verdict in ("cause", "several"), verdict == "unidentifiable", g_test(table).p_value <= LEVEL


def _table(fleet: Fleet) -> AttemptTable:
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "attempts.csv").write_text(fleet.csv())
        return table_of(read_sources([file]), COLUMNS)


def _diagnosis(table: AttemptTable) -> FailureDiagnosis:
    return diagnose(table, window=None, baseline=None, rng=np.random.default_rng(0))


def size(quick: int) -> dict[str, float]:
    """`scan_cpu_s` and `scan_peak_gb`, the worst of three tables; `triage_cpu_s`, the median of five calls."""
    number = 100_000 // quick
    costs = []
    for culprit in ((), ("host",), ("image", "driver")):
        fleet = random_fleet(number, culprit, unit_sd=USUAL_SD, rng=np.random.default_rng(1))
        cpu_s, peak_gb, verdict = _scanned(fleet)
        what = "+".join(culprit) or "nothing"
        print(f"  {number:,} attempts, {what} at fault: {cpu_s:.1f} CPU-seconds, {peak_gb:.2f} GB, '{verdict}'")
        costs.append((cpu_s, peak_gb))
    return {
        "scan_cpu_s": max(cost[0] for cost in costs),
        "scan_peak_gb": max(cost[1] for cost in costs),
        "triage_cpu_s": _looked_at(max(1_000 // quick, 50)),
    }


def _scanned(fleet: Fleet) -> tuple[float, float, str]:
    """CPU-seconds, peak memory in GB and verdict of `assay triage failures` on a table of attempts."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "attempts.csv").write_text(fleet.csv())
        named = ["--failed", "failed", "--at", "at", "--unit", "recipe", "--factors", ",".join(FACTORS)]
        usage, response = _command(Path(folder), "failures", "attempts.csv", *named)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20, response["verdict"]


def _looked_at(runs: int) -> float:
    """CPU-seconds of `assay triage` on a ledger in which a host fails often and a version is slower."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home.at(Path(folder))
        recorded_fleet(
            home,
            num_runs=runs,
            fails=lambda _, host: 0.3 if host == "n05" else 0.04,
            step_s=lambda run: 1.3 if run >= 0.3 * runs else 1.0,
            version_of=lambda run: "0.1+b" if run >= 0.3 * runs else "0.1+a",
            common=validated(Recipe, read_config_file(RECIPE, [])).model_dump(mode="json"),
        )
        with home.open_ledger() as ledger:
            for run in ledger.runs():
                home.run_dir(run.run_id).mkdir()
                (home.run_dir(run.run_id) / RUN_FILE).write_text(run.to_sealed_json())
        costs = [_command(home.folder) for _ in range(CALLS)]
    cpu_s = statistics.median(usage.ru_utime + usage.ru_stime for usage, _ in costs)
    about = ", ".join(found["about"] for found in costs[0][1]["results"])
    print(f"  'assay triage', {runs:,} runs: {cpu_s:.2f} CPU-seconds, found: {about}")
    return cpu_s


def _command(home: Path, *arguments: str) -> tuple[resource.struct_rusage, Any]:
    """What `assay triage ... --json` costs in a process of its own, and its answer."""
    environment = {**os.environ, "ASSAY_HOME": str(home), "PYTHONPATH": str(CHECKOUT / "src")}
    environment.pop("ASSAY_LEDGER", None)
    with (
        (home / "found.json").open("w+") as response,
        subprocess.Popen(
            [sys.executable, "-m", "assay", "triage", *arguments, "--json"],
            cwd=home, env=environment, stdout=response,
        ) as process,
    ):  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, process.returncode
        response.seek(0)
        return usage, json.load(response)


def changes(quick: int) -> dict[str, float]:
    """`changes_found` and `false_changes`, each the worst of its lines."""
    if (published := _published()) is None:
        return {}
    histories = benchmark_histories(published)
    print(f"  {'':44} " + "".join(f"{name:>14}" for name in DETECTORS))
    found, alarms = list[float](), list[float]()
    for number in (60, 200, 400):
        found.append(_steps(histories, number, max(400 // quick, 10)))
    for number in (60, 400):
        for name, noise in NOISES.items():
            alarms.append(_alarms(name, noise, number, max(400 // quick, 10)))

        def shuffled(rng: np.random.Generator, count: int) -> Series:
            return rng.permutation(histories[int(rng.integers(len(histories)))])[:count]

        alarms.append(_alarms("published results, shuffled", shuffled, number, max(400 // quick, 10)))
    return {"changes_found": min(found), "false_changes": max(alarms)}


def _our_changes(values: Series) -> list[int]:
    return [change.first for change in find_levels(values, least=LEAST_CHANGE)[0]]


DETECTORS: dict[str, Detector] = {"ours": _our_changes, "t-test": t_test_changes}


def _steps(histories: Sequence[Series], number: int, tries: int) -> float:
    """How often ours finds a step."""
    rng = np.random.default_rng(number)
    planted = [with_step(histories[int(rng.integers(len(histories)))], number, rng) for _ in range(tries)]
    return _print_shares(
        f"steps found within {NEAR_STEPS}, {number} values",
        lambda detect: [any(abs(p - at) <= NEAR_STEPS for p in detect(values)) for values, at in planted],
    )


def _alarms(name: str, noise: Callable[[np.random.Generator, int], Series], number: int, tries: int) -> float:
    """How often ours raises an alarm at noise alone."""
    rng = np.random.default_rng(number)
    drawn = [noise(rng, number) for _ in range(tries)]
    return _print_shares(f"alarms: {name}, {number} values", lambda detect: [bool(detect(values)) for values in drawn])


def _print_shares(name: str, rate_of: Callable[[Detector], list[bool]]) -> float:
    """One line; the share of ours."""
    shares = [float(np.mean(rate_of(detect))) for detect in DETECTORS.values()]
    print(f"  {name:44} " + "".join(f"{share:14.1%}" for share in shares), flush=True)
    return shares[0]


def logs(quick: int) -> dict[str, float]:
    """`log_line_top_1`, `log_line_top_3`, `log_lines_per_cpu_s`."""
    if (published := _published()) is None:
        return {}
    folder = published / "triage" / "ci_logs"
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        marked = {row["log"]: int(row["line"]) for row in csv.DictReader(file)}
    texts = {name: (folder / name).read_text(errors="replace").split("\n") for name in marked}
    named = {
        "ours": [[c.line for c in read_log(folder / name)[0].candidates] for name in marked],
        'last line with "error"': [last_error(texts[name]) for name in marked],
    }
    print(f"  {len(marked)} logs: the marked line within {NEAR_LINES}        first   in three")
    near = {
        who: [
            [abs(line - at) <= NEAR_LINES for line in lines] for lines, at in zip(found, marked.values(), strict=True)
        ]
        for who, found in named.items()
    }
    for who, element in near.items():
        print(f"    {who:40} {sum(e[:1] == [True] for e in element):8} {sum(map(any, element)):10}")
    speed = _lines_per_cpu_s([folder / name for name in marked], max(100 // quick, 5))
    print(f"  {speed:,.0f} lines per CPU-second")
    return {
        "log_line_top_1": sum(item[:1] == [True] for item in near["ours"]) / len(marked),
        "log_line_top_3": sum(map(any, near["ours"])) / len(marked),
        "log_lines_per_cpu_s": speed,
    }


def _lines_per_cpu_s(files: Sequence[Path], times: int) -> float:
    """Of all logs one behind the other, again and again, as one log."""
    with tempfile.TemporaryDirectory() as folder:
        (log := Path(folder) / "all.log").write_bytes(b"\n".join(f.read_bytes() for f in files) * times)
        began_s = time.process_time()
        number = read_log(log)[0].num_lines
        return number / (time.process_time() - began_s)


def fixed(quick: int) -> dict[str, float]:
    """`false_fixed` and `fixed_after` (the median, from 10% to 1%)."""
    tries = 2_000 // quick
    same = [_until_fixed(seed, rate=0.1) for seed in range(tries)]
    better = [_until_fixed(10_000 + seed, rate=0.01) for seed in range(tries)]
    print(f"  {tries} times 500 attempts at 10%, then 1,000 looked at one by one     ours   Fisher, p < .05")
    false = [float(np.mean(np.isfinite(entry))) for entry in zip(*same, strict=True)]
    print(f"    still 10%: falsely fixed {false[0]:46.1%} {false[1]:12.1%}")
    median = [float(np.median(entry)) for entry in zip(*better, strict=True)]
    print(f"    now 1%: attempts until it is said (median) {median[0]:28.0f} {median[1]:12.0f}")
    return {"false_fixed": false[0], "naive_false_fixed": false[1], "fixed_after": median[0]}


def _until_fixed(seed: int, *, rate: float) -> tuple[float, float]:
    """Attempts until it is said that it is fixed, ours and Fisher's; infinity if that never comes."""
    rng = np.random.default_rng(seed)
    before, after = ((rng.random(n) < r).astype(float) for n, r in ((500, 0.1), (1_000, rate)))
    found = check_fix(_one_by_one(np.concatenate([before, after])), float(len(before)))
    ours = found.decided_after if found.verdict == "fixed" else None
    peer = first_significant(before, after)
    return (math.inf if ours is None else ours), (math.inf if peer is None else peer)


def _one_by_one(failed: Float64[np.ndarray, " attempt"]) -> AttemptTable:
    """Attempts of which one is made a second, each of its own unit."""
    number = np.arange(len(failed))
    return AttemptTable(
        failures=failed, attempts=np.ones(len(failed)), units=number, has_units=False,
        at_s=number.astype(float), exposure=None, device_hours=None, factors=(), sources={},
    )  # fmt: skip


def _published() -> Path | None:
    """Return the folder of published data, if it is here."""
    if (PUBLISHED_DATA / "triage").is_dir():
        return PUBLISHED_DATA
    print(f"left out: {PUBLISHED_DATA / 'triage'} is not there; set ASSAY_DATA", file=sys.stderr)
    return None


PARTS: dict[str, Callable[[int], dict[str, float]]] = {
    "failures": failures, "size": size, "changes": changes, "logs": logs, "fixed": fixed,
}  # fmt: skip

if __name__ == "__main__":
    main()
