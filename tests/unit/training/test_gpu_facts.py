"""The facts of a GPU, by the lines that measure them, on a CPU."""

import pytest
import torch
from torch.nn import functional

from assay.base.errors import ConfigError
from assay.training import gpu_facts
from assay.training.gpu_facts import facts_of, measure_gpu

CPU = torch.device("cpu")


def test_every_fact_is_measured() -> None:
    facts = facts_of(CPU)
    assert not facts.failures and facts.product_flops > 0 and facts.copied_bytes_per_s > 0
    assert len(facts.equal_bits) == 6
    assert facts.equal_bits["attention_twice"] and facts.equal_bits["attention_row_alone"]


def test_products_that_depend_on_a_rows_position_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = functional.linear

    def position_dependent(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        products = linear(rows, weight)
        products[-1] *= 1.01
        return products

    monkeypatch.setattr(functional, "linear", position_dependent)
    assert not facts_of(CPU).equal_bits["row_at_any_position"]


def test_products_that_depend_on_the_number_of_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = functional.linear
    monkeypatch.setattr(
        functional, "linear", lambda rows, weight: linear(rows, weight) * (1.01 if len(rows) > 64 else 1.0)
    )
    assert not facts_of(CPU).equal_bits["row_in_any_number_of_rows"]


def test_attention_that_depends_on_other_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    attended = gpu_facts._attended

    def mixed(states: list[torch.Tensor], borders: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output, *gradients = attended(states, borders)
        return output, *(gradient + states[0].sum() for gradient in gradients)

    monkeypatch.setattr(gpu_facts, "_attended", mixed)
    found = facts_of(CPU).equal_bits
    assert found["attention_row_alone"] and not found["attention_gradient_of_row_alone"]


def test_a_part_that_fails_is_named_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel image is available\nmore lines")

    monkeypatch.setattr(gpu_facts, "_attended", broken)
    facts = facts_of(CPU)
    assert facts.failures == {"attention": "RuntimeError: no kernel image is available"}
    assert {"row_at_any_position", "captured_graph"} <= facts.equal_bits.keys()


def test_a_machine_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="torch sees no GPU on this machine"):
        measure_gpu(CPU)
