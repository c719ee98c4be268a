"""Files as strangers write them: adopted with the rows that pyarrow reads, or refused by file and column."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.base.errors import DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.diff import diff_datasets
from assay.data.dataset.index import index_dataset
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.split import TimeSplit, split_view
from variants import slow


def index(tmp_path: Path) -> Dataset:
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    return Dataset.open(tmp_path / "dataset")


def column_of(dataset: Dataset, name: str) -> list[object]:
    groups = range(len(dataset.groups))
    return [value for group in groups for value in dataset.read_row_group(group, [name])[name].to_pylist()]


def test_a_dot_in_a_columns_name_is_part_of_the_name(tmp_path: Path, write_shard) -> None:
    values = {"meta.lang": ["en"] * 50, "meta": [{"lang": "de", "a.b": 1}] * 50}
    write_shard("a", **{name: pa.array(value) for name, value in values.items()})
    before = index(tmp_path)
    for name, value in values.items():
        assert before.read_row_group(1, ["input_ids", name]).column_names == ["input_ids", name]
        assert column_of(before, name) == value
    write_shard("a", **{**values, "meta.lang": pa.array(["fr"] * 50)})
    index_dataset(str(tmp_path / "source"), tmp_path / "later")
    (changed,) = diff_datasets(before, Dataset.open(tmp_path / "later")).shards_changed
    assert "meta.lang" in changed.columns


def test_row_groups_without_rows_are_passed_over(tmp_path: Path, write_shard) -> None:
    path = write_shard("a", 20, flag=pa.array([True, False] * 10))  # has no dictionary, unlike the others
    table = pq.read_table(path)
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 12), table.slice(0, 0), table.slice(12)):
            writer.write_table(part)
    dataset = index(tmp_path)
    assert dataset.manifest.num_row_groups == 4
    assert column_of(dataset, "input_ids") == table["input_ids"].to_pylist()
    config = TimeSplit(type="time", validation_from="2026-01-01T10:00:00")
    assert split_view(dataset, config, "train").num_rows.tolist() == [0, 10, 0, 0]


def test_a_list_of_nulls_is_read_beside_a_column_that_may_not_be_null(tmp_path: Path, write_shard) -> None:
    path = write_shard("a", 16, odd=pa.array([[None, None, None]] * 16, pa.list_(pa.null())))
    table = pq.read_table(path)
    required = [field.with_nullable(field.name != "label") for field in table.schema]
    pq.write_table(pa.table(table.columns, schema=pa.schema(required)), path)
    dataset = index(tmp_path)
    assert dataset.read_row_group(0, ["label", "odd"])["odd"].to_pylist() == [[None, None, None]] * 16


def test_two_columns_of_one_name_are_refused(tmp_path: Path, write_shard) -> None:
    path = write_shard("a")
    table = pq.read_table(path)
    pq.write_table(table.append_column("language", table["language"]), path)
    with pytest.raises(DataError, match=r"a\.parquet: 2 columns are named 'language'"):
        index(tmp_path)


def test_integers_beyond_what_floats_hold_exactly_are_profiled(tmp_path: Path, write_shard) -> None:
    write_shard("a", snowflake=pa.array([2**53 + 1] * 50))
    (profile,) = (
        column_profile
        for column_profile in index(tmp_path).manifest.column_profiles
        if column_profile.name == "snowflake"
    )
    assert (profile.maximum, profile.mean) == (str(2**53 + 1), pytest.approx(2**53))


def test_text_that_is_not_utf8_is_refused_by_column(tmp_path: Path, write_shard) -> None:
    broken = pa.array([b"fine"] * 49 + [b"\xff\xfe"]).view(pa.string())
    for column in (broken, pa.StructArray.from_arrays([broken], ["inner"])):
        write_shard("a", language=column)
        with pytest.raises(DataError, match=r"a\.parquet: row group 3: column 'language' .*UTF8"):
            index(tmp_path)


@pytest.mark.parametrize(
    ("column", "least"),
    [
        (pa.array([2**62] * 50, pa.timestamp("us")), f"{2**62} of timestamp[us]"),
        (pa.array([-(2**50)] * 50, pa.timestamp("ms", "UTC")), f"{-(2**50)} of timestamp[ms, tz=UTC]"),
        (pa.array([2**30] * 50, pa.int32()).cast(pa.date32()), f"{2**30} of date32[day]"),
        (pa.array([0] * 50, pa.timestamp("us", "Nowhere/Land")), "0 of timestamp[us, tz=Nowhere/Land]"),
        (pa.array([1] * 50, pa.timestamp("ns")), "1970-01-01 00:00:00"),
        (pa.array(np.full(50, 0.5, np.float16)), "0.5"),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_values_that_python_does_not_have_are_profiled_as_they_are_stored(
    tmp_path: Path, write_shard, column: pa.Array, least: str
) -> None:
    write_shard("a", odd=column)
    dataset = index(tmp_path)
    (profile,) = [profile for profile in dataset.manifest.column_profiles if profile.name == "odd"]
    assert profile.minimum == least
    assert dataset.read_row_group(0, ["odd"])["odd"].combine_chunks().equals(column[:16])


def test_a_time_too_large_for_microseconds_is_refused_and_not_put_into_another_year(
    tmp_path: Path, write_shard
) -> None:
    write_shard("a", created_at=pa.array([2**45] * 50, pa.timestamp("s")))
    config = TimeSplit(type="time", validation_from="2026-01-01")
    with pytest.raises(DataError, match=r"a\.parquet: column 'created_at' .* out of bounds"):
        split_view(index(tmp_path), config, "train")


ENCRYPT = """
import base64, sys, pyarrow.parquet as pq, pyarrow.parquet.encryption as pe
class Keys(pe.KmsClient):
    def __init__(self, config): pe.KmsClient.__init__(self)
    def wrap_key(self, key, name): return base64.b64encode(key)
    def unwrap_key(self, key, name): return base64.b64decode(key)
