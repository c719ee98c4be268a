"""The use of a GPU. There is none where these tests run, so torch's reports of one are replaced."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter

from assay.data.dataset.columns import PROMPT_TOKENS, REJECTED, TOKENS
from assay.data.loader.batch import LaneShare, MicroBatch, Ragged
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig
from assay.models.flops import causal_flops
from assay.training.methods.registry import AnyMethodConfig, method_of
from assay.training.trainer.gpu_use import FIRST_SAMPLED, GpuUse
from assay.training.trainer.lane_forward import LaneForward
from method_runs import method_recipe

MODEL = {"type": "new", "vocab_size": 50, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24}
CHOSEN, REJECTED_LENGTHS, PROMPTS = (7, 5), (4, 6), (3, 2)


def pairs() -> MicroBatch:
    """Two rows of two completions each."""
    ragged = {
        column: Ragged(np.zeros((2, max(lengths)), np.int64), np.array(lengths, np.int32))
        for column, lengths in ((TOKENS, CHOSEN), (REJECTED, REJECTED_LENGTHS))
    }
    return MicroBatch(np.arange(2, dtype=np.uint64), ragged, {PROMPT_TOKENS: pa.array(PROMPTS, pa.int32())})


def texts() -> MicroBatch:
    lines = Ragged(np.zeros((2, 7), np.int64), np.array(CHOSEN, np.int32))
    return MicroBatch(np.arange(2, dtype=np.uint64), {TOKENS: lines}, {})


def forward_of(method: dict[str, Any]) -> LaneForward:
    config = TypeAdapter(AnyMethodConfig).validate_python(method)
    return LaneForward(method_of(config), device=torch.device("cpu"), precision="float32", seed=0)


def expected_flops(lengths: tuple[int, ...], num_scored: int, **options: Any) -> float:
    flops = causal_flops(NewCausalConfig.model_validate(MODEL), has_head=num_scored > 0)
    assert flops is not None
    return flops.training(np.array(lengths), num_scored, **options)


@pytest.mark.parametrize(
    ("method", "batch", "expected"),
    [
        # All tokens but each row's first are predicted.
        ({"type": "sft", "train_on": "all"}, texts(), expected_flops(CHOSEN, 10)),
        ({"type": "reward"}, pairs(), expected_flops(CHOSEN + REJECTED_LENGTHS, 0)),
        (
            {"type": "dpo", "reference": {"type": "columns"}},
            pairs(),
            expected_flops(CHOSEN + REJECTED_LENGTHS, 22 - 10),
        ),
    ],
    ids=["sft", "reward", "dpo, reference in columns"],
)
def test_each_method_counts_its_sequences_and_scored_tokens(method, batch, expected) -> None:
    forward = forward_of({**method, "model": MODEL})
    assert forward.model_flops([LaneShare(0, (batch,))]) == expected
    twice = [LaneShare(0, (batch, batch)), LaneShare(1, (batch,)), LaneShare(2, ())]
    assert forward.model_flops(twice) == 3 * expected


def test_a_reference_model_scores_each_sequence_once_more(tmp_path: Path) -> None:
    method = method_recipe("dpo", tmp_path)["method"]
    forward = forward_of(method)
    flops = causal_flops(PretrainedCausalConfig.model_validate(method["model"]))
    assert flops is not None
    expected = flops.training(np.array(CHOSEN + REJECTED_LENGTHS), 22 - 10, num_references=1)
    assert forward.model_flops([LaneShare(0, (pairs(),))]) == expected > flops.training(np.array(CHOSEN), 22 - 10)


def test_nothing_is_measured_on_a_cpu() -> None:
    gpu_use = GpuUse(torch.device("cpu"), forward_of({"type": "sft", "train_on": "all", "model": MODEL}))
    with gpu_use.step():
        assert gpu_use.costs([LaneShare(0, (texts(),))], num_updates=1) == {}


def test_a_gpus_step_tells_flops_memory_waits_and_mfu(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    seconds = iter((10.0, 10.5, 10.75))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1 << 30)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr("assay.training.trainer.gpu_use.time.monotonic", lambda: next(seconds))
    gpu_use = GpuUse(torch.device("cuda", 0), forward_of({"type": "sft", "train_on": "all", "model": MODEL}))
    found = []
    for _ in range(FIRST_SAMPLED):
        with gpu_use.step():
            for _ in range(2 if modes else 0):
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
                warnings.warn("something else", stacklevel=1)
            found.append(gpu_use.costs([LaneShare(0, (texts(),))], num_updates=2))
    flops = 2 * expected_flops(CHOSEN, 10)
    assert found[0] == {"gpu_memory_peak_bytes": 1 << 30, "model_flops": flops}, "no step before the first"
    assert found[1] == found[0] | {"mfu": pytest.approx(flops / 0.5 / 989e12)}
    assert found[2] == found[0] | {"mfu": pytest.approx(flops / 0.25 / 989e12), "host_waits": 2}
    assert modes == ["warn", 0], "only the sampled step is watched"
