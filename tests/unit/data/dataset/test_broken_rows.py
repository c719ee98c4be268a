"""Broken rows are told all at once, before anything is written; or left out and counted, and no good one."""

import json
import random
from pathlib import Path

import pytest

from assay.base.errors import DataError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.raw.find import find_spans

BOM = b"\xef\xbb\xbf"
BROKEN = {
    b'{"text": "a tab \there"}': "column 17: not JSON: invalid control character",
    b'{"text": "half': "column 10: not JSON: unterminated string",
    b"nonsense": "column 1: not JSON: expecting value",
    b'{"text": 1} {}': "column 13: not JSON: extra data",
    b'{"text": ' + b"7" * 5_000 + b"}": "not JSON: a whole number of thousands of digits",
    b"[1, 2]": "expected a JSON object, found a list",
    b"3": "expected a JSON object, found a number",
    b'{"text": "caf\xe9"}': "not UTF-8 (byte 13 of the line is 0xe9)",
    b'{"text": 5}': "field 'text' is a number",
}


@pytest.fixture
def config() -> BuildConfig:
    return BuildConfig(
        tokenizer="new:300",
        label_field=None,
        rows_per_shard=16,
        rows_per_group=8,
        max_tokens=64,
    )


def good(number: int) -> bytes:
    return json.dumps({"text": f"this is row {number} of them"}).encode()


def mixed(path: Path, num_broken: int) -> tuple[list[bytes], dict[int, str]]:
    """Forty good lines with so many broken ones among them; and line number -> what is wrong there."""
    lines = [good(number) for number in range(40)]
    messages: dict[int, str] = {}
    indices = sorted(random.Random(num_broken).sample(range(40 + num_broken), num_broken))
    for number, index in enumerate(indices):
        line, what = list(BROKEN.items())[number % len(BROKEN)]
        lines.insert(index, line)
        messages[index + 1] = what
    path.write_bytes(b"\n".join(lines))
    return lines, messages


@pytest.mark.parametrize("num_broken", [2, 9, 20, 31])
def test_all_broken_rows_are_told_at_once_before_anything_is_written(
    tmp_path: Path, config: BuildConfig, num_broken: int
) -> None:
    _, messages = mixed(tmp_path / "rows.jsonl", num_broken)
    with pytest.raises(DataError) as caught:
        build_dataset([tmp_path / "rows.jsonl"], tmp_path / "out", config, workers=1)
    first, *listed, hint = str(caught.value).splitlines()
    assert first.endswith(f"rows.jsonl: {num_broken} rows cannot be used:")
    assert hint.endswith("'--drop unusable'.")
    for line, (number, what) in zip(listed, list(messages.items())[:20], strict=False):
        assert f"line {number}" in line and what in line and "char " not in line
    assert len(listed) == min(num_broken, 20) + (num_broken > 20)
    assert ("and 11 more" in listed[-1]) == (num_broken == 31)
    assert not (tmp_path / "out" / "manifest.json").exists() and not list(tmp_path.glob("out/**/*.*"))


@pytest.mark.parametrize("num_broken", [1, 9, 31])
def test_broken_rows_are_left_out_and_counted_and_no_good_one_is(
    tmp_path: Path, config: BuildConfig, num_broken: int
) -> None:
    _, messages = mixed(tmp_path / "rows.jsonl", num_broken)
    drops = config.model_copy(update={"drop": ("unusable",)})
    summary = build_dataset([tmp_path / "rows.jsonl"], tmp_path / "out", drops, workers=1).build
    assert summary is not None
    assert (summary.num_unusable, summary.num_read) == (num_broken, 40 + num_broken)
    number, what = next(iter(messages.items()))
    assert f"line {number}" in summary.first_unusable and what in summary.first_unusable
    (tmp_path / "good.jsonl").write_bytes(b"\n".join(map(good, range(40))))
    build_dataset([tmp_path / "good.jsonl"], tmp_path / "alone", config, workers=1)
    assert Dataset.open(tmp_path / "out").manifest.num_rows == 40
    assert Dataset.open(tmp_path / "alone").manifest.num_rows == 40


def test_where_all_are_broken_that_is_said(tmp_path: Path, config: BuildConfig) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(BROKEN))
    drops = config.model_copy(update={"drop": ("unusable",)})
    with pytest.raises(DataError, match=r"no row is left: .* 9 are dropped.* The first: .*line 1, column 17"):
        build_dataset([tmp_path / "rows.jsonl"], tmp_path / "out", drops, workers=1)


def test_a_row_of_csv_with_too_many_values_is_left_out_and_counted(tmp_path: Path, config: BuildConfig) -> None:
    (tmp_path / "rows.csv").write_text("text,n\n" + "some words,1\n" * 20 + "a,b,c\nother words,2\n")
    drops = config.model_copy(update={"drop": ("unusable",)})
    manifest = build_dataset([tmp_path / "rows.csv"], tmp_path / "out", drops, workers=1)
    assert manifest.num_rows == 21 and manifest.build is not None
    assert manifest.build.num_unusable == 1 and "line 22: 3 values" in manifest.build.first_unusable


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.csv"])
def test_a_byte_order_mark_is_no_part_of_a_row(name: str, tmp_path: Path) -> None:
    lines = {"a.jsonl": [good(0), good(1)], "a.txt": [b"one", b"two"], "a.csv": [b"text,n", b"a,1", b"b,2"]}[name]
    (tmp_path / name).write_bytes(b"\n".join(lines))
    plain = [row for span in find_spans([tmp_path / name], 1) for row in span.rows()]
    (tmp_path / name).write_bytes(BOM + b"\n".join(lines))
    assert [row for span in find_spans([tmp_path / name], 1) for row in span.rows()] == plain


def test_a_file_that_was_put_behind_another_keeps_its_first_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(BOM + good(0) + b"\n" + BOM + good(1))
    (span,) = find_spans([tmp_path / "a.jsonl"], 9)
    assert [row["text"][-9:] for _, row in span.rows()] == ["0 of them", "1 of them"]
