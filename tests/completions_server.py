"""A small engine that is none of ours: plain transformers behind OpenAI's `/completions`, with tokens and how
likely they are, and vLLM's ways to load weights and to name them. It can be told to misbehave.

    python tests/completions_server.py FOLDER --model NAME --port-file FILE

It names the digest of the weights that it really has; and asked twice for the same, it answers otherwise, as
engines do.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.training.checkpoint.saver import weights_digest

HOT = 3.0
"""The temperature of an engine that draws at another than it was asked to."""


class CompletionsServer(ThreadingHTTPServer):
    """Serves the model of a folder. `faults` are how it misbehaves: stale, lying, tied, hot, text_only, changing,
    dying, unnamed. `tied` is vLLM's: reloaded without an output matrix of its own, it keeps the one that it has."""

    daemon_threads = True

    def __init__(self, folder: Path, *, model: str = "policy", port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.model = model
        self.faults: set[str] = set()
        self.failures = 0
        """So many questions are answered with 500 first."""
        self.slow_s = 0.0
        self.num_requests = 0
        """Completions."""
        self.lock = threading.Lock()
        self.version = "default"
        self.started_from = str(folder)
        self._load(self.started_from)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def named(self) -> str:
        if self.version == "loading" or self.faults & {"lying", "tied"}:
            return self.version
        return self._digest

    def reload(self, folder: str) -> None:
        if not self.faults & {"stale", "lying"}:
            head = self._network.get_output_embeddings().weight
            self._load(folder)
            with safe_open(Path(folder) / "model.safetensors", "pt") as file:
                if "tied" in self.faults and "lm_head.weight" not in set(file.keys()):
                    self._network.get_output_embeddings().weight = nn.Parameter(head.detach().clone())

    def _load(self, folder: str) -> None:
        with self.lock:
            self._network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(folder)
            holder = nn.Module()
            holder.network = self._network
            self._digest = weights_digest(holder.state_dict())

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.slow_s)
        if "dying" in self.faults:
            os._exit(9)
        with self.lock:
            self.num_requests += 1
            choices = self._choices(body)
            if "changing" in self.faults:
                self._digest = "another" * 9 + "s"
        return {"model": self.model, "choices": choices}

    @torch.no_grad()
    def _choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        assert (body["top_p"], body["top_k"]) == (1.0, -1), "only these are drawn here"
        temperature = HOT if "hot" in self.faults else body["temperature"]
        prompts = torch.tensor([body["prompt"]] * body["n"])
        # Without a mask, transformers takes the prompt's tokens 0 for padding.
        output = self._network.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=temperature, top_k=0,
            top_p=1.0, max_new_tokens=body["max_tokens"], eos_token_id=body["stop_token_ids"] or None,
            pad_token_id=0, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        scores = torch.stack(output.scores, dim=1).log_softmax(-1)
        drawn = output.sequences[:, len(body["prompt"]) :]
        logprobs = scores.gather(2, drawn[..., None])[..., 0]
        rows = zip(drawn.tolist(), logprobs.tolist(), strict=True)
        return [self._choice(index, body, *row) for index, row in enumerate(rows)]

    def _choice(self, index: int, body: dict[str, Any], drawn: list[int], logprobs: list[float]) -> dict[str, Any]:
        def ends(length: int) -> bool:
            text = self._tokenizer.decode(drawn[:length])
            return drawn[length - 1] in body["stop_token_ids"] or any(stop in text for stop in body["stop"])

        length = next((length for length in range(1, len(drawn) + 1) if ends(length)), 0)
        tokens = drawn[: length or None]
        choice = {
            "index": index, "text": self._tokenizer.decode(tokens),
            "finish_reason": "stop" if length else "length",
            "logprobs": {"token_logprobs": logprobs[: len(tokens)]}, "token_ids": tokens,
            "prompt_token_ids": body["prompt"],
        }  # fmt: skip
        return choice if "text_only" not in self.faults else {**choice, "token_ids": None, "logprobs": None}


class _Handler(BaseHTTPRequestHandler):
    server: CompletionsServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._respond(200, {"data": [{"id": self.server.model, "max_model_len": 64}]})
        elif self.path == "/weight_info" and "unnamed" not in self.server.faults:
            self._respond(200, {"weight_version": self.server.named})
        else:
            self._respond(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body, server = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.server
        if server.failures:
            server.failures -= 1
            self._respond(500, {"detail": "told to"})
        elif self.path == "/v1/completions":
            self._respond(200, server.complete(body))
        elif self.path == "/update_weight_version":
            server.version = body["new_version"]
            self._respond(200, {"success": True})
        elif self.path == "/collective_rpc":
            server.reload(body["kwargs"]["weights_path"])
            self._respond(200, {"results": [None]})
        elif self.path == "/reset_prefix_cache":
            self._respond(200, None)
        elif self.path == "/misbehave":  # a test's own
            server.faults, server.failures = set(body.get("faults", ())), body.get("failures", 0)
            server.slow_s = body.get("slow_s", 0.0)
            self._respond(200, {"requests": server.num_requests})
        else:
            self._respond(404, {"detail": "Not Found"})

    def _respond(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[CompletionsServer]:
    """In a thread of this process."""
    server = CompletionsServer(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--model", default="policy")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    served = CompletionsServer(arguments.folder, model=arguments.model, port=arguments.port)
    unfinished = arguments.port_file.with_suffix(".unfinished")
    unfinished.write_text(served.url)
    unfinished.rename(arguments.port_file)
    served.serve_forever()
