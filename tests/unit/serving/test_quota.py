import openai
import pytest

from assay.serving.openai.app_state import AppState
from assay.store.objects import open_store
from served import app_in, http_of, sdk_of


def app_with_quota(tmp_path, *, project_bytes: float, store=None) -> AppState:
    plain = app_in(tmp_path)
    return AppState.of(store or open_store("memory:"), plain.models, plain.clock, project_bytes=project_bytes)


def upload(sdk: openai.OpenAI, num_bytes: int):
    return sdk.files.create(file=("f.jsonl", b"x" * num_bytes), purpose="user_data")


def test_a_project_keeps_what_it_may_and_deleting_makes_room(tmp_path) -> None:
    app = app_with_quota(tmp_path, project_bytes=100_000)
    sdk = sdk_of(app)
    first, _ = upload(sdk, 40_000), upload(sdk, 50_000)
    with pytest.raises(openai.BadRequestError, match=r"quota is 0.0001 GB.*project_storage_gb") as refused:
        upload(sdk, 20_000)
    assert (refused.value.code, refused.value.param) == ("storage_limit_reached", "file")
    sdk.files.delete(first.id)
    app.clock.sleep_s(3.0)
    upload(sdk, 20_000)
    assert len(sdk.files.list().data) == 2


def test_short_files_count_as_what_they_take(tmp_path) -> None:
    sdk = sdk_of(app_with_quota(tmp_path, project_bytes=3 * 4096))
    for _ in range(3):
        upload(sdk, 1)
    with pytest.raises(openai.BadRequestError):
        upload(sdk, 1)


def test_parts_and_announced_uploads_count_and_what_was_refused_leaves_nothing(tmp_path) -> None:
    store = open_store("memory:")
    app = app_with_quota(tmp_path, project_bytes=100_000, store=store)
    sdk = sdk_of(app)
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.uploads.create(bytes=100_001, filename="f", mime_type="text/plain", purpose="user_data")
    assert refused.value.param == "bytes"
    started = sdk.uploads.create(bytes=100_000, filename="f", mime_type="text/plain", purpose="user_data")
    sdk.uploads.parts.create(started.id, data=b"x" * 90_000)
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.uploads.parts.create(started.id, data=b"x" * 20_000)
    assert (refused.value.code, refused.value.param) == ("storage_limit_reached", "data")
    assert len([*store.list(f"upload/{started.id}/part/")]) == 1
    with pytest.raises(openai.BadRequestError):
        upload(sdk, 20_000)
    sdk.uploads.cancel(started.id)
    app.clock.sleep_s(3.0)
    upload(sdk, 20_000)


def test_another_project_has_room_of_its_own(tmp_path) -> None:
    app = app_with_quota(tmp_path, project_bytes=10_000)
    keys = [app.keys.make(project=name, name="", scopes=("read", "write"), lives_s=None).secret for name in "ab"]
    form = {"files": {"file": ("f", b"x" * 9_000)}, "data": {"purpose": "user_data"}}
    statuses = [
        http_of(app).post("/v1/files", headers={"authorization": f"Bearer {key}"}, **form).status_code
        for key in (keys[0], keys[0], keys[1])
    ]
    assert statuses == [200, 400, 200]
