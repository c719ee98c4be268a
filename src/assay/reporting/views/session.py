"""The view of a session of the Tinker API: its models, what they executed, and what it cost."""

import json

from assay.reporting.views.view import UtcTime, View
from assay.serving.sessions.request_log import PROTOBUF, RequestId, RequestLog, TargetId, data_folder
from assay.serving.sessions.sessions import CheckpointPath, SessionRepository, SessionState
from assay.serving.tinker.messages import parse_message
from assay.store.settings import Settings

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

    session_id: str
    """As in the paths of its saved weights."""
    project: str
    """That it is charged to."""
    created: UtcTime
    finished: str | None
    """How the client ended it, such as `success`; None while it is open."""
    models: tuple[SessionModelView, ...]
    """By number."""
    num_samples: int
    """Acknowledged requests of all samplers."""
    device_hours: float
    cost: float | None
    """At the price of `planned_device`; None if there is none."""
    currency: str


def session_view(sessions: SessionRepository, session_id: str, state: SessionState, settings: Settings) -> SessionView:
    """Return what is stored of a session."""
    device_hours, price = sum(charge.device_s for charge in state.charges) / 3600, settings.planned_price()
    samples = sessions.store.list(f"{data_folder(session_id)}/sample/")
    return SessionView(
        session_id=session_id,
        project=state.created.project,
        created=state.created.at_s,
        finished=None if state.finished is None else state.finished.status,
        models=tuple(_model(sessions, TargetId(session_id, "train", number), state) for number in sorted(state.models)),
        num_samples=sum("/requests/" in item.key for item in samples),
        device_hours=device_hours,
        cost=None if price is None else price.of(device_hours).amount,
        currency=settings.currency,
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
