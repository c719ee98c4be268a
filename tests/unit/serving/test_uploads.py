"""Uploads in parts, and files of equal bytes."""

import hashlib

import openai
import pytest

from assay.serving.openai import upload_routes
from assay.serving.openai.app_state import AppState
from served import http_of

DATA = bytes(range(256)) * 40


def begin_upload(sdk: openai.OpenAI, **kwargs):
    requested = {"bytes": len(DATA), "filename": "rows.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    return sdk.uploads.create(**{**requested, **kwargs})


def sent(sdk: openai.OpenAI, upload_id: str, *parts: bytes) -> list[str]:
    return [sdk.uploads.parts.create(upload_id, data=part).id for part in parts]


def bytes_that_lie(app: AppState) -> list[bytes]:
    store = app.files.store
    return [store.get(item.key) for item in store.list("bytes/")]


def test_the_sdks_own_helper_makes_a_file_of_parts(sdk, app, tmp_path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(DATA)
    upload = sdk.uploads.upload_file_chunked(
        file=tmp_path / "rows.jsonl", mime_type="text/jsonl", purpose="fine-tune", part_size=3_000,
        md5=hashlib.md5(DATA).hexdigest(),
    )  # fmt: skip
    assert (upload.status, upload.bytes, upload.filename) == ("completed", len(DATA), "rows.jsonl")
    assert sdk.files.content(upload.file.id).content == DATA
    assert sdk.files.retrieve(upload.file.id) == upload.file
    assert [file.id for file in sdk.files.list()] == [upload.file.id]
    left = [item.key for item in app.files.store.list("upload/")]
    assert not [key for key in left if "/part/" in key]
    assert [*app.files.store.list("open/")] == []


def test_parts_count_in_the_order_that_is_named_and_a_part_sent_again_may_be_left_out(sdk) -> None:
    upload = begin_upload(sdk)
    second, first, _again = sent(sdk, upload.id, DATA[5_000:], DATA[:5_000], DATA[5_000:])
    done = sdk.uploads.complete(upload.id, part_ids=[first, second])
    assert sdk.files.content(done.file.id).content == DATA
    assert sdk.uploads.complete(upload.id, part_ids=[first, second]) == done  # a repeat finds it there


def test_a_file_of_parts_expires_as_it_was_asked_to(sdk, app) -> None:
    upload = begin_upload(sdk, expires_after={"anchor": "created_at", "seconds": 7200})
    assert (upload.status, upload.expires_at) == ("pending", upload.created_at + 3600)
    app.clock.sleep_s(100)
    file = sdk.uploads.complete(upload.id, part_ids=sent(sdk, upload.id, DATA)).file
    assert file.expires_at == file.created_at + 7200 == upload.created_at + 7300


@pytest.mark.parametrize(
    ("named", "md5", "param", "output"),
    [
        ([0], None, "part_ids", "a part is missing"),
        ([0, 1, 1], None, "part_ids", "twice"),
        ([0, 1, 2], None, "part_ids", "one too many"),
        (["part-" + "0" * 24], None, "part_ids", "has no part"),
        (["../../x"], None, "part_ids", "has no part"),
        ([1, 0], hashlib.md5(DATA).hexdigest(), "md5", "order is wrong"),
        ([0, 1], "0" * 32, "md5", "damaged"),
        ([], None, "part_ids", "at least 1"),
    ],
)
def test_parts_that_are_not_the_file_are_refused_and_it_can_still_be_completed(
    sdk, app, named, md5, param, output
) -> None:
    upload = begin_upload(sdk)
    parts = sent(sdk, upload.id, DATA[:5_000], DATA[5_000:], b"x")
    requested = [item if isinstance(item, str) else parts[item] for item in named]
    with pytest.raises(openai.BadRequestError, match=output) as refused:
        sdk.uploads.complete(upload.id, part_ids=requested, md5=md5 or openai.NOT_GIVEN)
    assert refused.value.param == param
    assert bytes_that_lie(app) == [] and [*sdk.files.list()] == []
    whole = hashlib.md5(DATA).hexdigest().upper()
    assert sdk.uploads.complete(upload.id, part_ids=parts[:2], md5=whole).status == "completed"


def test_what_is_cancelled_completed_or_expired_takes_no_part_more(sdk, app) -> None:
    cancelled, completed, expired = (begin_upload(sdk, bytes=1).id for _ in range(3))
    (part,) = sent(sdk, cancelled, b"1")
    assert sdk.uploads.cancel(cancelled).status == "cancelled"
    assert sdk.uploads.cancel(cancelled).status == "cancelled"
    sdk.uploads.complete(completed, part_ids=sent(sdk, completed, b"1"))
    late = sent(sdk, expired, b"1")
    app.clock.sleep_s(3600)
    for upload_id, status in ((cancelled, "cancelled"), (completed, "completed"), (expired, "expired")):
        with pytest.raises(openai.BadRequestError, match=f"is {status}") as refused:
            sent(sdk, upload_id, b"2")
        assert refused.value.code == "invalid_upload_state"
    for upload_id, parts in ((cancelled, [part]), (expired, late)):
        with pytest.raises(openai.BadRequestError):
            sdk.uploads.complete(upload_id, part_ids=parts)
    with pytest.raises(openai.BadRequestError, match="is completed"):
        sdk.uploads.cancel(completed)
    app.clock.sleep_s(2 * 86_400)
    app.uploads.sweep()
    assert not [item for item in app.files.store.list("upload/") if "/part/" in item.key]
    assert [*app.files.store.list("open/")] == []


def test_an_upload_cut_off_behind_its_file_is_completed_or_cancelled_all_the_same(sdk, app) -> None:
    for end, num_files in (("complete", 1), ("cancel", 0)):
        upload = begin_upload(sdk)
        parts = sent(sdk, upload.id, DATA)
        joined = app.uploads._joined(app.uploads.state(upload.id), parts, None, upload.id.replace("upload", "file"))
        app.files.put(joined)  # and here the power was cut
        if end == "complete":
            assert sdk.uploads.complete(upload.id, part_ids=parts).file.id == joined.file_id
        else:
            sdk.uploads.cancel(upload.id)
        assert len([*sdk.files.list()]) == num_files
        for file in sdk.files.list():
            sdk.files.delete(file.id)
    assert bytes_that_lie(app) == []


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"bytes": 0}, "bytes"),
        ({"bytes": "many"}, "bytes"),
        ({"bytes": 1 << 60}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"mime_type": ""}, "mime_type"),
        ({"purpose": "vision"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 5}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 5000}}, "expires_after.anchor"),
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_an_upload_that_cannot_be_is_refused_by_name(sdk, app, kwargs, param) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        begin_upload(sdk, **kwargs)
    assert refused.value.param == param
    assert [*app.files.store.list("")] == []


