"""What is asked of the engine and what comes back, and the luck of every draw.

The luck of a draw is one number that follows from the rollout's key and the token's position in it. So a
rollout knows nothing of who else is sampled, and can be made again alone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from assay.base.seeds import mix64
from assay.base.shapes import Float32, Float64, Int64, UInt64


class Prompt(NamedTuple):
    """What is to be completed."""

    tokens: Sequence[int] | Int64[np.ndarray, "token"]
    key: int
    """64 bits that name the rollout, e.g. `derive_key(seed, "rollout", step, row, sample)`."""


class GenerationCancelledError(Exception):
    """Somebody asked to stop before all was said; nothing came of it."""


class Rollout(NamedTuple):
    """A completion, as tokens."""

    tokens: Int64[np.ndarray, "token"]
    """With the token that ended it, where one did."""
    logprobs: Float32[np.ndarray, "token"]
    """How likely each token was in the distribution drawn from: with temperature, top-k, top-p. 0 where
    there was no choice (temperature 0)."""
    reason: Literal["stop", "length"]
    """Ended by an end token or a stop string, or cut at `max_tokens`."""


def uniforms(keys: UInt64[np.ndarray, "row"], positions: Int64[np.ndarray, "row"]) -> Float64[np.ndarray, "row"]:
    """A number in [0, 1) for each key and position."""
    mixed = mix64(mix64(keys) + positions.astype(np.uint64))
    # 52 bits: the product with a sum of probabilities is then always below that sum.
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52
