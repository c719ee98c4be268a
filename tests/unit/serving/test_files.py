import io
from functools import partial

import openai
import pytest
from starlette.testclient import TestClient

from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState
from assay.serving.openai.file_upload import PURPOSES
from assay.store.objects import open_store
from served import app_in, http_of, sdk_of

FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n1\r\n'
PURPOSE = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nevals\r\n'


@pytest.fixture(scope="module")
def untouched(tmp_path_factory) -> AppState:
    """A place for what is refused."""
    return app_in(tmp_path_factory.mktemp("untouched"))


@pytest.fixture(scope="module")
def refusing(untouched) -> tuple[openai.OpenAI, TestClient]:
    """SDK and plain HTTP before it."""
    return sdk_of(untouched), http_of(untouched)


def upload(sdk: openai.OpenAI, data: bytes = b'{"text": "a", "label": 1}\n', **kwargs):
    return sdk.files.create(file=("rows.jsonl", data), **{"purpose": "fine-tune", **kwargs})


def test_a_file_comes_back_as_it_was_sent(tmp_path) -> None:
    sdk = sdk_of(app_in(tmp_path))
    data = bytes(range(256)) * 20_000  # more than one block, and every byte
    file = upload(sdk, data)
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(data),
        "rows.jsonl",
        "fine-tune",
        "processed",
    )
    assert sdk.files.content(file.id).content == data
    assert sdk.files.retrieve(file.id) == file
    assert sdk.files.wait_for_processing(file.id) == file


def test_another_server_on_the_same_folder_has_the_same_files(tmp_path) -> None:
    first, second = (sdk_of(app_in(tmp_path, open_store(str(tmp_path / "api")))) for _ in range(2))
    one = upload(first)
    assert second.files.retrieve(one.id) == one
    two = upload(second)
    assert {file.id for file in first.files.list()} == {one.id, two.id}


def test_a_deleted_file_is_gone_with_its_bytes_and_so_is_one_that_expired(tmp_path) -> None:
    app = app_in(tmp_path)
    sdk = sdk_of(app)
    deleted = upload(sdk, b"1")
    expiring = upload(sdk, expires_after={"anchor": "created_at", "seconds": 3600})
    assert expiring.expires_at == expiring.created_at + 3600
    assert sdk.files.delete(deleted.id).deleted
    app.clock.sleep_s(3599)
    assert [file.id for file in sdk.files.list()] == [expiring.id]
    app.clock.sleep_s(1)
    assert [*sdk.files.list()] == []
    for gone in (deleted, expiring):
        for send in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
            with pytest.raises(openai.NotFoundError) as refused:
                send(gone.id)
            assert refused.value.code == "not_found"
    assert not app.files.store.exists(f"bytes/{deleted.id}")


def test_bytes_that_never_became_a_file_are_swept_a_day_later(tmp_path) -> None:
    app = app_in(tmp_path, open_store(str(tmp_path / "api")))
    retained = upload(sdk_of(app))
    sink = app.files.sink(cut_off := new_id("file", app.clock.now_s()))
    sink.write(b"all of it, but the power was cut before its entry")
    sink.finish()
    for seconds, contents in ((86_399, {retained.id, cut_off}), (2, {retained.id})):
        app.clock.sleep_s(seconds)
        app.files.sweep()
        found = {item.key.removeprefix("bytes/") for item in app.files.store.list("bytes/")}
        assert found == contents
    assert sdk_of(app).files.content(retained.id).content


def test_a_list_goes_on_where_it_was_while_files_come_and_go(tmp_path) -> None:
    app = app_in(tmp_path)
    sdk = sdk_of(app)
    created = []
    for _ in range(7):
        app.clock.sleep_s(1)
        created.append(upload(sdk).id)
    page = sdk.files.list(limit=3)
    seen = [file.id for file in page.data]
    upload(sdk)
    sdk.files.delete(created[4])  # the cursor itself
    sdk.files.delete(created[2])
    while page.has_next_page():
        page = page.get_next_page()
        seen += [file.id for file in page.data]
    assert seen == [created[n] for n in (6, 5, 4, 3, 1, 0)]
    assert [file.id for file in sdk.files.list(order="asc", limit=2).data] == created[:2]


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"purpose": "vision"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 5}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 5000}}, "expires_after.anchor"),
        ({"extra_body": {"nonsense": "1"}}, "nonsense"),
        ({"extra_query": {"nonsense": "1"}}, "nonsense"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name_and_nothing_is_left(untouched, refusing, kwargs, param) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        upload(refusing[0], **kwargs)
    assert refused.value.param == param
    assert refused.value.request_id.startswith("req_")
    assert [item.key for item in untouched.files.store.list("")] == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/absolute", "a\\b", "x" * 255])
def test_a_files_name_is_kept_and_leads_nowhere(tmp_path, name) -> None:
    app = app_in(tmp_path, open_store(str(tmp_path / "api")))
    sdk = sdk_of(app)
    file = sdk.files.create(file=(name, b"1"), purpose="evals")
    assert sdk.files.retrieve(file.id).filename == name
    keys = [item.key for item in app.files.store.list("")]
    assert all(set(key) <= set("0123456789abcdefghijklmnopqrstuvwxyz-/.") for key in keys)
    assert {path.name for path in tmp_path.iterdir()} == {"api", "models"}


@pytest.mark.parametrize(
    "resource_id", ["file-1", "..", "%2e%2e%2fx", "file-" + "0" * 24, "ftjob-" + "0" * 24, "file-" + "Z" * 24]
)
def test_an_id_that_is_none_of_ours_is_not_found(refusing, resource_id) -> None:
    response = refusing[1].get(f"/v1/files/{resource_id}")
    assert (response.status_code, set(response.json()["error"])) == (404, {"message", "type", "param", "code"})


@pytest.mark.parametrize(
    ("body", "output"),
    [
        (b"", "truncated"),
        (b"--x\r\n", "truncated"),
        (b"garbage", "cannot be read"),
        (PURPOSE + b"--x--\r\n", "'file'"),
        (FILE + b"--x--\r\n", "'purpose'"),
        (FILE.removesuffix(b"\r\n"), "truncated"),
        (FILE * 2 + b"--x--\r\n", "one file"),
        (PURPOSE * 2 + b"--x--\r\n", "two parts"),
        (b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n\xff\r\n--x--\r\n', "UTF-8"),
    ],
)  # fmt: skip
def test_a_form_that_is_broken_is_refused_and_leaves_nothing(untouched, refusing, body, output) -> None:
    response = refusing[1].post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    assert response.status_code == 400
    assert output in response.json()["error"]["message"]
    assert [*untouched.files.store.list("")] == []


def test_parts_may_come_in_any_order_and_in_blocks_of_any_size(tmp_path) -> None:
    sdk, http = sdk_of(app := app_in(tmp_path)), http_of(app)
    file = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\none\r\n-two\r\n'
    for parts in (file + PURPOSE, PURPOSE + file):
        blocks = io.BytesIO(parts + b"--x--\r\n")
        response = http.post(
            "/v1/files",
            content=iter(partial(blocks.read, 3), b""),
            headers={"content-type": "multipart/form-data; boundary=x"},
        )
        assert sdk.files.content(response.json()["id"]).content == b"one\r\n-two"


def test_every_purpose_is_kept(tmp_path) -> None:
    sdk = sdk_of(app_in(tmp_path))
    for purpose in PURPOSES:
        upload(sdk, purpose=purpose)
    assert [file.purpose for file in sdk.files.list(purpose="batch")] == ["batch"]
