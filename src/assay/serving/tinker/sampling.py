"""Routes that sample: from a base model, from saved weights, or from the weights of a model at one of its requests."""

from typing import Any

from assay.records.session import SessionSampler
from assay.serving.api_error import ApiError, not_found
from assay.serving.openai.bodies import parsed
from assay.serving.sessions.request_log import (
    ChangedRequestError,
    Request,
    RequestId,
    RequestKind,
    TargetId,
    read_target_id,
)
from assay.serving.tinker.bodies import MAX_MODELS, NumberedBody
from assay.serving.tinker.training import (
    TinkerCall,
    acknowledge,
    future_of,
    model_target,
    numbered,
    saved_path,
    session_model,
    trainable_base,
)

_SAVE: RequestKind = "save_weights_for_sampler"
_NUMBER = "sampling_session_seq_id"


def create_sampling_session(call: TinkerCall) -> dict[str, Any]:
    """Create a sampler of a base model or of saved weights."""
    body, now_s = call.body, call.app.clock.now_s()
    call.app.sessions.found(body.session_id, call.project)
    if body.model_path is not None:
        model = saved_path(call, body.model_path, "training", "sampler").model
        base_model = session_model(call, model).base_model
        sampler = SessionSampler(
            at_s=now_s, sampler_index=body.sampling_session_seq_id, base_model=base_model, path=body.model_path
        )
    elif body.base_model is not None:
        base = trainable_base(call, body.base_model)
        sampler = SessionSampler(
            at_s=now_s,
            sampler_index=body.sampling_session_seq_id,
            base_model=base.name,
            base=base.config.model_dump(mode="json"),
        )
    else:
        raise ApiError("Set base_model or model_path.", param="base_model", code="missing_required_parameter")
    call.app.sessions.add_sampler(body.session_id, sampler)
    target = TargetId(body.session_id, "sample", body.sampling_session_seq_id)
    return {"type": "create_sampling_session", "sampling_session_id": str(target)}


def save_weights_for_sampler(call: TinkerCall) -> dict[str, Any]:
    """Accept that a model's weights are saved under a name, or captured for a sampler.

    The sampler is that of the acknowledged request: the SDK counts its samplers up with each repeat.
    """
    body = parsed(NumberedBody, {name: call.tree.get(name) for name in NumberedBody.model_fields})
    target = model_target(call, body.model_id)
    log = call.app.sessions.requests(target)
    try:
        future = numbered(call, _SAVE)
    except ChangedRequestError:
        if not _is_repeat(log.request(body.seq_id), call.tree):
            raise
        future = future_of(RequestId(target, body.seq_id))
    request = log.request(body.seq_id)
    assert request is not None, "it was acknowledged"
    number = request.json().get(_NUMBER)
    if isinstance(number, int) and 0 <= number < MAX_MODELS:
        sampler = SessionSampler(
            at_s=request.at_s,
            sampler_index=number,
            base_model=session_model(call, target).base_model,
            model_index=target.number,
            seq_id=request.seq_id,
        )
        call.app.sessions.add_sampler(target.session_id, sampler)
    return future


def _is_repeat(known: Request | None, tree: dict[str, Any]) -> bool:
    return known is not None and known.kind == _SAVE and {**known.json(), _NUMBER: 0} == {**tree, _NUMBER: 0}


def sample(call: TinkerCall) -> dict[str, Any]:
    """Accept a prompt. Each completion has an id from the start."""
    target = _sampler_target(call, call.body.sampling_session_id)
    seq_id: int = call.body.seq_id
    future = acknowledge(call, target, seq_id, "sample")
    request_id = RequestId(target, seq_id)
    return {**future, "sample_sequence_ids": [f"{request_id}:{number}" for number in range(call.body.num_samples)]}


def get_sampler(call: TinkerCall) -> dict[str, Any]:
    """Describe a sampler."""
    target = _sampler_target(call, call.path["sampler_id"])
    sampler = call.app.sessions.sampler(target.session_id, target.number)
    assert sampler is not None
    return {"sampler_id": str(target), "base_model": sampler.base_model, "model_path": sampler.path}


def _sampler_target(call: TinkerCall, sampler_id: str) -> TargetId:
    target = read_target_id(sampler_id)
    if target is None or target.role != "sample" or not call.app.sessions.find(target.session_id, call.project):
        raise not_found("sampler", sampler_id, param="sampling_session_id")
    if call.app.sessions.sampler(target.session_id, target.number) is None:
        raise not_found("sampler", sampler_id, param="sampling_session_id")
    return target
