"""Requests whose answers are lost, as the SDK asks them again."""

import asyncio
import json
import threading
from collections.abc import Callable

import openai
import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.records.fine_tuning_job import JobCreated
from assay.serving.idempotency_keys import Retry
from assay.serving.openai.app import make_app
from assay.serving.openai.app_state import AppState
from served import sdk_of


class LosingResponses:
    """An application of which some answers never arrive."""

    def __init__(self, app: ASGIApp, is_lost: Callable[[int], bool]) -> None:
        self._app = app
        self._is_lost = is_lost
        self.num_posts = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        number, self.num_posts = self.num_posts, self.num_posts + is_post

        async def lose(message: Message) -> None:
            pass

        if is_post and self._is_lost(number):
            await self._app(scope, receive, lose)
            raise ConnectionResetError("the answer got lost")
        await self._app(scope, receive, send)


def patient_sdk(app: AppState, is_lost: Callable[[int], bool]) -> openai.OpenAI:
    """The SDK as it is by default, over a wire that loses answers."""
    losing = LosingResponses(make_app(app), is_lost)
    http = TestClient(losing, base_url="http://localhost", raise_server_exceptions=False)
    return openai.OpenAI(base_url="http://localhost/v1", api_key="any", http_client=http)


def a_file(app: AppState) -> str:
    return sdk_of(app).files.create(file=("f", b"1"), purpose="fine-tune").id


@pytest.mark.parametrize("lost", [{0}, {0, 1}])
def test_a_job_whose_answer_was_lost_is_made_once(app, monkeypatch, lost) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    file = a_file(app)
    sdk = patient_sdk(app, lost.__contains__)
    job = sdk.fine_tuning.jobs.create(model="tiny", training_file=file)
    assert app.jobs.ids() == [job.id]
    app.clock.sleep_s(1)
    again = sdk.fine_tuning.jobs.create(model="tiny", training_file=file)  # another first request, another job
    assert app.jobs.ids() == [job.id, again.id]


@pytest.mark.parametrize("lost", [{0}, {0, 1}])
def test_a_file_whose_answer_was_lost_is_there_once_and_its_bytes_too(app, monkeypatch, lost) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    file = patient_sdk(app, lost.__contains__).files.create(file=("f", b"123"), purpose="evals")
    assert app.files.ids() == [file.id]
    assert [item.key for item in app.files.store.list("bytes/")] == [f"bytes/{file.id}"]


def created(app: AppState, file: str, **headers: str):
    return sdk_of(app).fine_tuning.jobs.create(model="tiny", training_file=file, extra_headers=headers)


def test_each_first_request_is_claimed_once_by_each_repeat(app) -> None:
    file = a_file(app)
    firsts = {created(app, file).id for _ in range(2)}
    retry = {"x-stainless-retry-count": "1"}
    claimed = {created(app, file, **retry).id for _ in range(2)}
    assert claimed == firsts  # two clients, each its own
    assert created(app, file, **retry).id not in firsts  # a third one's first request never arrived
    second = {"x-stainless-retry-count": "2"}
    assert created(app, file, **second).id in {*app.jobs.ids()}
    assert len(app.jobs.ids()) == 3


def test_what_is_old_or_asks_for_something_else_is_claimed_by_nobody(app) -> None:
    file = a_file(app)
    first = created(app, file)
    other = sdk_of(app).fine_tuning.jobs.create(
        model="tiny", training_file=file, seed=1, extra_headers={"x-stainless-retry-count": "1"}
    )
    app.clock.sleep_s(901)
    late = created(app, file, **{"x-stainless-retry-count": "1"})
    assert len({first.id, other.id, late.id}) == 3


def test_a_key_decides_exactly_and_for_ever(app) -> None:
    file = a_file(app)
    key = {"Idempotency-Key": "mine"}
    first = created(app, file, **key)
    app.clock.sleep_s(86_400)
    assert created(app, file, **key).id == first.id
    assert created(app, file, **{"Idempotency-Key": "yours"}).id != first.id
    with pytest.raises(openai.BadRequestError) as refused:
        sdk_of(app).fine_tuning.jobs.create(model="tiny", training_file=file, seed=1, extra_headers=key)
    assert refused.value.code == "idempotency_key_reused"


def test_a_repeat_that_overtakes_its_first_request_waits_for_it(app) -> None:
    file = a_file(app)
    template = sdk_of(app).fine_tuning.jobs.create(model="tiny", training_file=file)
    base = app.jobs.find(template.id, "default").created
    first_id, second_id = (f"ftjob-{n:024d}" for n in (1, 2))
    started, may_end, found = threading.Event(), threading.Event(), []
    entry = base.model_copy(update={"request_sha256": "x", "at_s": app.clock.now_s()})

    def slowly(created: JobCreated):
        started.set()
        may_end.wait(10)
        return app.jobs.put(created)

    def request(number: int, job_id: str) -> None:
        created = entry.model_copy(update={"job_id": job_id})
        found.append(app.jobs.create_once(created, Retry(number), slowly).created.job_id)

    threads = [threading.Thread(target=request, args=item) for item in ((0, first_id), (1, second_id))]
    threads[0].start()
    started.wait(10)
    threads[1].start()
    threads[1].join(0.2)
    assert not found
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert found == [first_id, first_id]


PARTIAL_FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n123'
FORM = b"multipart/form-data; boundary=b"


def send_and_disconnect(app: AppState, path: str, content_type: bytes, body: bytes, *, is_whole: bool = False) -> None:
    """A request whose client is gone when the server has read this of it."""
    came = iter([{"type": "http.request", "body": body, "more_body": not is_whole}, {"type": "http.disconnect"}])
    headers = [(b"host", b"localhost"), (b"content-type", content_type)]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}

    async def receive() -> Message:
        return next(came)

    async def send(_: Message) -> None:
        pass

    asyncio.run(make_app(app)(scope, receive, send))


@pytest.mark.parametrize(
    ("path", "content_type", "started"),
    [("/v1/fine_tuning/jobs", b"application/json", b'{"model": "ti'), ("/v1/files", FORM, PARTIAL_FILE)],
)
def test_a_request_that_breaks_off_makes_nothing_and_is_no_fault_of_ours(
    app, caplog, path, content_type, started
) -> None:
    send_and_disconnect(app, path, content_type, started)
    assert caplog.messages == []
    store = app.files.store
    assert [item.key for folder in ("file/", "ftjob/", "bytes/", "open/") for item in store.list(folder)] == []


def test_a_first_request_that_its_repeat_overtook_makes_nothing(app) -> None:
    """Its client is gone, or it had not asked again."""
    file = a_file(app)
    repeated = created(app, file, **{"x-stainless-retry-count": "1"})
    body = json.dumps({"model": "tiny", "training_file": file}).encode()
    send_and_disconnect(app, "/v1/fine_tuning/jobs", b"application/json", body, is_whole=True)
    assert app.jobs.ids() == [repeated.id]
