"""`client.batches`: every line is checked before the first is answered, and each request has one answer."""

import json
from typing import Any

import openai
import pytest

from assay.serving.api_error import ApiError
from assay.serving.openai.app_state import AppState
from assay.workers.batch import batch_input as batch_file
from assay.workers.batch.models import ModelNotLoadedError
from parrot_models import ParrotModels, work, worker_of
from served import app_in, http_of, opening, sdk_of

CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


@pytest.fixture(scope="module")
def refusing(tmp_path_factory) -> AppState:
    """A server in which no batch comes to be."""
    return app_in(tmp_path_factory.mktemp("refusing"))


def body(text: str = "hello", url: str = CHAT, **kwargs: Any) -> dict[str, Any]:
    requested = {
        CHAT: {"messages": [{"role": "user", "content": text}]},
        TEXT: {"prompt": text},
        VECTORS: {"input": text},
    }[url]
    return {"model": "tiny", **requested, **kwargs}


def line(number: int, url: str = CHAT, **changes: Any) -> dict[str, Any]:
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": body(f"q{number}", url), **changes}


def batch_of(sdk: openai.OpenAI, lines: list[Any], endpoint: str = CHAT, **kwargs: Any):
    text = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    file = sdk.files.create(file=("requests.jsonl", text), purpose="batch")
    return sdk.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **kwargs)


def lines_of(sdk: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(splitline) for splitline in sdk.files.content(file_id).text.splitlines()]


def test_every_request_of_a_batch_is_answered_once_in_its_order(app, sdk):
    batch = batch_of(sdk, [line(n) for n in range(5)], metadata={"a": "b"})
    assert (batch.status, batch.model, batch.request_counts.total) == ("validating", "tiny", 0)
    assert batch.expires_at == batch.created_at + 86_400 and batch.metadata == {"a": "b"}
    worker = worker_of(app, at_once=2)
    worker.poll()
    assert sdk.batches.retrieve(batch.id).status == "in_progress"
    worker.poll()
    assert sdk.batches.retrieve(batch.id).request_counts.completed == 2
    work(worker)
    batch = sdk.batches.retrieve(batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 5, 5, 0)
    assert batch.error_file_id is None and batch.completed_at and batch.in_progress_at and batch.finalizing_at
    found = lines_of(sdk, batch.output_file_id)
    assert [item["custom_id"] for item in found] == [f"r{n}" for n in range(5)]
    output = [item["response"]["body"]["choices"][0]["message"]["content"] for item in found]
    assert output == [f" Q{n}" for n in range(5)]
    assert {item["response"]["status_code"] for item in found} == {200}
    assert len({item["id"] for item in found}) == 5 and found[0]["error"] is None
    assert (batch.usage.input_tokens, batch.usage.output_tokens) == (5, 10)
    file = sdk.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    store = app.jobs.store
    assert [*store.list(f"batch/{batch.id}/answers/")] == [] == [*store.list("open/batch/")]


@pytest.mark.parametrize("endpoint", [TEXT, VECTORS])
def test_a_batch_asks_any_endpoint_that_answers_by_itself(app, sdk, endpoint):
    batch = batch_of(sdk, [line(1, endpoint)], endpoint)
    work(worker_of(app))
    (found,) = lines_of(sdk, sdk.batches.retrieve(batch.id).output_file_id)
    response = found["response"]["body"]
    if endpoint == TEXT:
        assert response["choices"][0]["text"] == " Q1"
    else:
        assert response["data"][0]["embedding"] == [0.5, 1.0]


def test_a_request_that_the_model_refuses_is_in_the_file_of_errors(app, sdk):
    models = ParrotModels()
    models.refuses = ApiError("too long", param="messages", code="context_length_exceeded")
    batch = batch_of(sdk, [line(1), line(2)])
    work(worker_of(app, models))
    batch = sdk.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.failed, batch.output_file_id) == ("completed", 2, None)
    found = lines_of(sdk, batch.error_file_id)
    assert [item["custom_id"] for item in found] == ["r1", "r2"]
    assert found[0]["response"]["status_code"] == 400
    assert found[0]["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_a_model_that_is_gone_fails_the_batch(app, sdk):
    models = ParrotModels()
    models.refuses = ModelNotLoadedError(ApiError("its files are gone", code="model_not_usable"))
    batch = batch_of(sdk, [line(1)])
    work(worker_of(app, models))
    batch = sdk.batches.retrieve(batch.id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "model_not_usable")


FAULTS = [
    (b"{broken", "invalid_json_line", None),
    (b"[]", "invalid_json_line", None),
    ({"custom_id": "x"}, "missing_required_parameter", "method"),
    (line(1, extra=1), "unknown_parameter", "extra"),
    (line(1, custom_id=""), "invalid_value", "custom_id"),
    (line(1, method="GET"), "invalid_method", "method"),
    (line(1, url=TEXT), "invalid_url", "url"),
    (line(1, url=CHAT, body="x"), "invalid_json", "body"),
    (line(1, body=body(temperature=3)), "invalid_value", "body.temperature"),
    (line(1, body=body(tools=[{}])), "parameter_not_honoured", "body.tools"),
    (line(1, body=body(stream=True)), "invalid_value", "body.stream"),
    (line(1, body=body(model="other")), "mismatched_model", "body.model"),
    (line(0), "duplicate_custom_id", "custom_id"),
]


def test_every_fault_has_its_line_and_nothing_is_answered(app, sdk):
    models = ParrotModels()
    batch = batch_of(sdk, [line(0), b"", *[fault for fault, *_ in FAULTS]])
    work(worker_of(app, models))
    batch = sdk.batches.retrieve(batch.id)
    assert (batch.status, batch.output_file_id, models.engine.requests) == ("failed", None, [])
    found = [(item.line, item.code, item.param) for item in batch.errors.data]
    assert found == [(n, code, param) for n, (_, code, param) in enumerate(FAULTS, start=3)]
    assert batch.failed_at is not None and batch.errors.object == "list"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([b"  "], "empty_file"),
        ([line(1, body=body(model="huge"))], "model_not_found"),
        ([line(n) for n in range(4)], "too_many_requests"),
    ],
)
def test_a_file_that_is_no_batchs_as_a_whole_fails_it(app, sdk, lines, code, monkeypatch):
    monkeypatch.setattr(batch_file, "MAX_REQUESTS", 3)
    batch = batch_of(sdk, lines)
    work(worker_of(app))
    assert [item.code for item in sdk.batches.retrieve(batch.id).errors.data] == [code]


