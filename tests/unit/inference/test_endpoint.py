"""An OpenAI-compatible endpoint, a real one on loopback."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.inference.endpoint import HttpEngine
from assay.inference.protocol import Completion, SamplerError, SamplingParams
from assay.scoring.grade import sampler_failure


class Endpoint(ThreadingHTTPServer):
    """Answers from a list of (status, body), the last one for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, object]] = []
        self.bodies: list[dict[str, object]] = []
        self.num_bytes_lost = 0
        self.pause_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        endpoint = self.server
        endpoint.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))  # type: ignore[attr-defined]
        status, body = endpoint.script.pop(0) if len(endpoint.script) > 1 else endpoint.script[0]  # type: ignore[attr-defined]
        tree = body(endpoint.bodies[-1]) if callable(body) else body  # type: ignore[attr-defined]
        data = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) + endpoint.num_bytes_lost))  # type: ignore[attr-defined]
        self.end_headers()
        with suppress(OSError):  # the client may have left
            if not endpoint.pause_s:  # type: ignore[attr-defined]
                self.wfile.write(data)
            for byte in data if endpoint.pause_s else b"":  # type: ignore[attr-defined]
                self.wfile.write(bytes([byte]))
                time.sleep(endpoint.pause_s)  # type: ignore[attr-defined]

    def log_message(self, *arguments: object) -> None:
        pass


class NoWait:
    """A clock whose sleeps take no time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now_s(self) -> float:
        return 0.0

    def monotonic_s(self) -> float:
        return 0.0

    def sleep_s(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def echo(body):
    text = body["messages"][-1]["content"].upper()
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}


def sample(endpoint, *texts, clock=None, **options):
    sampler = HttpEngine(base_url=endpoint.url, model="m", clock=clock or NoWait(), **options)
    return sampler.generate(
        [[{"role": "user", "content": text}] for text in texts], SamplingParams(max_tokens=5, seed=1)
    )


def test_completions_come_back_in_the_order_of_their_prompts(endpoint):
    endpoint.script = [(200, echo)]
    completions = sample(endpoint, *[f"q{k}" for k in range(20)])
    assert [completion.text for completion in completions] == [f"Q{k}" for k in range(20)]
    assert completions[0] == Completion("Q0", "stop", 3, 0)
    assert endpoint.bodies[0]["max_tokens"] == 5


def test_an_overloaded_endpoint_is_asked_again_with_growing_pauses(endpoint):
    endpoint.script = [(429, {}), (503, {}), (200, echo)]
    clock = NoWait()
    assert sample(endpoint, "q", clock=clock)[0].text == "Q"
    assert clock.slept == [0.5, 1.0]


def test_a_body_that_drips_or_never_ends_is_given_up(endpoint, monkeypatch):
    monkeypatch.setattr("assay.inference.endpoint.MAX_BYTES", 1 << 16)
    endpoint.script = [(200, b"[" * (1 << 17))]
    completion = sample(endpoint, "q", max_retries=0)[0]
    assert isinstance(completion, SamplerError) and completion.kind == "server" and "longer than" in str(completion)
    endpoint.pause_s, endpoint.script = 0.05, [(200, b" " * 1000)]
    began_s = time.monotonic()
    completion = sample(endpoint, "q", max_retries=0, timeout_s=0.3, clock=SystemClock())[0]
    assert isinstance(completion, SamplerError) and completion.kind == "timeout"
    assert time.monotonic() - began_s < 5.0


def test_a_mistake_of_the_asker_is_not_asked_again(endpoint):
    endpoint.script = [(400, {"error": {"message": "no such model"}})]
    completion = sample(endpoint, "q")[0]
    assert isinstance(completion, SamplerError)
    assert completion.kind == "request"
    assert "answered 400" in str(completion)
    assert "no such model" in str(completion)
    assert len(endpoint.bodies) == 1


def test_a_failure_takes_the_place_of_its_own_completion_only(endpoint):
    endpoint.script = [(200, lambda body: echo(body) if body["messages"][0]["content"] == "ok" else {"choices": []})]
    good, bad = sample(endpoint, "ok", "broken", max_retries=0)
    assert good.text == "OK"
    assert bad.kind == "server"


@pytest.mark.parametrize(
    "body", [b"<html>busy</html>", b'data: {"choices": []}\n\n', b"\xff\xfe", b"[" * 100_000, b"", b'{"choices']
)
def test_a_body_that_is_no_json_is_a_failed_item(endpoint, body):
    endpoint.script = [(200, body)]
    (failed,) = sample(endpoint, "q", max_retries=0)
    assert sampler_failure(failed).kind == "sampler_server"
    assert body == b"" or (str(body)[:10] in str(failed) and "did not answer in JSON" in str(failed))


def test_a_body_that_breaks_off_is_a_failed_item(endpoint):
    endpoint.script = [(200, echo)]
    endpoint.num_bytes_lost = 10
    (failed,) = sample(endpoint, "q", max_retries=0)
    assert failed.kind == "server"
    assert "cannot be reached or read" in str(failed)


def test_no_endpoint_at_all_is_a_failure_that_names_it():
    sampler = HttpEngine(base_url="http://127.0.0.1:9/v1", model="m", max_retries=1, clock=NoWait())
    (completion,) = sampler.generate([[{"role": "user", "content": "q"}]], SamplingParams())
    assert "127.0.0.1:9/v1/chat/completions cannot be reached" in str(completion)


def test_what_is_no_url_is_refused():
    with pytest.raises(ConfigError, match="'localhost' is not an endpoint"):
        HttpEngine(base_url="localhost", model="m")


def test_embeddings_come_back_in_the_order_of_their_texts(endpoint):
    endpoint.script = [(200, {"data": [{"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1]}]})]
    assert HttpEngine(base_url=endpoint.url, model="m").embed(["a", "b"]) == [[1.0], [2.0]]