def test_a_part_has_a_largest_size_and_what_is_refused_leaves_nothing(sdk, app, monkeypatch) -> None:
    monkeypatch.setattr(upload_routes, "MAX_PART_BYTES", 100)
    upload = begin_upload(sdk)
    sent(sdk, upload.id, b"x" * 100)
    with pytest.raises(openai.BadRequestError) as refused:
        sent(sdk, upload.id, b"x" * 101)
    assert (refused.value.code, refused.value.param) == ("too_large", "data")
    with pytest.raises(openai.BadRequestError):
        sdk.uploads.parts.create(upload.id, data=b"x", extra_body={"nonsense": "1"})
    assert len([*app.files.store.list(f"upload/{upload.id}/part/")]) == 1


def test_another_projects_upload_is_not_there(app) -> None:
    secrets = [app.keys.make(project=item, name="", scopes=("read", "write"), lives_s=None).secret for item in "ab"]
    ours, other = (
        openai.OpenAI(base_url="http://server/v1", api_key=secret, http_client=http_of(app), max_retries=0)
        for secret in secrets
    )
    upload = begin_upload(ours, bytes=1)
    (part,) = sent(ours, upload.id, b"1")
    for send in (
        lambda: sent(other, upload.id, b"1"),
        lambda: other.uploads.complete(upload.id, part_ids=[part]),
        lambda: other.uploads.cancel(upload.id),
    ):
        with pytest.raises(openai.NotFoundError):
            send()


def test_an_upload_whose_answer_was_lost_is_begun_once(sdk, app) -> None:
    first = begin_upload(sdk)
    again = begin_upload(sdk, extra_headers={"x-stainless-retry-count": "1"})
    assert again.id == first.id and app.uploads.ids() == [first.id]


def test_equal_bytes_lie_once_until_the_last_file_goes(sdk, app) -> None:
    one, two = (sdk.files.create(file=(name, DATA), purpose="evals") for name in ("one", "two"))
    parts = begin_upload(sdk, purpose="evals")
    three = sdk.uploads.complete(parts.id, part_ids=sent(sdk, parts.id, DATA)).file
    assert len({one.id, two.id, three.id}) == 3
    assert bytes_that_lie(app) == [DATA]
    for gone, left in ((one, [two, three]), (three, [two])):
        sdk.files.delete(gone.id)
        assert [sdk.files.content(item.id).content for item in left] == [DATA] * len(left)
        assert bytes_that_lie(app) == [DATA]
    sdk.files.delete(two.id)
    assert bytes_that_lie(app) == [] and app.files.ids() == []
    assert sdk.files.content(sdk.files.create(file=("four", DATA), purpose="evals").id).content == DATA


