"""A judge behind a real HTTP endpoint that says something else each time, and notes of whom it was asked."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
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

    def __init__(self, *, fails_every: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fails_every = fails_every
        self.is_away = False
        self.rng = random.Random(7)
        self.lock = threading.Lock()
        self.asked = Counter[str]()
        """By what was asked: number of the prompt, and answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def said(self, question: str) -> str:
        with self.lock:
            self.asked[question] += 1
            if self.fails_every and sum(self.asked.values()) % self.fails_every == 0:
                return "I would rather not say"
            return json.dumps({"result": round(self.rng.random(), 3)})


class _Handler(BaseHTTPRequestHandler):
    server: MoodyJudge

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.is_away:
            self.send_error(400, "away")
            return
        said = self.server.said(body["messages"][0]["content"])
        answer = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def moody_judge(**options: Any) -> Iterator[MoodyJudge]:
    """Answers until the block ends."""
    server = MoodyJudge(**options)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
