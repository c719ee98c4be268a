"""Results of requests, as the SDK reads them. Workers make them; the server passes them on unread."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from assay.base.shapes import Float32
from assay.serving.sessions.request_log import PROTOBUF, Result, TargetId
from assay.serving.sessions.sessions import CheckpointPath
from assay.serving.tinker.messages import FLOAT32, canonical_bytes, new_message


def created_model(model: TargetId) -> Result:
    """Return the result of `create_model`."""
    return Result.of_json({"model_id": str(model), "type": "create_model"})


def loaded_weights(model: TargetId, path: str) -> Result:
    """Return the result of `load_weights`."""
    return Result.of_json({"path": path, "model_id": str(model), "type": "load_weights"})


def optimizer_step(metrics: Mapping[str, float]) -> Result:
    """Return the result of `optim_step`."""
    return Result.of_json({"metrics": dict(metrics)})


def saved_weights(path: CheckpointPath) -> Result:
    """Return the result of `save_weights`, or of `save_weights_for_sampler` with a name."""
    kind = "save_weights" if path.checkpoint_type == "training" else "save_weights_for_sampler"
    return Result.of_json({"path": str(path), "type": kind})


def captured_sampler(sampler: TargetId) -> Result:
    """Return the result of `save_weights_for_sampler` without a name."""
    return Result.of_json({"sampling_session_id": str(sampler), "type": "save_weights_for_sampler"})


def forward_backward(logprobs: Sequence[Float32[np.ndarray, "token"]], metrics: Mapping[str, float]) -> Result:
    """Return the result of `forward_backward`: each datum's log-probabilities in the order of the request.

    The SDK reduces metrics over the chunks of a batch by the suffix of their name: `loss:sum`, `ratio:mean`.
    """
    message = new_message("ForwardBackwardOutput")
    message.loss_fn_output_type = "ArrayRecord"
    for name, value in sorted(metrics.items()):
        message.metrics[name] = value
    record = message.loss_fn_outputs.add(num_datums=len(logprobs))
    tensor, ends = record.fields["logprobs"], np.cumsum([0, *(4 * len(values) for values in logprobs)])
    tensor.dtype = FLOAT32
    tensor.data = b"".join(values.astype("<f4").tobytes() for values in logprobs)
    tensor.offsets = ends.astype("<i8").tobytes()
    return Result(PROTOBUF, canonical_bytes(message))


class SampledSequence(NamedTuple):
    """One sampled sequence."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    is_stopped: bool
    """Whether a stop sequence or the end of text ended it; otherwise the length."""


def samples(
    completions: Sequence[SampledSequence],
    *,
    prompt_logprobs: Sequence[float] | None = None,
    top_prompt_logprobs: tuple[Any, Any] | None = None,
) -> Result:
    """Return the result of `sample`. A prompt's first token has no log-probability: NaN.

    `top_prompt_logprobs`: at each position of the prompt, ids of the most likely tokens and their log-probabilities.
    """
    message = new_message("SampleResponse")
    for completion in completions:
        message.sequences.add(
            stop_reason=0 if completion.is_stopped else 1,
            tokens=_bytes(completion.tokens, "<i4"),
            logprobs=_bytes(completion.logprobs, "<f4"),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = _bytes(prompt_logprobs, "<f4")
    if top_prompt_logprobs is not None:
        top, (token_ids, logprobs) = message.topk_prompt_logprobs, top_prompt_logprobs
        top.token_ids, top.logprobs = _bytes(token_ids, "<i4"), _bytes(logprobs, "<f4")
        top.length, top.k = np.shape(token_ids)
    return Result(PROTOBUF, canonical_bytes(message))


def _bytes(values: Any, dtype: str) -> bytes:
    return np.asarray(values, dtype).tobytes()
