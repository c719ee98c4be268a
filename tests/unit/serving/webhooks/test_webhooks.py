"""Webhooks by the SDK: a real receiver, whose messages `client.webhooks.unwrap` verifies."""

import http.server
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any

import openai
import pytest

from assay.records.fine_tuning_job import JobFailed
from assay.serving.openai.app_state import AppState
from assay.serving.webhooks.delivery import WebhookDelivery
from assay.serving.webhooks.outbox import RETRY_PERIOD_S
from assay.serving.webhooks.post import AddressError, addresses_of, post, target_of
from assay.serving.webhooks.webhooks import EVENT_TYPES
from assay.store.leased_worker import LeasedWorker
from served import app_in, sdk_of

HERE = ("127.0.0.1",)
TYPES = ["fine_tuning.job.succeeded", "fine_tuning.job.failed", "fine_tuning.job.cancelled"]


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps what it is sent, and answers as it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str, dict[str, str], str]] = []
        self.statuses: list[int] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?a=1"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class InTurn(Executor):
    """What is submitted is done at once."""

    def submit(self, call, /, *kwargs, **named) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*kwargs, **named))
        return done


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def app(tmp_path) -> AppState:
    """Its clock begins now: a receiver refuses what is old."""
    found = app_in(tmp_path)
    found.clock.sleep_s(time.time() - found.clock.now_s())
    return found._replace(webhook_hosts=HERE)


@pytest.fixture
def sdk(app) -> openai.OpenAI:
    return sdk_of(app)


def delivery_of(app: AppState) -> WebhookDelivery:
    return WebhookDelivery(app.jobs.store, app.clock, allowed_hosts=HERE, pool=InTurn())


def deliver(app: AppState) -> None:
    """What is due, as a worker that then leaves does."""
    with LeasedWorker(app.jobs.store, [delivery_of(app)], name="c", clock=app.clock) as courier:
        courier.poll()


def ended(app: AppState, sdk: openai.OpenAI, *, by: str = "failed") -> str:
    """A job that has ended, as a worker finds it."""
    file = sdk.files.create(file=("f", b'{"text": "a", "label": 1}'), purpose="fine-tune")
    job_id = sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id).id
    if by == "cancelled":
        sdk.fine_tuning.jobs.cancel(job_id)
    else:
        failed = JobFailed(at_s=app.clock.now_s(), lease=1, code="x", message="no")
        app.jobs.log(job_id).append(lambda _: failed)
    state = app.jobs.state(job_id)
    for _ in range(2):  # whoever died before he closed it does it again
        app.outbox.enqueue(
            job_id, f"fine_tuning.job.{state.status}", project=state.created.project, ended_s=state.ended_s
        )
    return job_id


@pytest.mark.parametrize("by", ["failed", "cancelled"])
def test_a_jobs_end_is_told_signed_once_to_who_wants_it(app, sdk, receiver, by) -> None:
    created_ids = sdk.webhooks.create(name="mine", url=receiver.url, event_types=TYPES)
    sdk.webhooks.create(name="other", url=receiver.url, event_types=["fine_tuning.job.succeeded"])
    job_id = ended(app, sdk, by=by)
    courier = delivery_of(app)
    assert courier.has_something_due()
    for _ in range(3):
        deliver(app)
    ((path, headers, body),) = receiver.got
    event = sdk.webhooks.unwrap(body, headers, secret=created_ids.signing_secret)
    assert (path, event.type, event.data.id) == ("/hook?a=1", f"fine_tuning.job.{by}", job_id)
    assert headers["webhook-id"].startswith("message-")
    assert not courier.has_something_due()
    for wrong in (body.replace("job", "Job"), body + " "):
        with pytest.raises(openai.InvalidWebhookSignatureError):
            sdk.webhooks.unwrap(wrong, headers, secret=created_ids.signing_secret)
    (message,) = sdk.webhooks.retrieve(created_ids.id).x_assay["messages"]
    assert (message["id"], message["status"], message["tries"]) == (headers["webhook-id"], "delivered", 1)


def test_what_is_not_taken_is_sent_again_under_one_id_for_three_days(app, sdk, receiver) -> None:
    sdk.webhooks.create(name="mine", url=receiver.url, event_types=TYPES)
    ended(app, sdk)
    began_s, sent_s = app.clock.now_s(), []
    receiver.statuses = [500, 302, 410, *[503] * 1000]
    while app.clock.now_s() < began_s + RETRY_PERIOD_S + 86_400:
        num_sent = len(receiver.got)
        deliver(app)
        if len(receiver.got) > num_sent:
            sent_s.append(app.clock.now_s() - began_s)
        app.clock.sleep_s(5.0 if app.clock.now_s() < began_s + 600 else 1800.0)
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1
    assert len({body for *_, body in receiver.got}) == 1
    assert sent_s[:4] == [0.0, 5.0, 25.0, 105.0]
    assert RETRY_PERIOD_S - 7 * 3600 < sent_s[-1] <= RETRY_PERIOD_S
    assert 10 < len(sent_s) < 30
    assert not [*app.jobs.store.list("open/message/")]


