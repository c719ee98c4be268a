"""Many small rows: index, split, read an epoch with kills and resizes, read the held-out rows, audit.

    .venv/bin/python benchmarks/scale42.py --rows 1000000 --folder build/scale42

The rows are the production recipe's: tokens of lognormal lengths, a label, a time in no order, and columns of
metadata; seeded. Shards are copies of ten (links, on a disk), so that 42 million rows take little of it;
`--shards s3://bucket/prefix` puts them into an object store. Every part is a process of its own, whose CPU time
(all threads) and highest memory are its figures. One epoch of all rows is read by ranks that are killed and
resized (`scale42_epoch.py`), and its receipts are audited. tests/integration train through kills and resizes.

The last line printed is one JSON object: `index_cpu_s`, `audit_cpu_s` (beside reading the shards),
`held_out_cpu_s` (reading the held-out rows for one evaluation, from their copy), `peak_rank_mb` (of every rank
and evaluation), and what else was counted.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import cost_of, last_json, options_of, peak_rss_mb, print_result
from scale42_epoch import Rank, read_epoch, read_lanes

ROWS_PER_SHARD, ROWS_PER_GROUP, NUM_BUILT = 100_000, 2_000, 10
HELD_OUT_SHARE = 50_000 / 42_000_000
LANES, BATCH = 64, 2048
FROM = "2026-10-01"
SEED = 42


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a multiple of 100,000")
    parser.add_argument("--folder", type=Path, default=Path("build/scale42"))
    parser.add_argument("--shards", help="where the rows lie, if not in the folder: s3://bucket/prefix")
    parser.add_argument("--made", type=int, default=NUM_BUILT, help="shards that differ; the others repeat them")
    parser.add_argument("--kills", type=int, default=20, help="in the epoch of all rows")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    shards = options.shards or str(folder / "shards")
    if options.job:
        _job(options.job, folder, shards)
        return
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, float]] = {}

    def print_figures(name: str, figures: dict[str, float]) -> None:
        found[name] = figures
        shown = ", ".join(f"{key} {value:,.2f}".removesuffix(".00") for key, value in figures.items())
        print(f"{name}: {shown}", file=sys.stderr, flush=True)

    def command(rank: Rank) -> list[str]:
        return _command(f"rank:{','.join(map(str, rank))}", folder, shards)

    print_figures("rows", cost_of(lambda: make_rows(shards, options.rows, options.made)))
    for name in ("index", "split", "held_out_before", "hold_out", "held_out_after"):
        print_figures(name, _child(name, folder, shards))
    num_steps = int(_child("steps", folder, shards)["steps"])
    print_figures("epoch", read_epoch(folder, num_steps, command, kills=options.kills, seed=SEED))
    print_figures("audit", _child("audit", folder, shards))
    figures = {
        "rows": options.rows,
        "index_cpu_s": found["index"]["cpu_s"],
        "index_peak_mb": found["index"]["peak_mb"],
        "epoch_cpu_s": found["epoch"]["cpu_s"],
        "attempts": int(found["epoch"]["attempts"]),
        "audit_cpu_s": found["audit"]["cpu_s"],
        "held_out_cpu_s": found["held_out_after"]["cpu_s"],
        "held_out_before_cpu_s": found["held_out_before"]["cpu_s"],
        "peak_rank_mb": max(found["held_out_after"]["peak_mb"], found["epoch"]["peak_mb"]),
    }
    print_result(figures, digits=2)


def _job(name: str, folder: Path, shards: str) -> None:
    what, _, location = name.partition(":")
    if what == "rank":
        read_lanes(_loader(folder, "train"), Rank(*map(int, location.split(","))), folder / "receipts")
        return
    figures = index(folder, shards) if what == "index" else JOBS[what](folder)
    print(json.dumps({**figures, "peak_mb": peak_rss_mb()}))


def make_rows(shards: str, num_rows: int, num_built: int) -> None:
    """`part-NNNNN.parquet`, each of 100,000 rows; beyond some, the same again."""
    from assay.store.objects import open_store

    store = open_store(shards)
    present = {item.key for item in store.list("")}
    names = [f"part-{shard:05d}.parquet" for shard in range(num_rows // ROWS_PER_SHARD)]
    for shard, name in enumerate(names):
        same = names[shard % num_built]
        if name in present:
            continue
        if shard < num_built:
            table = rows_of_shard(np.random.default_rng([SEED, shard]), ROWS_PER_SHARD)
            data = pa.BufferOutputStream()
            pq.write_table(table, data, row_group_size=ROWS_PER_GROUP, compression="zstd")
            store.put(name, data.getvalue().to_pybytes())
        elif "://" in shards:
            store.put(name, store.get(same))
        else:
            os.link(Path(shards, same), Path(shards, name))
    for name in present.difference(names):
        store.delete(name)


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

    config = LoaderConfig(lanes=LANES, global_batch_size=BATCH)
    config = config if part == "train" else config.for_evaluation()
    return Loader(split_view(_dataset(folder), _split(), part), config, ("input_ids", "label"))


def index(folder: Path, shards: str) -> dict[str, float]:
    """As `assay data index`."""
    from assay.data.dataset.index import index_dataset

    return cost_of(lambda: index_dataset(shards, folder / "dataset"))


def split(folder: Path) -> dict[str, float]:
    """Decided anew; kept from here on."""
    from assay.data.dataset.split import split_view

    for path in (folder / "dataset" / "splits").glob("*.bits"):
        path.unlink()
    return cost_of(lambda: split_view(_dataset(folder), _split(), "train"))


def steps(folder: Path) -> dict[str, float]:
    """In an epoch of the training rows."""
    return {"steps": _loader(folder, "train").steps_per_epoch}


def audit(folder: Path) -> dict[str, float]:
    """The proof that those receipts are each row once; the shards are not read again."""
    from assay.records.commit import Commit
    from assay.training import audit as audits

    loader = _loader(folder, "train")
    with np.load(folder / "receipts.npz") as columns:
        receipts = audits._Receipts(*(columns[name] for name in audits._Receipts._fields)).ordered()
    steps = loader.steps_per_epoch
    last = Commit(
        attempt=1, world_size=1, committed_s=0.0, files=(), weights_digest="", rows_trained=0,
        receipts_from_step=0, step=steps, cursor=loader.cursor_at(steps), folder="checkpoints/last",
    )  # fmt: skip
    rows = audits._Rows()
    problems: list[str] = []
    figures = cost_of(
        lambda: audits._Auditor(_dataset(folder), loader, [last], rows, problems).check_receipts(receipts)
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

    figures = cost_of(read)
    return {**figures, "rows": num_rows}


def held_out_before(folder: Path) -> dict[str, float]:
    """From the dataset: there is no copy yet."""
    import shutil

    shutil.rmtree(folder / "dataset" / "_held-out", ignore_errors=True)
    return held_out(folder)


def hold_out(folder: Path) -> dict[str, float]:
    """As `assay data hold-out`."""
    from assay.data.dataset.held_out.write import hold_out as write

    return cost_of(lambda: write(_dataset(folder), _split(), lambda done, total: None))


JOBS = {
    "split": split,
    "steps": steps,
    "audit": audit,
    "held_out_before": held_out_before,
    "hold_out": hold_out,
    "held_out_after": held_out,
}


def _command(job: str, folder: Path, shards: str) -> list[str]:
    return [sys.executable, __file__, "--job", job, "--folder", str(folder), "--shards", shards]


def _child(name: str, folder: Path, shards: str) -> dict[str, float]:
    done = subprocess.run(_command(name, folder, shards), stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = last_json(done.stdout.decode())
    return found


if __name__ == "__main__":
    main()
