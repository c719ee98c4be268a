"""What every object store must do: a folder, memory, and a real S3 endpoint on loopback."""

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from assay.base.errors import DamagedDataError, StoreAwayError, StoreError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.store.keys import require_key, require_prefix
from assay.store.objects import ObjectStore, open_store


def is_key(text: str) -> bool:
    try:
        require_key("", text)
    except StoreError:
        return False
    return True


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


NASTY = (
    *(
        "a",
        "b",
        "..",
        ".",
        "",
        "...",
        "..a",
        "a..",
        "~",
        "a b",
        "a%2fb",
        "%2e%2e",
        "a\\b",
        "..\\out",
        "C:",
        "a:b",
    ),
    *("#?*&+='\"", "ä", "a\u0308", "\u202e", "a\0b", "a\nb", "\x7f", "\ud800", ".unfinished-a"),
    *("x" * 255, "x" * 256, "ä" * 128),
)
SEGMENTS = st.sampled_from(NASTY) | st.text(st.characters(), min_size=1, max_size=8)
KEYS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)
UNDISTURBED = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def uses_of(store: ObjectStore, key: str) -> list[Callable[[], object]]:
    return [
        lambda: store.get(key),
        lambda: store.get_ranges(key, [0], [1]),
        lambda: store.put(key, b"ours"),
        lambda: store.put_if_absent(key, b"ours"),
        lambda: store.exists(key),
        lambda: store.num_bytes(key),
        lambda: store.delete(key),
        lambda: store.open_reader(key).__enter__(),
        lambda: store.open_writer(key).__enter__(),
    ]


@UNDISTURBED
@given(key=KEYS)
@example("../out")
@example("a/../../out")
@example("/out")
@example("a/" * 520 + "b")
def test_any_text_is_refused_as_a_key_by_all_or_names_one_object(store: ObjectStore, tmp_path: Path, key: str) -> None:
    outside = tmp_path.parent / "out"
    outside.write_bytes(b"theirs")
    background = sorted(path.name for path in tmp_path.parent.iterdir())
    try:
        require_key("", key)
    except StoreError:
        for use in uses_of(store, key):
            with pytest.raises(StoreError, match="no assay wrote"):
                use()
    else:
        store.put(key, b"one")
        assert not store.put_if_absent(key, b"two")
        assert (store.get(key), store.num_bytes(key), store.exists(key)) == (b"one", 3, True)
        assert list(store.list("")) == list(store.list(key)) == [(key, 3)]
        with store.open_writer(key) as writer:
            writer.write(b"three")
        with store.open_reader(key) as reader:
            assert reader.read() == b"three"
        store.delete(key)
    assert list(store.list("")) == []
    assert (outside.read_bytes(), sorted(path.name for path in tmp_path.parent.iterdir())) == (
        b"theirs",
        background,
    )


@UNDISTURBED
@given(keys=st.lists(KEYS.filter(is_key), unique=True, max_size=4), prefix=KEYS)
def test_a_listing_by_any_text_is_refused_by_all_or_has_what_begins_so(
    store: ObjectStore, keys: list[str], prefix: str
) -> None:
    present = [key for key in keys if not any(other.startswith(f"{key}/") for other in keys)]  # files, not folders
    for key in present:
        store.put(key, b"x")
    try:
        require_prefix("", prefix)
    except StoreError:
        with pytest.raises(StoreError, match="no assay wrote"):
            list(store.list(prefix))
    else:
        assert sorted(item.key for item in store.list(prefix)) == sorted(k for k in present if k.startswith(prefix))
    for key in present:
        store.delete(key)


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
            expected = sorted(key for key in keys if key.startswith(prefix) and key > after)
            assert sorted(item.key for item in store.list(prefix, after)) == expected
            for limit in (1, 3, 100):  # the first ones, in the order of keys
                assert [item.key for item in store.list(prefix, after, limit)] == expected[:limit]


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


def test_an_object_larger_than_one_request_is_whole(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.store.remote.range_reader.RANGE_BYTES", 1000)
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
    monkeypatch.setenv("ASSAY_STORE_RETRY_S", "1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(StoreAwayError, match=r"s3://bucket/run/key: cannot read it.*AWS_ENDPOINT_URL"):
        open_store("s3://bucket/run").get("key")
