"""Uploaded bytes that rot in the store are refused wherever they are read, and a second upload heals them."""

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.records.uploaded_file import FileCreated
from assay.serving.files import FileDamagedError, FileRepository
from assay.store.objects import ObjectStore, open_store
from clocks import ManualClock
from served import http_of, sdk_of

DATA = b'{"text": "a row", "label": 1}\n' * 40
FILE_ID, OTHER_ID = "file-" + "0" * 24, "file-" + "1" * 24


def put(files: FileRepository, file_id: str, project: str = "p", data: bytes = DATA) -> None:
    """Upload `data`; its own bytes come under a name of their own."""
    name = "file-" + f"{sum(1 for _ in files.store.list('')) + 16:024x}"
    sink = files.sink(name)
    sink.write(data)
    sink.finish()
    files.put(
        FileCreated(
            file_id=file_id, project=project, at_s=0.0, filename="f", purpose="fine-tune",
            num_bytes=sink.num_bytes, sha256=sink.sha256, content=name,
        )
    )  # fmt: skip


def damage(store: ObjectStore, data: bytes | None) -> None:
    """Replace all uploaded bytes; None: delete them."""
    for item in [*store.list("bytes/")]:
        if data is None:
            store.delete(item.key)
        else:
            store.put(item.key, data)


def damaged(data: bytes, position: int, change: int) -> bytes:
    return data[:position] + bytes([data[position] ^ change]) + data[position + 1 :]


@given(position=st.integers(0, len(DATA) - 1), change=st.integers(1, 255), cut=st.booleans())
def test_a_file_with_any_byte_changed_or_cut_is_refused_and_a_second_upload_mends_it(position, change, cut) -> None:
    store = open_store("memory:")
    files = FileRepository(store, ManualClock(1.8e9))
    put(files, FILE_ID)
    damage(store, DATA[:position] if cut else damaged(DATA, position, change))
    for read in (files.lines, files.blocks):
        with pytest.raises(FileDamagedError, match=f"{FILE_ID} is damaged.*Upload it again"):
            next(read(FILE_ID))
    put(files, OTHER_ID, project="another")
    assert [b"".join(files.lines(item)) for item in (FILE_ID, OTHER_ID)] == [DATA, DATA]
    assert len([*store.list("bytes/")]) == 1
    assert [*store.list("open/bytes/")] == []


def test_an_upload_of_what_lies_there_intact_drops_the_new_bytes() -> None:
    store = open_store("memory:")
    files = FileRepository(store, ManualClock(1.8e9))
    put(files, FILE_ID)
    (before,) = store.list("bytes/")
    put(files, OTHER_ID)
    assert [item.key for item in store.list("bytes/")] == [before.key]


@pytest.mark.parametrize("now", [damaged(DATA, 3, 1), DATA[:-5], None], ids=["changed", "cut", "gone"])
def test_content_of_a_damaged_file_is_an_error_that_asks_for_no_repetition(app, now) -> None:
    sdk = sdk_of(app)
    file = sdk.files.create(file=("rows.jsonl", DATA), purpose="fine-tune")
    damage(app.files.store, now)
    with pytest.raises(openai.BadRequestError, match=f"{file.id} is damaged") as found:
        sdk.files.content(file.id)
    assert found.value.code == "file_damaged"
    some = http_of(app).get(f"/v1/files/{file.id}/content", headers={"range": "bytes=20-30"})
    assert some.status_code == 400
    assert sdk.files.create(file=("rows.jsonl", DATA), purpose="fine-tune").id != file.id
    assert sdk.files.content(file.id).content == DATA


def test_a_batch_of_a_damaged_file_is_refused_when_it_is_made(app) -> None:
    sdk = sdk_of(app)
    file = sdk.files.create(file=("rows.jsonl", b'{"custom_id": "1"}\n'), purpose="batch")
    damage(app.files.store, b'{"custom_id": "2"}\n')
    with pytest.raises(openai.BadRequestError, match=f"{file.id} is damaged"):
        sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")


def test_a_part_that_rots_before_its_upload_is_completed_is_refused(app) -> None:
    sdk, store = sdk_of(app), app.files.store
    upload = sdk.uploads.create(bytes=len(DATA), filename="f", mime_type="text/jsonl", purpose="fine-tune")
    part = sdk.uploads.parts.create(upload.id, data=DATA)
    (item,) = (item for item in store.list("upload/") if "/part/" in item.key)
    store.put(item.key, damaged(DATA, 9, 4))
    with pytest.raises(openai.BadRequestError, match=f"Part {part.id} is damaged"):
        sdk.uploads.complete(upload.id, part_ids=[part.id])
    assert [*store.list("bytes/")] == []
