"""A server of both training APIs with one planted fault: `python faulty_training_api.py FAULT FOLDER`.

The server is ours, changed in one place; workers in it execute requests and jobs by rule, without a model. A parent
process starts it, and starts it again whenever it dies, on the port in FOLDER/port; FOLDER/pid names the server.

    acknowledges_before_it_appends    a model's second `optim_step` is written 3 s after its acknowledgement
    executes_twice                    an `optim_step` is executed as often as it is sent
    changes_results                   a repeat of a `forward_backward` gets other logprobs
    applies_chunks_as_they_arrive     instead of by their numbers
    mixes_up_futures                  a result that is fetched again is that of the request before
    forgets_at_restart                sessions live in memory
    fails_after_restart               500 for some seconds after a restart
    adds_gradients_twice              a repeat of a `forward_backward` is added to the gradient again
    creates_jobs_again                a repeat of a creation creates a second job
    forgets_events                    a restart loses the events of jobs
"""

import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import numpy as np
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.base.clock import SystemClock
from assay.records.fine_tuning_job import (
    JobAcquired,
    JobCheckpoint,
    JobSucceeded,
    JobValidated,
    LaunchPlanned,
    LaunchStarted,
)
from assay.serving.base_models import read_base_models
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.openai import job_routes
from assay.serving.openai.app import make_app
from assay.serving.openai.app_state import AppState
from assay.serving.sessions.request_log import RequestLog, Result
from assay.serving.tinker import results
from assay.serving.tinker.app import with_tinker
from assay.serving.tinker.bodies import ForwardBackward, read_request
from assay.serving.tinker.futures import FutureWatch
from assay.store.objects import open_store
from served import write_models
from sessions import AnsweringWorker

