"""A source with a changed byte is read, if its format has no digest of it, or refused by its name."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.base.errors import DataError
from assay.cli.main import main
from assay.data.dataset.raw.find import find_spans
from variants import slow

TABLE = pa.table(
    {
        "text": [f"row {number} " * 3 for number in range(60)],
        "label": [number % 3 for number in range(60)],
        "parts": [{"first": number, "rest": [number, number]} for number in range(60)],
        "kind": pa.array(["x", "y", "z"] * 20).dictionary_encode(),
        "time": pa.array(range(60), pa.timestamp("us")),
    }
)
LINES = [{"text": f"row {number}", "label": number % 3} for number in range(60)]


def parquet(compression: str) -> Callable[[Path], None]:
    return lambda path: pq.write_table(TABLE, path, row_group_size=20, compression=compression)


def arrow(compression: str | None, new: Callable = pa.ipc.new_file) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with new(str(path), TABLE.schema, options=options) as file:
            file.write_table(TABLE, max_chunksize=20)

    return write


def text(line: Callable[[dict], str]) -> Callable[[Path], None]:
    return lambda path: path.write_text("".join(map(line, LINES)))  # type: ignore[return-value]


FORMATS = {
    "snappy.parquet": parquet("snappy"),
    "zstd.parquet": parquet("zstd"),
    "plain.parquet": parquet("none"),
    "plain.arrow": arrow(None),
    "stream.arrow": arrow(None, pa.ipc.new_stream),
    "zstd.feather": arrow("zstd"),
    "rows.jsonl": text(lambda row: json.dumps(row) + "\n"),
    "rows.csv": text(lambda row: f"{row['text']},{row['label']}\n"),
    "rows.txt": text(lambda row: row["text"] + "\n"),
    "page.md": text(lambda row: row["text"] + "\n"),
}


@pytest.mark.parametrize("seed", [0, *slow(*range(1, 10))])
@pytest.mark.parametrize("name", FORMATS)
def test_any_byte_of_a_source_may_change(tmp_path, name, seed) -> None:
    path, rng = tmp_path / name, random.Random(seed)
    FORMATS[name](path)
    data = path.read_bytes()
    refused = 0
    for _ in range(40):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        path.write_bytes(flipped)
        try:
            for span in find_spans([path], 16):
                span.digest(span.fields or ("text",))
                for _ in span.rows():
                    pass
        except DataError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused


def test_a_parquet_page_that_rotted_ends_the_build_with_its_file_and_row_group(tmp_path, capfd) -> None:
    pq.write_table(TABLE.select(["text", "label"]), path := tmp_path / "rows.parquet", row_group_size=20)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    data[column.data_page_offset : column.data_page_offset + 6] = b"\xff" * 6
    path.write_bytes(data)
    (tmp_path / "tokenizer.json").write_text(
        '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": "u"}}'
    )
    with pytest.raises(SystemExit) as ended:
        main(["data", "build", str(path), "--tokenizer", str(tmp_path), "--out", str(tmp_path / "d")])
    stderr = capfd.readouterr().err
    assert ended.value.code == 2
    assert f"{path}: not readable as Parquet: row group 1: " in stderr and "Traceback" not in stderr
    assert not (tmp_path / "d").exists()
