"""Sessions without a model: a server of the Tinker API on a socket, and a worker that answers from the log."""

import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from assay.records.session import SessionCheckpoint
from assay.serving.api_error import ApiError
from assay.serving.openai.app_state import AppState
from assay.serving.openai.auth_middleware import AuthMiddleware
from assay.serving.sessions.request_log import Request, Result, TargetId, waiting_samples
from assay.serving.sessions.sessions import CheckpointPath, SessionRepository
from assay.serving.tinker import results
from assay.serving.tinker.app import make_tinker_api
from assay.serving.tinker.bodies import ForwardBackward, Sample, read_request


def tinker_server(app: AppState) -> ASGIApp:
    """The Tinker API with authentication, without the other one."""
    return AuthMiddleware(make_tinker_api(app), app.keys)


def tinker_http(app: AppState, **headers: str) -> TestClient:
    """Plain HTTP to it."""
    client = TestClient(tinker_server(app), base_url="http://localhost/api/v1/", raise_server_exceptions=False)
    client.headers.update(headers)
    return client


@contextmanager
def on_socket(app: ASGIApp) -> Iterator[str]:
    """Serve on a free port of this machine; yield the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


class AnsweringWorker:
    """Does requests in order, with one weight for a model: an update adds the number of passes before it."""

    def __init__(self, sessions: SessionRepository) -> None:
        self.executed: list[tuple[str, int, str]] = []
        """(Model or sampler, number, kind) in the order of execution."""
        self._sessions = sessions
        self._next: dict[TargetId, int] = {}
        self.num_passes = Counter[TargetId]()
        self._weights = defaultdict[TargetId, float](float)
        self._saved_weights: dict[str, float] = {}

    def execute_all(self) -> None:
        """Do what can be done now."""
        for session_id in self._sessions.open_ids():
            state = self._sessions.state(session_id)
            for number in state.models if state is not None else ():
                self._execute_model(TargetId(session_id, "train", number))
            for request_id in [*waiting_samples(self._sessions.store, session_id)]:
                log = self._sessions.requests(request_id.target)
                if (request := log.request(request_id.seq_id)) is not None:
                    log.put_result(request.seq_id, self._execute(request_id.target, request))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Work in the background."""
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                self.execute_all()
                time.sleep(0.01)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _execute_model(self, model: TargetId) -> None:
        log = self._sessions.requests(model)
        while (request := log.request(self._next.get(model, 0))) is not None:
            log.put_result(request.seq_id, self._execute(model, request))
            self._next[model] = request.seq_id + 1

    def _execute(self, target: TargetId, request: Request) -> Result:
        self.executed.append((str(target), request.seq_id, request.kind))
        try:
            return self._result(target, request, read_request(request))
        except ApiError as error:
            return Result.of_error(error.message, "user")

    def _result(self, target: TargetId, request: Request, body: Any) -> Result:
        match request.kind:
            case "create_model":
                return results.created_model(target)
            case "load_weights":
                self._weights[target] = self._saved_weights[body.path]
                return results.loaded_weights(target, body.path)
            case "forward_backward":
                assert isinstance(body, ForwardBackward)
                self.num_passes[target] += not body.is_forward_only
                weight = np.float32(self._weights[target])
                logprobs = [-np.arange(len(datum.tokens), dtype=np.float32) - weight for datum in body.datums]
                return results.forward_backward(logprobs, {"loss:sum": float(-sum(map(np.sum, logprobs)))})
            case "optim_step":
                num_passes = self.num_passes.pop(target, 0)
                self._weights[target] += num_passes + 0.001
                return results.optimizer_step({"passes": float(num_passes)})
            case "sample":
                assert isinstance(body, Sample)
                tokens = body.prompt_tokens()
                completion = results.SampledSequence(tokens[:2], [-0.5, -1.5], is_stopped=True)
                of_prompt = [float("nan"), *([-1.0] * (len(tokens) - 1))] if body.prompt_logprobs else None
                return results.samples([completion] * body.num_samples, prompt_logprobs=of_prompt)
            case "save_weights" | "save_weights_for_sampler":
                return self._saved(target, request, body)

    def _saved(self, target: TargetId, request: Request, body: Any) -> Result:
        if body.path is None:
            sampler = TargetId(target.session_id, "sample", body.sampling_session_seq_id)
            return results.captured_sampler(sampler)
        path = CheckpointPath(target, "training" if request.kind == "save_weights" else "sampler", body.path)
        saved = SessionCheckpoint(
            at_s=request.at_s,
            model_index=target.number,
            seq_id=request.seq_id,
            checkpoint_type=path.checkpoint_type,
            name=path.name,
            num_bytes=1,
            expires_s=None if body.ttl_seconds is None else request.at_s + body.ttl_seconds,
        )
        self._sessions.note_checkpoint(target.session_id, saved)
        self._saved_weights[str(path)] = self._weights[target]
        return results.saved_weights(path)
