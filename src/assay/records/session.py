"""Log entries of a session: a client's training loop with its models and saved weights."""

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.names import Name
from assay.records.log_entry import classes_by_type
from assay.records.record import Record

CheckpointType = Literal["training", "sampler"]
"""`training`: weights and optimizer state, to resume from. `sampler`: weights to generate with."""


class SessionCreated(Record):
    """A client began a session."""

    type: Literal["created"] = "created"
    session_id: str
    project: Name
    at_s: float
    """Seconds since the Unix epoch."""
    key_id: str
    """The API key of the request; empty without keys."""
    sdk_version: str
    tags: tuple[str, ...] = ()
    user_metadata: dict[str, Any] = Field(default_factory=dict)


class SessionModel(Record):
    """A session got a model to train. Its request 0 creates or loads the weights."""

    type: Literal["model"] = "model"
    at_s: float
    model_index: NonNegativeInt
    """Number of the model within the session, given by the client."""
    base_model: str
    base: dict[str, Any]
    """Contents of the base model's file at creation; later edits do not affect the session."""
    lora_rank: PositiveInt | None
    """None: all weights are trained."""
    lora_seed: int | None = None
    """Seed of the adapter's first weights; None: the seed of the base model's recipe."""
    trains_attention: bool = True
    trains_mlp: bool = True
    trains_unembedding: bool = True
    """Whether the adapter covers these layers."""
    user_metadata: dict[str, Any] = Field(default_factory=dict)


class SessionCheckpoint(Record):
    """The worker saved weights of a model under a name. A later entry with the same name replaces this one."""

    type: Literal["checkpoint"] = "checkpoint"
    at_s: float
    model_index: NonNegativeInt
    seq_id: NonNegativeInt
    """Number of the request that saved them: the weights after all requests before it."""
    checkpoint_type: CheckpointType
    name: str
    num_bytes: NonNegativeInt
    expires_s: float | None = None
    """The client needs the weights until then; None for no end."""
    user_metadata: dict[str, Any] = Field(default_factory=dict)


class SessionCheckpointDeleted(Record):
    """A client deleted saved weights."""

    type: Literal["checkpoint_deleted"] = "checkpoint_deleted"
    at_s: float
    model_index: NonNegativeInt
    checkpoint_type: CheckpointType
    name: str


class SessionFinished(Record):
    """The client closed the session, or was not heard for days. No further requests are accepted."""

    type: Literal["finished"] = "finished"
    at_s: float
    status: str
    """As the client reported it: success, errored or interrupted; or silent."""


class SessionCharged(Record):
    """Device time in which a worker executed requests. A later entry of the same lease replaces this one."""

    type: Literal["charged"] = "charged"
    at_s: float
    lease: PositiveInt
    began_s: float
    ended_s: float
    device_s: NonNegativeFloat
    redone_s: NonNegativeFloat = 0.0
    """Part of it in which requests with a result were executed again, or that ended with a rank or worker."""


SessionEntry = (
    SessionCreated | SessionModel | SessionCheckpoint | SessionCheckpointDeleted | SessionCharged | SessionFinished
)

SESSION_ENTRIES = classes_by_type(SessionEntry)


class SessionSampler(Record):
    """Weights that a session samples from, as an object of its own because loops create one for each step.

    They are the base model's, saved ones (`path`), or those of a model of the session after the requests before
    `seq_id`.
    """

    at_s: float
    sampler_index: NonNegativeInt
    """Number of the sampler within the session, given by the client."""
    base_model: str
    base: dict[str, Any] | None = None
    """Contents of the base model's file, if its weights are meant."""
    path: str | None = None
    """tinker://MODEL/sampler_weights/NAME."""
    model_index: NonNegativeInt | None = None
    seq_id: NonNegativeInt | None = None
    """Number of the model's request that captured the weights."""
