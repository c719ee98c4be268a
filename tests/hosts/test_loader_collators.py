"""Batches of the loader are those of TRL's own collators for the same rows."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from assay.data.dataset.index import index_dataset
from assay.torch import RowLoader, packed, padded

PAIRS = [
    {"prompt_ids": [row + 1] * (1 + row % 3), "chosen_ids": [5] * (1 + row % 4), "rejected_ids": [6] * (1 + row % 5)}
    for row in range(23)
]
TEXTS = [pair["prompt_ids"] + pair["chosen_ids"] + [7] for pair in PAIRS]


@pytest.fixture(autouse=True)
def trl(requires: Callable[[str, bool, str], None]) -> None:
    requires("hosts", find_spec("trl") is not None, "trl is not installed (make test-hosts)")


def dataset(folder: Path, **columns: list) -> Path:
    (folder / "shards").mkdir()
    lists = pa.list_(pa.int32())
    table = {name: pa.array(values, lists if isinstance(values[0], list) else None) for name, values in columns.items()}
    pq.write_table(pa.table(table), folder / "shards" / "a.parquet", row_group_size=5)
    index_dataset(str(folder / "shards"), folder, needs_label=False)
    return folder


@pytest.mark.parametrize("is_packed", [False, True])
def test_texts_are_batched_as_trl_batches_them(is_packed: bool, tmp_path: Path) -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=is_packed)
    collate = packed if is_packed else padded
    folder = dataset(tmp_path, input_ids=TEXTS)
    for batch in RowLoader(folder, collate, global_batch_size=8, micro_batch_size=4, row_ids=True):
        expected = collator([{"input_ids": TEXTS[row]} for row in batch["row_ids"].tolist()])
        for name in ("input_ids", "position_ids" if is_packed else "attention_mask"):
            assert torch.equal(batch[name], expected[name]), name
        assert torch.equal(batch["labels"][:, 1:], expected["labels"][:, 1:]), "the first is never predicted"


def test_pairs_are_batched_as_trl_batches_them(tmp_path: Path) -> None:
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    columns = {
        "input_ids": [pair["prompt_ids"] + pair["chosen_ids"] for pair in PAIRS],
        "rejected_ids": [pair["prompt_ids"] + pair["rejected_ids"] for pair in PAIRS],
        "prompt_tokens": [len(pair["prompt_ids"]) for pair in PAIRS],
        "ref_chosen_logps": [-row / 4 for row in range(23)],
        "ref_rejected_logps": [-row / 2 for row in range(23)],
    }
    reference = [{"ref_chosen_logps": -row / 4, "ref_rejected_logps": -row / 2} for row in range(23)]
    collator = DataCollatorForPreference(pad_token_id=0)
    for batch in RowLoader(dataset(tmp_path, **columns), global_batch_size=8, micro_batch_size=4, row_ids=True):
        rows = batch.pop("row_ids").tolist()
        expected = collator([{**PAIRS[row], **reference[row]} for row in rows])
        assert batch.keys() == expected.keys()
        assert all(torch.equal(batch[name], expected[name]) for name in batch)
