"""Times passes of methods on a device, in turn, and the products of a pass by themselves."""

import time
from collections.abc import Callable, Sequence

import torch

from assay.models.traced import Product
from assay.training.pass_trace import LossPass

MIN_ROUNDS = 3
"""Rounds that count; one before them warms up."""


def time_passes(passes: Sequence[LossPass], device: torch.device, *, seconds: float) -> list[float]:
    """Return the least seconds of each pass; they take turns for so long."""
    return _least_seconds([_pass(loss_pass, device) for loss_pass in passes], device, seconds=seconds)


def time_products(products: Sequence[Product], device: torch.device, *, seconds: float) -> float:
    """Return the seconds of all products, each timed by itself."""
    calls = [_product(product, device) for product in products]
    times_s = _least_seconds(calls, device, seconds=seconds)
    return sum(product.calls * call_s for product, call_s in zip(products, times_s, strict=True))


def _pass(loss_pass: LossPass, device: torch.device) -> Callable[[], object]:
    model, forward = loss_pass.build(device)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return lambda: torch.autograd.grad(forward.loss_of(model, loss_pass.micro_batch).sum, weights, allow_unused=True)


def _product(product: Product, device: torch.device) -> Callable[[], object]:
    dtype = torch.bfloat16 if product.item_bytes == torch.bfloat16.itemsize else torch.float32
    left = torch.randn(product.batch, product.m, product.k, device=device, dtype=dtype)
    right = torch.randn(product.batch, product.k, product.n, device=device, dtype=dtype)
    if product.batch > 1:
        return lambda: torch.bmm(left, right)
    return lambda: torch.mm(left[0], right[0])


def _least_seconds(calls: Sequence[Callable[[], object]], device: torch.device, *, seconds: float) -> list[float]:
    """Return the least seconds of each call, which other work of the machine disturbed least. They take turns."""
    times_s: list[list[float]] = [[] for _ in calls]
    began_s = time.monotonic()
    while len(times_s[0]) <= MIN_ROUNDS or time.monotonic() - began_s < seconds:
        for call, call_s in zip(calls, times_s, strict=True):
            call_s.append(_seconds(call, device))
    return [min(call_s[1:]) for call_s in times_s]


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began_s = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s
