"""Fine-tuning on rows and on spans of them: what TRL and we make of one batch.

What TRL computes goes through `SFTTrainer`'s own collator and `compute_loss`: nothing of it is written here.
"""

from functools import partial
from pathlib import Path

import numpy as np
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.measured import Measured, measured
from agreement.micro_batches import micro_batch
from agreement.pair_cases import CPU, PAIRS, POLICY_SEED, Case
from agreement.tiny_models import save_tiny, tiny_tokenizer
from assay.data.loader.batch import MicroBatch, Packing, Ragged
from assay.training.methods.sft.config import SftConfig
from assay.training.methods.sft.method import SftMethod

ROWS = [pair.prompt + pair.chosen + pair.rejected for pair in PAIRS]
SPANS = [
    [len(pair.prompt), len(pair.prompt) + len(pair.chosen) - 1, len(pair.prompt) + len(pair.chosen), len(row)]
    for pair, row in zip(PAIRS, ROWS, strict=True)
]
"""Two turns in each row, of which the first has its last token left out."""


def our_sft(folder: Path, *, train_on: str, packs: bool) -> Measured:
    """By method `sft`."""
    path = save_tiny(LlamaForCausalLM, folder / "model", seed=POLICY_SEED)
    model_keys = {"type": "pretrained", "path": str(path)}
    method = SftMethod(SftConfig.model_validate({"model": model_keys, "train_on": train_on}))
    batch = micro_batch([{"input_ids": row, "trained_spans": spans} for row, spans in zip(ROWS, SPANS, strict=True)])
    batch = packed(batch) if packs else batch
    model = method.build_model()
    return measured(model, method.loss(model, method.tensors(batch, CPU), {}).sum / method.weight(batch), network="")


def packed(batch: MicroBatch) -> MicroBatch:
    """All rows in one sequence, with padding behind them."""
    ids, padding = np.concatenate(ROWS), np.zeros(3, np.int64)
    positions = np.concatenate([*(np.arange(len(row)) for row in ROWS), padding])
    segments = np.concatenate([*(np.full(len(row), index) for index, row in enumerate(ROWS, 1)), padding])
    borders = np.concatenate([[0], np.cumsum(batch.tokens.lengths)])
    line = Ragged(np.concatenate([ids, padding])[None], batch.tokens.lengths)
    packing = Packing(*(array.astype(np.int32) for array in (positions[None], segments[None], borders)))
    return MicroBatch(batch.row_ids, {**batch.ragged, "input_ids": line}, batch.columns, packing)


def trl_sft(folder: Path, *, train_on: str) -> Measured:
    """By `SFTTrainer`."""
    from datasets import Dataset
    from trl import SFTConfig as TrlConfig
    from trl import SFTTrainer

    path = save_tiny(LlamaForCausalLM, folder / "model", seed=POLICY_SEED)
    quiet = {"report_to": "none", "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    examples = [
        {"input_ids": row, **({"assistant_masks": mask(row, spans)} if train_on == "spans" else {})}
        for row, spans in zip(ROWS, SPANS, strict=True)
    ]
    trainer = SFTTrainer(
        model=LlamaForCausalLM.from_pretrained(path),
        args=TrlConfig(output_dir=str(folder / "out"), **quiet, max_length=None),
        processing_class=tiny_tokenizer(),
        train_dataset=Dataset.from_list(examples),
    )
    batch = trainer.data_collator(list(trainer.train_dataset))
    return measured(trainer.model, trainer.compute_loss(trainer.model, batch))


def mask(row: list[int], spans: list[int]) -> list[int]:
    """1 on what is trained."""
    inside = [range(begin, end) for begin, end in zip(spans[::2], spans[1::2], strict=True)]
    return [int(any(index in span for span in inside)) for index in range(len(row))]


CASES = {
    f"sft-{train_on}{'-packed' if packs else ''}": Case(
        partial(trl_sft, train_on=train_on), partial(our_sft, train_on=train_on, packs=packs)
    )
    for train_on in ("all", "spans")
    for packs in (False, True)
}
"""Name -> what must agree; ours packs where theirs pads."""
