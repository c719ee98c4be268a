"""Executes the requests of one model of a session, in the order of their numbers.

    newest stored state --> requests after it, executed again --> requests without a result --> ...

The weights are a function of the requests, so a worker may be killed anywhere: the next one executes the requests since
the newest stored state again, and comes to the same bits and results. A state is stored when executing them again would
take longer than a stated time, with each `save_weights`, and when the worker leaves.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from assay.base.clock import Clock
from assay.base.errors import AssayError, DataError, NotInstalledError, StoreError, TrainingError
from assay.records.incident import IncidentKind
from assay.records.session import CheckpointType, SessionCheckpoint, SessionModel
from assay.serving.api_error import ApiError
from assay.serving.sessions.request_log import Request, RequestId, Result, TargetId
from assay.serving.sessions.sessions import CheckpointPath, SessionRepository
from assay.serving.tinker import results
from assay.serving.tinker.bodies import (
    ForwardBackwardDatum,
    LoadWeights,
    OptimStep,
    SaveWeights,
    SaveWeightsForSampler,
    read_request,
)
from assay.store.objects import ObjectStore
from assay.training.sessions.batch import TARGETS, Datum
from assay.training.sessions.trainer import AdamSettings, RequestLoss, SessionTrainer
from assay.workers.sessions.base import base_of_model
from assay.workers.sessions.rank_models import ModelRanks, RankModels, Returned
from assay.workers.sessions.ranks import RanksLostError
from assay.workers.sessions.weights import ModelStates, StateKind, StoredState, saved_weights

SAVES = ("save_weights", "save_weights_for_sampler")
"""Requests that change no weights: if they have a result, what they save is durable."""
MAX_LOSSES = 3
"""A request fails once this many executions ended a rank."""


class SessionTools(NamedTuple):
    """What the models of a worker share."""

    store: ObjectStore
    sessions: SessionRepository
    ranks: ModelRanks
    clock: Clock
    commit_after_s: float
    """Longest time that requests may take to be executed again after a restart."""
    notify: Callable[[str], None]
    losses: Counter[RequestId]
    """How often a rank ended while a request was executed."""


class StepRecorder(Protocol):
    """Receives what happens to a model, also when requests are executed again."""

    def log_step(self, model_index: int, step: int, values: dict[str, float]) -> None:
        """`values`: the loss of the passes since the last update, the gradient's norm, and the seconds of the step."""
        ...

    def note(self, kind: IncidentKind, text: str, step: int | None = None) -> None:
        """`text`: a sentence about something that should not happen."""
        ...