def test_a_message_that_is_delivered_after_a_restart_of_the_courier_has_its_id(app, sdk, receiver) -> None:
    created_ids = sdk.webhooks.create(name="mine", url=receiver.url, event_types=TYPES)
    ended(app, sdk)
    receiver.statuses = [500]
    deliver(app)
    app.clock.sleep_s(5.0)
    deliver(app)
    first, second = receiver.got
    assert first[1]["webhook-id"] == second[1]["webhook-id"]
    assert first[1]["webhook-timestamp"] != second[1]["webhook-timestamp"]
    assert sdk.webhooks.unwrap(second[2], second[1], secret=created_ids.signing_secret)


def test_a_courier_that_dies_before_its_entry_sends_again(app, sdk, receiver) -> None:
    sdk.webhooks.create(name="mine", url=receiver.url, event_types=TYPES)
    ended(app, sdk)
    courier = delivery_of(app)
    (message,) = courier._outbox.due()
    courier._outbox.record_attempt = lambda *_, **__: None  # it dies before
    courier._deliver(message)
    deliver(app)
    assert len(receiver.got) == 2 and len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1


def test_a_new_secret_signs_and_the_old_one_for_a_day_where_it_is_kept(app, sdk, receiver) -> None:
    created_ids = sdk.webhooks.create(name="mine", url=receiver.url, event_types=TYPES)
    retained = sdk.webhooks.rotate_secret(created_ids.id, keep_old_secret_active_for_24_hours=True)
    ended(app, sdk)
    deliver(app)
    _, headers, body = receiver.got[-1]
    for secret in (created_ids.signing_secret, retained.signing_secret):
        assert sdk.webhooks.unwrap(body, headers, secret=secret)
    last = sdk.webhooks.rotate_secret(created_ids.id)
    ended(app, sdk)
    deliver(app)
    _, headers, body = receiver.got[-1]
    assert sdk.webhooks.unwrap(body, headers, secret=last.signing_secret)
    for secret in (created_ids.signing_secret, retained.signing_secret):
        with pytest.raises(openai.InvalidWebhookSignatureError):
            sdk.webhooks.unwrap(body, headers, secret=secret)


def test_webhooks_are_listed_changed_tried_and_deleted(app, sdk, receiver) -> None:
    created_ids = sdk.webhooks.create(name="mine", url=receiver.url, event_types=TYPES[:1])
    assert [webhook.id for webhook in sdk.webhooks.list()] == [created_ids.id]
    assert created_ids.signing_secret not in str(sdk.webhooks.retrieve(created_ids.id))
    changed = sdk.webhooks.update(created_ids.id, name="yours", event_types=TYPES)
    assert (changed.name, changed.event_types, changed.url) == ("yours", TYPES, receiver.url)
    assert sdk.webhooks.event_types.list().data == [*EVENT_TYPES]
    receiver.statuses = [418]
    tried = sdk.webhooks.test(created_ids.id, event_type=TYPES[0])
    assert (tried.status_code, tried.event_type) == (418, TYPES[0])
    assert sdk.webhooks.unwrap(receiver.got[0][2], receiver.got[0][1], secret=created_ids.signing_secret)
    ended(app, sdk)
    assert sdk.webhooks.delete(created_ids.id).deleted
    deliver(app)
    assert len(receiver.got) == 1  # what was due to it is given up
    assert not delivery_of(app).has_something_due()
    with pytest.raises(openai.NotFoundError):
        sdk.webhooks.retrieve(created_ids.id)


def test_a_lost_answers_secret_is_replaced(app, receiver) -> None:
    sdk = sdk_of(app)
    kwargs = {"name": "mine", "url": receiver.url, "event_types": TYPES}
    first, second = (
        sdk.webhooks.create(**kwargs, extra_headers={"x-stainless-retry-count": count}) for count in ("0", "1")
    )
    assert first.id == second.id and first.signing_secret != second.signing_secret
    ended(app, sdk)
    deliver(app)
    assert sdk.webhooks.unwrap(receiver.got[0][2], receiver.got[0][1], secret=second.signing_secret)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        sdk.webhooks.unwrap(receiver.got[0][2], receiver.got[0][1], secret=first.signing_secret)


