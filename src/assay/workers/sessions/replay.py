"""Replays a step of a session's model, and compares each result with the stored one, bit for bit.

A step is an `optim_step` with the requests before it; steps are counted from 1, those that failed included.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import NamedTuple

from assay.base.code_version import code_version
from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError
from assay.records.replay import Compared, OperatorWatchReport, ReplayReport
from assay.serving.sessions.request_log import MAX_SEQ_ID, PROTOBUF, Request, RequestLog, Result, TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker.bodies import read_request
from assay.serving.tinker.messages import parse_message
from assay.training.replay.audit import OutsideBound
from assay.training.replay.bad_rows import finite
from assay.training.replay.request import Mode, ReplayRequest
from assay.training.replay.watch import Inspector, NotFinite, OperatorWatch
from assay.training.sessions.trainer import SessionTrainer
from assay.workers.sessions.model_copy import ModelCopy, copied_model, named_model
from assay.workers.sessions.weights import ModelStates, StateKind

_KINDS: tuple[StateKind, ...] = ("commits", "training", "sampler", "captured")
Progress = Callable[[int, int, int], None]
"""Called with the next, the first and the last step."""


class StepRequests(NamedTuple):
    """The requests of a step by number."""

    first_pass: int
    """Its first `forward_backward` that counts: loading weights drops the gradient so far."""
    update: int
    until: int = MAX_SEQ_ID
    """The first request behind it that changes weights or gradient."""


def steps_of(log: RequestLog, *, most: int | None = None) -> list[StepRequests]:
    """Return the executed steps of a model, at most so many."""
    steps: list[StepRequests] = []
    first_pass: int | None = None
    for seq_id in count():
        is_enough = len(steps) == most and bool(steps) and steps[-1].until != MAX_SEQ_ID
        request = log.request(seq_id) if log.has_result(seq_id) and not is_enough else None
        if request is None:
            break
        is_change = request.kind in ("forward_backward", "load_weights", "optim_step")
        if is_change and steps and steps[-1].until == MAX_SEQ_ID:
            steps[-1] = steps[-1]._replace(until=seq_id)
        if request.kind == "load_weights":
            first_pass = None
        elif request.kind == "forward_backward" and first_pass is None:
            first_pass = seq_id
        elif request.kind == "optim_step":
            steps.append(StepRequests(seq_id if first_pass is None else first_pass, seq_id))
            first_pass = None
    return steps[:most]


def replay_session(
    sessions: SessionRepository, name: str, request: ReplayRequest, *, progress: Progress = lambda *_: None
) -> ReplayReport:
    """Replay the steps of a model from the newest stored state to the requested one. `name`: see `named_model`.

    Raises `ConfigError` for an unknown step.
    """
    target, _ = named_model(sessions, name)
    if request.last_step < request.step:
        raise ConfigError(f"--through {request.last_step}: it must be from --step {request.step} on.")
    steps = steps_of(sessions.requests(target), most=request.last_step)
    if not 1 <= request.step <= len(steps) or request.last_step > len(steps):
        raise ConfigError(f"--step {request.last_step}: {target} has executed the steps 1 to {len(steps)}.")
    with copied_model(sessions, target, before=steps[request.step - 1].first_pass) as copy:
        found = _Replay(copy, ModelStates(sessions.store, target), steps)
        from_step = sum(step.update < copy.next_seq_id for step in steps)
        for number in range(from_step + 1, request.last_step + 1):
            progress(number, from_step + 1, request.last_step)
            found.replay_step(number, is_watched=number == request.step, mode=request.mode)
    return found.report(target, request, from_step)


class _Replay:
    """A replay in progress, and its results."""

    def __init__(self, copy: ModelCopy, states: ModelStates, steps: list[StepRequests]) -> None:
        self._copy = copy
        self._states = states
        self._steps = steps
        self._compared: list[Compared] = []
        self._watched: OperatorWatchReport | None = None
        self._numbers: dict[str, float] = {}
        """Loss and gradient norm of the requested step."""

    def replay_step(self, number: int, *, is_watched: bool, mode: Mode | None) -> None:
        """Replay a step, under an operator watch if it is the requested one and `mode` is given."""
        step = self._steps[number - 1]
        while self._copy.next_seq_id < step.first_pass:
            self._execute(number, is_requested=False)
        inspector = None if mode is None or not is_watched else NotFinite() if mode == "watch" else OutsideBound()
        watch = None if inspector is None else _watch(self._copy.trainer, inspector)
        raised = ""
        with watch or nullcontext():
            while self._copy.next_seq_id <= step.update:
                raised = self._execute(number, is_requested=is_watched) or raised
        if watch is not None and mode is not None:
            self._watched = OperatorWatchReport(
                mode=mode,
                finding=watch.finding or (watch.carried if raised else None),
                num_calls=watch.num_calls,
                num_operators=len(watch.operators),
                not_audited=getattr(inspector, "not_audited", {}),
                raised=raised,
            )
        self._compared += self._compared_states(number)

    def _execute(self, number: int, *, is_requested: bool) -> str:
        """Execute the next request; return its error, if it is one."""
        request, known, found = self._copy.execute_next(with_errors=is_requested)
        recorded, replayed = _quantities(request, known), _quantities(request, found)
        for name in dict.fromkeys([*recorded, *replayed]):
            then, now = recorded.get(name, "none"), replayed.get(name, "none")
            self._compared.append(_compared(number, f"request {request.seq_id} {name}", then, now))
        is_pass = request.kind == "forward_backward" and not found.is_error
        if is_requested and not (is_pass and read_request(request).is_forward_only):
            for name in replayed.keys() & {"loss", "gradient_norm"}:
                self._numbers[name] = self._numbers.get(name, 0.0) + float(replayed[name])
        return replayed.get("error", "")

    def _compared_states(self, number: int) -> Iterator[Compared]:
        """Compare the weights after a step with all that are stored from before the next one."""
        step = self._steps[number - 1]
        for kind in _KINDS:
            for seq_id in self._states.numbers(kind):
                state = self._states.get(kind, seq_id) if step.update < seq_id <= step.until else None
                if state is not None and state.next_seq_id > step.update:
                    own = self._copy.trainer.stored(with_moments=kind in ("commits", "training"))
                    yield _compared(number, f"state {kind}/{seq_id}", *map(sha256_of_bytes, (state.data, own)))

    def report(self, target: TargetId, request: ReplayRequest, from_step: int) -> ReplayReport:
        differences = [item for item in self._compared if not item.is_equal]
        at_step = tuple(item for item in self._compared if item.step >= request.step)
        return ReplayReport(
            run_id=str(target),
            step=request.step,
            through_step=request.last_step,
            from_step=from_step,
            attempt=0,
            recorded_code_version="",
            code_version=code_version(),
            verdict="differs" if differences else "equal" if at_step else "not recorded",
            compared=len(self._compared),
            at_step=at_step,
            first_difference=differences[0] if differences else None,
            loss=finite(self._numbers.get("loss")),
            gradient_norm=finite(self._numbers.get("gradient_norm")),
            operators=self._watched,
        )


def _watch(trainer: SessionTrainer, inspector: Inspector) -> OperatorWatch:
    forward = trainer.lane_forward
    return OperatorWatch(
        trainer.model,
        inspector,
        lambda: (forward.lane, forward.micro_batch),
        is_forward=lambda: forward.is_under_way,
    )


def _quantities(request: Request, result: Result) -> dict[str, str]:
    """Return what a result says, by name."""
    if result.is_error:
        return {"error": str(json.loads(result.body)["error"])}
    if result.content_type == PROTOBUF:
        message = parse_message("ForwardBackwardOutput", result.body)
        logprobs = b"".join(record.fields["logprobs"].data for record in message.loss_fn_outputs)
        return {"loss": repr(message.metrics["loss:sum"]), "logprobs_digest": sha256_of_bytes(logprobs)[:13]}
    if request.kind != "optim_step":
        return {}
    metrics = json.loads(result.body)["metrics"]
    return {name.partition(":")[0]: repr(value) for name, value in metrics.items()}


def _compared(step: int, quantity: str, recorded: str, replayed: str) -> Compared:
    return Compared(step=step, quantity=quantity, recorded=recorded, replayed=replayed, is_equal=recorded == replayed)
