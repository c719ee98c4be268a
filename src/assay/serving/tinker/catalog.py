"""Routes about base models, training runs (the models of sessions) and their saved weights."""

from datetime import UTC, datetime
from typing import Any, get_args

from assay.records.session import CheckpointType, SessionCheckpoint
from assay.serving.sessions.request_log import TargetId
from assay.serving.sessions.sessions import SCHEME, CheckpointPath
from assay.serving.tinker.training import TinkerCall, model_target, saved_path, session_model, writing_method

ALL_TYPES: tuple[CheckpointType, ...] = get_args(CheckpointType)


def capabilities(call: TinkerCall) -> dict[str, Any]:
    """List the base models that the project may train and sample."""
    found = []
    for name in call.app.names.bases(call.project):
        config = call.app.models[name].config
        if (method := writing_method(call.app.models[name])) is not None:
            max_tokens = config.methods[method].max_tokens
            found.append({"model_name": name, "max_context_length": max_tokens, "trainable": True, "sampleable": True})
    return {"supported_models": found}


def training_run(call: TinkerCall) -> dict[str, Any]:
    """Describe a model of a session."""
    target = model_target(call, call.path["run_id"])
    model = session_model(call, target)
    saved = _saved(call, target)
    last = {kind: _shape(target, item) for item in saved if (kind := item.checkpoint_type)}
    last_s = max([model.at_s, *(item.at_s for item in saved)])
    return {
        "training_run_id": str(target),
        "base_model": model.base_model,
        "model_owner": call.project,
        "is_lora": model.lora_rank is not None,
        "lora_rank": model.lora_rank,
        "last_request_time": _time(last_s),
        "last_checkpoint": last.get("training"),
        "last_sampler_checkpoint": last.get("sampler"),
        "user_metadata": {name: str(value) for name, value in model.user_metadata.items()},
    }


def checkpoints(call: TinkerCall) -> dict[str, Any]:
    """List the saved weights of a model, oldest first."""
    target = model_target(call, call.path["run_id"])
    return {"checkpoints": [_shape(target, item) for item in _saved(call, target)], "cursor": None}


def delete_checkpoint(call: TinkerCall) -> None:
    """Delete saved weights."""
    target = model_target(call, call.path["run_id"])
    path = f"{SCHEME}{target}/{call.path['checkpoint_id']}"
    call.app.sessions.delete_checkpoint(saved_path(call, path, *ALL_TYPES))


def weights_info(call: TinkerCall) -> dict[str, Any]:
    """Describe saved weights."""
    model = session_model(call, saved_path(call, call.body.tinker_path, *ALL_TYPES).model)
    return {
        "base_model": model.base_model,
        "is_lora": model.lora_rank is not None,
        "lora_rank": model.lora_rank,
        "train_unembed": model.trains_unembedding,
        "train_mlp": model.trains_mlp,
        "train_attn": model.trains_attention,
    }


def _saved(call: TinkerCall, target: TargetId) -> list[SessionCheckpoint]:
    state = call.app.sessions.found(target.session_id, call.project)
    found = [saved for saved in state.checkpoints.values() if saved.model_index == target.number]
    return sorted(found, key=lambda saved: saved.at_s)


def _shape(target: TargetId, saved: SessionCheckpoint) -> dict[str, Any]:
    path = CheckpointPath(target, saved.checkpoint_type, saved.name)
    return {
        "checkpoint_id": path.checkpoint_id,
        "checkpoint_type": saved.checkpoint_type,
        "time": _time(saved.at_s),
        "tinker_path": str(path),
        "size_bytes": saved.num_bytes,
        "expires_at": None if saved.expires_s is None else _time(saved.expires_s),
        "user_metadata": {name: str(value) for name, value in saved.user_metadata.items()},
    }


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()
