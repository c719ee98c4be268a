"""Datasets that commands build, index and hold out on this machine, and on a cluster while a worker of it dies."""

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli.main import main


def write_rows(path: Path, number: int) -> Path:
    """Labelled texts, some of them twice."""
    draw = random.Random(number)
    words = [f"w{draw.randrange(10**6)}" for _ in range(2_000)]
    with path.open("w") as file:
        file.write("text,label,language\n")
        for row in range(number):
            text = " ".join(draw.choices(words, k=draw.randint(4, 20))) if row % 50 else f"again {row % 7}"
            file.write(f"{text},{draw.randrange(2)},{draw.choice(['en', 'de', ''])}\n")
    return path


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert not ended.value.code


class Killer(threading.Thread):
    """Calls `kill` when the first shard is written."""

    def __init__(self, shards: Path, kill: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._shards, self._kill = shards, kill
        self.num_written = 0
        """Shards at that time."""
        self.start()

    def run(self) -> None:
        while not (found := list(self._shards.glob("part-*.parquet"))):
            time.sleep(0.005)
        self._kill()
        self.num_written = len(found)


def check_commands(engine: tuple[str, ...], kill: Callable[[], None], *, num_rows: int, rows_per_shard: int) -> None:
    """Build, index and hold out in the current folder, here and with the options `engine`; compare all files."""
    write_rows(Path("rows.csv"), num_rows)
    fields = ("--text", "text", "--label", "label", "--metadata", "language", "--drop", "doubled")
    build = ("data", "build", "rows.csv", *fields, "--tokenizer", "new:400", "--rows-per-shard", rows_per_shard)
    killer = Killer(Path("elsewhere", "dataset", "shards"), kill)
    for folder, options in (("here", ()), ("elsewhere", engine)):
        run(*build, "--out", Path(folder, "dataset"), *options)
        run("data", "index", Path(folder, "dataset", "shards"), "--out", Path(folder, "indexed"), *options)
        run("data", "hold-out", Path(folder, "dataset"), "--fraction", "0.5", *options)
    assert 0 < killer.num_written < num_rows / rows_per_shard
    for path in ("dataset", "indexed", "dataset/_held-out/*"):
        (one,), (other,) = (list(Path(folder).glob(f"{path}/manifest.json")) for folder in ("here", "elsewhere"))
        assert _without_locations(one) == _without_locations(other)
    files, others = ({path.relative_to(top) for path in top.rglob("*")} for top in (Path("here"), Path("elsewhere")))
    assert files == others


def _without_locations(manifest: Path) -> dict[str, object]:
    tree = json.loads(manifest.read_text())
    return {name: value for name, value in tree.items() if name not in ("source_url", "record_sha256")}
