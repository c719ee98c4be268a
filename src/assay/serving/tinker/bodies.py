"""Request bodies of the Tinker API.

The SDK is released every few days. A parameter that is not known here is accepted while it has an empty value (None,
False, 0, "", [] or {}), and rejected otherwise: nothing that a client asks for is ignored.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from assay.base.shapes import Int64, Shaped
from assay.serving.api_error import ApiError
from assay.serving.openai.bodies import parsed
from assay.serving.sessions.request_log import MAX_SEQ_ID, Request, RequestKind
from assay.serving.tinker.messages import FLOAT32, INT64, parse_message

MAX_MODELS = 10**9
"""Numbers of models and samplers of a session are smaller."""
MAX_SAMPLES = 1024
SeqId = Annotated[int, Field(ge=0, le=MAX_SEQ_ID)]
Number = Annotated[int, Field(ge=0, lt=MAX_MODELS)]
CheckpointName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$")]
TimeToLive = Annotated[int | None, Field(ge=3600, le=10 * 366 * 86_400)]
UserMetadata = dict[str, Any]
_NUMPY: dict[int, np.dtype[Any]] = {FLOAT32: np.dtype(np.float32), INT64: np.dtype(np.int64)}


class TinkerBody(BaseModel):
    """A JSON body, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_unknown(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        return {name: value for name, value in tree.items() if name in cls.model_fields or value}


class CreateSession(TinkerBody):
    """`ServiceClient()`."""

    tags: tuple[str, ...] = Field(default=(), max_length=64)
    user_metadata: UserMetadata | None = None
    sdk_version: str = Field(max_length=64)
    display_name: str | None = Field(default=None, max_length=256)
    type: Literal["create_session"] = "create_session"


class LoraSettings(TinkerBody):
    """Adapter of a new model."""

    rank: int = Field(ge=1, le=1024)
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerFamily(TinkerBody):
    """Optimizer of a model; its settings come with each step."""

    type: Literal["adamw"] = "adamw"


class CreateModel(TinkerBody):
    """`create_lora_training_client`."""

    session_id: str
    model_seq_id: Number
    base_model: str
    user_metadata: UserMetadata | None = None
    lora_config: LoraSettings | None = None
    optimizer_config: OptimizerFamily = OptimizerFamily()
    type: Literal["create_model"] = "create_model"


class LoadWeights(TinkerBody):
    """`create_training_client_from_state[_with_optimizer]`, or `load_state` right after a model's creation."""

    model_id: str | None = None
    seq_id: SeqId | None = None
    session_id: str | None = None
    model_seq_id: Number | None = None
    user_metadata: UserMetadata | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerFamily | None = None
    base_model: str | None = None
    type: Literal["load_weights"] = "load_weights"


class AdamParams(TinkerBody):
    """AdamW of one step."""

    learning_rate: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, ge=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    grad_clip_norm: float = Field(default=0.0, allow_inf_nan=False)
    """0: no clipping."""


class NumberedBody(TinkerBody):
    """What the server reads of a model's request."""

    model_id: str
    seq_id: SeqId


class OptimStep(NumberedBody):
    """`optim_step`."""

    adam_params: AdamParams
    type: Literal["optim_step"] = "optim_step"


class SaveWeights(NumberedBody):
    """`save_state`."""

    path: CheckpointName | None = None
    ttl_seconds: TimeToLive = None
    overwrite: bool = False
    user_metadata: UserMetadata | None = None
    type: Literal["save_weights"] = "save_weights"


class SaveWeightsForSampler(NumberedBody):
    """`save_weights_for_sampler` with a name, or `save_weights_and_get_sampling_client` without one."""

    path: CheckpointName | None = None
    ttl_seconds: TimeToLive = None
    sampling_session_seq_id: Number | None = None
    kind: Literal["snapshot"] = "snapshot"
    user_metadata: UserMetadata | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"

    @model_validator(mode="after")
    def _has_one_target(self) -> "SaveWeightsForSampler":
        if (self.path is None) == (self.sampling_session_seq_id is None):
            raise ValueError("set either path or sampling_session_seq_id")
        return self


class CreateSamplingSession(TinkerBody):
    """`create_sampling_client`."""

    session_id: str
    sampling_session_seq_id: Number
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class TokenChunk(TinkerBody):
    """A part of a prompt."""

    tokens: tuple[NonNegativeInt, ...]
    type: Literal["encoded_text"] = "encoded_text"


class ModelInput(TinkerBody):
    """A prompt."""

    chunks: tuple[TokenChunk, ...]


class SamplingSettings(TinkerBody):
    """How completions are drawn."""

    max_tokens: PositiveInt | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | tuple[int, ...] | None = None
    """None: the model's end of text. Empty: nothing stops a completion before `max_tokens`."""
    temperature: NonNegativeFloat = 1.0
    top_k: int = -1
    """-1: no limit."""
    top_p: float = Field(default=1.0, gt=0, le=1)


class Sample(TinkerBody):
    """`sample` and `compute_logprobs`."""

    sampling_session_id: str
    seq_id: SeqId
    num_samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    prompt: ModelInput
    sampling_params: SamplingSettings
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=100)
    type: Literal["sample"] = "sample"

    def prompt_tokens(self) -> list[int]:
        """Return the prompt's token ids."""
        return [token for chunk in self.prompt.chunks for token in chunk.tokens]


class GetInfo(TinkerBody):
    """`get_info`."""

    model_id: str
    type: Literal["get_info"] = "get_info"


