"""A model behind an endpoint, judged by another, and other tools' results: from the command line."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from in_process import assay as run

SUITE = """
name: chat
benchmarks:
  - type: generation
    name: capitals
    items: capitals.jsonl
    grader:
      type: label_model
      model: judge-1
      input: [{role: user, content: "Is {{ sample.output_text }} the capital of {{ item.country }}?"}]
      labels: [right, wrong]
      passing_labels: [right]
"""


CONTENTS = {
    "parts": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "2+3"}]},
        {"type": "text", "text": "5"},
    ],
    "cut": "5 is",
    "spent": None,
    "image": [{"type": "image_url", "image_url": {"url": "data:"}}],
    "right": "5",
}


class Handler(BaseHTTPRequestHandler):
    """Knows one capital; judges by the words of the question."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][0]["content"]
        if body["model"] == "judge-1":
            text = json.dumps({"label": "right" if "Paris the capital of France" in question else "wrong"})
        else:
            text = CONTENTS.get(question, "Paris")
        reason = "length" if question in ("cut", "spent") else "stop"
        data = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": reason}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_endpoints_model_is_judged_by_another(endpoint: str, tmp_path: Path, capfd):
    (tmp_path / "suite.yaml").write_text(SUITE)
    rows = [{"prompt": "Capital?", "country": country} for country in ("France", "Spain", "France", "Italy")]
    (tmp_path / "capitals.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ("eval", "run", "my-model", "--endpoint", endpoint, "--suite", tmp_path / "suite.yaml")
    assert run(*arguments, "--json") == 2
    assert "no endpoint is configured for judge 'judge-1'" in capfd.readouterr().err
    assert run(*arguments, "--judge", endpoint, "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert result["score"]["value"] == 0.5
    assert result["metrics"] == {"counts/right": 2, "counts/wrong": 2}
    assert result["run_id"] == "my-model"


def test_answers_in_parts_cut_or_without_content_are_read_or_failed_and_said(endpoint: str, tmp_path: Path, capfd):
    grader = "{type: string_check, operation: eq, input: '{{ sample.output_text }}', reference: '5'}"
    (tmp_path / "suite.yaml").write_text(
        f"name: s\nbenchmarks: [{{type: generation, name: sums, items: sums.jsonl, grader: {grader}}}]"
    )
    (tmp_path / "sums.jsonl").write_text("\n".join(json.dumps({"prompt": kind}) for kind in CONTENTS))
    arguments = ("eval", "run", "m", "--endpoint", endpoint, "--suite", tmp_path / "suite.yaml")
    assert run(*arguments) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "sums: 2 items failed: sampler_server" in out
    assert "sums: 1 of 3 completions (33%) cut at the token limit" in out
    assert run(*arguments, "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["num_items"], result["num_failed"], result["num_completions_cut"]) == (5, 2, 1)
    assert result["score"]["value"] == pytest.approx(2 / 3)


def test_an_imported_result_has_a_history_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    log = {
        "eval": {"task": "security", "model": "tiny"},
        "samples": [{"id": k, "epoch": 1, "scores": {"m": {"value": "C" if k % 2 else "I"}}} for k in range(10)],
    }
    (tmp_path / "log.json").write_text(json.dumps(log))
    assert run("eval", "import", tmp_path / "log.json", "--step", "30") == 0
    assert run("eval", "history", "tiny", "--json") == 0
    *_, history = capfd.readouterr().out.splitlines()
    (point,) = json.loads(history)
    assert (point["source"], point["step"], point["score"]["value"]) == ("inspect-ai", 30, 0.5)
    assert point["is_best_so_far"]
    (tmp_path / "log.json").write_text(json.dumps({**log, "status": "cancelled"}))
    assert run("eval", "import", tmp_path / "log.json", "--step", "40") == 2
    assert "not whole: its status is 'cancelled'" in capfd.readouterr().err
    assert run("eval", "import", tmp_path / "log.json", "--step", "40", "--partial", "--json") == 0
    assert json.loads(capfd.readouterr().out)["incomplete_reason"].startswith("its status is 'cancelled'")
