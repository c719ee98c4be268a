"""The document of a GPU's facts: its verdict says no more than was measured."""

from typing import Any, get_args

import pytest

from assay.records.throughput import EqualBits, GpuFacts
from assay.reporting.documents.gpu import PROMISES, gpu_document
from assay.reporting.documents.render import render_document

HOLDS = dict.fromkeys(get_args(EqualBits), True)
GOOD: dict[str, Any] = {
    "card": "NVIDIA H200",
    "torch": "2.13.0",
    "dense_flops": 989e12,
    "has_bfloat16": True,
    "free_bytes": 140 << 30,
    "total_bytes": 141 << 30,
    "product_flops": 788e12,
    "copied_bytes_per_s": 4.3e12,
    "equal_bits": HOLDS,
    "failures": {},
}


@pytest.mark.parametrize(
    ("changed", "tone", "word"),
    [
        ({}, "good", "repeatable"),
        ({"equal_bits": HOLDS | {"row_in_any_number_of_rows": False}}, "good", "repeatable"),
        ({"equal_bits": HOLDS | {"row_at_any_position": False}}, "open", "repeatable, with limits"),
        ({"equal_bits": HOLDS | {"attention_twice": False}}, "bad", "not repeatable"),
        ({"failures": {"capture": "RuntimeError: out of memory"}}, "open", "partly measured"),
        ({"has_bfloat16": False}, "bad", "no bfloat16"),
    ],
)
def test_the_verdict_is_that_of_the_worst_fact(changed: dict[str, Any], tone: str, word: str) -> None:
    verdict = gpu_document(GpuFacts(**{**GOOD, **changed})).verdict
    assert verdict is not None and (verdict.tone, verdict.word) == (tone, word)


def test_every_promise_has_a_sentence_and_a_row() -> None:
    assert set(PROMISES) == set(get_args(EqualBits))
    page = render_document(gpu_document(GpuFacts(**GOOD)))
    assert page.count(">equal<") + page.count("equal</") >= len(PROMISES)


def test_rates_are_set_beside_the_data_sheet() -> None:
    page = render_document(gpu_document(GpuFacts(**GOOD)))
    assert "788 TFLOP/s" in page and "80% of the data sheet" in page
    unlisted = render_document(gpu_document(GpuFacts(**{**GOOD, "dense_flops": None})))
    assert "runs show no MFU" in unlisted


def test_memory_that_another_process_holds_is_named() -> None:
    alone, shared = (
        render_document(gpu_document(GpuFacts(**{**GOOD, "free_bytes": size << 30}))) for size in (140, 99)
    )
    assert "another process holds 45.1 GB" in shared and "another process" not in alone
