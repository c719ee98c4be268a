"""The Tinker API over plain HTTP: one effect for each request, and a clear error for each bad one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

from assay.serving.openai.app_state import AppState
from assay.serving.queue.worker_registry import SESSION_WORKERS, WorkerRegistration
from assay.serving.sessions.sessions import HEARD_S
from assay.serving.tinker import app as tinker_app
from assay.serving.tinker import futures
from assay.serving.tinker.messages import new_message
from served import app_in
from sessions import AnsweringWorker, tinker_http

PROTO = {"content-type": "application/x-protobuf"}


@pytest.fixture
def app(tmp_path: Path) -> AppState:
    return app_in(tmp_path, method="supervised")


@pytest.fixture(autouse=True)
def short_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "HOLD_S", 0.01)


@pytest.fixture
def http(app: AppState) -> Iterator[TestClient]:
    with tinker_http(app) as client:
        yield client


def post(http: TestClient, path: str, status: int = 200, /, **body: Any) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == status, response.text
    tree: dict[str, Any] = response.json()
    return tree


def new_session(http: TestClient) -> str:
    session_id: str = post(http, "create_session", tags=[], user_metadata=None, sdk_version="0.38.0")["session_id"]
    return session_id


def new_model(http: TestClient) -> str:
    session_id, lora = new_session(http), {"rank": 4}
    model = {"session_id": session_id, "model_seq_id": 0, "base_model": "tiny", "lora_config": lora}
    model_id: str = post(http, "create_model", **model)["model_id"]
    return model_id


def batch(model_id: str, seq_id: int, **changes: Any) -> bytes:
    message = new_message("ForwardBackwardRequest")
    message.model_id, message.seq_id, message.loss_fn = model_id, seq_id, "cross_entropy"
    message.data.add().model_input.add().encoded_text.tokens = bytes(8)
    for name, value in changes.items():
        setattr(message, name, value)
    data: bytes = message.SerializeToString()
    return data


def result(http: TestClient, future: dict[str, Any], status: int = 200) -> Any:
    return post(http, "retrieve_future", status, request_id=future["request_id"])


def test_a_repeat_gets_the_same_future_and_another_body_is_refused(app: AppState, http: TestClient) -> None:
    worker, model_id = AnsweringWorker(app.sessions), new_model(http)
    step = {"model_id": model_id, "seq_id": 1, "adam_params": {"learning_rate": 0.5}}
    first = post(http, "optim_step", **step)
    worker.execute_all()
    assert post(http, "optim_step", **step) == first
    worker.execute_all()
    assert [kind for _, _, kind in worker.executed] == ["create_model", "optim_step"]
    refused = post(http, "optim_step", 400, **{**step, "adam_params": {"learning_rate": 0.25}})
    assert refused["code"] == "changed_request" and refused["category"] == "user"
    for data, status in (
        (batch(model_id, 2), 200),
        (batch(model_id, 2), 200),
        (batch(model_id, 2, loss_fn="ppo"), 400),
    ):
        assert http.post("forward_backward", content=data, headers=PROTO).status_code == status


def test_a_repeated_capture_has_the_sampler_of_the_first_request(app: AppState, http: TestClient) -> None:
    worker, model_id = AnsweringWorker(app.sessions), new_model(http)
    capture = {"model_id": model_id, "seq_id": 1, "kind": "snapshot"}
    first = post(http, "save_weights_for_sampler", **capture, sampling_session_seq_id=4)
    for number in (4, 5):  # the SDK counts up
        assert post(http, "save_weights_for_sampler", **capture, sampling_session_seq_id=number) == first
    worker.execute_all()
    session_id = model_id.split(":")[0]
    assert result(http, first)["sampling_session_id"] == f"{session_id}:sample:4"
    sampler = app.sessions.sampler(session_id, 4)
    assert sampler is not None and (sampler.model_index, sampler.seq_id) == (0, 1)
    assert app.sessions.sampler(session_id, 5) is None
    refused(http, "save_weights_for_sampler", words="another body", model_id=model_id, seq_id=1, path="a")


def test_chunks_are_executed_in_the_order_of_their_numbers(app: AppState, http: TestClient) -> None:
    worker, model_id = AnsweringWorker(app.sessions), new_model(http)
    for seq_id in (3, 2):
        http.post("forward_backward", content=batch(model_id, seq_id), headers=PROTO)
    step = post(http, "optim_step", model_id=model_id, seq_id=4, adam_params={})
    worker.execute_all()
    assert result(http, step, 408)["type"] == "try_again"
    http.post("forward_backward", content=batch(model_id, 1), headers=PROTO)
    worker.execute_all()
    assert [seq_id for _, seq_id, _ in worker.executed] == [0, 1, 2, 3, 4]
    assert result(http, step) == {"metrics": {"passes": 3.0}}


def test_a_pending_result_says_why(app: AppState, http: TestClient) -> None:
    from assay.serving.sessions.request_log import data_folder
    from assay.store.leases import take_lease

    model_id = new_model(http)
    pending = result(http, {"request_id": f"{model_id}:0"}, 408)
    assert pending["queue_state"] == "paused_capacity" and "No worker" in pending["queue_state_reason"]
    lease = take_lease(app.sessions.store, data_folder(model_id.split(":")[0]), worker="w", clock=app.clock)
    assert lease is not None
    pending = result(http, {"request_id": f"{model_id}:0"}, 408)
    assert (pending["queue_state"], pending["queue_state_reason"]) == ("active", None)
    post(http, "optim_step", model_id=model_id, seq_id=3, adam_params={})
    missing = result(http, {"request_id": f"{model_id}:3"}, 408)["queue_state_reason"]
    assert f"Request 2 of {model_id} has not arrived, and later ones wait for it." in missing
    lease.beat(release=True)
    gone = result(http, {"request_id": f"{model_id}:0"}, 408)["queue_state_reason"]
    assert "worker w is gone" in gone and "start 'assay serve sessions'" in gone


def test_a_new_session_is_warned_if_nobody_executes_it(app: AppState, http: TestClient) -> None:
    def warning() -> Any:
        return post(http, "create_session", sdk_version="0.38.0")["warning_message"]

    assert "start 'assay serve sessions'" in warning()
    worker = WorkerRegistration(app.sessions.store, app.clock, name="w", slots=1, folder=SESSION_WORKERS)
    worker.renew()
    assert warning() is None
    worker.deregister()
    assert "start 'assay serve sessions'" in warning()


def test_a_project_over_its_limit_hears_why_its_results_are_pending(app: AppState, http: TestClient) -> None:
    from assay.records.session import SessionCharged
    from assay.serving.admin.spend import costs_of_day, day_of

    model_id, now_s = new_model(http), app.clock.now_s()
    session_id = model_id.split(":")[0]
    for lease, device_s in ((1, 1800.0), (1, 3600.0), (2, 900.0)):
        charge = SessionCharged(at_s=now_s, lease=lease, began_s=now_s, ended_s=now_s + 60, device_s=device_s)
        app.sessions.charge(session_id, charge)
    [cost] = costs_of_day(app.charged, day_of(now_s))
    assert (cost.resource_id, cost.device_s, cost.training_s) == (session_id, 4500.0, 4500.0)
    app.projects.ensure("default", by="me")
    app.projects.limit("default", 1.25, by="me")
    pending = result(http, {"request_id": f"{model_id}:0"}, 408)
    assert pending["queue_state"] == "paused_capacity"
    assert "its limit is 1.25. It continues when the limit is raised" in pending["queue_state_reason"]


def test_an_invalid_request_of_a_model_takes_its_number_and_fails_there(app: AppState, http: TestClient) -> None:
    worker, model_id = AnsweringWorker(app.sessions), new_model(http)
    wrong = [
        post(http, "save_weights", model_id=model_id, seq_id=1, path="../a"),
        post(http, "optim_step", model_id=model_id, seq_id=2, adam_params={"learning_rate": -1}),
        post(http, "optim_step", model_id=model_id, seq_id=3, optimizer_params={"type": "dimuon"}),
        post(http, "save_weights", model_id=model_id, seq_id=4, path="a", later_option=7),
        post(http, "load_weights", model_id=model_id, seq_id=5, path=3, optimizer=True),
        post(http, "save_weights_for_sampler", model_id=model_id, seq_id=6, sampling_session_seq_id=0, kind="inflight"),
    ]
    good = post(http, "optim_step", model_id=model_id, seq_id=7, adam_params={}, later_option=False)
    worker.execute_all()
    params = ("path", "learning_rate", "optimizer_params", "later_option", "path", "kind")
    for future, param in zip(wrong, params, strict=True):
        failed = result(http, future)
        assert failed["category"] == "user" and param in failed["error"]
    assert "metrics" in result(http, good)


def refused(http: TestClient, path: str, status: int = 400, /, *, words: str, **body: Any) -> None:
    error = post(http, path, status, **body)
    assert words in error["error"] and error["category"] == "user", error


def test_bad_input_is_named_and_nothing_is_half_done(app: AppState, http: TestClient) -> None:
    model_id = new_model(http)
    session_id = model_id.split(":")[0]
    model = {"session_id": session_id, "model_seq_id": 1, "base_model": "tiny", "lora_config": {"rank": 4}}
    refused(http, "create_model", words="no base model 'other'", **{**model, "base_model": "other"})
    refused(http, "create_model", words="lora_config.rank", **{**model, "lora_config": {"rank": 0}})
    refused(http, "create_model", words="only adapters", **{**model, "lora_config": None})
    refused(http, "create_model", words="optimizer_config", **{**model, "optimizer_config": {"type": "dimuon"}})
    refused(http, "create_model", words="other settings", **{**model, "model_seq_id": 0, "lora_config": {"rank": 8}})
    refused(http, "optim_step", 404, words="no model", model_id=f"{session_id}:train:1", seq_id=1)
    refused(http, "optim_step", words="seq_id", model_id=model_id, seq_id=0)
    refused(http, "optim_step", words="seq_id", model_id=model_id)
    refused(http, "create_session", words="sdk_version", tags=[])
    refused(http, "create_session", words="project_id", tags=[], sdk_version="0.38.0", project_id="other")
    refused(http, "client/config", words="tinker>=0.25", sdk_version="0.24.1")
    refused(http, "retrieve_future", 404, words="no request", request_id=f"{model_id}:7")
    refused(http, "retrieve_future", 404, words="no request", request_id="../x")
    sampler = {"session_id": session_id, "sampling_session_seq_id": 0}
    missing = f"tinker://{model_id}/weights/a"
    refused(http, "create_sampling_session", 404, words="no checkpoint", model_path=missing, **sampler)
    refused(http, "create_sampling_session", words="Set base_model", **sampler)
    load = {"session_id": session_id, "model_seq_id": 1, "optimizer": True}
    refused(http, "load_weights", 404, words="no checkpoint", path=missing, **load)
    assert http.get("checkpoints").status_code == 404 and "not served" in http.get("checkpoints").json()["error"]
    state = app.sessions.found(session_id, "default")
    assert [*state.models] == [0] and [*app.sessions.store.list(f"session-data/{session_id}/sampler/")] == []


def test_bodies_that_are_no_bodies(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinker_app, "MAX_BODY_BYTES", 1 << 16)
    model_id = new_model(http)
    data = batch(model_id, 1)
    small_window = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=15))
    bomb, packed = small_window.compress(bytes(1 << 20)), zstandard.compress(data)
    zstd = {**PROTO, "content-encoding": "zstd"}
    for content, headers, code in (
        (data[:-3], PROTO, "invalid_protobuf"),
        (bytes(1 << 17), PROTO, "body_too_long"),
        (bomb, zstd, "body_too_long"),
        (packed[:-3], zstd, "invalid_protobuf"),
        (b"abc", zstd, "invalid_zstd"),
        (b"{}", {"content-type": "application/json"}, "sdk_too_old"),
        (data, {**PROTO, "content-encoding": "gzip"}, None),
    ):
        response = http.post("forward_backward", content=content, headers=headers)
        assert (response.status_code, response.json()["code"]) == (400, code), response.text
    assert http.post("forward_backward", content=packed, headers=zstd).status_code == 200


def test_another_project_sees_nothing(app: AppState) -> None:
    secrets = {
        project: app.keys.make(project=project, name="", scopes=("read", "write"), lives_s=None).secret
        for project in ("a", "b")
    }
    with tinker_http(app, **{"x-api-key": f"tml-{secrets['a']}"}) as http:
        worker, model_id = AnsweringWorker(app.sessions), new_model(http)
        session_id, path = model_id.split(":")[0], f"tinker://{model_id}/weights/a"
        future = post(http, "save_weights", model_id=model_id, seq_id=1, path="a")
        sampler = post(
            http, "create_sampling_session", session_id=session_id, sampling_session_seq_id=0, base_model="tiny"
        )["sampling_session_id"]
        worker.execute_all()
        assert result(http, future)["path"] == path
    with tinker_http(app, **{"x-api-key": f"tml-{secrets['b']}"}) as http:
        own = new_session(http)
        prompt = {"prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {}}
        for route, body in {
            "get_info": {"model_id": model_id},
            "optim_step": {"model_id": model_id, "seq_id": 2},
            "session_heartbeat": {"session_id": session_id},
            "retrieve_future": {"request_id": future["request_id"]},
            "weights_info": {"tinker_path": path},
            "load_weights": {"session_id": own, "model_seq_id": 0, "path": path, "optimizer": True},
            "create_sampling_session": {"session_id": own, "sampling_session_seq_id": 0, "model_path": path},
            "asample": {"sampling_session_id": sampler, "seq_id": 0, **prompt},
            f"sessions/{session_id}/finish": {"reason": {"type": "success"}},
        }.items():
            refused(http, route, 404, words="There is no", **body)
        assert http.post("forward_backward", content=batch(model_id, 2), headers=PROTO).status_code == 404
        for route in (f"training_runs/{model_id}", f"training_runs/{model_id}/checkpoints", f"samplers/{sampler}"):
            assert http.get(route).status_code == 404
        assert http.delete(f"training_runs/{model_id}/checkpoints/weights/a").status_code == 404
    with tinker_http(app, **{"x-api-key": "tml-sk-assay-wrong"}) as http:
        assert http.post("create_session", json={"sdk_version": "0.38.0"}).status_code == 401


def test_heartbeats_and_requests_record_when_a_client_was_heard_once_in_a_while(http: TestClient, app: Any) -> None:
    model_id = new_model(http)
    session_id, began_s, found = model_id.partition(":")[0], app.clock.at_s, []
    for after_s in (1.0, HEARD_S - 1, HEARD_S, -HEARD_S):
        app.clock.at_s = began_s + after_s
        post(http, "session_heartbeat", session_id=session_id)
        found.append(app.sessions.heard_s(session_id) - began_s)
    post(http, "optim_step", model_id=model_id, seq_id=1, adam_params={"learning_rate": 0.1}, type="optim_step")
    assert found == [0.0, 0.0, HEARD_S, -HEARD_S], "the creation of a model is a sign, and a clock may go back"
    app.clock.at_s = began_s + 2 * HEARD_S
    post(http, "optim_step", model_id=model_id, seq_id=2, adam_params={"learning_rate": 0.1}, type="optim_step")
    assert app.sessions.heard_s(session_id) == began_s + 2 * HEARD_S


def test_a_finished_session_answers_repeats_and_accepts_nothing_new(http: TestClient) -> None:
    model_id = new_model(http)
    session_id = model_id.split(":")[0]
    step = {"model_id": model_id, "seq_id": 1, "adam_params": {}}
    first = post(http, "optim_step", **step)
    assert http.post(f"sessions/{session_id}/finish", json={"reason": {"type": "success"}}).status_code == 204
    assert post(http, "optim_step", **step) == first
    refused(http, "optim_step", 410, words="is finished", **{**step, "seq_id": 2})
    refused(http, "session_heartbeat", 410, words="is finished", session_id=session_id)
