"""A judge behind a real HTTP endpoint that says something else each time, and notes of whom it was asked."""

import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JUDGE = {
    "type": "score_model",
    "name": "judge",
    "model": "moody",
    "input": [{"role": "user", "content": "{{ item.number }}|{{ sample.output_text }}"}],
}


class MoodyJudge(ThreadingHTTPServer):
    """Marks at random; every `fails_every`-th question gets words that are no mark."""

    daemon_threads = True

    def __init__(self, *, fails_every: int = 0, leaves_after: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fails_every = fails_every
        self.leaves_after = leaves_after
        """Answers; then it goes away (0: never)."""
        self.is_away = threading.Event()
        """Connections are refused."""
        self.rng = random.Random(7)
        self.lock = threading.Lock()
        self.requests = Counter[str]()
        """By what was asked: number of the prompt, and answer."""
        self.is_durable: Callable[[int], bool] = lambda number: False
        """Whether what was said of all answers to the prompt of that number is durable."""
        self.requests_of_durable: list[str] = []
        """Questions about answers to such a prompt: none may be asked."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def begin(self) -> None:
        """Answer from now on."""
        self.is_away.clear()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def leave(self) -> None:
        """Refuse connections; what was asked before is still answered."""
        self.shutdown()
        self.server_close()
        self.is_away.set()

    def come_back(self) -> None:
        """Answer again at the same address."""
        self.socket = socket.socket(self.address_family, self.socket_type)
        self.server_bind()
        self.server_activate()
        self.begin()

    def reply(self, question: str) -> str:
        with self.lock:
            self.requests[question] += 1
            if self.requests.total() == self.leaves_after:
                threading.Thread(target=self.leave).start()
            if self.fails_every and sum(self.requests.values()) % self.fails_every == 0:
                return "I would rather not say"
            return json.dumps({"result": round(self.rng.random(), 3)})


class _Handler(BaseHTTPRequestHandler):
    server: MoodyJudge

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][0]["content"]
        if self.server.is_durable(int(question.partition("|")[0])):
            if self._asker_is_gone():  # killed, and somebody else has asked and kept since
                return
            self.server.requests_of_durable.append(question)
        output = self.server.reply(question)
        response = json.dumps({"choices": [{"message": {"content": output}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def _asker_is_gone(self) -> bool:
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"")
        except BlockingIOError:
            return False
        except OSError:
            return True

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def moody_judge(**options: Any) -> Iterator[MoodyJudge]:
    """Answers until the block ends."""
    server = MoodyJudge(**options)
    server.begin()
    try:
        yield server
    finally:
        if not server.is_away.is_set():
            server.leave()