WRITE_DELAY_S = 3.0
"""Longer than a busy machine takes for a kill."""
FAILING_S = 6.0
LONG_EPOCHS = 100
"""The check's job that it pauses and cancels."""


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Plant a function."""
    setattr(owner, name, function)


class Server:
    """One life of the server."""

    def __init__(self, fault: str, folder: Path) -> None:
        self.began_s = time.time()
        self.is_restarted = (folder / "pid").exists()
        store = open_store("memory:" if fault == "forgets_at_restart" else str(folder / "api"))
        self.app = AppState.of(store, read_base_models(folder / "models"), SystemClock())
        self.app.projects.ensure("default", by="")
        self.worker = AnsweringWorker(self.app.sessions)
        self.asgi: ASGIApp = make_app(self.app, with_tinker)
        if fault != "none":
            FAULTS[fault](self)

    def work(self) -> None:
        """Execute requests and jobs until the process dies."""
        while True:
            self.worker.execute_all()
            for job_id in self.app.jobs.open_ids():
                execute_job(self.app.jobs, job_id)
            time.sleep(0.01)

    def on_append(self, change: Callable[[RequestLog, int, str, bool], None]) -> None:
        """Call after each request: with its log, number and kind, and whether it is new."""
        append = RequestLog.append

        def append_and_change(log: RequestLog, seq_id: int, kind: Any, *rest: Any, **named: Any) -> bool:
            is_new = append(log, seq_id, kind, *rest, **named)
            change(log, seq_id, kind, is_new)
            return is_new

        replace(RequestLog, "append", append_and_change)


def execute_job(jobs: JobRepository, job_id: str) -> None:
    """Take a job to its end at once, unless it is the long one."""
    state = jobs.state(job_id)
    if state is None or state.has_ended or state.desired_state == "pause":
        return
    now_s = time.time()
    num_epochs = state.created.hyperparameters.get("n_epochs", 1)
    entries: list[Any] = [
        JobAcquired(at_s=now_s, lease=1, worker="w"),
        JobValidated(
            at_s=now_s, lease=1, run_id=job_id, num_rows=8, dataset_fingerprint="f", num_steps=2, hyperparameters={}
        ),
        LaunchPlanned(at_s=now_s, lease=1, number=1),
        LaunchStarted(at_s=now_s, lease=1, number=1, where="here", step=0),
        JobCheckpoint(at_s=now_s, lease=1, step=2, weights_digest="w", retained_steps=(2,), points=()),
        JobSucceeded(
            at_s=now_s, lease=1, step=2, weights_digest="w", result_file="f", trained_tokens=1, measured={}
        ),
    ]  # fmt: skip
    for entry in entries[: 2 if num_epochs == LONG_EPOCHS else None]:
        jobs.change(job_id, partial(_unless_logged, entry))


def _unless_logged(entry: Any, state: JobState) -> Any:
    return None if any(type(item) is type(entry) for item in state.entries) else entry


def acknowledges_before_it_appends(server: Server) -> None:
    append, has_request, memory = RequestLog.append, RequestLog.has_request, set[tuple[str, int]]()
    num_updates = Counter[str]()

    def append_later(log: RequestLog, seq_id: int, kind: Any, *rest: Any, **named: Any) -> bool:
        num_updates[str(log.target)] += kind == "optim_step"
        if kind != "optim_step" or num_updates[str(log.target)] != 2:
            return append(log, seq_id, kind, *rest, **named)
        memory.add((str(log.target), seq_id))
        Timer(WRITE_DELAY_S, append, (log, seq_id, kind, *rest), named).start()
        return True

    replace(RequestLog, "append", append_later)
    replace(
        RequestLog, "has_request", lambda log, seq_id: (str(log.target), seq_id) in memory or has_request(log, seq_id)
    )


def executes_twice(server: Server) -> None:
    def execute_again(log: RequestLog, seq_id: int, kind: str, is_new: bool) -> None:
        if kind == "optim_step" and not is_new:
            server.worker._weights[log.target] += 0.001

    server.on_append(execute_again)


def changes_results(server: Server) -> None:
    repeated, result = set[tuple[str, int]](), RequestLog.result

    def note(log: RequestLog, seq_id: int, kind: str, is_new: bool) -> None:
        if kind == "forward_backward" and not is_new:
            repeated.add((str(log.target), seq_id))

    def changed_result(log: RequestLog, seq_id: int) -> Result | None:
        found, request = result(log, seq_id), log.request(seq_id)
        if found is None or request is None or (str(log.target), seq_id) not in repeated:
            return found
        body = read_request(request)
        assert isinstance(body, ForwardBackward)
        return results.forward_backward([np.full(len(datum.tokens), -7.0, np.float32) for datum in body.datums], {})

    server.on_append(note)
    replace(RequestLog, "result", changed_result)


def applies_chunks_as_they_arrive(server: Server) -> None:
    """Each chunk is an update of its own, as it arrives, and waits for none before it."""
    worker, arrived, executed = server.worker, list[tuple[Any, int]](), set[tuple[str, int]]()

    known = set[str]()

    def execute(model: Any) -> None:
        log = server.app.sessions.requests(model)
        if str(model) not in known:  # by an earlier life of the server
            known.add(str(model))
            requests = [request for seq_id in log.seq_ids() if (request := log.request(seq_id)) is not None]
            arrived[:0] = [(model, request.seq_id) for request in sorted(requests, key=lambda one: one.at_s)]
        for target, seq_id in [*arrived]:
            if target == model and (str(target), seq_id) not in executed:
                executed.add((str(target), seq_id))
                request = log.request(seq_id)
                assert request is not None
                log.put_result(seq_id, worker._execute(model, request))
                if request.kind == "forward_backward":
                    body: Any = read_request(request)
                    worker._weights[model] += float(body.datums[0].tokens[0])

    replace(worker, "_execute_model", execute)
    server.on_append(lambda log, seq_id, kind, is_new: arrived.append((log.target, seq_id)) if is_new else None)


def mixes_up_futures(server: Server) -> None:
    wait, num_fetched = FutureWatch._wait, Counter[str]()

    async def wait_for_another(watch: FutureWatch, log: RequestLog, request: Any) -> Any:
        response = await wait(watch, log, request)
        num_fetched[str(request)] += 1
        if num_fetched[str(request)] > 1 and request.seq_id and log.has_result(request.seq_id - 1):
            return await wait(watch, log, request._replace(seq_id=request.seq_id - 1))
        return response

    replace(FutureWatch, "_wait", wait_for_another)


def forgets_at_restart(server: Server) -> None:
    """Its store is in memory."""


def fails_after_restart(server: Server) -> None:
    asgi = server.asgi

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and server.is_restarted and time.time() < server.began_s + FAILING_S:
            await JSONResponse({"error": {"message": "starting"}}, 500)(scope, receive, send)
        else:
            await asgi(scope, receive, send)

    server.asgi = respond


def adds_gradients_twice(server: Server) -> None:
    def add_again(log: RequestLog, seq_id: int, kind: str, is_new: bool) -> None:
        if kind == "forward_backward" and not is_new:
            server.worker.num_passes[log.target] += 1

    server.on_append(add_again)


def creates_jobs_again(server: Server) -> None:
    create_once = IdempotentRepository.create_once

    def create(repository: Any, created: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(repository, JobRepository):
            return repository.put(created)
        return create_once(repository, created, *rest, **named)

    replace(IdempotentRepository, "create_once", create)


def forgets_events(server: Server) -> None:
    newest_events = vars(job_routes)["newest_events"]
    replace(
        job_routes,
        "newest_events",
        lambda *arguments: (event for event in newest_events(*arguments) if event.at_s >= server.began_s),
    )


FAULTS: dict[str, Callable[[Server], None]] = {
    plant.__name__: plant
    for plant in (
        acknowledges_before_it_appends, executes_twice, changes_results, applies_chunks_as_they_arrive,
        mixes_up_futures, forgets_at_restart, fails_after_restart, adds_gradients_twice, creates_jobs_again,
        forgets_events,
    )
}  # fmt: skip


def serve(fault: str, folder: Path, port: int) -> None:
    """One life."""
    server = Server(fault, folder)
    (folder / "pid").write_text(str(os.getpid()))
    Thread(target=server.work, daemon=True).start()
    uvicorn.run(server.asgi, port=port, log_level="critical", timeout_graceful_shutdown=1)


def main() -> None:
    """Start the server again and again, until this process gets SIGTERM."""
    fault, folder = sys.argv[1], Path(sys.argv[2])
    write_models(folder / "models", method="supervised")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = 0

    def end(*_: Any) -> None:
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    (folder / "port").write_text(str(port))
    signal.signal(signal.SIGTERM, end)
    while True:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve(fault, folder, port)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
