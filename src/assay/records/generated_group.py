"""What an engine of another process answered to a prompt: kept before it is learned from, for nobody can make
it again."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record


class GeneratedCompletion(Record):
    """One answer, as tokens."""

    tokens: tuple[NonNegativeInt, ...]
    """With the one that ended it."""
    logprobs: tuple[float, ...]
    """How likely each token was, in nats, as the engine said: float32, written exactly."""
    reason: Literal["stop", "length"]


class GeneratedGroup(Record):
    """All answers to one prompt."""

    step: PositiveInt
    """In whose update they are learned."""
    row_id: NonNegativeInt
    attempt: NonNegativeInt
    """That asked."""
    policy: str
    """The digest of the weights that answered."""
    completions: tuple[GeneratedCompletion, ...]
