"""Parquet as Hypothesis writes it, in up to three shards that may differ: adopted with the rows that pyarrow
reads, or refused by name.

Types, names, nulls, encodings, compressions, page versions, row groups (empty ones, too).
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from assay.base.errors import AssayError, DataError
from assay.data.dataset.columns import plain
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.split import HashSplit, TimeSplit, split_view, whole_view
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.records.cursor import Cursor

NAMES = ["meta.lang", "meta", "a", "A", "", " ", "a=b", "line\nbreak", "input_ids.list.element", "ünï", "label"]
texts = st.text(st.characters(codec="utf-8"), max_size=5)
in_64_bits = st.integers(-(2**63), 2**63 - 1)
EPOCH_TYPES = [pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC", "+05:30", "No/Zone")]
SIMPLE = [
    (st.booleans(), [pa.bool_()]),
    (st.integers(0, 127), [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32()]),
    (st.integers(0, 2**64 - 1), [pa.uint64()]),
    (in_64_bits, [pa.int64(), *EPOCH_TYPES, pa.duration("us"), pa.time64("ns")]),
    (st.integers(-(2**31), 2**31 - 1), [pa.date32(), pa.time32("ms")]),
    (st.floats(width=16, allow_nan=False).map(np.float16), [pa.float16()]),
    (st.floats(width=32), [pa.float32(), pa.float64()]),
    (texts, [pa.string(), pa.large_string(), pa.string_view(), pa.json_()]),
    (texts, [pa.dictionary(pa.int8(), pa.string())]),
    (st.binary(max_size=4), [pa.binary(), pa.large_binary(), pa.binary_view()]),
    (st.binary(min_size=3, max_size=3), [pa.binary(3)]),
    (st.decimals(-999, 999, places=2), [pa.decimal128(5, 2), pa.decimal256(60, 2)]),
    (st.none(), [pa.null()]),
]  # fmt: skip


@st.composite
def typed(draw, depth=2):
    """A type of Arrow and a strategy of its values."""
    kind = draw(st.sampled_from(["simple"] * 4 + ["list", "struct", "map", "fixed"] * (depth > 0)))
    if kind == "simple":
        values, types = draw(st.sampled_from(SIMPLE))
        return draw(st.sampled_from(types)), st.none() | values
    inner, values = draw(typed(depth=depth - 1))
    field = pa.field("item", inner)
    if kind == "list":
        make = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view]))
        return make(field), st.none() | st.lists(values, max_size=3)
    if kind == "fixed":
        return pa.list_(field, 2), st.lists(values, min_size=2, max_size=2)
    if kind == "map":
        return pa.map_(pa.string(), inner), st.lists(st.tuples(texts, values), max_size=2)
    return pa.struct({"lang": inner, "b.c": pa.int8()}), st.none() | st.fixed_dictionaries({"lang": values})


def array_of(values, arrow_type):
    if isinstance(arrow_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(arrow_type, pa.array(values, arrow_type.storage_type))
    if pa.types.is_temporal(arrow_type) and arrow_type != pa.null():
        width = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
        return pa.array(values, width).view(arrow_type)
    return pa.array(values, arrow_type)


@st.composite
def columns(draw, num_rows):
    """Some columns by name; a name may come twice."""
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        arrow_type, values = draw(typed())
        rows = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
        try:
            found.append((name, array_of(rows, arrow_type)))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):  # a value that the type does not have
            continue
    return found


@st.composite
def tokens(draw, num_rows):
    lists = draw(st.lists(st.lists(st.integers(0, 90), min_size=1, max_size=4), min_size=num_rows, max_size=num_rows))
    kind = draw(st.sampled_from([pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint8())]))
    field = pa.field("element", kind.value_type, nullable=draw(st.booleans()))
    return pa.array(lists, pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field))


write_options = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "brotli", "lz4", "zstd"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([16, 1024, None]),
        "version": st.sampled_from(["1.0", "2.4", "2.6"]),
        "write_statistics": st.booleans(),
        "store_schema": st.booleans(),
        "write_page_index": st.booleans(),
        "write_page_checksum": st.booleans(),
        "use_byte_stream_split": st.booleans(),
        "use_compliant_nested_type": st.booleans(),
    }
)


def write(path: Path, table: pa.Table, borders: list[int], options: dict) -> bool:
    """Row groups cut at `borders`, two at one place for an empty one; False where pyarrow cannot write it."""
    options = dict(options, use_byte_stream_split=options["use_byte_stream_split"] and not options["use_dictionary"])
    try:
        with pq.ParquetWriter(path, table.schema, **options) as writer:
            for start, stop in itertools.pairwise([0, *borders, len(table)]):
                # Written from a copy: pyarrow cannot cut views.
                writer.write_table(pa.Table.from_batches(table.slice(start, stop - start).to_batches(), table.schema))
    except (pa.ArrowException, OSError):
        return False
    return True


def shown(column: pa.ChunkedArray | pa.Array) -> str:
    """The rows, also those that Python has no value for."""
    try:
        return repr(column.to_pylist())
    except (ValueError, OverflowError):
        whole_column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        return whole_column.to_string(window=1000, container_window=1000)


def check_as_pyarrow_reads_it(dataset: Dataset, paths: list[Path]) -> None:
    files = [pq.ParquetFile(path) for path in paths]
    groups = [(file, group) for file in files for group in range(file.num_row_groups)]
    names = files[0].schema_arrow.names
    for number, (file, group) in enumerate(groups):
        expected = plain(file.read_row_group(group))
        together = dataset.read_row_group(number, names)
        for name in names:
            alone = dataset.read_row_group(number, [name])[name]
            assert shown(alone) == shown(together[name]) == shown(expected[name]), name


def check_that_it_loads(dataset: Dataset, paths: list[Path]) -> None:
    """Each row once in an epoch, with its own values; or an error about a list that no method can read."""
    tables = [plain(pq.read_table(path)) for path in paths]
    rows_of_all = [(table, row) for table in tables for row in range(len(table))]
    names = [name for name in tables[0].column_names if name != "input_ids"]
    config = LoaderConfig(lanes=2, global_batch_size=4, window_rows=4, threads=1)
    loader = Loader(whole_view(dataset), config, names)
    seen = []
    try:
        for share in loader.shares(Cursor(), range(2), loader.steps_per_epoch):
            for batch in (batch for lane in share.lanes for batch in lane.micro_batches):
                rows = batch.row_ids.tolist()
                seen += rows
                for name, column in batch.columns.items():
                    for index, row in enumerate(rows):
                        table, row_of_table = rows_of_all[row]
                        assert shown(column.slice(index, 1)) == shown(table[name].slice(row_of_table, 1)), name
    except DataError as error:
        assert any(path.name in str(error) for path in paths) and "column '" in str(error)
        event(f"no batch: {str(error).partition('holds')[2][:20]}")
    else:
        assert sorted(seen) == list(range(len(rows_of_all)))


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=25, **QUIET)
@given(data=st.data())
def test_a_file_is_read_as_pyarrow_reads_it_or_refused_by_name(tmp_path_factory, data) -> None:
    check_some_file(tmp_path_factory, data)


@pytest.mark.soak
@settings(max_examples=3000, **QUIET)
@given(data=st.data())
def test_thousands_of_files_are_read_as_pyarrow_reads_them_or_refused(tmp_path_factory, data) -> None:
    check_some_file(tmp_path_factory, data)


@st.composite
def shards(draw):
    """Tables, mostly of one schema: the rows of the first in another order, or whatever comes."""
    num_rows = draw(st.integers(0, 6))
    arrays = [("input_ids", draw(tokens(num_rows))), *draw(columns(num_rows))]
    tables = [pa.Table.from_arrays([array for _, array in arrays], names=[name for name, _ in arrays])]
    for kind in draw(st.lists(st.sampled_from(["alike", "alike", "fewer", "turned", "drawn"]), max_size=2)):
        first = tables[0]
        try:
            if kind == "alike":
                order = draw(st.lists(st.integers(0, num_rows - 1), min_size=1)) if num_rows else []
                first = first.take(pa.array(order, pa.int64()))
            elif kind == "fewer":
                first = first.select([0])
            elif kind == "turned":
                first = first.select(list(reversed(range(first.num_columns))))
            else:
                rows = draw(st.integers(1, 4))
                others = [("input_ids", draw(tokens(rows))), *draw(columns(rows))]
                first = pa.Table.from_arrays([array for _, array in others], names=[name for name, _ in others])
        except pa.ArrowException:  # a type that pyarrow cannot take rows of
            continue
        tables.append(first)
    return tables


def check_some_file(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("grammar")
    tables = data.draw(shards())
    (folder / "source").mkdir()
    paths = [folder / "source" / f"odd-{number}.parquet" for number in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        borders = sorted(data.draw(st.lists(st.integers(0, len(table)), max_size=3)))
        if not write(path, table, borders, data.draw(write_options)):
            return
    event(f"{len(paths)} shards")
    try:
        index_dataset(str(folder / "source"), folder / "dataset", needs_label=False, workers=1)
    except DataError as error:
        event(f"refused: {str(error)[14:42]}")
        assert any(path.name in str(error) for path in paths)
        names = {name for table in tables for name in table.column_names}
        assert (
            not all(map(len, tables))
            or any(f"'{name}'" in str(error) for name in names)
            or re.search(r": (input_ids|label|\d+ rows? (has|have) no label|\d+ tokens?) ", str(error))
            or "column" in str(error)
        )
        assert not (folder / "dataset").exists()
        return
    event("adopted")
    dataset = Dataset.open(folder / "dataset")
    check_as_pyarrow_reads_it(dataset, paths)
    check_that_it_loads(dataset, paths)
    for name in tables[0].column_names:
        for config in (
            HashSplit(column=name),
            TimeSplit(type="time", column=name, validation_from="2026-01-01"),
        ):
            try:
                split_view(dataset, config, "train")
            except AssayError as error:
                assert "data.split" in str(error) or "is null" in str(error)
