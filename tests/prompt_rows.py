"""Prompts with a rule that a model can learn, as plain Parquet beside their manifest; and recipes of GRPO on
them.

Tokens are those of `agreement.tiny_models`. An answer is paid where it names a token that begins like the one
that its item wants: a model that knows nothing is paid now and then.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.micro_batches import micro_batch
from agreement.tiny_models import VOCABULARY, save_tiny
from assay.data.loader.batch import LaneShare, MicroBatch
from assay.training.methods.grpo.config import GrpoConfig
from language_rows import indexed

GRADER = {
    "type": "string_check",
    "name": "names_it",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.wanted }}",
    "operation": "like",
}


def prompt_dataset(folder: Path, *, num_rows: int = 160, longest: int = 6) -> Path:
    """Three shards and a manifest."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, VOCABULARY, rng.integers(1, longest + 1)).tolist() for _ in range(num_rows)]
    items = [json.dumps({"wanted": f"t{row[0] % 3 + 1}", "number": number}) for number, row in enumerate(rows)]
    table = pa.table(
        {
            "input_ids": pa.array(rows, pa.list_(pa.int32())),
            "item": pa.array(items),
            "language": pa.array([["en", "de"][row % 2] for row in range(num_rows)]),
            "shard_id": pa.array([f"key-{row}" for row in range(num_rows)]),
        }
    )
    return indexed(table, folder)


def grpo_recipe(dataset: Path, base: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """Four lanes of two prompts, of four answers each; `base` is made where there is none."""
    if not base.exists():
        save_tiny(LlamaForCausalLM, base, seed=3)
    tree: dict[str, Any] = {
        "name": "rollouts",
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.2}},
        "loader": {"lanes": 4, "global_batch_size": 8, "window_rows": 8, "threads": 1},
        "method": {
            "type": "grpo",
            "model": {"type": "pretrained", "path": str(base)},
            "rewards": [{"grader": GRADER}],
            "group_size": 4,
            "sampling": {"max_tokens": 6},
        },
        "trainer": {
            "max_steps": 12, "commit_every": 4, "spot_check_every": 4, "optimizer": {"learning_rate": 3e-3},
        },
    }  # fmt: skip
    return tree | {name: {**tree[name], **section} for name, section in sections.items()}


def grpo_config(base: Path, **keys: Any) -> GrpoConfig:
    """Four answers of up to six tokens."""
    tree = {
        "model": {"type": "pretrained", "path": str(base)},
        "rewards": [{"grader": GRADER}],
        "group_size": 4,
        "sampling": {"max_tokens": 6},
        **keys,
    }
    return GrpoConfig.model_validate(tree)


def prompt_lane(lane: int, row_ids: list[int]) -> LaneShare:
    """A lane with a prompt of two tokens for each row."""
    rows = [{"input_ids": [2 + row % 9, 5], "item": json.dumps({"wanted": f"t{row % 3 + 1}"})} for row in row_ids]
    batch = micro_batch(rows)
    return LaneShare(lane, (MicroBatch(np.array(row_ids, np.uint64), batch.ragged, batch.columns),))
