"""Recipes of tinker-cookbook, unchanged: `python cookbook_client.py URL FOLDER RECIPE`. `FOLDER/chat` is a tokenizer.

Data sets that recipes download are stood in for by rows of the same form. Prints the metrics of the recipe's steps.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
from tinker_cookbook.distillation import datasets as distillation_datasets
from tinker_cookbook.distillation import train_on_policy
from tinker_cookbook.distillation.datasets import DistillationDatasetConfig, PromptOnlyDatasetBuilder, TeacherConfig
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
from tinker_cookbook.recipes.math_rl import train as math_rl
from tinker_cookbook.recipes.rl_numerics_check import train as numerics
from tinker_cookbook.recipes.rl_numerics_check.env import CountingTaskConfig
from tinker_cookbook.rl import train as rl
from tinker_cookbook.supervised import train as supervised
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

BASE, RENDERER = "chat", "role_colon"
WORDS = ["after", "against", "although", "before", "being", "between", "both", "could", "during", "however"]


def stand_in(name: str, *_: Any, **__: Any) -> Any:
    """Rows in place of a data set of the hub."""
    rows = {
        "Salesforce/wikitext": [{"text": " ".join(WORDS[row % 7 :])} for row in range(2000)],
        "zwhe99/DeepMath-103K": [{"question": f"What is {row} + {row + 1}?"} for row in range(24)],
    }
    return datasets.Dataset.from_list(rows[name])


def common(batch_size: int) -> ChatDatasetBuilderCommonConfig:
    return ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=BASE, renderer_name=RENDERER, max_length=256, batch_size=batch_size
    )


def write_lines(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def arithmetic(url: str, log: Path, *, max_steps: int = 3) -> None:
    """RL with a known answer; a second call goes on from the saved state, by path."""
    config = math_rl.CLIConfig(
        model_name=BASE, renderer_name=RENDERER, env="arithmetic", group_size=4, groups_per_batch=4, max_tokens=5,
        lora_rank=8, eval_every=0, save_every=2, max_steps=max_steps, base_url=url, log_path=str(log),
        behavior_if_log_dir_exists="resume", loss_fn="importance_sampling",
    )  # fmt: skip
    asyncio.run(math_rl.cli_main(config))


def resumed(url: str, log: Path) -> None:
    arithmetic(url, log, max_steps=3)
    arithmetic(url, log, max_steps=5)


def conversations(url: str, log: Path) -> None:
    """Supervised training from a file of conversations, resumed in its second epoch."""
    rows = [
        {"messages": [message("user", f"Say {word}."), message("assistant", word)]} for word in WORDS for _ in range(2)
    ]
    for num_epochs in (1, 2):
        config = supervised.Config(
            model_name=BASE, recipe_name="conversations", renderer_name=RENDERER, log_path=str(log), base_url=url,
            dataset_builder=FromConversationFileBuilder(
                common_config=common(4), file_path=write_lines(log.parent / "conversations.jsonl", rows), test_size=4
            ),
            learning_rate=1e-3, lora_rank=8, num_epochs=num_epochs, eval_every=2, save_every=2,
        )  # fmt: skip
        asyncio.run(supervised.main(config))


def preferences(url: str, log: Path) -> None:
    """DPO on pairs of a file."""
    rows = [
        {
            "comparison": {
                "prompt_conversation": [message("user", f"Say {word}.")],
                "completion_A": [message("assistant", word)],
                "completion_B": [message("assistant", word[::-1])],
            },
            "label": "A",
        }
        for word in WORDS
    ]
    pairs = ComparisonBuilderFromJsonl(train_path=write_lines(log.parent / "pairs.jsonl", rows))
    config = train_dpo.Config(
        model_name=BASE, recipe_name="preferences", renderer_name=RENDERER, log_path=str(log), base_url=url,
        dataset_builder=DPODatasetBuilderFromComparisons(common_config=common(4), comparison_builder=pairs),
        learning_rate=1e-3, lora_rank=8, save_every=1, eval_every=0, max_steps=2,
    )  # fmt: skip
    train_dpo.main(config)


def numerics_check(url: str, log: Path) -> None:
    """Turns with tools, and the difference between sampled and trained logprobs."""
    config = numerics.CLIConfig(
        model_name=BASE, renderer_name="qwen3", lora_rank=8, group_size=2, groups_per_batch=2, max_tokens=16,
        max_trajectory_tokens=6000, task=CountingTaskConfig(num_pages_min=1, num_pages_max=2, page_chars=100),
        max_steps=2, base_url=url, log_path=str(log),
    )  # fmt: skip
    asyncio.run(rl.main(numerics.build_config(config)))


def distillation(url: str, log: Path) -> None:
    """On-policy distillation from the base model."""
    prompts = PromptOnlyDatasetBuilder(
        dataset_name="deepmath", groups_per_batch=4, group_size=2, model_name_for_tokenizer=BASE,
        renderer_name=RENDERER, max_prompt_tokens=64,
    )  # fmt: skip
    teacher = DistillationDatasetConfig(
        dataset_builder=prompts, teacher_config=TeacherConfig(base_model=BASE), groups_per_batch=4
    )
    config = train_on_policy.Config(
        model_name=BASE, recipe_name="distillation", renderer_name=RENDERER, dataset_configs=[teacher],
        learning_rate=1e-3, max_tokens=8, lora_rank=8, log_path=str(log), base_url=url, eval_every=0, save_every=2,
        max_steps=3,
    )  # fmt: skip
    asyncio.run(train_on_policy.main(config))


RECIPES: dict[str, Callable[[str, Path], None]] = {
    recipe.__name__: recipe for recipe in (resumed, conversations, preferences, numerics_check, distillation)
}

if __name__ == "__main__":
    url, folder, name = sys.argv[1:]
    os.chdir(folder)
    for module in (datasets, distillation_datasets):
        vars(module)["load_dataset"] = stand_in
    log = Path(folder) / name
    RECIPES[name](url, log)
    sys.stdout.write((log / "metrics.jsonl").read_text())