class RetrieveFuture(TinkerBody):
    """The result of a request."""

    request_id: str
    allow_metadata_only: bool = False


class Heartbeat(TinkerBody):
    """Sign of life of a client."""

    session_id: str
    type: Literal["session_heartbeat"] = "session_heartbeat"


class FinishReason(TinkerBody):
    """Why a client closed its session."""

    type: str = Field(max_length=64)


class FinishSession(TinkerBody):
    """`ServiceClient.close`."""

    reason: FinishReason
    detail: str | None = Field(default=None, max_length=4096)


class WeightsInfo(TinkerBody):
    """`weights_info`."""

    tinker_path: str


class ProvenanceSpan(NamedTuple):
    """Tokens of a datum that the client took from a sample, as it says."""

    sequence_id: str
    """As `sample` named the sequence: REQUEST:NUMBER."""
    offset: int
    length: int
    is_sampled: bool
    """Sampled tokens; otherwise tokens of the prompt."""


class ForwardBackwardDatum(NamedTuple):
    """One sequence of a `forward_backward`."""

    tokens: Int64[np.ndarray, "token"]
    inputs: Mapping[str, Shaped[np.ndarray, "token"]]
    """`loss_fn_inputs`: float32 or int64 tensors."""
    input_spans: tuple[ProvenanceSpan, ...] = ()
    """Origin of `tokens`, from the first to the last."""
    target_spans: tuple[ProvenanceSpan, ...] = ()
    """Origin of `target_tokens`, likewise."""


class ForwardBackward(NamedTuple):
    """A parsed `forward_backward` or `forward`."""

    datums: list[ForwardBackwardDatum]
    loss_fn: str
    loss_fn_config: Mapping[str, float | str]
    is_forward_only: bool


_BODIES: dict[RequestKind, type[TinkerBody]] = {
    "create_model": CreateModel,
    "load_weights": LoadWeights,
    "optim_step": OptimStep,
    "save_weights": SaveWeights,
    "save_weights_for_sampler": SaveWeightsForSampler,
    "sample": Sample,
}


def read_request(request: Request) -> Any:
    """Return the body of an acknowledged request: `ForwardBackward`, or the class for its kind.

    Raises `ApiError` if it cannot be executed. The error is then the request's result.
    """
    if request.kind == "forward_backward":
        return _forward_backward_of(parse_message("ForwardBackwardRequest", request.body))
    return parsed(_BODIES[request.kind], request.json())


def _forward_backward_of(message: Any) -> ForwardBackward:
    """Return the contents of a ForwardBackwardRequest. Raises `ApiError` that names the first invalid datum."""
    datums = []
    for index, datum in enumerate(message.data):
        try:
            inputs = {name: _tensor(tensor, name) for name, tensor in sorted(datum.loss_fn_inputs.items())}
            spans = map(_spans, (datum.model_input_spans, datum.loss_fn_input_spans))
            datums.append(ForwardBackwardDatum(_tokens(datum.model_input), inputs, *spans))
        except ValueError as error:
            raise ApiError(f"data[{index}].{error}", param=f"data[{index}]", code="invalid_value") from None
    settings: dict[str, float | str] = dict(message.loss_fn_config)
    settings.update({name: value.text or value.number for name, value in message.loss_fn_config_v2.items()})
    if wrong := [name for name, value in settings.items() if isinstance(value, float) and not math.isfinite(value)]:
        raise ApiError(f"loss_fn_config.{wrong[0]} is not finite.", param="loss_fn_config", code="invalid_value")
    return ForwardBackward(datums, message.loss_fn, settings, message.forward_only)


def _tokens(chunks: Any) -> Int64[np.ndarray, "token"]:
    if any(not chunk.HasField("encoded_text") for chunk in chunks):
        raise ValueError("model_input has a chunk that is not text. Images and audio are not served.")
    data = b"".join(chunk.encoded_text.tokens for chunk in chunks)
    if len(data) % 4:
        raise ValueError("model_input: the tokens are not whole 32-bit numbers.")
    return np.frombuffer(data, "<i4").astype(np.int64)


def _spans(spans: Any) -> tuple[ProvenanceSpan, ...]:
    kinds = [span.HasField("sampled_tokens") for span in spans]
    parts = [span.sampled_tokens if kind else span.prompt_tokens for span, kind in zip(spans, kinds, strict=True)]
    found = zip(parts, kinds, strict=True)
    return tuple(ProvenanceSpan(part.sequence_id, part.offset, part.length, kind) for part, kind in found)


def _tensor(tensor: Any, name: str) -> Shaped[np.ndarray, "token"]:
    dtype, where = _NUMPY.get(tensor.dtype), f"loss_fn_inputs.{name}"
    if dtype is None:
        raise ValueError(f"{where}: the dtype must be float32 or int64.")
    if tensor.HasField("sparse_csr") or len(tensor.shape) > 1:
        raise ValueError(f"{where} has more than one dimension. Several targets for a token are not served.")
    if len(tensor.dense) % dtype.itemsize:
        raise ValueError(f"{where}: {len(tensor.dense)} bytes are not whole {dtype.name} numbers.")
    values: np.ndarray = np.frombuffer(tensor.dense, dtype)
    if tensor.shape and [*tensor.shape] != [len(values)]:
        raise ValueError(f"{where}: the shape is {[*tensor.shape]}, but there are {len(values)} numbers.")
    return values
