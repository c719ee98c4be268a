"""What every object store must do: a folder, memory, and a real S3 endpoint on loopback."""

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.base.errors import DamagedDataError, StoreAwayError, StoreError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.store.objects import ObjectStore, open_store


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "folder":
        yield open_store(str(tmp_path))
    elif request.param == "memory":
        yield open_store("memory:")
    else:
        yield open_store(request.getfixturevalue("s3_url"))


def test_what_was_put_is_got_and_can_be_replaced_and_deleted(store: ObjectStore) -> None:
    store.put("a/b", b"one")
    store.put("a/b", b"two")
    assert store.get("a/b") == b"two"
    assert store.exists("a/b")
    store.delete("a/b")
    store.delete("a/b")
    assert not store.exists("a/b")
    with pytest.raises(StoreError, match="a/b"):
        store.get("a/b")


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/out"])
def test_a_key_that_leads_out_of_the_store_touches_nothing(
    store: ObjectStore, tmp_path: Path, key: str
) -> None:
    (tmp_path.parent / "out").write_bytes(b"theirs")
    uses: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.get_ranges(key, [0], [1]),
        lambda: store.put(key, b"ours"),
        lambda: store.put_if_absent(key, b"ours"),
        lambda: store.delete(key),
        lambda: list(store.list(key + "/")),
        lambda: store.open_reader(key).__enter__(),
        lambda: store.open_writer(key).__enter__(),
    ]
    for use in uses:
        with pytest.raises(StoreError, match="out"):
            use()
    assert (tmp_path.parent / "out").read_bytes() == b"theirs"


def test_of_many_writers_that_put_if_absent_exactly_one_wins(store: ObjectStore) -> None:
    results: list[tuple[int, bool]] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append((n, store.put_if_absent("key", b"%d" % n))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number, won in results if won]
    assert store.get("key") == b"%d" % winner


def test_a_listing_has_every_object_under_a_prefix_with_its_size(store: ObjectStore) -> None:
    for key in ("log/1", "log/2", "checkpoints/1/x", "logs"):
        store.put(key, key.encode())
    assert sorted(store.list("log/")) == [("log/1", 5), ("log/2", 5)]
    assert len(list(store.list(""))) == 4
    assert list(store.list("none/")) == []


def test_a_listing_begins_behind_a_key(store: ObjectStore) -> None:
    keys = ["a/1", "a/2-1/x", "a/2-1/y", "a/2/x", "a/3-1/x", "a/3-1/y/z", "a/3.json", "a-b/1", "b/1"]
    for key in keys:
        store.put(key, b"x")
    for after in ("a/1", "a/2", "a/2-1/x", "a/2-1/z", "a/3", "a/3-1/y/z", "a-b", "c", ""):
        for prefix in ("", "a/", "b/"):
            found = sorted(item.key for item in store.list(prefix, after))
            assert found == sorted(key for key in keys if key.startswith(prefix) and key > after)


def test_ranges_are_the_bytes_asked_for(store: ObjectStore) -> None:
    store.put("key", bytes(range(100)))
    parts = store.get_ranges("key", [90, 0, 5], [100, 3, 6])
    assert [bytes(part) for part in parts] == [bytes(range(90, 100)), b"\0\1\2", b"\5"]


def test_a_streamed_write_appears_only_when_it_is_whole(store: ObjectStore) -> None:
    with store.open_writer("key") as writer:
        writer.write(b"x" * 100)
        assert not store.exists("key")
    with store.open_reader("key") as reader:
        reader.seek(98)
        assert reader.read() == b"xx"


def test_a_buffer_may_be_used_again_once_it_was_written(store: ObjectStore) -> None:
    buffer = bytearray(1 << 20)
    with store.open_writer("key") as writer:
        for block in range(1, 4):
            buffer[:] = bytes([block]) * len(buffer)
            writer.write(memoryview(buffer))
    assert store.get("key") == b"".join(bytes([block]) * len(buffer) for block in range(1, 4))


def test_a_write_that_fails_leaves_nothing(store: ObjectStore) -> None:
    with pytest.raises(RuntimeError), store.open_writer("key") as writer:
        writer.write(b"half")
        raise RuntimeError
    assert not store.exists("key")
    assert list(store.list("")) == []


def test_an_object_larger_than_one_request_is_whole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.store.range_reader.RANGE_BYTES", 1000)
    for size in (0, 999, 1000, 1001, 3500):
        data = bytes(byte % 251 for byte in range(size))
        store.put("key", data)
        assert store.get("key") == data
        with store.open_reader("key") as reader:
            assert reader.read() == data
            reader.seek(-size // 2, io.SEEK_END)
            assert reader.read(2000) == data[size - size // 2 - size % 2 :][:2000]


@pytest.mark.parametrize("store", ["folder", "s3"], indirect=True)  # memory: its URL names no one store
def test_a_dataset_on_the_store_reads_as_it_was_written(store: ObjectStore, tmp_path: Path) -> None:
    table = pa.table({"input_ids": pa.array([[1, 2], [3]] * 50, pa.list_(pa.int32())), "label": [0, 1] * 50})
    content = io.BytesIO()
    pq.write_table(table, content, row_group_size=30)
    store.put("shards/a.parquet", content.getvalue())
    manifest = index_dataset(f"{store.url}/shards", tmp_path / "manifest")
    dataset = Dataset.open(tmp_path / "manifest")
    assert manifest.num_rows == 100
    assert dataset.read_row_group(3, ["label", "input_ids"]).to_pydict() == table.slice(90).to_pydict()
    assert dataset.changed_shards() == {}
    store.put("shards/a.parquet", content.getvalue()[:200])
    with pytest.raises(DamagedDataError, match=r"a.parquet has 200 bytes|a.parquet ends before byte"):
        dataset.read_row_group(3, ["label"])
    store.delete("shards/a.parquet")
    with pytest.raises(DamagedDataError, match=r"a.parquet is missing"):
        dataset.read_row_group(3, ["label"])


def test_a_bucket_that_is_not_there_is_one_error(s3_url: str) -> None:
    with pytest.raises(StoreError, match=r"s3://none/x/.*cannot list it.*and the bucket"):
        list(open_store("s3://none/x").list(""))


def test_an_endpoint_that_does_not_answer_is_one_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ASSAY_STORE_PATIENCE", "1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(StoreAwayError, match=r"s3://bucket/run/key: cannot read it.*AWS_ENDPOINT_URL"):
        open_store("s3://bucket/run").get("key")
