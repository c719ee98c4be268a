"""Answers that earned something, and what TRL and we make of them: a loss and a gradient each.

What TRL computes goes through `GRPOTrainer`'s own scoring and `compute_loss`, generation alone is answered for
it: nothing of it is written here. Rewards are centred by their group and not divided, for TRL divides by
another deviation.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.measured import Measured, measured
from agreement.pair_cases import CPU, Case
from agreement.tiny_models import END, save_tiny, tiny_tokenizer
from assay.data.loader.batch import MicroBatch
from assay.inference.rollout import Rollout
from assay.scoring.grade import Grade
from assay.training.methods.grpo.batch import RolloutGroup
from assay.training.methods.grpo.config import GrpoConfig
from assay.training.methods.grpo.method import GrpoMethod
from assay.training.methods.grpo.rollouts import training_lane, with_grades
from prompt_rows import GRADER

MAX_TOKENS = 6
POLICY_SEED, REFERENCE_SEED, OLD_SEED = 7, 8, 9


class Completed(NamedTuple):
    """A prompt, its answers, and what each earned."""

    prompt: list[int]
    completions: list[list[int]]
    rewards: list[float]


COMPLETED = (
    Completed([5, 9, 4], [[7, 8, 11, 6, END], [12, END], [3, 3, 3, 3, 3, 3]], [1.0, 0.0, 0.25]),
    Completed([3], [[10, 11, 12, END], [20, 21, END], [END]], [0.0, 0.0, 2.0]),
    Completed([17, 18, 19, 20, 21], [[6, END], [9, 9, 9, 9, 9, 9], [30, 31, 2, END]], [0.5, 0.5, 0.5]),
)
GROUP_SIZE = 3


def our_grpo(folder: Path, *, is_old: bool = False, kl: float = 0.0, **keys: Any) -> Measured:
    """By method `grpo` with these keys; `is_old`: other weights drew the answers."""
    method = our_method(folder, kl=kl, **keys)
    model, batch = method.build_model(), our_batch(method.config)
    tensors = dict(method.tensors(batch, CPU))
    if is_old:
        old = LlamaForCausalLM.from_pretrained(save_tiny(LlamaForCausalLM, folder / "old", seed=OLD_SEED))
        tensors["old_logprobs"] = logprobs_of(old, tensors["input_ids"])
    frozen_models = {name: helper.eval() for name, helper in method.build_frozen_models().items()}
    return measured(model, method.loss(model, tensors, frozen_models).sum / method.weight(batch), network="")


def our_method(folder: Path, *, kl: float = 0.0, **keys: Any) -> GrpoMethod:
    """The method, with a policy apart from its reference."""
    path = save_tiny(LlamaForCausalLM, folder / "model", seed=POLICY_SEED)
    tree = {
        "model": {"type": "pretrained", "path": str(path)},
        "rewards": [{"grader": GRADER}],
        "group_size": GROUP_SIZE,
        "sampling": {"max_tokens": MAX_TOKENS},
        "advantage_scale": "none",
        **keys,
    }
    if kl:
        reference = save_tiny(LlamaForCausalLM, folder / "reference", seed=REFERENCE_SEED)
        tree |= {"kl": kl, "reference": {"path": str(reference)}}
    return GrpoMethod(GrpoConfig.model_validate(tree))


def our_batch(config: GrpoConfig, completed: Sequence[Completed] = COMPLETED) -> MicroBatch:
    """All answers in one."""
    groups = [
        with_grades(
            RolloutGroup(
                number,
                np.array(item.prompt),
                {},
                [
                    Rollout(
                        np.array(completion),
                        np.zeros(len(completion), np.float32),
                        "stop" if END in completion else "length",
                    )
                    for completion in item.completions
                ],
            ),
            [Grade(float(reward)) for reward in item.rewards],
            config,
        )
        for number, item in enumerate(completed)
    ]
    (batch,) = training_lane(0, groups, config, None).micro_batches
    return batch


def logprobs_of(model: Any, input_ids: Tensor) -> Tensor:
    """Of every token but the first."""
    with torch.no_grad():
        logits = model(input_ids=input_ids).logits[:, :-1].log_softmax(-1)
    return logits.gather(2, input_ids[:, 1:, None])[:, :, 0]


def trl_grpo(folder: Path, *, is_old: bool = False, beta: float = 0.0, **keys: Any) -> Measured:
    """By `GRPOTrainer` with these arguments."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    path = save_tiny(LlamaForCausalLM, folder / "model", seed=POLICY_SEED)
    reference = save_tiny(LlamaForCausalLM, folder / "reference", seed=REFERENCE_SEED)
    replies = [completion for item in COMPLETED for completion in item.completions]
    rewards = [reward for item in COMPLETED for reward in item.rewards]
    prompts = [item.prompt for item in COMPLETED for _ in item.completions]
    trainer = GRPOTrainer(
        # It takes its reference from where the model came from.
        model=LlamaForCausalLM.from_pretrained(reference),
        reward_funcs=lambda completions, **_: rewards,
        args=GRPOConfig(
            output_dir=str(folder / "out"), report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False, per_device_train_batch_size=len(replies), num_generations=GROUP_SIZE,
            max_completion_length=MAX_TOKENS, scale_rewards="none", temperature=1.0, beta=beta, **keys,
        ),
        processing_class=tiny_tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "t4"}]),
    )  # fmt: skip
    trainer.model.load_state_dict(LlamaForCausalLM.from_pretrained(path).state_dict())
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    texts = ["" for _ in replies]
    trainer._generate = lambda _: (prompts, replies, None, texts, None, {}, None, None)
    inputs = trainer._generate_and_score_completions([{"prompt": "t4"} for _ in replies])
    if is_old:
        old = LlamaForCausalLM.from_pretrained(save_tiny(LlamaForCausalLM, folder / "old", seed=OLD_SEED))
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        keep = inputs["completion_ids"].shape[1]
        model, trainer.model = trainer.model, old
        with torch.no_grad():
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            logits = old(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, :-1]
        trainer.model = model
        message = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
        inputs["old_per_token_logps"] = message[:, -keep:]
    return measured(trainer.model, trainer.compute_loss(trainer.model, inputs))


