"""TRL's GRPOTrainer; best: completions for each step; default: for four steps at once, which its documentation offers.

Its rows are prompts: each step names those that it trains on, once for every completion.
"""

from typing import Any

import task
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import assay

GENERATIONS = 2
"""Completions of a prompt."""


class Trainer(GRPOTrainer):
    """The trainer, which tells a check the prompts of a step."""

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], **options: Any) -> torch.Tensor:
        assay.observe(rows=inputs["prompt_ids"].tolist())
        return super().compute_loss(model, inputs, **options)


def height(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Reward completions for tokens of high numbers."""
    return [sum(tokens) / len(tokens) / task.VOCABULARY for tokens in completion_ids]


if __name__ == "__main__":
    options = task.arguments()
    settings = task.common_arguments(options.out)
    settings["num_train_epochs"] = task.EPOCHS / GENERATIONS
    trainer = Trainer(
        model=task.model(),
        reward_funcs=height,
        args=GRPOConfig(
            **settings,
            num_generations=GENERATIONS,
            max_completion_length=6,
            steps_per_generation=1 if options.setting == "best" else 4,
        ),
        train_dataset=Dataset.from_list([{"prompt": task.text(number)} for number in range(task.NUM_ROWS)]),
        processing_class=task.tokenizer(),
    )
    trainer.train(resume_from_checkpoint=task.newest_checkpoint(options.out))