table = pq.read_table(sys.argv[1])
config = pe.EncryptionConfiguration("f", column_keys={"k": ["language"]}, plaintext_footer=len(sys.argv) > 2)
properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
with pq.ParquetWriter(sys.argv[1], table.schema, encryption_properties=properties) as writer:
    writer.write_table(table)
"""
INDEX = """
import sys; from pathlib import Path; from assay.data.dataset.index import index_dataset
index_dataset(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.parametrize("footer", [["readable"], *slow([])], ids=["readable footer", "encrypted footer"])
def test_encrypted_columns_are_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, write_shard, footer: list[str]
) -> None:
    path = write_shard("a")
    subprocess.run([sys.executable, "-c", ENCRYPT, str(path), *footer], check=True)
    command = [sys.executable, "-c", INDEX, str(path.parent), str(tmp_path / "dataset")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "DataError: a.parquet: has encrypted columns" in ended.stderr


@pytest.mark.parametrize(
    ("view", "plain"),
    [
        (pa.array(["a", None] * 8, pa.string_view()), pa.string()),
        (pa.array([b"a", None] * 8, pa.binary_view()), pa.binary()),
        (pa.array([[1], [2, 3]] * 8, pa.list_view(pa.int32())), pa.list_view(pa.int32())),
        (pa.array([["a"], None] * 8, pa.list_(pa.string_view())), pa.list_(pa.string())),
        (pa.array([{"a": "b"}] * 16, pa.struct({"a": pa.string_view()})), pa.struct({"a": pa.string()})),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_views_are_read_as_what_rows_can_be_taken_of(
    tmp_path: Path, write_shard, view: pa.Array, plain: pa.DataType
) -> None:
    write_shard("a", 16, odd=view)
    read = index(tmp_path).read_row_group(0, ["odd"])
    assert read["odd"].type == plain
    assert read.take(pa.array([1, 0]))["odd"].to_pylist() == view[:2].to_pylist()[::-1]


def test_shards_that_differ_in_what_may_be_null_go_together(tmp_path: Path, write_shard) -> None:
    tables = [pq.read_table(write_shard(name, 20, seed=seed)) for seed, name in enumerate("ab")]
    required = [pa.field(field.name, field.type, nullable=False) for field in tables[1].schema]
    required[0] = pa.field("input_ids", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)
    strict = tables[1].set_column(2, "language", pa.array(["en"] * 20))
    pq.write_table(strict.cast(pa.schema(required)), tmp_path / "source" / "b.parquet", row_group_size=16)
    dataset = index(tmp_path)
    joined = pa.concat_tables([dataset.read_row_group(group, ["input_ids", "language"]) for group in range(4)])
    assert joined["language"].to_pylist() == [*tables[0]["language"].to_pylist(), *["en"] * 20]


def test_every_mask_is_held_against_its_tokens(tmp_path: Path, write_shard) -> None:
    tokens = pa.array([[5, 6, 0, 0]] * 300, pa.list_(pa.int32()))
    for row in (70, 299):
        masks = pa.array([[1, 1, int(at != row), 1] for at in range(300)], pa.list_(pa.int8()))
        write_shard("a", 300, input_ids=tokens, attention_mask=masks)
        with pytest.raises(DataError, match=rf"row group {row // 16}: row {row % 16}: attention_mask is not"):
            index(tmp_path)
    for masks in (pa.array([[1] * 4] * 300), pa.array([[True] * 4] * 300), pa.array([[1.0] * 4] * 300)):
        write_shard("a", 300, input_ids=tokens, attention_mask=masks)
        assert index(tmp_path).manifest.num_rows == 300
    write_shard("a", 300, input_ids=tokens, attention_mask=pa.array([1] * 300))
    with pytest.raises(DataError, match=r"a\.parquet: column 'attention_mask' has type int64"):
        index(tmp_path)


def test_links_to_folders_and_files_are_followed_and_each_folder_is_read_once(tmp_path: Path, write_shard) -> None:
    for name in "abc":
        write_shard(name, 10, seed=ord(name))
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (source / "b.parquet").rename(elsewhere / "deep" / "b.parquet")
    (source / "c.parquet").rename(tmp_path / "blob")
    (source / "more").symlink_to(elsewhere)
    (source / "again").symlink_to(source)
    (elsewhere / "deep" / "up").symlink_to(elsewhere)
    (source / "c.parquet").symlink_to(tmp_path / "blob")
    dataset = index(tmp_path)
    assert [shard.path for shard in dataset.manifest.shards] == [
        "a.parquet", "c.parquet", "more/deep/b.parquet",
    ]  # fmt: skip
    assert column_of(dataset, "label") and not dataset.changed_shards()


@pytest.mark.parametrize("name", ["b.parquet", "more"])
def test_a_link_to_nothing_is_refused(tmp_path: Path, write_shard, name: str) -> None:
    write_shard("a")
    (tmp_path / "source" / name).symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=rf"{name}: a link to .*gone, which is not there"):
        index(tmp_path)
    (tmp_path / "source" / name).rename(tmp_path / "source" / f"_{name}")
    assert index(tmp_path).manifest.num_rows == 50


def test_names_in_capitals_are_shards_and_names_that_are_no_text_are_refused(tmp_path: Path, write_shard) -> None:
    path = write_shard("a")
    path = path.rename(path.with_suffix(".PARQUET"))
    assert index(tmp_path).manifest.num_rows == 50
    path.rename(path.with_name("\udcff.parquet"))
    with pytest.raises(DataError, match=r"\\udcff\.parquet': the name is not UTF-8"):
        index(tmp_path)


def test_a_folder_that_can_not_be_listed_is_refused(tmp_path: Path, write_shard, monkeypatch) -> None:
    write_shard("a")
    (tmp_path / "source" / "closed").mkdir()
    scandir = os.scandir

    def denied(path: Path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match="closed: cannot be listed: Permission denied"):
        index(tmp_path)


def test_columns_in_the_path_are_columns(tmp_path: Path, write_shard) -> None:
    source = tmp_path / "source"
    folders = ["lang=en/_year=2024", "lang=pt%2DBR/_year=-25", "lang=__HIVE_DEFAULT_PARTITION__/_year=7"]
    for seed, folder in enumerate(folders):
        path = write_shard("a", 20, seed=seed)
        (source / folder).mkdir(parents=True)
        path.rename(source / folder / "part-0.parquet")
    dataset = index(tmp_path)
    paths = [shard.path for shard in dataset.manifest.shards]
    languages = [{"e": "en", "p": "pt-BR", "_": None}[path[5]] for path in paths for _ in range(20)]
    assert column_of(dataset, "lang") == languages
    assert dataset.manifest.columns["lang"] == "string"
    assert sorted(set(column_of(dataset, "_year"))) == [-25, 7, 2024]
    table = dataset.read_row_group(0, ["_year", "input_ids"])
    assert table.num_rows == 16 and set(table.column_names) == {"_year", "input_ids"}
    (profile,) = [profile for profile in dataset.manifest.column_profiles if profile.name == "lang"]
    assert profile.top_values == (("en", 20), ("pt-BR", 20))
    write_shard("b")
    with pytest.raises(DataError, match="'lang' is string here and missing there"):
        index(tmp_path)


def test_a_column_of_the_file_goes_before_that_of_its_path(tmp_path: Path, write_shard) -> None:
    path = write_shard("a", 20)
    (tmp_path / "source" / "language=en").mkdir()
    table = pq.read_table(path.rename(tmp_path / "source" / "language=en" / "a.parquet"))
    assert column_of(index(tmp_path), "language") == table["language"].to_pylist()


def test_texts_behind_links_are_rows_and_links_to_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("hello")
    (tmp_path / "texts" / "more").symlink_to(tmp_path / "elsewhere")
    (span,) = find_spans([tmp_path / "texts"], 10)
    assert [row["path"] for _, row in span.rows()] == ["more/b.txt"]
    (tmp_path / "texts" / "c.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"c\.txt: a link to .*gone"):
        find_spans([tmp_path / "texts"], 10)