def _case(reference: dict[str, Any], ours: dict[str, Any]) -> Case:
    return Case(partial(trl_grpo, **reference), partial(our_grpo, **ours))


def _old(loss_type: str, **ours: Any) -> Case:
    """Clipped on both sides, for the ratios are far from 1."""
    clips = {"epsilon": 0.3, "epsilon_high": 0.4}
    loss = {"type": loss_type, "clip_low": 0.3, "clip_high": 0.4}
    return _case({"loss_type": loss_type, "is_old": True, **clips}, {"loss": loss, "is_old": True, **ours})


CASES = {
    "grpo-dapo": _case({"loss_type": "dapo"}, {"loss": {"type": "dapo"}}),
    "grpo-grpo-kl": _case({"loss_type": "grpo", "beta": 0.2}, {"loss": {"type": "grpo"}, "kl": 0.2}),
    "grpo-dr-grpo": _case({"loss_type": "dr_grpo"}, {"loss": {"type": "dr_grpo"}}),
    "grpo-bnpo": _case({"loss_type": "bnpo"}, {"loss": {"type": "bnpo"}}),
    "grpo-gspo": _case(
        {"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"loss": {"type": "gspo"}}
    ),
    "grpo-cispo": _case({"loss_type": "cispo", "epsilon_high": 5.0}, {"loss": {"type": "cispo"}}),
    "grpo-dapo-clipped": _old("dapo"),
    "grpo-gspo-clipped": _case(
        {
            "loss_type": "grpo", "importance_sampling_level": "sequence", "is_old": True, "epsilon": 0.3,
            "epsilon_high": 0.4,
        },
        {"loss": {"type": "gspo", "clip_low": 0.3, "clip_high": 0.4}, "is_old": True},
    ),
}  # fmt: skip
"""Name -> what must agree."""
