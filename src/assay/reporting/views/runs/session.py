"""The view of what a session of the Tinker API has beyond other runs: models, and what they executed."""

import json
from pathlib import Path

from assay.base.clock import SystemClock
from assay.reporting.views.view import View
from assay.serving.sessions.request_log import PROTOBUF, RequestId, RequestLog, TargetId, data_folder
from assay.serving.sessions.sessions import CheckpointPath, SessionRepository, SessionState
from assay.serving.tinker.messages import parse_message
from assay.store.home import API
from assay.store.objects import open_store

_NEWEST = 20
"""Results in which the newest loss and gradient norm are looked for."""


class SessionModelView(View):
    """A model of a session."""

    model: str
    """`SESSION:train:NUMBER`."""
    base_model: str
    """Name of its file on the server."""
    lora_rank: int | None
    """None: all weights are trained."""
    num_requests: int
    """Acknowledged."""
    num_results: int
    """Executed."""
    waiting_for: str | None
    """Why the next request is not executed; None if it is about to be, or there is none."""
    loss: float | None
    """Sum over the tokens of the newest pass."""
    gradient_norm: float | None
    """Before clipping, in the newest update."""
    saved: tuple[str, ...]
    """Paths of saved weights."""


class SessionView(View):
    """A session."""

    project: str
    """That it is charged to."""
    models: tuple[SessionModelView, ...]
    """By number."""
    num_samples: int
    """Acknowledged requests of all samplers."""


def session_view(run_dir: Path) -> SessionView | None:
    """Return what is stored of the session with this run; None if the API's folder is not beside it."""
    sessions = SessionRepository(open_store(str(run_dir.parent / API)), SystemClock())
    if (state := sessions.state(run_dir.name)) is None:
        return None
    targets = [TargetId(run_dir.name, "train", number) for number in sorted(state.models)]
    samples = sessions.store.list(f"{data_folder(run_dir.name)}/sample/")
    return SessionView(
        project=state.created.project,
        models=tuple(_model(sessions, target, state) for target in targets),
        num_samples=sum("/requests/" in item.key for item in samples),
    )


def _model(sessions: SessionRepository, target: TargetId, state: SessionState) -> SessionModelView:
    log, model = sessions.requests(target), state.models[target.number]
    requests, results = set(log.seq_ids()), set(log.seq_ids("results"))
    numbers = _newest_numbers(log, sorted(results)[-_NEWEST:])
    is_waiting = bool(requests - results)
    return SessionModelView(
        model=str(target),
        base_model=model.base_model,
        lora_rank=model.lora_rank,
        num_requests=len(requests),
        num_results=len(results),
        waiting_for=sessions.waiting_reason(RequestId(target, min(requests - results))) if is_waiting else None,
        loss=numbers.get("loss:sum"),
        gradient_norm=numbers.get("gradient_norm:mean"),
        saved=tuple(
            str(CheckpointPath(target, checkpoint_type, name))
            for number, checkpoint_type, name in state.checkpoints
            if number == target.number
        ),
    )


def _newest_numbers(log: RequestLog, seq_ids: list[int]) -> dict[str, float]:
    """Return each metric of these results, the newest one of each name."""
    found: dict[str, float] = {}
    for seq_id in seq_ids:
        result = log.result(seq_id)
        if result is not None and result.content_type == PROTOBUF:
            found.update(parse_message("ForwardBackwardOutput", result.body).metrics)
        elif result is not None:
            found.update(json.loads(result.body).get("metrics", {}))
    return found
