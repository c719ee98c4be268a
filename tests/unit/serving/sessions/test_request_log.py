"""One effect for each request, whatever is repeated, doubled or lost."""

from collections.abc import Iterator
from typing import Any

import pytest

from assay.base.errors import DamagedDataError
from assay.records.session import SessionCheckpoint, SessionCreated, SessionModel, SessionSampler
from assay.serving.ids import new_id
from assay.serving.sessions.request_log import (
    JSON,
    ChangedRequestError,
    RequestId,
    RequestLog,
    Result,
    TargetId,
    read_request_id,
    read_target_id,
    waiting_samples,
)
from assay.serving.sessions.sessions import CheckpointPath, SessionRepository, read_checkpoint_path
from assay.store.objects import ObjectStore, open_store
from clocks import ManualClock

SESSION = "session-00000000001" + "0" * 13
MODEL, SAMPLER = TargetId(SESSION, "train", 0), TargetId(SESSION, "sample", 2)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    return open_store("memory:")


def append(log: RequestLog, seq_id: int, body: bytes = b"{}") -> bool:
    return log.append(seq_id, "optim_step", JSON, body, now_s=1.0)


def test_a_repeat_changes_nothing_and_another_body_is_refused(store: ObjectStore) -> None:
    log = RequestLog(store, MODEL)
    assert append(log, 1, b'{"a":1}')
    assert not append(log, 1, b'{"a":1}')
    with pytest.raises(ChangedRequestError, match="another body"):
        append(log, 1, b'{"a":2}')
    request = log.request(1)
    assert request is not None and request.json() == {"a": 1} and request.kind == "optim_step"


def test_requests_are_read_by_number_whatever_order_they_arrive_in(store: ObjectStore) -> None:
    log = RequestLog(store, MODEL)
    for seq_id in (3, 1000, 1):
        append(log, seq_id, str(seq_id).encode())
    assert log.request(2) is None
    assert sorted(log.seq_ids()) == [1, 3, 1000]
    assert [log.request(seq_id).body for seq_id in (1, 3, 1000)] == [b"1", b"3", b"1000"]  # type: ignore[union-attr]


def test_the_first_result_stands(store: ObjectStore) -> None:
    log = RequestLog(store, MODEL)
    append(log, 1)
    assert log.result(1) is None and not log.has_result(1)
    assert log.put_result(1, Result.of_json({"a": 1}))
    assert not log.put_result(1, Result.of_error("late", "server"))
    assert log.result(1) == Result(JSON, b'{"a":1}') and log.has_result(1)
    assert [*log.seq_ids("results")] == [1]


def test_a_worker_finds_the_requests_of_samplers_until_they_have_results(store: ObjectStore) -> None:
    log = RequestLog(store, SAMPLER)
    append(RequestLog(store, MODEL), 1)
    for seq_id in (0, 10**18):
        log.append(seq_id, "sample", JSON, b"{}", now_s=1.0)
    assert {*waiting_samples(store, SESSION)} == {RequestId(SAMPLER, 0), RequestId(SAMPLER, 10**18)}
    log.put_result(0, Result.of_json({}))
    assert [*waiting_samples(store, SESSION)] == [RequestId(SAMPLER, 10**18)]


@pytest.mark.parametrize("kind", ["requests", "results"])
def test_a_changed_object_is_named_and_not_used(store: ObjectStore, kind: str) -> None:
    log = RequestLog(store, MODEL)
    append(log, 1, b"body")
    log.put_result(1, Result(JSON, b"body"))
    (key,) = [item.key for item in store.list("session-data/") if f"/{kind}/" in item.key]
    store.put(key, store.get(key).replace(b"body", b"Body"))
    with pytest.raises(DamagedDataError, match=key):
        log.request(1) if kind == "requests" else log.result(1)


@pytest.mark.parametrize(
    "text", ["", "a", f"{SESSION}:train", f"{SESSION}:other:0", f"{SESSION}:train:00", "../x:train:0", f"{MODEL}:1:2"]
)
def test_other_text_is_no_id(text: str) -> None:
    assert read_target_id(text) is None
    assert read_request_id(f"{text}:1") is None


def test_ids_are_read_as_they_are_written() -> None:
    request, path = RequestId(MODEL, 7), CheckpointPath(MODEL, "sampler", "final")
    assert read_target_id(str(MODEL)) == MODEL
    assert read_request_id(str(request)) == request
    assert read_checkpoint_path(str(path)) == path
    for text in (str(MODEL), f"tinker://{MODEL}/other/a", f"tinker://{SAMPLER}/weights/a", f"{path}/b"):
        assert read_checkpoint_path(text) is None


def test_a_session_keeps_its_models_samplers_and_saved_weights(store: ObjectStore) -> None:
    sessions = SessionRepository(store, ManualClock())
    session_id = new_id("session", 1.0)
    fields: dict[str, Any] = {"at_s": 1.0, "key_id": "", "sdk_version": "0.38.0"}
    sessions.put(SessionCreated(session_id=session_id, project="p", **fields))
    assert sessions.open_ids() == [session_id]
    model = SessionModel(at_s=1.0, model_index=0, base_model="tiny", base={}, lora_rank=4)
    for at_s in (1.0, 2.0):
        sessions.add_model(session_id, model.model_copy(update={"at_s": at_s}))
    with pytest.raises(ChangedRequestError, match="Model 0"):
        sessions.add_model(session_id, model.model_copy(update={"lora_rank": 8}))

    sampler = SessionSampler(at_s=1.0, sampler_index=3, base_model="tiny", model_index=0, seq_id=4)
    for at_s in (1.0, 2.0):
        sessions.add_sampler(session_id, sampler.model_copy(update={"at_s": at_s}))
    with pytest.raises(ChangedRequestError, match="Sampler 3"):
        sessions.add_sampler(session_id, sampler.model_copy(update={"seq_id": 5}))
    assert sessions.sampler(session_id, 3) == sampler and sessions.sampler(session_id, 4) is None

    saved = SessionCheckpoint(at_s=1.0, model_index=0, seq_id=5, checkpoint_type="training", name="a", num_bytes=10)
    path = CheckpointPath(TargetId(session_id, "train", 0), "training", "a")
    for _ in range(2):
        sessions.note_checkpoint(session_id, saved)
    state = sessions.found(session_id, "p")
    assert state.checkpoint(path) == saved and state.models == {0: model}
    sessions.delete_checkpoint(path)
    sessions.finish(session_id, "success")
    sessions.finish(session_id, "errored")
    state = sessions.found(session_id, "p")
    assert state.checkpoint(path) is None and state.finished and state.finished.status == "success"
    assert sessions.find(session_id, "other") is None
