"""Routes that train: sessions, models, passes, steps and saved weights.

A request of an existing model is acknowledged unread, even if it cannot be executed; its result is then an error.
Otherwise its number would be missing, and all later requests of the model would wait for it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.base.digest import canonical_json
from assay.records.session import CheckpointType, SessionCreated, SessionModel
from assay.serving.api_error import ApiError, not_found
from assay.serving.ids import new_id
from assay.serving.methods import SERVED_METHODS
from assay.serving.openai.app_state import AppState
from assay.serving.openai.bodies import parsed
from assay.serving.queue.worker_registry import SESSION_WORKERS, WorkerRegistry
from assay.serving.sessions.request_log import JSON, PROTOBUF, RequestId, RequestKind, TargetId, read_target_id
from assay.serving.sessions.sessions import CheckpointPath, SessionState, read_checkpoint_path
from assay.serving.tinker.bodies import LoadWeights, NumberedBody
from assay.serving.tinker.messages import canonical_bytes

if TYPE_CHECKING:
    from assay.serving.base_models import BaseModelFile


class TinkerCall(NamedTuple):
    """One request with its project and body."""

    app: AppState
    project: str
    key_id: str
    body: Any
    """A parsed body, or a protobuf message; None where the route parses it."""
    tree: dict[str, Any]
    """The body's JSON; empty for protobuf."""
    path: Mapping[str, Any]
    """Parameters in the address."""


def create_session(call: TinkerCall) -> dict[str, Any]:
    """Begin a session. A lost response leaves an empty session, which costs nothing."""
    now_s, body = call.app.clock.now_s(), call.body
    created = SessionCreated(
        session_id=new_id("session", now_s),
        project=call.project,
        at_s=now_s,
        key_id=call.key_id,
        sdk_version=body.sdk_version,
        tags=body.tags,
        user_metadata=body.user_metadata or {},
    )
    call.app.sessions.put(created)
    # The SDK reports a reason for waiting after a quarter of an hour, and a warning at once.
    warning = missing_worker(call.app)
    return {"type": "create_session", "session_id": created.session_id, "warning_message": warning}


def missing_worker(app: AppState) -> str | None:
    """Return what to do if no worker executes sessions, or None if there is one."""
    if WorkerRegistry(app.sessions.store, app.clock, folder=SESSION_WORKERS).live():
        return None
    return "No worker executes sessions: start 'assay serve sessions' on a machine with access to this home."


def heartbeat(call: TinkerCall) -> dict[str, Any]:
    """Tell the client whether its session is open, and note that the client lives."""
    _open_session(call, call.body.session_id)
    call.app.sessions.note_heard(call.body.session_id)
    return {"type": "session_heartbeat"}


def finish_session(call: TinkerCall) -> None:
    """Close a session."""
    session_id = call.path["session_id"]
    call.app.sessions.found(session_id, call.project)
    call.app.sessions.finish(session_id, call.body.reason.type)


def create_model(call: TinkerCall) -> dict[str, Any]:
    """Create a model with a new adapter."""
    body = call.body
    _open_session(call, body.session_id)
    base, lora = trainable_base(call, body.base_model), body.lora_config
    if lora is None:
        raise ApiError("lora_config is required: only adapters are trained.", param="lora_config")
    model = SessionModel(
        at_s=call.app.clock.now_s(),
        model_index=body.model_seq_id,
        base_model=base.name,
        base=base.config.model_dump(mode="json"),
        lora_rank=lora.rank,
        lora_seed=lora.seed,
        trains_attention=lora.train_attn,
        trains_mlp=lora.train_mlp,
        trains_unembedding=lora.train_unembed,
        user_metadata=body.user_metadata or {},
    )
    call.app.sessions.add_model(body.session_id, model)
    return acknowledge(call, TargetId(body.session_id, "train", body.model_seq_id), 0, "create_model")


def load_weights(call: TinkerCall) -> dict[str, Any]:
    """Create a model from saved weights, or load weights into a new model."""
    if call.tree.get("model_id") is not None:
        return numbered(call, "load_weights")
    body = parsed(LoadWeights, call.tree)
    if body.session_id is None or body.model_seq_id is None:
        raise ApiError("Set session_id and model_seq_id, or model_id and seq_id.", param="session_id")
    _open_session(call, body.session_id)
    source = session_model(call, saved_path(call, body.path, "training").model)
    if body.base_model not in (None, source.base_model):
        raise ApiError(f"The weights are of {source.base_model}, not {body.base_model!r:.100}.", param="base_model")
    changes = {
        "at_s": call.app.clock.now_s(),
        "model_index": body.model_seq_id,
        "user_metadata": body.user_metadata or {},
    }
    call.app.sessions.add_model(body.session_id, source.model_copy(update=changes))
    return acknowledge(call, TargetId(body.session_id, "train", body.model_seq_id), 0, "load_weights")


