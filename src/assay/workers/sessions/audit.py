"""The audit of a session from its stored requests, results and states: each datum was learned exactly once.

Nothing is executed again, so wrong numbers in a result, or samples from other weights, are not found: see `replay`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

from assay.base.errors import AssayError, ConfigError
from assay.reporting.views.runs.session_audit import SessionAudit
from assay.serving.api_error import ApiError
from assay.serving.sessions.request_log import JSON, Request, RequestLog, Result, TargetId, data_folder
from assay.serving.sessions.sessions import SessionRepository, SessionState
from assay.serving.tinker.messages import parse_message
from assay.workers.sessions.provenance import SampledSequences, TrainedDatums
from assay.workers.sessions.weights import ModelStates, StateKind

_FIRST = ("create_model", "load_weights")
_SAVED_BY: dict[StateKind, str] = {
    "training": "save_weights",
    "sampler": "save_weights_for_sampler",
    "captured": "save_weights_for_sampler",
}
"""Kind of the request whose number a stored state has."""


def audit_session(sessions: SessionRepository, session_id: str) -> SessionAudit:
    """Check the requests of all models and samplers of a session. Raises `ConfigError` if it does not exist."""
    state = sessions.state(session_id)
    if state is None:
        raise ConfigError(f"No session {session_id} in {sessions.store.url}.")
    num_requests, num_results, problems, models = 0, 0, list[str](), list[TrainedDatums]()
    sampled = SampledSequences(sessions, state.created.project)
    for target in _targets(sessions, session_id, state):
        log = sessions.requests(target)
        requests, results = sorted(log.seq_ids()), sorted(log.seq_ids("results"))
        num_requests, num_results = num_requests + len(requests), num_results + len(results)
        if target.role == "train":
            models.append(TrainedDatums(target, sampled))
            found = [*_problems(log, requests, results, models[-1].add)]
            found += _state_problems(ModelStates(sessions.store, target), log, state)
        else:
            found = [*_problems(log, requests, results, partial(sampled.add, target))]
        problems += [f"{target}: {text}" for text in found]
    if state.finished and state.models and not num_requests:
        raise ConfigError(f"{session_id} is finished, and its requests were removed ('serve sessions --keep-days').")
    return SessionAudit(
        session_id=session_id,
        verdict="fail" if problems else "incomplete" if num_results < num_requests else "pass",
        num_requests=num_requests,
        num_results=num_results,
        num_trained=sum(model.num_trained for model in models),
        num_waiting=sum(model.num_waiting for model in models),
        num_dropped=sum(model.num_dropped for model in models),
        num_trained_tokens=sum(model.num_trained_tokens for model in models),
        token_sources=tuple(source for model in models for source in model.sources),
        problems=tuple(problems),
    )


def _targets(sessions: SessionRepository, session_id: str, state: SessionState) -> list[TargetId]:
    """Return samplers and models; samplers first, because what models learned is looked up in their results."""
    models = {TargetId(session_id, "train", number) for number in state.models}
    keys = sessions.store.list(f"{data_folder(session_id)}/sample/")
    return sorted(models | {TargetId(session_id, "sample", int(item.key.split("/")[3])) for item in keys})


def _problems(
    log: RequestLog, requests: list[int], results: list[int], account: Callable[[Request, Result], Iterator[str]]
) -> Iterator[str]:
    """Yield what contradicts that each request was executed once. `account`: called with executed requests in order;
    it yields what is wrong with one."""
    known, executed = set(requests), set(results)
    for kind, numbers in (("request", requests), ("result", results)):
        for number in sorted({first for first, second in pairwise(numbers) if first == second}):
            yield f"{kind} {number} is stored twice"
    for number in sorted(executed - known):
        yield f"result {number} has no request"
    if log.target.role == "train" and results:
        for number in sorted(set(range(results[-1])) - executed):
            what = "has no result" if number in known else "is missing"
            yield f"request {number} {what}, but later ones were executed"
    for number in sorted(known | executed):
        what = "request"
        try:
            request = log.request(number)
            if request is not None and (problem := _problem_of(request, log.target)):
                yield f"request {number} {problem}"
            what = "result"
            result = log.result(number)
            what = "request"
            if request is not None and result is not None:
                yield from (f"request {number}: {problem}" for problem in account(request, result))
        except (AssayError, ApiError) as error:
            yield f"{what} {number}: {error}"


def _problem_of(request: Request, target: TargetId) -> str | None:
    """Return what contradicts the number: the same request under two numbers would be executed twice."""
    if target.role == "train" and (request.seq_id == 0) != (request.kind in _FIRST):
        is_loading = request.kind == "load_weights"  # into a new model, which is request 0 or a later one
        return None if is_loading else f"is {request.kind}; a model is created by request 0, and only by it"
    if request.seq_id == 0:
        return None
    if request.content_type == JSON:
        own = request.json().get("seq_id")
    else:
        own = parse_message("ForwardBackwardRequest", request.body).seq_id
    return None if own == request.seq_id else f"is request {own} by its body"


def _state_problems(states: ModelStates, log: RequestLog, session: SessionState) -> Iterator[str]:
    """Yield stored states that are changed, or that do not stand behind executed requests."""
    for kind in ("commits", *_SAVED_BY):
        for number in states.numbers(kind):
            try:
                state = states.get(kind, number)
                request = log.request(number) if kind in _SAVED_BY else None
            except AssayError as error:
                yield f"state {kind}/{number}: {error}"
                continue
            assert state is not None, "it was listed"
            if kind in _SAVED_BY and (request is None or request.kind != _SAVED_BY[kind]):
                yield f"state {kind}/{number}: no request {number} saved it"
            if state.next_seq_id > number or (kind == "commits" and state.next_seq_id != number):
                yield f"state {kind}/{number}: it says that it stands before request {state.next_seq_id}"
            if state.next_seq_id and not log.has_result(state.next_seq_id - 1):
                yield f"state {kind}/{number}: request {state.next_seq_id - 1}, which it includes, has no result"
    for (model, kind, name), saved in session.checkpoints.items():
        if model == log.target.number and not states.has(kind, saved.seq_id):
            yield f"saved weights {name}: their state {kind}/{saved.seq_id} is missing"
