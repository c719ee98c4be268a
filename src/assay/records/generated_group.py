"""Completions of an external engine, stored before training because they cannot be regenerated."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record


class GeneratedCompletion(Record):
    """One completion, as tokens."""

    tokens: tuple[NonNegativeInt, ...]
    """Including the end token."""
    logprobs: tuple[float, ...]
    """Sampler logprobs in nats: float32 values, written exactly."""
    reason: Literal["stop", "length"]


class GeneratedGroup(Record):
    """All completions of one prompt."""

    step: PositiveInt
    """Optimizer step that trains on them."""
    row_id: NonNegativeInt
    attempt: NonNegativeInt
    """Attempt that requested it."""
    policy: str
    """Digest of the sampling weights."""
    completions: tuple[GeneratedCompletion, ...]
