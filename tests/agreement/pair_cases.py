"""Preference pairs, and what TRL and we make of them: a loss and a gradient each.

What TRL computes goes through its own trainers' collators and `compute_loss`: nothing of it is written here.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaForSequenceClassification

from agreement.measured import Measured, measured
from agreement.micro_batches import micro_batch
from agreement.tiny_models import save_tiny, tiny_tokenizer
from assay.training.methods.registry import AnyMethodConfig, method_of


class Pair(NamedTuple):
    """Tokens, and how much better what was chosen is."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    margin: float

    def row(self) -> dict[str, Any]:
        """As a dataset of ours holds it."""
        return {
            "input_ids": self.prompt + self.chosen,
            "rejected_ids": self.prompt + self.rejected,
            "prompt_tokens": len(self.prompt),
            "margin": self.margin,
        }


PAIRS = (
    Pair([5, 9, 4], [7, 8, 11, 6], [12, 6], 0.5),
    Pair([3], [10, 11, 12, 13, 14, 15, 16], [20, 21, 22, 23, 24, 25, 26], 0.0),
    Pair([17, 18, 19, 20, 21], [6], [9, 9, 9, 9, 9, 9, 9, 9], 2.0),
    Pair([30, 31], [5, 4, 3], [31, 30, 29, 28], 0.25),
    Pair([8, 8], [22, 24], [24, 22], -0.5),
)
EVEN = tuple(Pair(pair.prompt, (pair.chosen * 4)[:4], pair.rejected, 0.0) for pair in PAIRS)
"""All that is chosen is equally long: a mean over tokens is that over pairs."""
POLICY_SEED, REFERENCE_SEED = 7, 8
CPU = torch.device("cpu")


class Case(NamedTuple):
    """The same loss twice; each is given an empty folder."""

    trl: Callable[[Path], Measured]
    ours: Callable[[Path], Measured]


def our_reward(folder: Path, *, pairs: tuple[Pair, ...] = PAIRS, **keys: Any) -> Measured:
    """By method `reward` with these keys."""
    path = save_tiny(LlamaForSequenceClassification, folder / "model", seed=POLICY_SEED)
    method = _method("reward", path, **keys)
    model = method.build_model()
    with torch.no_grad():
        scored = LlamaForSequenceClassification.from_pretrained(path)
        model.head.weight.copy_(scored.score.weight)
    return measured(model, _mean_loss(method, model, pairs), decoder="model.", head="score.")


def trl_reward(folder: Path, *, pairs: tuple[Pair, ...] = PAIRS, margins: bool, **keys: Any) -> Measured:
    """By `RewardTrainer` with these arguments."""
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    path = save_tiny(LlamaForSequenceClassification, folder / "model", seed=POLICY_SEED)
    trainer = RewardTrainer(
        model=LlamaForSequenceClassification.from_pretrained(path),
        args=RewardConfig(output_dir=str(folder / "out"), **_QUIET, max_length=None, **keys),
        processing_class=tiny_tokenizer(),
        train_dataset=Dataset.from_list([{"chosen": "t4 t5", "rejected": "t4 t6"}]),
    )
    examples = [
        {"chosen_ids": pair.prompt + pair.chosen, "rejected_ids": pair.prompt + pair.rejected}
        | ({"margin": pair.margin} if margins else {})
        for pair in pairs
    ]
    return measured(trainer.model, trainer.compute_loss(trainer.model, trainer.data_collator(examples)))


def our_dpo(folder: Path, *, pairs: tuple[Pair, ...] = PAIRS, **keys: Any) -> Measured:
    """By method `dpo` with these keys."""
    path = save_tiny(LlamaForCausalLM, folder / "model", seed=POLICY_SEED)
    reference = save_tiny(LlamaForCausalLM, folder / "reference", seed=REFERENCE_SEED)
    method = _method("dpo", path, reference={"type": "frozen", "path": str(reference)}, **keys)
    model = method.build_model()
    return measured(model, _mean_loss(method, model, pairs), network="")


def trl_dpo(folder: Path, *, pairs: tuple[Pair, ...] = PAIRS, **keys: Any) -> Measured:
    """By `DPOTrainer` with these arguments."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    path = save_tiny(LlamaForCausalLM, folder / "model", seed=POLICY_SEED)
    reference = save_tiny(LlamaForCausalLM, folder / "reference", seed=REFERENCE_SEED)
    trainer = DPOTrainer(
        model=LlamaForCausalLM.from_pretrained(path),
        ref_model=LlamaForCausalLM.from_pretrained(reference),
        args=DPOConfig(output_dir=str(folder / "out"), **_QUIET, max_length=None, **keys),
        processing_class=tiny_tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "t4", "chosen": " t5", "rejected": " t6"}]),
    )
    examples = [{"prompt_ids": pair.prompt, "chosen_ids": pair.chosen, "rejected_ids": pair.rejected} for pair in pairs]
    return measured(trainer.model, trainer.compute_loss(trainer.model, trainer.data_collator(examples)))


_QUIET = {"report_to": "none", "use_cpu": True, "bf16": False, "gradient_checkpointing": False}


def _method(name: str, path: Path, **keys: Any) -> Any:
    from pydantic import TypeAdapter

    tree = {"type": name, "model": {"type": "pretrained", "path": str(path)}, **keys}
    return method_of(TypeAdapter(AnyMethodConfig).validate_python(tree))


def _mean_loss(method: Any, model: torch.nn.Module, pairs: tuple[Pair, ...]) -> torch.Tensor:
    batch = micro_batch([pair.row() for pair in pairs])
    frozen_models = {name: helper.eval() for name, helper in method.build_frozen_models().items()}
    return method.loss(model, method.tensors(batch, CPU), frozen_models).sum / method.weight(batch)


def _dpo(reference: dict[str, Any], ours: dict[str, Any], pairs: tuple[Pair, ...] = PAIRS) -> Case:
    return Case(partial(trl_dpo, pairs=pairs, **reference), partial(our_dpo, pairs=pairs, **ours))


def _loss(kind: str, **keys: float) -> dict[str, Any]:
    return {"loss": {"type": kind, **keys}}


CASES = {
    "reward": Case(partial(trl_reward, margins=False), partial(our_reward, margin_column=None)),
    "reward-margin": Case(partial(trl_reward, margins=True), our_reward),
    "reward-margin-centring": Case(
        partial(trl_reward, margins=True, center_rewards_coefficient=0.05), partial(our_reward, centring=0.05)
    ),
    "dpo-sigmoid": _dpo({"loss_type": ["sigmoid"], "beta": 0.3}, _loss("sigmoid", beta=0.3)),
    "dpo-sigmoid-norm": _dpo({"loss_type": ["sigmoid_norm"], "beta": 2.0}, _loss("sigmoid_norm", beta=2.0)),
    "dpo-robust": _dpo(
        {"loss_type": ["robust"], "beta": 0.3, "label_smoothing": 0.2},
        _loss("robust", beta=0.3, label_smoothing=0.2),
    ),
    "dpo-ipo": _dpo({"loss_type": ["ipo"], "beta": 0.2}, _loss("ipo", beta=0.2)),
    "dpo-sft": _dpo(
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7], "beta": 0.3},
        {**_loss("sigmoid", beta=0.3), "sft_weight": 0.7},
        EVEN,
    ),
}  # fmt: skip
"""Name -> what must agree."""