def get_info(call: TinkerCall) -> dict[str, Any]:
    """Describe a model."""
    model = session_model(call, model_target(call, call.body.model_id))
    return {
        "type": "get_info",
        "model_id": call.body.model_id,
        "model_name": model.base_model,
        "model_data": {"model_name": model.base_model, "tokenizer_id": model.base["tokenizer"]},
        "is_lora": model.lora_rank is not None,
        "lora_rank": model.lora_rank,
    }


def forward_backward(call: TinkerCall) -> dict[str, Any]:
    """Accept a batch, or a part of one."""
    target, message = model_target(call, call.body.model_id), call.body
    data = canonical_bytes(message)
    return acknowledge(call, target, _positive(message.seq_id), "forward_backward", content_type=PROTOBUF, data=data)


def numbered(call: TinkerCall, kind: RequestKind) -> dict[str, Any]:
    """Accept a request of a model by its number."""
    body = parsed(NumberedBody, {name: call.tree.get(name) for name in NumberedBody.model_fields})
    return acknowledge(call, model_target(call, body.model_id), _positive(body.seq_id), kind)


def acknowledge(
    call: TinkerCall,
    target: TargetId,
    seq_id: int,
    kind: RequestKind,
    *,
    content_type: str = JSON,
    data: bytes | None = None,
) -> dict[str, Any]:
    """Make the request durable and return its future."""
    sessions = call.app.sessions
    log = sessions.requests(target)
    if sessions.found(target.session_id, call.project).finished and not log.has_request(seq_id):
        raise _finished(target.session_id)
    body = canonical_json(call.tree).encode() if data is None else data
    log.append(seq_id, kind, content_type, body, now_s=call.app.clock.now_s())
    sessions.note_heard(target.session_id)
    return future_of(RequestId(target, seq_id))


def future_of(request_id: RequestId) -> dict[str, Any]:
    """Return what the client asks with for the result."""
    return {"request_id": str(request_id), "model_id": str(request_id.target)}


def trainable_base(call: TinkerCall, name: str) -> "BaseModelFile":
    """Return the base model if the project may use it and it writes. Raises `ApiError`."""
    names = [base for base in call.app.names.bases(call.project) if writing_method(call.app.models[base])]
    if name not in names:
        known = ", ".join(names) or "none"
        raise ApiError(
            f"There is no base model {name!r:.120} to train or sample. Models of this server: {known}.",
            param="base_model",
            code="model_not_found",
        )
    return call.app.models[name]


def writing_method(base: "BaseModelFile") -> str | None:
    """Return the first method by which a base model is trained to write, or None."""
    return next((name for name in base.config.methods if SERVED_METHODS[name].writes), None)


def model_target(call: TinkerCall, model_id: str) -> TargetId:
    """Return the id of an existing model of the project. Raises `ApiError`."""
    target = read_target_id(model_id)
    if target is None or target.role != "train":
        raise not_found("model", model_id, param="model_id")
    session_model(call, target)
    return target


def session_model(call: TinkerCall, target: TargetId) -> SessionModel:
    """Return a model of the project. Raises `ApiError`."""
    state = call.app.sessions.find(target.session_id, call.project)
    model = None if state is None else state.models.get(target.number)
    if model is None:
        raise not_found("model", str(target), param="model_id")
    return model


def saved_path(call: TinkerCall, text: str, *checkpoint_types: CheckpointType) -> CheckpointPath:
    """Return the path of existing weights of the project, of one of these types. Raises `ApiError`."""
    path = read_checkpoint_path(text)
    state = None if path is None else call.app.sessions.find(path.model.session_id, call.project)
    if path is None or state is None or state.checkpoint(path) is None:
        raise not_found("checkpoint", text, param="path")
    if path.checkpoint_type not in checkpoint_types:
        raise ApiError(f"{text:.200} are weights for sampling, without the optimizer's state.", param="path")
    return path


def _open_session(call: TinkerCall, session_id: str) -> SessionState:
    state = call.app.sessions.found(session_id, call.project)
    if state.finished:
        raise _finished(session_id)
    return state


def _finished(session_id: str) -> ApiError:
    text = f"Session {session_id} is finished. Create a new ServiceClient and load its saved weights."
    return ApiError(text, status=410, code="session_finished")


def _positive(seq_id: int) -> int:
    if seq_id < 1:
        raise ApiError("seq_id must be 1 or greater.", param="seq_id", code="invalid_value")
    return seq_id
