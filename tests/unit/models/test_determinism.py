"""Writes with distinct indices, and the test helper that finds what makes the host wait."""

from collections.abc import Callable

import pytest
import torch

from assay.models.determinism import distinct_writes
from no_host_waits import HostWaitsError, NoHostWaits

ROW = torch.tensor([2, 0])
MASK = torch.tensor([True, False, True])


def test_the_mode_is_off_within_and_restored_after_an_error() -> None:
    with NoHostWaits():
        with pytest.raises(ValueError, match="inside"), distinct_writes():
            assert not torch.are_deterministic_algorithms_enabled()
            raise ValueError("inside")
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_mode_that_is_off_stays_off() -> None:
    with distinct_writes():
        assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def written(x: torch.Tensor) -> None:
    x[ROW] = 1.0


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: float(x.sum()),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[MASK],
        lambda x: x.masked_select(MASK),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
        lambda x: torch.ones(3, requires_grad=True).index_select(0, ROW).sum().backward(),
        lambda x: x.index_add(0, ROW, x[:2]),
        lambda x: x.scatter_add(0, ROW, x[:2]),
        written,
        lambda x: x + torch.tensor(1.0),
    ],
)
def test_what_waits_on_a_gpu_is_found(waits: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(3.0)
    with NoHostWaits(), pytest.raises(HostWaitsError, match=r"test_determinism\.py"):
        waits(x)


@pytest.mark.parametrize(
    "flows",
    [
        lambda x: x[ROW],
        lambda x: torch.where(x > 1, x, 0.0).sum(),
        lambda x: x.masked_fill(x > 1, 0.0),
        lambda x: torch.as_tensor(x).sort(),
        lambda x: torch.ones(3, requires_grad=True).exp().sum().backward(),
        lambda x: x.repeat_interleave(2),
    ],
)
def test_what_flows_is_let_through(flows: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(3.0)
    with NoHostWaits():
        flows(x)
        with distinct_writes():
            written(x)
    assert x.tolist() == [1.0, 1.0, 1.0]
