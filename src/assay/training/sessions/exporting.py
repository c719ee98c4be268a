"""Exports stored weights of a session's model."""

from pathlib import Path

import torch

from assay.models.exporting import ExportOptions, save_model
from assay.models.lora import base_sha256
from assay.training.checkpoint.parts import model_state, restore_model
from assay.training.sessions.method import SessionMethod
from assay.training.sessions.stored_state import stored_model
from assay.training.trainer.method_config import CausalMethodConfig
from assay.training.trainer.step import initial_model


def export_weights(
    config: CausalMethodConfig, weights: bytes, folder: Path, options: ExportOptions, *, seed: int
) -> str | None:
    """Write a model with stored weights; return the digest of its base if the adapters are written alone.

    `seed`: of the model's first weights.
    """
    model = initial_model(SessionMethod(config), seed=seed, device=torch.device("cpu"))
    restore_model(model, stored_model(weights, model_state(model)))
    digest = base_sha256(model) if options.adapters == "apart" else None
    save_model(model.network, config.model, folder, options)
    return digest