def test_a_cancelled_batch_keeps_what_was_answered(app, sdk):
    batch = batch_of(sdk, [line(n) for n in range(5)])
    worker = worker_of(app, at_once=2)
    worker.poll(), worker.poll()  # read, and one chunk
    assert sdk.batches.cancel(batch.id).status == "cancelling"
    assert sdk.batches.cancel(batch.id).status == "cancelling"
    work(worker)
    batch = sdk.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("cancelled", 2, None)
    assert batch.cancelled_at and batch.cancelling_at and batch.completed_at is None
    assert [item["custom_id"] for item in lines_of(sdk, batch.output_file_id)] == ["r0", "r1"]
    assert sdk.batches.cancel(batch.id).status == "cancelled"
    done = batch_of(sdk, [line(1)])
    work(worker)
    with pytest.raises(openai.BadRequestError, match="is completed: it cannot be cancelled"):
        sdk.batches.cancel(done.id)


def test_what_comes_too_late_is_named_in_the_file_of_errors(app, sdk):
    batch = batch_of(sdk, [line(n) for n in range(5)])
    worker = worker_of(app, at_once=2)
    worker.poll(), worker.poll()
    app.clock.sleep_s(86_400)
    work(worker)
    batch = sdk.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed) == ("expired", 2)
    late = lines_of(sdk, batch.error_file_id)
    assert [item["custom_id"] for item in late] == ["r2", "r3", "r4"]
    assert {item["error"]["code"] for item in late} == {"batch_expired"} and late[0]["response"] is None
    assert len(lines_of(sdk, batch.output_file_id)) == 2


def test_a_file_that_is_deleted_while_it_is_answered_fails_the_batch(app, sdk):
    batch = batch_of(sdk, [line(1)])
    sdk.files.delete(batch.input_file_id)
    work(worker_of(app))
    assert sdk.batches.retrieve(batch.id).errors.data[0].code == "file_not_found"


def test_batches_are_listed_the_newest_first_and_files_may_expire(app, sdk):
    batches = []
    for _ in range(3):
        lives = {"anchor": "created_at", "seconds": 3600}
        batches.append(batch_of(sdk, [line(1)], output_expires_after=lives).id)
        app.clock.sleep_s(1)
    assert [batch.id for batch in sdk.batches.list(limit=2)] == batches[::-1]
    work(worker_of(app))
    file = sdk.files.retrieve(sdk.batches.retrieve(batches[0]).output_file_id)
    assert file.expires_at == file.created_at + 3600


def test_a_repeat_whose_answer_was_lost_is_answered_with_the_same_batch(app, sdk):
    batch = batch_of(sdk, [line(1)])
    again = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
    assert sdk.batches.create(**again, extra_headers={"x-stainless-retry-count": "1"}).id == batch.id
    assert sdk.batches.create(**again).id != batch.id


def test_another_project_finds_no_batch(app, sdk):
    batch = batch_of(sdk, [line(1)])
    opening(app)
    other = app.keys.make(project="other", name="", scopes=("read", "write"), lives_s=None).secret
    http, header = http_of(app), {"authorization": f"Bearer {other}"}
    assert http.get(f"/v1/batches/{batch.id}", headers=header).status_code == 404
    assert http.post(f"/v1/batches/{batch.id}/cancel", headers=header).status_code == 404
    assert http.get("/v1/batches", headers=header).json()["data"] == []


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"endpoint": "/v1/responses"}, "endpoint", "invalid_value"),
        ({"completion_window": "1h"}, "completion_window", "invalid_value"),
        ({"input_file_id": "file-x"}, "input_file_id", "file_not_found"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds",
         "invalid_value"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor",
         "invalid_value"),
        ({"priority": 1}, "priority", "unknown_parameter"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_is_a_400_that_names_the_parameter(refusing, changes, param, code):
    file = sdk_of(refusing).files.create(file=("f", json.dumps(line(1)).encode()), purpose="batch")
    kwargs = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **changes}
    response = http_of(refusing).post("/v1/batches", json=kwargs)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert refusing.batches.is_empty()


def test_a_file_of_another_purpose_is_refused(app, sdk):
    file = sdk.files.create(file=("f", b"{}"), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert refused.value.code == "invalid_file_purpose"