PRIVATE = [
    "127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "::1",
    "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
    "224.0.0.1", "255.255.255.255", "::", "192.0.2.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_nothing_is_sent_to_an_address_that_is_not_public(address) -> None:
    target = target_of("https://hooks.example/x", ())
    with pytest.raises(AddressError, match="not public"):
        addresses_of(target, (), lambda host, port: ["93.184.216.34", address])
    assert addresses_of(target, ("hooks.example",), lambda host, port: [address]) == [address]


def test_a_network_is_listed_whole() -> None:
    target = target_of("https://hooks.example/x", ())
    assert addresses_of(target, ("10.1.0.0/16",), lambda host, port: ["10.1.2.3"]) == ["10.1.2.3"]
    with pytest.raises(AddressError):
        addresses_of(target, ("10.1.0.0/16",), lambda host, port: ["10.2.2.3"])


def test_what_was_checked_is_what_is_connected_to(receiver) -> None:
    responses = [["127.0.0.1"], ["127.0.0.2"]]
    url = receiver.url.replace("127.0.0.1", "hooks.example")
    status = post(url, "{}", {}, ("hooks.example",), lambda host, port: responses.pop(0))
    assert status == 200 and len(responses) == 1
    assert receiver.got[0][1]["Host"] == f"hooks.example:{receiver.server_address[1]}"


def test_a_redirect_is_not_followed(receiver) -> None:
    receiver.statuses = [307]
    assert post(receiver.url, "{}", {}, HERE) == 307
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/x", "ftp://127.0.0.1/x", "https://", "https://user:word@127.0.0.1/", "x",
        "https://127.0.0.1/#part", "https://127.0.0.1:99999/", "https://127.0.0.1/\n", "https://[::1", "https://ü/",
        "https://10.0.0.1/x", "https://[::1]/x", "https://localhost/x", "https://127.0.0.1/" + "x" * 2048,
    ],
)  # fmt: skip
def test_a_url_to_which_nothing_may_be_sent_is_a_400(app, url) -> None:
    sdk = sdk_of(app._replace(webhook_hosts=("10.2.0.0/16",)))
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.webhooks.create(name="n", url=url, event_types=TYPES)
    assert (refused.value.param, refused.value.code) == ("url", "invalid_url")
    assert [*sdk.webhooks.list()] == []


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [({"event_types": []}, "event_types"), ({"event_types": ["video.completed"]}, "event_types"),
     ({"name": ""}, "name"), ({"extra_body": {"secret": "mine"}}, "secret")],
)  # fmt: skip
def test_a_webhook_that_cannot_be_is_a_400(sdk, receiver, kwargs, param) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.webhooks.create(**{"name": "n", "url": receiver.url, "event_types": TYPES, **kwargs})
    assert refused.value.param == param


def test_who_never_answers_is_cut_off(monkeypatch) -> None:
    import socket

    monkeypatch.setattr("assay.serving.webhooks.post.TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        outcomes: list[str] = []

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                try:
                    for _ in range(50):
                        connection.sendall(b"H")
                        time.sleep(0.1)
                except OSError:
                    outcomes.append("cut")

        thread = threading.Thread(target=drip)
        thread.start()
        began_s = time.monotonic()
        with pytest.raises(Exception, match=r"127\.0\.0\.1"):
            post(f"http://127.0.0.1:{server.getsockname()[1]}/", "{}", {}, HERE)
        assert time.monotonic() - began_s < 3
        thread.join()
        assert outcomes == ["cut"]


def test_couriers_take_turns_by_a_lease(app, sdk, receiver) -> None:
    from assay.base.clock import SystemClock

    sdk.webhooks.create(name="mine", url=receiver.url, event_types=TYPES)
    ended(app, sdk)
    store, over = app.jobs.store, threading.Event()
    deliveries = [WebhookDelivery(store, SystemClock(), allowed_hosts=HERE) for _ in range(3)]
    couriers = [
        LeasedWorker(store, [delivery], name=f"c{n}", clock=SystemClock()) for n, delivery in enumerate(deliveries)
    ]
    threads = [
        threading.Thread(target=courier.run, args=(over, 0.02), kwargs={"of": "webhooks"}) for courier in couriers
    ]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 20
    while not receiver.got and time.monotonic() < deadline_s:
        time.sleep(0.02)
    time.sleep(0.3)
    over.set()
    for thread in threads:
        thread.join()
    assert len(receiver.got) == 1
