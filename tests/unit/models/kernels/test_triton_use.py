"""Where the kernels run, and what a GPU without Triton is told."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from assay.models.kernels import triton_use
from assay.models.kernels.triton_use import runs_triton

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def no_message_before() -> Iterator[None]:
    triton_use._is_installed.cache_clear()
    yield
    triton_use._is_installed.cache_clear()


def test_triton_is_installed_for_the_tests_of_kernels(requires: Callable[[str, bool, str], None]) -> None:
    is_installed = importlib.util.find_spec("triton") is not None
    requires("triton", is_installed, "it is not installed, so kernels are not tested (make test-triton)")
    assert runs_triton(GPU)


def test_without_triton_a_gpu_is_told_once_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(RuntimeWarning, match=r"Triton is not installed: .* 8 times the bytes .* Install the version"):
        assert not runs_triton(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not runs_triton(GPU)


def test_on_a_cpu_nothing_is_asked_and_nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not runs_triton(torch.device("cpu"))