def test_the_bytes_of_a_file_that_expired_are_swept_unless_another_is_of_them(sdk, app) -> None:
    after = {"anchor": "created_at", "seconds": 3600}
    for data in (b"alone", b"shared"):
        sdk.files.create(file=("f", data), purpose="evals", expires_after=after)
    retained = sdk.files.create(file=("f", b"shared"), purpose="evals")
    app.files.sweep()
    assert sorted(bytes_that_lie(app)) == [b"alone", b"shared"]
    app.clock.sleep_s(3600)
    app.files.sweep()
    assert bytes_that_lie(app) == [b"shared"]
    assert sdk.files.content(retained.id).content == b"shared"
    assert [*app.files.store.list("open/")] == []


@pytest.mark.parametrize(
    ("requested", "begin", "end"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=100-100", 100, 101),
        ("bytes=10200-", 10_200, 10_240),
        ("bytes=-7", 10_233, 10_240),
        ("bytes=-99999", 0, 10_240),
        ("bytes=10000-99999999", 10_000, 10_240),
    ],
)
def test_a_range_of_a_file_is_answered_with_those_bytes(sdk, app, requested, begin, end) -> None:
    file = sdk.files.create(file=("f", DATA), purpose="evals")
    response = http_of(app).get(f"/v1/files/{file.id}/content", headers={"range": requested})
    assert (response.status_code, response.content) == (206, DATA[begin:end])
    assert response.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(DATA)}"
    assert response.headers["content-length"] == str(end - begin)


@pytest.mark.parametrize(
    ("requested", "status"),
    [
        ("bytes=10240-", 416),
        ("bytes=-0", 416),
        ("bytes=5-4", 400),
        ("bytes=-", 400),
        ("bytes=0-1,4-5", 400),
        ("rows=0-1", 400),
        ("bytes=a-b", 400),
        ("bytes=١-٢", 400),
    ],
)
def test_a_range_that_cannot_be_is_refused(sdk, app, requested, status) -> None:
    file = sdk.files.create(file=("f", DATA), purpose="evals")
    headers = {"range": requested.encode()}
    response = http_of(app).get(f"/v1/files/{file.id}/content", headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (status, "range")
    if status == 416:
        assert response.headers["content-range"] == f"bytes */{len(DATA)}"


def test_a_download_goes_on_only_with_the_same_bytes(sdk, app) -> None:
    file = sdk.files.create(file=("f", DATA), purpose="evals")
    http = http_of(app)
    whole = http.get(f"/v1/files/{file.id}/content")
    assert (whole.headers["accept-ranges"], whole.content) == ("bytes", DATA)
    for tag, status in ((whole.headers["etag"], 206), ('"another"', 200)):
        headers = {"range": "bytes=5-", "if-range": tag}
        assert http.get(f"/v1/files/{file.id}/content", headers=headers).status_code == status


def test_an_upload_is_completed_once_and_of_other_parts_or_another_md5_it_is_refused(sdk, app) -> None:
    upload = begin_upload(sdk)
    first, second, again = sent(sdk, upload.id, DATA[:5_000], DATA[5_000:], DATA[5_000:])
    done = sdk.uploads.complete(upload.id, part_ids=[first, second])
    for part_ids in ([second, first], [first, again], ["part-nowhere"]):
        with pytest.raises(openai.BadRequestError, match="completed with other parts") as refused:
            sdk.uploads.complete(upload.id, part_ids=part_ids)
        assert (refused.value.param, refused.value.code) == ("part_ids", "invalid_parts")
    with pytest.raises(openai.BadRequestError, match="md5"):
        sdk.uploads.complete(upload.id, part_ids=[first, second], md5=hashlib.md5(b"").hexdigest())
    same = sdk.uploads.complete(upload.id, part_ids=[first, second], md5=hashlib.md5(DATA).hexdigest())
    assert same == done


def test_a_file_that_was_made_before_the_power_was_cut_is_not_that_of_another_order(sdk, app) -> None:
    upload = begin_upload(sdk)
    parts = sent(sdk, upload.id, DATA[:5_000], DATA[5_000:])
    file_id = upload.id.replace("upload", "file")
    app.files.put(app.uploads._joined(app.uploads.state(upload.id), parts, None, file_id))
    with pytest.raises(openai.BadRequestError, match="in another order"):
        sdk.uploads.complete(upload.id, part_ids=parts[::-1])
    done = sdk.uploads.complete(upload.id, part_ids=parts)
    assert sdk.files.content(done.file.id).content == DATA and bytes_that_lie(app) == [DATA]