class ModelExecutor:
    """One model, which the ranks hold."""

    def __init__(
        self, tools: SessionTools, target: TargetId, model: SessionModel, recorder: StepRecorder | None = None
    ) -> None:
        self._tools = tools
        self._recorder = recorder
        self._target = target
        self._model = model
        self._log = tools.sessions.requests(target)
        self._states = ModelStates(tools.store, target)
        self.has_repeated = False
        """Whether the last request that was executed had a result."""
        self._restore()

    def _restore(self) -> None:
        """Begin with the newest stored state."""
        self._is_created = False
        self._unpublished: Result | None = None
        self.next_seq_id = self._stored_seq_id = 0
        self._gradient_from: int | None = None
        self._redo_s = 0.0
        self._num_steps = 0
        self._step = {"loss": 0.0, "step_s": 0.0}
        """Numbers of the next update."""
        if (state := self._states.newest(self._tools.notify)) is not None:
            self._create(state.data)
            self.next_seq_id = self._stored_seq_id = state.next_seq_id
            self._num_steps = state.num_steps

    def execute_next(self) -> bool:
        """Execute the next request; return False if it has not arrived."""
        request = self._log.request(self.next_seq_id)
        if request is None:
            return False
        began_s = self._tools.clock.monotonic_s()
        known = self._log.result(request.seq_id)
        self.has_repeated = known is not None
        if known is not None and known.is_error:
            self._drop_gradient_of(request)
        elif known is None:
            # If the store takes no result now, the request is not executed again later.
            self._unpublished = self._unpublished or self._result_of(request)
            self._publish(request, self._unpublished)
            self._unpublished = None
        elif request.kind not in SAVES:
            self._execute_again(request, known)
        self.next_seq_id += 1
        spent_s = self._tools.clock.monotonic_s() - began_s
        self._redo_s += spent_s
        self._step["step_s"] += spent_s
        if request.kind == "optim_step":
            self._end_step()
        # Saved weights may be deleted later, so a restart does not load them again.
        if self._redo_s > self._tools.commit_after_s or request.kind == "load_weights":
            self.commit()
        return True

    def _end_step(self) -> None:
        self._num_steps += 1
        if self._recorder is not None:
            self._recorder.log_step(self._target.number, self._num_steps, self._step)
        self._step = {"loss": 0.0, "step_s": 0.0}

    def commit(self) -> None:
        """Store the state, unless the stored one is the newest or a gradient waits for its update."""
        is_newer = self.next_seq_id > self._stored_seq_id
        if self._is_created and is_newer and self._gradient_from is None:
            self._store("commits", self.next_seq_id)

    def _publish(self, request: Request, result: Result) -> None:
        """Make a result visible. Raises `TrainingError` if another worker came to another one first."""
        if not self._log.put_result(request.seq_id, result) and self._log.result(request.seq_id) != result:
            raise TrainingError(
                f"{self._target}: another worker has executed request {request.seq_id} with another result, which the "
                "client has. The model is restored, and follows it."
            )

    def _execute_again(self, request: Request, known: Result) -> None:
        """Execute a request that has a result, and check that it gives the same one."""
        if self._execute(request) != known:
            self._tools.notify(
                f"{self._target}: request {request.seq_id} ({request.kind}) was executed again with another result. "
                "The worker before this one had another processor, or another version of assay or its libraries."
            )

    def _result_of(self, request: Request) -> Result:
        """Execute a request. An error is its result; then it has no effect."""
        try:
            return self._execute(request)
        except (StoreError, NotInstalledError):
            raise
        except RanksLostError as error:
            self._note_loss(request, str(error))
            raise
        except ApiError as error:
            failed = Result.of_error(error.message, "user")
        except DataError as error:
            failed = Result.of_error(str(error), "user")
        except Exception as error:  # one request must not stop the others
            logging.getLogger("assay.sessions").exception("error in request %s of %s", request.seq_id, self._target)
            why = str(error) if isinstance(error, AssayError) else "Internal error while the request was executed."
            failed = Result.of_error(why, "server")
            self._log.put_result(request.seq_id, failed)
            self._restore()  # what the request left half done is dropped
            while self.next_seq_id < request.seq_id:
                self.execute_next()
        self._drop_gradient_of(request)
        if self._recorder is not None:
            why = json.loads(failed.body)["error"]
            self._recorder.note("failed_request", f"request {request.seq_id} ({request.kind}) of {self._target}: {why}")
        return failed

    def _note_loss(self, request: Request, why: str) -> None:
        """Fail a request that ends the ranks again and again, and with them the models of other sessions."""
        request_id = RequestId(self._target, request.seq_id)
        self._tools.losses[request_id] += 1
        if self._tools.losses[request_id] >= MAX_LOSSES:
            text = f"Each of {MAX_LOSSES} executions of the request ended the worker's processes: {why}"
            self._log.put_result(request.seq_id, Result.of_error(text, "server"))

    def _drop_gradient_of(self, request: Request) -> None:
        """Drop the gradient if a failed request is an update: it is not part of the next one."""
        if request.kind == "optim_step" and self._is_created:
            self._train(SessionTrainer.drop_gradient)
            self._gradient_from = None

    def _execute(self, request: Request) -> Result:
        if request.kind == "create_model":
            self._create()
            return results.created_model(self._target)
        if request.kind == "load_weights":
            return self._load(read_request(request))
        if not self._is_created:
            raise DataError(f"{self._target} was not created: see the result of its first request.")
        match request.kind:
            case "forward_backward":
                return self._pass(request)
            case "optim_step":
                return self._update(read_request(request))
            case "save_weights":
                return self._save(request.seq_id, "training", read_request(request))
            case "save_weights_for_sampler":
                return self._save(request.seq_id, "sampler", read_request(request))
        raise DataError(f"{request.kind} is not a request of a model.")

    def _create(self, state: bytes | None = None, *, with_moments: bool = True) -> None:
        base = base_of_model(self._model)
        self._tools.ranks.call(RankModels.create, self._target, base, state, with_moments=with_moments)
        self._is_created = True

    def _train(self, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        """Call a method of the model's trainer on all ranks."""
        returned: Any = self._tools.ranks.call(RankModels.train, self._target, method, *args, **kwargs)
        return cast(Returned, returned)

    def _load(self, body: LoadWeights) -> Result:
        """Begin with saved weights, in place of the model's own."""
        if (saved := saved_weights(self._tools.sessions, body.path)) is None:
            raise DataError(f"path: there are no saved weights at {body.path}.")
        self._create(saved.state.data, with_moments=body.optimizer)
        self._gradient_from = None
        return results.loaded_weights(self._target, body.path)

    def _pass(self, request: Request) -> Result:
        body = read_request(request)
        datums, loss = [*map(_datum, body.datums)], RequestLoss(body.loss_fn, body.loss_fn_config)
        if body.is_forward_only:
            output = self._train(SessionTrainer.forward, datums, loss, seq_id=request.seq_id)
        else:
            output = self._train(SessionTrainer.forward_backward, datums, loss, seq_id=request.seq_id)
            self._gradient_from = self._gradient_from or request.seq_id
            self._step["loss"] += output.loss
        return results.forward_backward(output.logprobs, {"loss:sum": output.loss})

    def _update(self, body: OptimStep) -> Result:
        params = body.adam_params
        clip = params.grad_clip_norm if params.grad_clip_norm > 0 else None
        betas, rate = (params.beta1, params.beta2), params.learning_rate
        settings = AdamSettings(rate, *betas, params.eps, params.weight_decay, clip)
        norm = self._step["gradient_norm"] = self._train(SessionTrainer.update, settings)
        self._gradient_from = None
        return results.optimizer_step({"gradient_norm:mean": norm})

    def _save(self, seq_id: int, kind: CheckpointType, body: SaveWeights | SaveWeightsForSampler) -> Result:
        path = CheckpointPath(self._target, kind, body.path or f"{seq_id:06d}")
        sampler = body.sampling_session_seq_id if isinstance(body, SaveWeightsForSampler) else None
        state = self._tools.sessions.state(path.model.session_id)
        replaced = None if state is None else state.checkpoint(path)
        if isinstance(body, SaveWeights) and not body.overwrite and replaced and replaced.seq_id != seq_id:
            raise DataError(f"path: {path} exists. Save under another name, or with overwrite=True.")
        num_bytes = self._store(kind if sampler is None else "captured", seq_id)
        if sampler is not None:
            return results.captured_sampler(TargetId(self._target.session_id, "sample", sampler))
        now_s = self._tools.clock.now_s()
        saved = SessionCheckpoint(
            at_s=now_s,
            model_index=self._target.number,
            seq_id=seq_id,
            checkpoint_type=kind,
            name=path.name,
            num_bytes=num_bytes,
            expires_s=None if body.ttl_seconds is None else now_s + body.ttl_seconds,
            user_metadata=body.user_metadata or {},
        )
        self._tools.sessions.note_checkpoint(self._target.session_id, saved)
        if replaced is not None and replaced.seq_id != seq_id:  # no name leads to them any more
            self._tools.store.delete(self._states.key(kind, replaced.seq_id))
        return results.saved_weights(path)

    def _store(self, kind: StateKind, number: int) -> int:
        """Store the current state; return its bytes."""
        next_seq_id = self.next_seq_id if self._gradient_from is None else self._gradient_from
        has_moments = kind in ("commits", "training")
        data: Any = self._tools.ranks.call_first(
            RankModels.train, self._target, SessionTrainer.stored, with_moments=has_moments
        )
        self._states.put(kind, number, StoredState(next_seq_id, data, self._num_steps))
        if has_moments:
            self._stored_seq_id = next_seq_id
            self._redo_s = 0.0
        return len(data)


def _datum(datum: ForwardBackwardDatum) -> Datum:
    targets = datum.inputs.get(TARGETS, np.zeros(0, np.int64))
    if targets.dtype != np.int64:
        raise DataError(f"loss_fn_inputs: {TARGETS} must be of int64.")
    inputs = {name: values.astype(np.float32) for name, values in datum.inputs.items() if name != TARGETS}
    return Datum(datum.tokens, targets, inputs)
