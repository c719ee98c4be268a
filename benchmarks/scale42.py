"""Many small rows, through everything: index, split, train, kill, resize, evaluate, audit.

    .venv/bin/python benchmarks/scale42.py --rows 1000000 --folder build/scale42

The rows are the production recipe's: tokens of lognormal lengths, a label, a time in no order, and columns of
metadata; seeded. Shards are links to ten, so that 42 million rows take little disk. Every part is a process of
its own, whose CPU time (all threads) and highest memory are its figures.

The last line printed is one JSON object: `index_cpu_s`, `audit_cpu_s` (beside reading the shards),
`held_out_cpu_s` (reading the held-out rows for one evaluation, from their copy), `peak_rank_mb`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_SHARD, ROWS_PER_GROUP, NUM_MADE = 100_000, 2_000, 10
HELD_OUT_SHARE = 50_000 / 42_000_000
LANES, BATCH, WINDOW = 64, 2048, 8192
FROM = "2026-10-01"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a multiple of 100,000")
    parser.add_argument("--folder", type=Path, default=Path("build/scale42"))
    parser.add_argument("--steps", type=int, default=40, help="that are trained, killed and resized on the way")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.job:
        print(json.dumps({**JOBS[options.job](folder), "peak_mb": _peak_mb()}))
        return
    made_s = _timed(lambda: make_rows(folder / "shards", options.rows))
    _say(f"{options.rows:,} rows made in {made_s:.1f} s")
    found: dict[str, dict[str, float]] = {}
    for name in (
        "index",
        "split",
        "held_out_before",
        "hold_out",
        "held_out_after",
        "epoch_receipts",
        "audit_epoch",
    ):
        found[name] = _child(name, folder)
        _say(f"{name}: {found[name]}")
    peak_mb = max(found[name]["peak_mb"] for name in ("held_out_after", "epoch_receipts"))
    if options.steps:
        found["train"] = train(folder, options.steps)
        _say(f"train: {found['train']}")
        peak_mb = max(peak_mb, found["train"]["peak_mb"])
    print(
        json.dumps(
            {
                "rows": options.rows,
                "index_cpu_s": round(found["index"]["cpu_s"], 2),
                "audit_cpu_s": round(found["audit_epoch"]["cpu_s"], 2),
                "held_out_cpu_s": round(found["held_out_after"]["cpu_s"], 2),
                "held_out_before_cpu_s": round(found["held_out_before"]["cpu_s"], 2),
                "peak_rank_mb": round(peak_mb),
            }
        )
    )


def make_rows(folder: Path, num_rows: int) -> None:
    """`part-NNNNN.parquet`, each of 100,000 rows; beyond ten, links to the first ten."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(num_rows // ROWS_PER_SHARD):
        path = folder / f"part-{shard:05d}.parquet"
        if path.exists():
            continue
        if shard >= NUM_MADE:
            os.link(folder / f"part-{shard % NUM_MADE:05d}.parquet", path)
        else:
            table = rows_of_shard(np.random.default_rng([42, shard]), ROWS_PER_SHARD)
            pq.write_table(table, path.with_suffix(".half"), row_group_size=ROWS_PER_GROUP, compression="zstd")
            path.with_suffix(".half").rename(path)
    for path in sorted(folder.glob("part-*.parquet"))[num_rows // ROWS_PER_SHARD :]:
        path.unlink()


def rows_of_shard(rng: np.random.Generator, count: int) -> pa.Table:
    """The production schema with short rows."""
    lengths = np.clip(rng.lognormal(2.9, 0.75, count), 1, 256).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = rng.integers(0, 1000, int(offsets[-1]), dtype=np.int32)
    seconds = rng.integers(0, 200 * 86_400, count)
    late = rng.random(count) < HELD_OUT_SHARE
    moments = np.datetime64("2026-03-01", "us") + (seconds * 1_000_000).astype("timedelta64[us]")
    moments[late] = np.datetime64("2026-10-05", "us")
    names = {"language": ["en", "de", "fr"], "source_surface": ["api", "web"], "model_family": ["a", "b", "c"]}
    return pa.table(
        {
            "input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
            "label": pa.array((tokens[offsets[:-1]] % 2).astype(np.int64)),
            "created_at": pa.array(moments),
            **{
                name: pa.array(values).take(pa.array(rng.integers(0, len(values), count)))
                for name, values in names.items()
            },
            "prompt_length": pa.array(lengths // 2),
            "response_length": pa.array(lengths - lengths // 2),
        }
    )


def _dataset(folder: Path) -> Any:
    from assay.data.dataset.dataset import Dataset

    return Dataset.open(folder / "dataset")


def _split() -> Any:
    from datetime import datetime

    from assay.data.dataset.split import TimeSplit

    return TimeSplit(type="time", validation_from=datetime.fromisoformat(FROM))


def _loader(folder: Path, part: Any) -> Any:
    from assay.data.dataset.split import split_view
    from assay.data.loader.config import LoaderConfig
    from assay.data.loader.loader import Loader

    config = LoaderConfig(lanes=LANES, global_batch_size=BATCH, window_rows=WINDOW)
    return Loader(split_view(_dataset(folder), _split(), part), config, ("input_ids", "label"))


def index(folder: Path) -> dict[str, float]:
    """As `assay data index`."""
    from assay.data.dataset.index import index_dataset

    return _cpu(lambda: index_dataset(str(folder / "shards"), folder / "dataset"))


def split(folder: Path) -> dict[str, float]:
    """Decided anew; kept from here on."""
    from assay.data.dataset.split import split_view

    for path in (folder / "dataset" / "splits").glob("*.bits"):
        path.unlink()
    return _cpu(lambda: split_view(_dataset(folder), _split(), "train"))


def epoch_receipts(folder: Path) -> dict[str, float]:
    """What a whole epoch through the loader leaves: a receipt for each step and lane; world sizes change."""
    from assay.data.loader.receipts import receipt
    from assay.records.cursor import Cursor

    loader, found = _loader(folder, "train"), []

    def read() -> None:
        rng, at, cursor = np.random.default_rng(0), 0, Cursor()
        while at < loader.steps_per_epoch:
            stop = min(loader.steps_per_epoch, at + int(rng.integers(1, 2 + loader.steps_per_epoch // 20)))
            world_size = int(rng.choice([1, 2, 4, 8]))
            for rank in range(world_size):
                lanes = range(rank * LANES // world_size, (rank + 1) * LANES // world_size)
                for step, share in enumerate(loader.shares(cursor, lanes, stop - at), start=at + 1):
                    for lane in share.lanes:
                        ids = np.concatenate([np.zeros(0, np.uint64), *(b.row_ids for b in lane.micro_batches)])
                        found.append((step, lane.lane, *receipt(ids)))
            at, cursor = stop, loader.cursor_at(stop)

    figures = _cpu(read)
    step, lane, num_rows, digest = map(np.array, zip(*found, strict=True))
    np.savez(
        folder / "receipts.npz",
        step=step.astype(np.int64),
        lane=lane.astype(np.int32),
        num_rows=num_rows.astype(np.int32),
        digest=digest.astype(np.uint64),
    )
    return figures


def audit_epoch(folder: Path) -> dict[str, float]:
    """The proof that those receipts are each row once; the shards are not read again."""
    from assay.records.commit import Commit
    from assay.training import audit

    loader = _loader(folder, "train")
    with np.load(folder / "receipts.npz") as columns:
        receipts = audit._Receipts(*(columns[name] for name in audit._Receipts._fields))
    steps = loader.steps_per_epoch
    last = Commit(
        attempt=1, world_size=1, committed_s=0.0, files=(), weights_digest="", rows_learned=0,
        receipts_from_step=0, step=steps, cursor=loader.cursor_at(steps), folder="checkpoints/last",
    )  # fmt: skip
    rows = audit._Rows()
    problems: list[str] = []
    figures = _cpu(
        lambda: audit._Auditor(_dataset(folder), loader, [last], rows, problems).check_receipts(receipts)
    )
    assert not (problems or rows.missing or rows.repeated), (problems[:3], rows.missing[:3])
    assert rows.expected == loader.geometry.num_rows, (rows.expected, loader.geometry.num_rows)
    return {**figures, "rows": rows.expected, "receipts": len(receipts.step)}


def held_out(folder: Path) -> dict[str, float]:
    """Reads the held-out rows as an evaluation does."""
    from assay.records.cursor import Cursor

    loader, num_rows = _loader(folder, "validation"), 0

    def read() -> None:
        nonlocal num_rows
        for share in loader.shares(Cursor(), range(LANES), loader.steps_per_epoch):
            num_rows += sum(len(batch.row_ids) for lane in share.lanes for batch in lane.micro_batches)

    figures = _cpu(read)
    return {**figures, "rows": num_rows}


def held_out_before(folder: Path) -> dict[str, float]:
    """From the dataset: there is no copy yet."""
    import shutil

    shutil.rmtree(folder / "dataset" / "_held-out", ignore_errors=True)
    return held_out(folder)


def hold_out(folder: Path) -> dict[str, float]:
    """As `assay data hold-out`."""
    from assay.data.dataset.held_out.write import hold_out as write

    return _cpu(lambda: write(_dataset(folder), _split(), lambda done, total: None))


JOBS = {
    "index": index,
    "split": split,
    "epoch_receipts": epoch_receipts,
    "audit_epoch": audit_epoch,
    "held_out_before": held_out_before,
    "hold_out": hold_out,
    "held_out_after": held_out,
}


def train(folder: Path, num_steps: int) -> dict[str, float]:
    """A small model, on 2 workers, killed on the way, and on 1; evaluated; audited by the command."""
    recipe = folder / "recipe.yaml"
    split = {"type": "time", "validation_from": FROM}
    encoder = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_tokens": 256}
    tree = {
        "name": "scale42",
        "data": {"dataset": str(folder / "dataset"), "split": split},
        "loader": {"lanes": LANES, "global_batch_size": BATCH, "window_rows": WINDOW},
        "method": {"type": "classify", "encoder": {"type": "new", "vocab_size": 1000, **encoder}},
        "trainer": {"max_steps": num_steps, "commit_every": max(1, num_steps // 8)},
    }
    recipe.write_text(json.dumps(tree))  # YAML, too
    environment = {**os.environ, "ASSAY_HOME": str(folder / "home")}
    run = f"scale42-{int(time.time())}"
    began = time.monotonic()
    command = [sys.executable, "-m", "assay", "train", str(recipe), "--run-id", run, "--workers"]
    process = subprocess.Popen(
        [*command, "2"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak_kb, killed = 0, False
    log = folder / "home" / run / "log"
    while process.poll() is None:
        peak_kb = max(peak_kb, *(_rss_kb(pid) for pid in _below(process.pid)), 0)
        if not killed and log.is_dir() and len(list(log.iterdir())) >= 2:
            process.kill()
            killed = True
        time.sleep(0.1)
    assert killed, "the run ended before it was killed: give more --steps"
    again = [sys.executable, "-m", "assay", "train", "--resume", run, "--workers", "1"]
    process = subprocess.Popen(again, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak_kb = max(peak_kb, *(_rss_kb(pid) for pid in _below(process.pid)), 0)
        time.sleep(0.1)
    assert process.returncode == 0, f"train --resume {run}"
    audited = subprocess.run(
        [sys.executable, "-m", "assay", "audit", run, "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(audited.stdout)
    assert report["verdict"] == "pass", report
    return {"wall_s": time.monotonic() - began, "peak_mb": peak_kb / 1024, "rows": report["rows_learned"]}


def _below(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def _rss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _cpu(work: Any) -> dict[str, float]:
    began, cpu = time.monotonic(), time.process_time()
    work()
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - began}


def _timed(work: Any) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _peak_mb() -> float:
    return _rss_kb(os.getpid()) / 1024


def _child(name: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--job", name, "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
