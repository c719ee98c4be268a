import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from assay.base.errors import DataError
from assay.data.dataset.build import BuildConfig, build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.tokens import train_tokenizer

LINES = [
    {
        "text": f"row number {n} said hello",
        "label": n % 2,
        "language": None if n % 3 else "en",
        "when": "2026-01-02",
    }
    for n in range(25)
]


@pytest.fixture
def config(tmp_path: Path) -> BuildConfig:
    train_tokenizer([line["text"] for line in LINES], vocab_size=300).save(str(tmp_path / "tokenizer.json"))
    return BuildConfig(
        tokenizer=str(tmp_path / "tokenizer.json"),
        metadata_fields=("language",),
        time_field="when",
        rows_per_shard=10,
        rows_per_group=4,
    )


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def encoded() -> list[bytes]:
    return [json.dumps(line).encode() for line in LINES]


def test_rows_come_out_tokenised_in_their_order_with_what_was_missing_missing(tmp_path: Path, config) -> None:
    manifest = build_dataset([write(tmp_path / "rows.jsonl", encoded())], tmp_path / "out", config, workers=1)
    dataset = Dataset.open(tmp_path / "out")
    tables = [
        dataset.read_row_group(group, ["input_ids", "label", "language"])
        for group in range(len(dataset.groups))
    ]
    rows = [row for table in tables for row in table.to_pylist()]
    tokenizer = Tokenizer.from_file(config.tokenizer)
    assert [tokenizer.decode(row["input_ids"]) for row in rows] == [line["text"] for line in LINES]
    assert [row["language"] for row in rows] == [line["language"] for line in LINES]
    assert len(manifest.shards) == 3


def test_a_build_goes_on_where_it_stopped_and_ends_with_the_same_dataset(tmp_path: Path, config) -> None:
    source = write(tmp_path / "rows.jsonl", encoded())
    whole = build_dataset([source], tmp_path / "out", config, workers=1)
    shards = sorted((tmp_path / "out" / "shards").glob("*.parquet"))
    kept = shards[0].stat().st_mtime_ns
    shards[1].unlink()
    shards[2].with_suffix(".unfinished").write_bytes(b"half")
    again = build_dataset([source], tmp_path / "out", config, workers=1)
    assert again.fingerprint == whole.fingerprint
    assert shards[0].stat().st_mtime_ns == kept


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"text": "caf\xe9", "label": 0}', r"line 12: not UTF-8 \(byte 13 of the line is 0xe9\)"),
        (b'{"text": "half', "line 12: not JSON"),
        (b"[1]", "line 12: expected a JSON object, found list"),
        (b'{"label": 0}', "line 12: field 'text' is missing"),
        (b'{"text": "fine", "label": 2}', "line 12: field 'label' is 2; expected 0 or 1"),
        (b'{"text": "fine"}', "line 12: field 'label' is None"),
        (b'{"text": "", "label": 1}', "line 12: 'text' has no tokens"),
        (b'{"text": "fine", "label": 1, "when": "noon"}', "field 'when'"),
        (b'{"text": "fine", "label": 1, "language": 3}', "field 'language' mixes types"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, config, line: bytes, says: str) -> None:
    lines = encoded()
    lines[11] = line
    with pytest.raises(DataError, match=says):
        build_dataset([write(tmp_path / "rows.jsonl", lines)], tmp_path / "out", config, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()
