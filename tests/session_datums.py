"""Datums of a session's requests, and the small model that learns from them."""

from typing import Any

import numpy as np

from assay.distributed.ranks import Ranks
from assay.training.methods.sft.config import SftConfig
from assay.training.sessions.batch import Datum
from assay.training.sessions.losses import LOSSES
from assay.training.sessions.trainer import AdamSettings, SessionTrainer
from language_rows import VOCABULARY, small_model

ADAM = AdamSettings(0.01, 0.9, 0.95, 1e-12, 0.0, None)


def session_trainer(ranks: Ranks, *, max_micro_batch_tokens: int | None = None, **model: Any) -> SessionTrainer:
    config = SftConfig.model_validate({"type": "sft", "train_on": "all", "model": small_model(**model)})
    return SessionTrainer(
        config, ranks, seed=3, num_lanes=4, max_micro_batch_tokens=max_micro_batch_tokens, precision="float32"
    )


def random_datums(num_datums: int, loss: str, *, seed: int = 0) -> list[Datum]:
    """Of several lengths, with all that the loss can read; of half of the tokens the inputs are zero."""
    rng = np.random.default_rng(seed)
    datums = []
    for length in rng.integers(2, 12, num_datums):
        tokens = rng.integers(0, VOCABULARY, length + 1)
        inputs = {name: _input(rng, name, int(length)) for name in (*LOSSES[loss].required, *LOSSES[loss].optional)}
        datums.append(Datum(tokens[:-1], tokens[1:], inputs))
    return datums


def _input(rng: np.random.Generator, name: str, length: int) -> np.ndarray:
    if name == "logprobs":
        # Near those of a new model, so that some ratios are clipped and others are not.
        return np.asarray(rng.normal(0, 0.3, length) - np.log(VOCABULARY), np.float32)
    if name == "sequence_ratio_mask":
        return (np.arange(length) >= length // 2).astype(np.float32)
    weights = rng.normal(0, 1, length) * (np.arange(length) >= length // 2)
    return np.asarray(weights, np.float32)
