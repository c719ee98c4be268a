"""The base model of a session's model, from the copy of its file in the session's log."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from assay.base.errors import DataError
from assay.models.causal_config import LoraConfig
from assay.records.session import SessionModel
from assay.serving.base_models import stored_base, template_recipe
from assay.serving.methods import SERVED_METHODS
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import CausalMethodConfig

ALPHA = 32.0
"""Scale of every adapter, divided by its rank: clients cannot choose it."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "attn.c_proj", "query_key_value",
              "attention.dense")  # fmt: skip
_FEED_FORWARD = ("gate_proj", "up_proj", "gate_up_proj", "down_proj", "c_fc", "mlp.c_proj", "dense_h_to_4h",
                 "dense_4h_to_h")  # fmt: skip
_HEAD = ("lm_head", "embed_out")


class SessionBase(NamedTuple):
    """A base model, with or without an adapter."""

    config: CausalMethodConfig
    recipe: Recipe
    """Recipe of the base model's file: lanes, micro-batches, precision and threads are its."""
    tokenizer: str
    seed: int
    """Seed of a new adapter, and of what else is random."""


def base_of(
    tree: Mapping[str, Any], *, name: str, lora: LoraConfig | None = None, seed: int | None = None
) -> SessionBase:
    """Return the base model of a stored file. `seed`: None for the recipe's."""
    base = stored_base(tree, where=f"base model {name}")
    trained = next(trainable for method, trainable in base.methods.items() if SERVED_METHODS[method].writes)
    recipe = template_recipe(trained.recipe)
    method = recipe.method
    assert isinstance(method, CausalMethodConfig), f"{method.type} writes"
    config = method.model_copy(update={"model": method.model.model_copy(update={"lora": lora})})
    return SessionBase(config, recipe, base.tokenizer, recipe.seed if seed is None else seed)


def base_of_model(model: SessionModel) -> SessionBase:
    """Return the base of a session's model, with its adapter. Raises `DataError` if the adapter covers nothing."""
    return base_of(model.base, name=model.base_model, lora=_adapter_of(model), seed=model.lora_seed)


def _adapter_of(model: SessionModel) -> LoraConfig | None:
    if model.lora_rank is None:
        return None
    is_covered = {_ATTENTION: model.trains_attention, _FEED_FORWARD: model.trains_mlp, _HEAD: model.trains_unembedding}
    targets = tuple(name for names, covered in is_covered.items() if covered for name in names)
    if not targets:
        raise DataError("lora_config: train_attn, train_mlp and train_unembed are off, so nothing would be trained.")
    return LoraConfig(rank=model.lora_rank, alpha=ALPHA, targets=targets)
