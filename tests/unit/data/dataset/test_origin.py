"""A row of a dataset is found in the file that it was read from."""

import json
from pathlib import Path

import pytest

from assay.data.dataset.build import ORIGIN_FILE, build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.origin import row_origin, row_text
from assay.data.dataset.tokens import train_tokenizer


@pytest.fixture
def built(tmp_path: Path) -> Dataset:
    """Rows of two files in shards of four; an empty one and a copy are left out."""
    texts = [f"row {number} says {number * 7}" for number in range(10)]
    texts[2], texts[5] = "", texts[1]
    for name, part in (("a", texts[:6]), ("b", texts[6:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in part))
    train_tokenizer(texts, vocab_size=280).save(str(tmp_path / "tokenizer.json"))
    config = BuildConfig(
        tokenizer=str(tmp_path / "tokenizer.json"), label_field=None, format="text", rows_per_shard=4,
        drop=("doubled",),
    )  # fmt: skip
    build_dataset([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "out", config)
    return Dataset.open(tmp_path / "out")


def test_every_row_has_its_text_and_its_line(built: Dataset, tmp_path: Path) -> None:
    found = [(row_text(built, row), row_origin(built, row)) for row in range(built.manifest.num_rows)]
    lines = [("a", 0), ("a", 1), ("a", 3), ("a", 4), *(("b", number) for number in range(6, 10))]
    assert [text.strip() for text, _ in found] == [f"row {number} says {number * 7}" for _, number in lines]
    for (file, number), (_, origin) in zip(lines, found, strict=True):
        line = number + 1 if file == "a" else number - 5
        assert origin == f"{tmp_path / file}.jsonl: line {line}"


def test_a_source_that_is_gone_or_another_is_said(built: Dataset, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "another"}) + "\n")
    assert "changed" in row_origin(built, 5)
    (tmp_path / "b.jsonl").unlink()
    assert "cannot be read again" in row_origin(built, 0)
    (built.folder / ORIGIN_FILE).unlink()
    assert "no record" in row_origin(built, 0)
    assert "row 0 says 0" in row_text(built, 0)


def test_where_the_sources_lie_is_no_part_of_the_dataset(built: Dataset) -> None:
    fingerprint = built.fingerprint
    (built.folder / ORIGIN_FILE).unlink()
    assert Dataset.open(built.folder).fingerprint == fingerprint


def test_rows_that_are_equal_are_named_with_all_their_lines(built: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "equal.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "two", "one", "one", "one")))
    config = BuildConfig(tokenizer=str(built.folder / "tokenizer.json"), label_field=None, format="text")
    build_dataset([file], tmp_path / "equal", config)
    dataset = Dataset.open(tmp_path / "equal")
    assert row_origin(dataset, 2) == f"{file}: line 1, {file}: line 3, {file}: line 4, ..."
    assert row_origin(dataset, 1) == f"{file}: line 2"
