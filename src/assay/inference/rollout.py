"""Prompts and rollouts, and the uniform draws of sampling.

A draw is a function of the rollout's key and the token's position. So a rollout does not depend on what else is
sampled, and can be generated again alone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import xxhash

from assay.base.seeds import mix64
from assay.base.shapes import Float32, Float64, Int64, UInt64


class Prompt(NamedTuple):
    """A prompt to complete."""

    tokens: Sequence[int] | Int64[np.ndarray, "token"]
    key: int
    """64 bits that identify the rollout, e.g. `derive_key(seed, "rollout", step, row, sample)`."""


class GenerationCancelledError(Exception):
    """Generation was stopped by a signal; no rollout was returned."""


class Rollout(NamedTuple):
    """A completion as tokens."""

    tokens: Int64[np.ndarray, "token"]
    """The end token included, if there is one."""
    logprobs: Float32[np.ndarray, "token"]
    """In the distribution sampled from: with temperature, top-k, top-p. 0 for greedy decoding (temperature 0)."""
    reason: Literal["stop", "length"]
    """`stop`: an end token or stop string; `length`: cut at `max_tokens`."""

    @property
    def digest(self) -> int:
        """64-bit digest of the tokens and the sampler's logprobs."""
        digest = xxhash.xxh3_64(self.tokens.astype(np.int64).tobytes())
        digest.update(self.logprobs.astype(np.float32).tobytes())
        return digest.intdigest()


def uniforms(keys: UInt64[np.ndarray, "..."], positions: Int64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Return a number in [0, 1) for each key and position; their shapes are broadcast."""
    mixed = mix64(mix64(keys) + positions.astype(np.uint64))
    # 52 bits: the product with a sum of probabilities is then always below that sum.
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52
