"""Rows of every kind of file that a dataset is built from."""

import csv
import json
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError, DataError
from assay.data.dataset import build as build_module
from assay.data.dataset.build import build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.raw.propose import RequestedFields, propose
from assay.data.pools.pool import ThreadPool
from assay.records.dataset import DatasetManifest

ROWS = [{"text": f"row {n}, said", "label": n % 2, "score": n / 4, "lang": "en"} for n in range(25)]


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are what `test_build` is about; each would cost more than all that is done here."""
    monkeypatch.setattr(build_module, "ProcessPool", ThreadPool)


def rows_of(*sources: Path, rows_per_span: int = 10) -> list[dict[str, Any]]:
    return [row for span in find_spans(sources, rows_per_span) for _, row in span.rows()]


def write_csv(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_arrow(path: Path, table: pa.Table, *, stream: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


def build(sources: list[Path], out: Path, **config: Any) -> DatasetManifest:
    return build_dataset(sources, out, BuildConfig(tokenizer="new:300", **config), workers=1)


def columns_of(folder: Path, *names: str) -> dict[str, list[Any]]:
    dataset = Dataset.open(folder)
    tables = [dataset.read_row_group(group, list(names)) for group in range(len(dataset.groups))]
    return pa.concat_tables(tables).to_pydict()


def test_one_table_has_the_same_rows_in_every_kind_of_file(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8)
    write_arrow(tmp_path / "stream.arrow", table)
    write_arrow(tmp_path / "file.arrow", table, stream=False)
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    for name in ("a.parquet", "stream.arrow", "file.arrow", "a.jsonl"):
        assert rows_of(tmp_path / name) == ROWS
    text_rows = [{name: str(value) for name, value in row.items()} for row in ROWS]
    assert rows_of(write_csv(tmp_path / "a.csv", ROWS)) == text_rows
    assert rows_of(write_csv(tmp_path / "a.tsv", ROWS, delimiter="\t")) == text_rows
    assert rows_of(write_csv(tmp_path / "b.csv", ROWS, delimiter=";")) == text_rows


def test_a_span_of_a_table_names_its_rows_and_digests_what_is_asked_for_only(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=8)
    other = [{**row, "lang": "de"} for row in ROWS]
    write_arrow(tmp_path / "b.arrow", pa.Table.from_pylist(other))
    ours, arrow = (find_spans([tmp_path / name], 10) for name in ("a.parquet", "b.arrow"))
    assert next(ours[1].rows())[0] == f"{tmp_path}/a.parquet: row 10"
    assert len({span.digest(["text"]) for span in ours}) == 3
    pairs = list(zip(ours, arrow, strict=True))
    assert all(a.digest(["text", "lang"]) != b.digest(["text", "lang"]) for a, b in pairs)


def test_a_folder_that_datasets_saved_is_read_in_its_order_with_its_class_names(tmp_path: Path) -> None:
    features = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}
    known = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for split, first in (("train", 0), ("test", 20)):
        part = pa.Table.from_pylist(ROWS[first : first + 20]).replace_schema_metadata(known)
        write_arrow(tmp_path / "saved" / split / "data-00000-of-00001.arrow", part)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (tmp_path / "saved" / split / "state.json").write_text(json.dumps(state))
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    expected = [{**row, "label": ["bad", "good"][row["label"]]} for row in ROWS]
    assert rows_of(tmp_path / "saved") == expected
    assert rows_of(tmp_path / "saved" / "test") == expected[20:]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=9), min_size=1),
    rows_per_span=st.integers(1, 4),
)
def test_csv_with_any_text_comes_back_whatever_its_spans(tmp_path: Path, texts, rows_per_span) -> None:
    path = write_csv(tmp_path / "a.csv", [{"n": "x", "text": text} for text in texts], quoting=csv.QUOTE_ALL)
    spans = find_spans([path], rows_per_span)
    found = [list(span.rows()) for span in spans]
    assert [row["text"] or "" for rows in found for _, row in rows] == texts
    assert all(len(rows) == rows_per_span for rows in found[:-1])
    lines = path.read_bytes().split(b"\n")
    for where, row in (located for rows in found for located in rows):
        assert lines[int(where.rpartition(" ")[2]) - 1].startswith(b'"x"'), row


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\nfine,1\na,b,c\n", "line 3: 3 values, and the header names 2"),
        ("a.csv", b'text,label\nfine,1\n"open,0\nmore,1\n', "line 3: not CSV"),
        ("a.csv", b"text,text\nfine,1\n", "names 'text' twice"),
        ("a.csv", b"text,\nfine,1\n", "has a column without a name"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"text,label\n", "a header and no rows"),
        ("a.csv", b"text,label\ncaf\xe9,1\n", r"line 2: not UTF-8 \(byte 3 of the line is 0xe9\)"),
        ("a.parquet", b"PAR1 nothing", "not readable as Parquet"),
        ("a.arrow", b"ARROW1 nothing", "not readable as Arrow"),
        ("a.json", b'[{"text": "x"}]', "expected a JSON object, found a list.* jq -c"),
        ("a.jsonl.gz", b"", "a .gz file is not read. Unpack it"),
    ],
)
def test_a_file_that_can_not_be_read_is_named_with_the_cure(tmp_path: Path, name, content, message) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, ConfigError), match=message):
        rows_of(tmp_path / name)


def test_a_pattern_means_the_files_that_it_matches_a_row_each(tmp_path: Path) -> None:
    for path in ("docs/b.md", "docs/deep/a.md", "docs/c.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    found = rows_of(tmp_path / "docs" / "**" / "*.md")
    assert [(row["text"], row["path"], row["folder"]) for row in found] == [
        ("docs/b.md", "b.md", "docs"), ("docs/deep/a.md", "deep/a.md", "deep"),
    ]  # fmt: skip
    assert rows_of(tmp_path / "docs/b.md", tmp_path / "docs/deep/a.md") == found
    with pytest.raises(DataError, match="no file matches this pattern"):
        rows_of(tmp_path / "*.rst")


def test_a_folder_of_several_kinds_is_refused_and_of_one_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS[10:]), tmp_path / "b.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[:10]), tmp_path / "a.parquet")
    (tmp_path / "README.txt").write_text("no row")
    assert rows_of(tmp_path) == ROWS
    write_csv(tmp_path / "c.csv", ROWS)
    with pytest.raises(ConfigError, match="CSV or TSV and of Parquet"):
        rows_of(tmp_path)


VALUES: dict[str, pa.Array] = {
    "endless": pa.array([1.5, math.inf, -math.inf, math.nan, None]),
    "truth": pa.array([True, False, None, True, False]),
    "day": pa.array([date(2026, 1, 2), None, date(1, 1, 1), date(9999, 12, 31), date(2026, 1, 2)]),
    "moment": pa.array([datetime(2026, 1, 2, 3, tzinfo=UTC)] * 4 + [None], pa.timestamp("ns", "UTC")),
    "price": pa.array([Decimal("1.25"), None, Decimal("-3.50"), Decimal("0.00"), Decimal("9.99")]),
    "kind": pa.array(["a", "b", None, "a", "b"]).dictionary_encode(),
    "half": pa.array([1.0, 2.0, None, 4.0, 5.0], pa.float16()),
    "none": pa.nulls(5),
    "inside": pa.array([{"lang": "en"}, {"lang": None}, None, {"lang": "de"}, {"lang": "en"}]),
}


def test_every_value_of_a_column_is_kept_as_what_it_says(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", "two", "three", "four", "five"], "label": [0, 1] * 2 + [0], **VALUES})
    pq.write_table(table, tmp_path / "a.parquet")
    metadata = ("endless", "truth", "day", "moment", "price", "kind", "half", "none", "inside.lang")
    manifest = build([tmp_path / "a.parquet"], tmp_path / "out", metadata_fields=metadata)
    found = columns_of(tmp_path / "out", *metadata)
    assert found["endless"][:3] == [1.5, math.inf, -math.inf] and found["endless"][4] is None
    assert found["truth"] == [True, False, None, True, False]
    assert found["day"][:3] == ["2026-01-02", None, "0001-01-01"]
    assert found["moment"][0].startswith("2026-01-02 03:00:00")
    assert found["price"] == [1.25, None, -3.5, 0.0, 9.99]
    assert (found["kind"], found["half"]) == (["a", "b", None, "a", "b"], [1.0, 2.0, None, 4.0, 5.0])
    assert (found["none"], found["inside.lang"]) == ([None] * 5, ["en", None, None, "de", "en"])
    profiles = {profile.name: profile for profile in manifest.column_profiles}
    assert (profiles["endless"].minimum, profiles["endless"].maximum) == ("-inf", "inf")
    assert (profiles["endless"].mean, profiles["endless"].missing_rate) == (1.5, 0.4)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("list", pa.array([[1], [2]])),
        ("bytes", pa.array([b"x", b"y"])),
        ("wide", pa.array([1, 2**64 - 1], pa.uint64())),
    ],
)
def test_a_value_that_can_be_no_metadata_is_named(tmp_path: Path, name: str, values: pa.Array) -> None:
    pq.write_table(pa.table({"text": ["one", "two"], "label": [0, 1], name: values}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"a.parquet: row [01]: field '{name}'"):
        build([tmp_path / "a.parquet"], tmp_path / "out", metadata_fields=(name,))


def test_a_column_of_csv_is_of_numbers_if_every_value_spells_one(tmp_path: Path) -> None:
    rows = [
        {"text": "a b", "label": "0", "whole": "3", "part": "1", "zip": "00412", "truth": "True", "mixed": "1"},
        {"text": "c d", "label": "1", "whole": "", "part": "2.5", "zip": "10115", "truth": "", "mixed": "two"},
    ]
    names = ("whole", "part", "zip", "truth", "mixed")
    build([write_csv(tmp_path / "a.csv", rows)], tmp_path / "out", metadata_fields=names)
    assert columns_of(tmp_path / "out", "label", *names) == {
        "label": [0, 1], "whole": [3, None], "part": [1.0, 2.5], "zip": ["00412", "10115"],
        "truth": [True, None], "mixed": ["1", "two"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "kind", "stored"),
    [
        ([0, 1, True, "1"], "auto", [0, 1, 1, 1]),
        (["ham", "spam", "ham", "eggs"], "auto", ["ham", "spam", "ham", "eggs"]),
        ([1, 2, 3, 2], "auto", ["1", "2", "3", "2"]),
        ([1, 2, 3, 2], "number", [1.0, 2.0, 3.0, 2.0]),
        ([1, 2.5, 3, -2], "auto", [1.0, 2.5, 3.0, -2.0]),
        ([0, 1, 0, 1], "classes", ["0", "1", "0", "1"]),
        ([0, 1, 0, 1], "number", [0.0, 1.0, 0.0, 1.0]),
    ],
)
def test_labels_are_told_from_all_values(tmp_path: Path, labels: list, kind: str, stored: list) -> None:
    lines = [json.dumps({"text": f"row {n}", "label": label}) for n, label in enumerate(labels)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    manifest = build([tmp_path / "a.jsonl"], tmp_path / "out", label_kind=kind)
    assert columns_of(tmp_path / "out", "label")["label"] == stored
    is_number = isinstance(stored[0], float)
    assert manifest.label_counts == ({} if is_number else {str(label): stored.count(label) for label in stored})


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (["ham", "ham"], "auto", "is 'ham' in all rows"),
        (["ham", 3], "auto", "line 2: field 'label' is a number here and text in .*line 1"),
        (["ham", "3"], "number", "line 1: field 'label' is text, not a number"),
        ([0, 2], "binary", "line 2: field 'label' is 2; expected 0 or 1"),
        ([f"id-{n}" for n in range(1_100)], "auto", "more than 1,000 different values"),
    ],
)
def test_labels_that_fit_no_kind_are_named(tmp_path: Path, labels: list, kind: str, message: str) -> None:
    lines = [json.dumps({"text": f"row {n}", "label": label}) for n, label in enumerate(labels)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        build([tmp_path / "a.jsonl"], tmp_path / "out", label_kind=kind)


def test_what_is_left_out_cut_doubled_and_shared_is_counted_and_can_be_dropped(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "one two three four five six seven", "label": 0, "author": "a"},
        {"text": "same", "label": 1, "author": "a"},
        {"text": "  ", "label": 1, "author": "a"},
        {"text": None, "label": 1, "author": "a"},
        {"text": "no label", "label": None, "author": "b"},
        {"text": "same", "label": 0, "author": "b"},
        {"text": "same", "label": 1, "author": "b"},
    ]
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    options: dict[str, Any] = {"max_tokens": 6, "rows_per_shard": 3}
    summary = build([source], tmp_path / "kept", **options, key_field="author").build
    assert summary is not None
    assert (summary.num_read, summary.num_empty, summary.num_unlabelled) == (7, 2, 1)
    assert summary.first_empty.endswith("line 3") and summary.first_unlabelled.endswith("line 5")
    assert (summary.num_doubled, summary.num_conflicting, summary.num_shared, summary.num_dropped) == (
        2,
        3,
        3,
        0,
    )
    assert summary.num_cut == 1 and summary.num_cut_tokens == 1
    dropped = build([source], tmp_path / "dropped", **options, key_field="author", drop=("doubled",))
    assert columns_of(tmp_path / "dropped", "label")["label"] == [0, 1]
    assert dropped.build is not None and (dropped.build.num_dropped, dropped.build.num_shared) == (2, 0)
    build([source], tmp_path / "agreed", **options, drop=("conflicting",), key_is_text=True)
    assert columns_of(tmp_path / "agreed", "label")["label"] == [0]
    with pytest.raises(DataError, match="no row is left: 2 have no text"):
        source.write_text("\n".join(map(json.dumps, rows[2:4])))
        build([source], tmp_path / "none")


def test_without_a_group_copies_of_a_text_have_one_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text, "label": 0}) for text in "abcab"))
    build([tmp_path / "a.jsonl"], tmp_path / "out", key_is_text=True)
    keys = columns_of(tmp_path / "out", "shard_id")["shard_id"]
    assert keys[:2] == keys[3:] and len(set(keys)) == 3


def test_a_field_that_is_not_there_is_refused_with_what_was_perhaps_meant(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", ROWS)
    with pytest.raises(ConfigError, match=r"'langage' is missing .* Perhaps you meant --metadata lang"):
        build([source], tmp_path / "out", metadata_fields=("langage",))
    rows = [{"text": "a", "label": 0, "lens": 1, "review_language": "en"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for field, hint in (
        ("language", " Perhaps you meant --metadata review_language."),
        ("kind", ""),
        ("tens", " Perhaps you meant --metadata lens."),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"(--metadata).{hint} Name one of those")):
            build([tmp_path / "b.jsonl"], tmp_path / "out", metadata_fields=(field,))
    with pytest.raises(ConfigError) as caught:
        build([tmp_path / "b.jsonl"], tmp_path / "out", metadata_fields=("lang5",))
    assert "lens." not in str(caught.value), "two letters in four are no likeness"
    assert not (tmp_path / "out").exists()


def test_nothing_is_proposed_beside_a_field_that_is_not_there(tmp_path: Path) -> None:
    """The typo was pasted back as a proposal, which was then refused."""
    source = write_csv(tmp_path / "a.csv", ROWS)
    for fields, hint in (
        (
            RequestedFields(label="lable"),
            "'lable' is missing from every row (--label). Perhaps you meant --label label.",
        ),
        (
            RequestedFields(text="txt"),
            "'txt' is missing from every row (--text). Perhaps you meant --text text.",
        ),
        (
            RequestedFields(metadata=("lang", "langage")),
            "'langage' is missing from every row (--metadata). Perhaps",
        ),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"{source}: field {hint}")):
            propose([source], fields)
    table = write_csv(tmp_path / "table.csv", [*ROWS] * 1_200)
    with pytest.raises(ConfigError, match="'lable' is missing from every row"):
        propose([table], RequestedFields(label="lable"))
    rows = [{"text": f"say {n}", **({"late": n} if n >= 1_000 else {})} for n in range(1_001)]
    (tmp_path / "late.jsonl").write_text("\n".join(map(json.dumps, rows)))
    late = RequestedFields(label="late")
    with pytest.raises(ConfigError, match=r"from the first 1,000 rows .* If later rows have it, say --tokenizer"):
        propose([tmp_path / "late.jsonl"], late)
    assert propose([tmp_path / "late.jsonl"], late._replace(tokenizer="new:300")).label == "late"


def test_a_new_tokenizer_is_the_same_whenever_and_wherever_it_is_trained(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in ROWS]
    digests = set()
    for name, order in (("here", 1), ("there", 1), ("turned", -1)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[::order]))
        digests.add(build([tmp_path / f"{name}.jsonl"], tmp_path / name).tokenizer_sha256)
    assert len(digests) == 1
    assert (tmp_path / "here" / "tokenizer.json").is_file()
    with pytest.raises(ConfigError, match="--tokenizer new:12: expected the size"):
        build_dataset([tmp_path / "here.jsonl"], tmp_path / "no", BuildConfig(tokenizer="new:12"), workers=1)


REVIEWS = [
    {
        "id": n,
        "review": f"it was {'very ' * (n % 7)}good, said number {n}",
        "stars": n % 5 + 1,
        "shop": "ab"[n % 2],
        "user_id": n // 3,
        "date": f"2026-01-{1 + n % 28:02}",
    }
    for n in range(60)
]


def test_fields_are_proposed_from_their_names_and_values(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", REVIEWS)
    found = propose([source], RequestedFields())
    assert found.is_guessed
    assert (found.text, found.label, found.time, found.key) == ("review", "stars", "date", "user_id")
    assert set(found.metadata) == {"id", "shop"} and found.tokenizer == "new:2000"
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    named = propose([tmp_path / "b.jsonl"], RequestedFields(tokenizer="t"))
    assert (named.text, named.label, named.metadata, named.is_guessed) == ("text", "label", (), False)
    assert propose([tmp_path / "b.jsonl"], RequestedFields()).is_guessed


def test_a_column_of_yes_and_no_is_asked_before_what_rows_are_about(tmp_path: Path) -> None:
    def label_of(**columns: list) -> str | None:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        texts = [{"text": f"a ticket that says {number}"} | row for number, row in enumerate(rows)]
        return propose([write_csv(tmp_path / "t.csv", texts)], RequestedFields()).label

    topics, replies = ["bill", "login", "other"] * 20, ["yes", "no", "no"] * 20
    assert label_of(category=topics, escalated=replies) == "escalated"
    assert label_of(category=topics) == "category"
    assert label_of(category=topics, escalated=replies, paid=["1", "0", "1"] * 20) == "category"
    assert label_of(sentiment=["good", "bad", "fair"] * 20, escalated=replies) == "sentiment"


def test_what_else_may_be_learned_is_known_beside_the_proposed_label(tmp_path: Path) -> None:
    """A 0 or 1 beside three areas: which of both is the question, nobody can tell from the rows."""
    rows = [{"code": f"def f{n}(): pass", "is_async": n % 2, "area": "abc"[n % 3]} for n in range(60)]
    source = write_csv(tmp_path / "a.csv", rows)
    found = propose([source], RequestedFields())
    assert (found.label, found.could_be_label) == ("is_async", {"is_async": 2, "area": 3})
    assert propose([source], RequestedFields(label="area")).could_be_label == {}


def test_a_category_that_is_nearly_always_the_same_is_proposed_as_no_label(tmp_path: Path) -> None:
    rows = [{"body": f"row {n}", "prio": "extra" if n == 7 else "usual", "kind": "abc"[n % 3]} for n in range(60)]
    found = propose([write_csv(tmp_path / "a.csv", rows)], RequestedFields())
    assert found.label == "kind" and found.metadata == ("prio",)


@pytest.mark.parametrize(
    ("row", "format"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "chat"),
        ({"prompt": "a", "completion": "b"}, "chat"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "pairs"),
        ({"input": {"messages": []}, "preferred_output": [1], "non_preferred_output": [2]}, "pairs"),
        ({"prompt": "a", "completion": "b", "label": 1}, None),
    ],
)
def test_rows_of_a_language_models_format_are_proposed_as_such(
    row: dict[str, Any], format: str | None, tmp_path: Path
) -> None:
    """A chat was proposed to be built of whatever other field was text: of its topic."""
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps({**row, "topic": f"t{n}"}) for n in range(9)))
    found = propose([source], RequestedFields())
    assert found.format == format and found.is_guessed
    assert propose([source], RequestedFields(text="topic")).format is None


@pytest.mark.parametrize("labels", [["a", "a", "a"], ["a", "b", "c"], ["x" * 80, "y", "y"]])
def test_a_field_called_label_is_the_label_whatever_it_holds(tmp_path: Path, labels: list[str]) -> None:
    """Of one value, of many, of long ones: a build without it would throw away what somebody wrote down."""
    source = write_csv(tmp_path / "a.csv", [{"text": f"row {n}", "label": label} for n, label in enumerate(labels)])
    for fields in (RequestedFields(tokenizer="t"), RequestedFields()):
        assert propose([source], fields).label == "label"
    assert propose([source], RequestedFields(tokenizer="t", without_label=True)).label is None


@pytest.mark.parametrize(
    ("names", "pattern"),
    [(("a.parquet", "b.parquet", "c.arrow"), "**/*.parquet"), (("a.jsonl", "b.csv", "c.jsonl"), "**/*.jsonl"),
     (("notes/a.rst",), "**/*.rst"), ((), "**/*.md")],
)  # fmt: skip
def test_the_pattern_that_is_proposed_for_a_folder_matches_files_that_it_holds(
    tmp_path: Path, names: tuple[str, ...], pattern: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    with pytest.raises((ConfigError, DataError)) as raised:
        rows_of(tmp_path)
    assert f"'{tmp_path}/{pattern}'" in str(raised.value)
