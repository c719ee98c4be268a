"""Loaders side by side on the same rows, shuffled, to padded torch batches of 32.

    make bench      or      .venv-bench-loader/bin/python benchmarks/loader.py --rows 200000 --rounds 3

Each measurement is a fresh process that reads the epoch twice; the second time counts, since training goes on
for many. The loaders take turns, round by round, and the medians count. Throughput is rows per second of CPU
time (all threads), which other work on the machine disturbs least. The floor is a
reader that decodes and pads and does nothing else, not even shuffle. A peer whose package is not installed is
left out and named. The last line printed is one JSON object.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import cost_of, last_json, options_of, peak_rss_mb, print_result
from loader_rows import BATCH_ROWS, ROW_GROUP_ROWS, write_shards

PREPARED = {"assay bucketed": "assay padded", "assay.torch": "assay padded"}
"""Readers that use what another one wrote."""


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/bench-loader"))
    parser.add_argument("--only", help="comma-separated names of readers")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve() / "shards"
    if options.job:
        what, name = options.job.split(":")
        print(json.dumps(_job(what, name, folder)))
        return
    write_shards(folder, options.rows)
    from loader_readers import READERS

    names = [name for name in READERS if not options.only or name in options.only.split(",")]
    names = _prepared(names, options.folder)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    resumes: dict[str, list[float]] = {name: [] for name in names}
    for round_index in range(options.rounds):
        # Every other round goes backwards, so that a drift of the machine favours nobody.
        for name in names if round_index % 2 == 0 else reversed(names):
            _log(f"round {round_index + 1}: {name}")
            results[name].append(_child("epoch", name, options.folder))
            if READERS[name].resumed is not None:
                resumes[name].append(_child("resume", name, options.folder)["resume_s"])
    print_result(_report(results, resumes), digits=3)


def _job(what: str, name: str, folder: Path) -> dict[str, float]:
    from loader_readers import READERS

    reader = READERS[name]
    if what == "prepare":
        return cost_of(lambda: reader.prepare(folder))
    return _measured_epoch(reader, folder) if what == "epoch" else _measured_resume(reader, folder)


def _measured_epoch(reader: Any, folder: Path) -> dict[str, float]:
    import numpy as np

    for _ in reader.epoch(folder):
        pass
    began_s = _cpu_s()
    keys = [batch.keys for batch in reader.epoch(folder)]
    cpu_s = _cpu_s() - began_s
    served = np.concatenate(keys)
    counts = [np.unique(batch // ROW_GROUP_ROWS, return_counts=True)[1] for batch in keys if len(batch) == BATCH_ROWS]
    variance = float(np.mean([(count**2).sum() / count.sum() for count in counts]))
    return {
        "distinct_rows": len(np.unique(served)),
        "rows_per_cpu_s": len(served) / cpu_s,
        "peak_mb": peak_rss_mb(),
        # Of a batch's mean over a uniform shuffle's, if each row group is a kind of its own.
        "variance": variance / (1 + (BATCH_ROWS - 1) * ROW_GROUP_ROWS / len(served)),
    }


def _measured_resume(reader: Any, folder: Path) -> dict[str, float]:
    num_rows = int((folder / "done").read_text())
    _warm_up(reader, folder)
    started = time.perf_counter()
    for batch in reader.resumed(folder, num_rows // 64):
        if batch is not None:
            break
        started = time.perf_counter()
    return {"resume_s": time.perf_counter() - started}


def _warm_up(reader: Any, folder: Path) -> None:
    """One batch, so that imports and first calls, whoever makes them, are not counted."""
    batches = reader.epoch(folder)
    for _ in batches:
        break
    del batches


def _cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _prepared(names: list[str], folder: Path) -> list[str]:
    """Return the readers that work here, after each has written what it needs."""
    working: list[str] = []
    for name in names:
        if PREPARED.get(name) not in working:
            _log(f"prepare: {name}")
            try:
                _child("prepare", name, folder)
                _child("epoch", name, folder)
            except ChildError as error:
                print(f"left out: {name}: {error}")
                continue
        working.append(name)
    return working


class ChildError(Exception):
    """Its package is missing, or does not work here."""


def _child(what: str, name: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--job", f"{what}:{name}", "--folder", str(folder)]
    # One thread for torch's own copies: a pool that spins between them would be counted as the loader's work.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise ChildError((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    result: dict[str, float] = last_json(done.stdout)
    return result


def _report(results: dict[str, list[dict[str, float]]], resumes: dict[str, list[float]]) -> dict[str, Any]:
    """Print the medians of each reader; return the figures."""
    figures: dict[str, Any] = {}
    print(f"\n{'':20} {'rows/CPU-s':>10} {'of floor':>8} {'variance':>8} {'resume':>7} {'peak MB':>7} {'rows':>8}")
    for name, runs in results.items():
        row = {key: median(run[key] for run in runs) for key in runs[0]}
        resume = f"{median(resumes[name]):6.2f}s" if resumes[name] else "-"
        figures[f"{name}, of floor"] = of_floor = _ratio(results, name, "ideal")
        figures[f"{name}, rows per CPU second"] = round(row["rows_per_cpu_s"])
        figures[f"{name}, variance"] = round(row["variance"], 1)
        print(
            f"{name:20} {row['rows_per_cpu_s']:10,.0f} {of_floor:8.2f} {row['variance']:8.1f} {resume:>7} "
            f"{row['peak_mb']:7,.0f} {row['distinct_rows']:8,.0f}"
        )
    return figures


def _ratio(results: dict[str, list[dict[str, float]]], one: str, other: str) -> float:
    """Median over the rounds of one's rows per CPU second over the other's; NaN if it did not run."""
    if other not in results:
        return float("nan")
    pairs = zip(results[one], results[other], strict=True)
    return median(a["rows_per_cpu_s"] / b["rows_per_cpu_s"] for a, b in pairs)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
