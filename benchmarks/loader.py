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

from harness import options_of, peak_rss_mb
from loader_rows import ROW_GROUP_ROWS, write_shards

PREPARED = {"assay bucketed": "assay padded"}
"""Readers that share what another one wrote."""


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
    names, conversion_s = _prepared(names, options.folder)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    resumes: dict[str, list[float]] = {name: [] for name in names}
    for round_index in range(options.rounds):
        # Every other round goes backwards, so that a drift of the machine favours nobody.
        for name in names if round_index % 2 == 0 else reversed(names):
            _log(f"round {round_index + 1}: {name}")
            results[name].append(_child("epoch", name, options.folder))
            assert results[name][-1]["rows"] == options.rows or READERS[name].kind == "native", name
            if READERS[name].resumed is not None:
                resumes[name].append(_child("resume", name, options.folder)["resume_s"])
    _report(results, resumes, conversion_s, options.rows)


def _job(what: str, name: str, folder: Path) -> dict[str, float]:
    from loader_readers import READERS

    reader = READERS[name]
    if what == "prepare":
        started = time.process_time()
        reader.prepare(folder)
        return {"cpu_s": time.process_time() - started}
    return _measured_epoch(reader, folder) if what == "epoch" else _measured_resume(reader, folder)


def _measured_epoch(reader: Any, folder: Path) -> dict[str, float]:
    import numpy as np

    for _ in reader.epoch(folder):
        pass
    wall, cpu = time.perf_counter(), _cpu_s()
    batches = reader.epoch(folder)
    first_s, keys, tokens, padded, groups = 0.0, [], 0, 0, []
    for batch in batches:
        first_s = first_s or time.perf_counter() - wall
        keys.append(batch.keys)
        tokens += int(batch.lengths.sum())
        padded += batch.input_ids.numel()
        if len(batch.keys) == 32:
            groups.append(batch.keys)
    wall, cpu = time.perf_counter() - wall, _cpu_s() - cpu
    served = np.concatenate(keys)
    counts = [np.unique(batch // ROW_GROUP_ROWS, return_counts=True)[1] for batch in groups]
    return {
        "rows": len(served),
        "distinct_rows": len(np.unique(served)),
        "rows_per_cpu_s": len(served) / cpu,
        "tokens_per_cpu_s": tokens / cpu,
        "rows_per_s": len(served) / wall,
        "first_batch_s": first_s,
        "padding": 1 - tokens / padded,
        "peak_mb": peak_rss_mb(),
        "mixing": float(np.mean([len(count) for count in counts])),
        "variance": float(np.mean([(count**2).sum() / count.sum() for count in counts])),
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


def _prepared(names: list[str], folder: Path) -> tuple[list[str], dict[str, float]]:
    """The readers that work here, and the CPU seconds that each spent on what it needs beforehand."""
    working: list[str] = []
    spent: dict[str, float] = {}
    for name in names:
        if PREPARED.get(name) in spent:
            spent[name] = spent[PREPARED[name]]
        else:
            _log(f"prepare: {name}")
            try:
                spent[name] = _child("prepare", name, folder)["cpu_s"]
                _child("epoch", name, folder)
            except ChildError as error:
                print(f"left out: {name}: {error}")
                continue
        working.append(name)
    return working, spent


class ChildError(Exception):
    """Its package is missing, or does not work here."""


def _child(what: str, name: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--job", f"{what}:{name}", "--folder", str(folder)]
    # One thread for torch's own copies: a pool that spins between them would be counted as the loader's work.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise ChildError((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _report(
    results: dict[str, list[dict[str, float]]],
    resumes: dict[str, list[float]],
    conversion_s: dict[str, float],
    num_rows: int,
) -> None:
    from loader_readers import READERS

    middle = {name: {key: median(run[key] for run in runs) for key in runs[0]} for name, runs in results.items()}
    uniform = _uniform_mixing(num_rows)
    print(
        f"\n{num_rows:,} rows; mixing: row groups in a batch of 32, uniform would be {uniform:.1f}; varies: "
        "the variance of a batch's mean over a uniform shuffle's, where each row group is a kind of its own\n"
    )
    print(
        f"{'':20} {'reads':10} {'rows/CPU-s':>10} {'Mtok/CPU-s':>10} {'of ideal':>8} {'rows/s':>8} "
        f"{'first':>7} {'resume':>7} {'peak MB':>7} {'mixing':>6} {'varies':>6} "
        f"{'padding':>7} {'rows':>8} {'prepare':>8}"
    )
    for name, row in sorted(middle.items(), key=lambda item: -item[1]["rows_per_cpu_s"]):
        resume = f"{median(resumes[name]):6.2f}s" if resumes[name] else "-"
        of_ideal = _ratio(results, name, "ideal")
        print(
            f"{name:20} {READERS[name].kind:10} {row['rows_per_cpu_s']:10,.0f} "
            f"{row['tokens_per_cpu_s'] / 1e6:10.1f} {of_ideal:8.2f} {row['rows_per_s']:8,.0f} "
            f"{row['first_batch_s']:6.2f}s {resume:>7} {row['peak_mb']:7,.0f} {row['mixing']:6.1f} "
            f"{row['variance'] / _uniform_variance(num_rows):6.1f} "
            f"{row['padding']:7.1%} {row['distinct_rows']:8,.0f} {conversion_s[name]:7.1f}s"
        )
    summary = _summary(results, middle, resumes)
    if "vs_ideal" in summary and "vs_ideal_bucketed" in summary:
        print(
            f"\nThe floor is decoding and padding alone: {middle['ideal']['rows_per_cpu_s']:,.0f} rows/CPU-s. "
            f"We are at {summary['vs_ideal']:.0%} of it with batches of random rows, and at "
            f"{summary['vs_ideal_bucketed']:.0%} with bucketed ones."
        )
    print(json.dumps(summary))


def _summary(
    results: dict[str, list[dict[str, float]]],
    middle: dict[str, dict[str, float]],
    resumes: dict[str, list[float]],
) -> dict[str, Any]:
    from loader_readers import READERS

    summary: dict[str, Any] = {}
    if "assay padded" not in results:
        return summary
    for key, ours in (("vs_ideal", "assay padded"), ("vs_ideal_bucketed", "assay bucketed")):
        if ours in results and "ideal" in results:
            summary[key] = round(_ratio(results, ours, "ideal"), 3)
    for kind in ("native", "converted"):
        peers = [name for name in middle if READERS[name].kind == kind]
        if peers:
            best = max(peers, key=lambda name: middle[name]["rows_per_cpu_s"])
            summary[f"best_{kind}"] = best
            summary[f"vs_best_{kind}"] = round(_ratio(results, "assay padded", best), 2)
    summary["resume_s"] = round(median(resumes["assay padded"]), 3)
    summary["mixing"] = {name: round(row["mixing"], 1) for name, row in middle.items()}
    uniform = _uniform_variance(results["assay padded"][0]["rows"])
    summary["variance"] = {name: round(row["variance"] / uniform, 1) for name, row in middle.items()}
    summary["rows_per_cpu_s"] = {name: round(row["rows_per_cpu_s"]) for name, row in middle.items()}
    return summary


def _ratio(results: dict[str, list[dict[str, float]]], one: str, other: str) -> float:
    """Median over the rounds of one's rows per CPU second over the other's; NaN if it did not run."""
    if other not in results:
        return float("nan")
    pairs = zip(results[one], results[other], strict=True)
    return median(a["rows_per_cpu_s"] / b["rows_per_cpu_s"] for a, b in pairs)


def _uniform_mixing(num_rows: int) -> float:
    groups = max(1, num_rows // ROW_GROUP_ROWS)
    return groups * (1 - (1 - 1 / groups) ** 32)


def _uniform_variance(num_rows: float) -> float:
    """Of a batch of 32 rows from groups of one variance."""
    return 1 + 31 * ROW_GROUP_ROWS / num_rows


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
