"""Facts of this machine's GPU: its ceilings, and which results have equal bits on it.

    ceilings     products in bfloat16, copies
    products     a row has the same bits at any position, and among any number of rows
    attention    over row borders, in the deterministic mode: the same twice; a row alone as among others
    capture      a captured graph gives the bits of plain calls

A fact that cannot be measured is a failure with its reason; the other facts are measured all the same. On a CPU the
same lines run with small sizes, which is for tests.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

import assay.models.line_attention  # noqa: F401 (registers the operator)
from assay.base.errors import ConfigError
from assay.base.shapes import Float, Int, Shaped
from assay.models.graph_capture import GraphCapture
from assay.records.devices import dense_bf16_flops
from assay.records.throughput import GpuFacts

HEADS, HEAD_WIDTH = 12, 64
NUM_ROWS = (16, 64, 256)
"""Rows of the products that are compared: tiles of the generation engine."""
WARM_UPS, NUM_CALLS = 2, 10


def measure_gpu(device: torch.device) -> GpuFacts:
    """Measure the facts of a rank's device, which `device_of` returned. Raises `ConfigError` on a CPU."""
    if device.type != "cuda":
        raise ConfigError(
            "torch sees no GPU on this machine. Run this where training will run; if a GPU is there, check the driver "
            "('nvidia-smi'), CUDA_VISIBLE_DEVICES, and that torch was installed with CUDA (torch.version.cuda)."
        )
    free, total = torch.cuda.mem_get_info(device)
    return facts_of(device).model_copy(
        update={
            "card": torch.cuda.get_device_name(device),
            "dense_flops": dense_bf16_flops(torch.cuda.get_device_name(device)),
            "has_bfloat16": torch.cuda.is_bf16_supported(),
            "free_bytes": free,
            "total_bytes": total,
        }
    )


def facts_of(device: torch.device) -> GpuFacts:
    """Measure the facts that need no driver."""
    size, numbers, tokens = (8192, 1 << 28, 8192) if device.type == "cuda" else (64, 1 << 12, 96)
    ceilings: dict[str, float] = {}
    equal: dict[str, bool] = {}
    failures: dict[str, str] = {}
    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("ceilings", lambda: ceilings.update(_ceilings(device, size, numbers))),
        ("products", lambda: equal.update(_products(device))),
        ("attention", lambda: equal.update(_attention(device, tokens))),
        ("capture", lambda: equal.update(_capture(device))),
    )
    for name, measure in parts:
        try:
            measure()
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
    return GpuFacts(card=str(device), torch=str(torch.__version__), **ceilings, equal_bits=equal, failures=failures)


def _ceilings(device: torch.device, size: int, numbers: int) -> dict[str, float]:
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    return {
        "product_flops": 2 * size**3 / _median_s(lambda: left @ right, device),
        "copied_bytes_per_s": 2 * source.nbytes / _median_s(lambda: target.copy_(source), device),
    }


def _products(device: torch.device) -> dict[str, bool]:
    """Compare one row's product at several positions, and among several numbers of rows."""
    width, wide = HEADS * HEAD_WIDTH, 3 * HEADS * HEAD_WIDTH
    is_same_anywhere, is_same_in_any_number = True, True
    for inner, outer in ((width, wide), (wide, width)):
        weight = torch.randn(outer, inner, device=device, dtype=torch.bfloat16)
        row = torch.randn(inner, device=device, dtype=torch.bfloat16)
        by_size = [list(_at_positions(row, weight, num_rows)) for num_rows in NUM_ROWS]
        is_same_anywhere &= all(torch.equal(found[0], other) for found in by_size for other in found)
        is_same_in_any_number &= all(torch.equal(by_size[0][0], found[0]) for found in by_size)
    return {"row_at_any_position": is_same_anywhere, "row_in_any_number_of_rows": is_same_in_any_number}


def _at_positions(row: Float[Tensor, "inner"], weight: Float[Tensor, "outer inner"], num_rows: int) -> Iterator[Tensor]:
    for position in (0, 1, num_rows // 2 + 1, num_rows - 1):
        rows = torch.randn(num_rows, len(row), device=row.device, dtype=row.dtype)
        rows[position] = row
        yield functional.linear(rows, weight)[position]


def _attention(device: torch.device, tokens: int) -> dict[str, bool]:
    borders = torch.tensor([0, tokens // 8, tokens // 3, tokens], dtype=torch.int32, device=device)
    states = [torch.randn(tokens, HEADS, HEAD_WIDTH, device=device, dtype=torch.bfloat16) for _ in range(4)]
    first, again = _attended(states, borders), _attended(states, borders)
    start, stop = tokens // 8, tokens // 3
    alone = _attended([state[start:stop] for state in states], torch.tensor([0, stop - start]).to(borders))
    among = [found[start:stop] for found in first]
    return {
        "attention_twice": all(map(torch.equal, first, again)),
        "attention_row_alone": torch.equal(alone[0], among[0]),
        "attention_gradient_of_row_alone": all(map(torch.equal, alone[1:], among[1:])),
    }


def _attended(
    states: list[Float[Tensor, "token head width"]], borders: Int[Tensor, "border"]
) -> tuple[Shaped[Tensor, "token head width"], ...]:
    """Return attention over borders, and the gradients of queries, keys and values; the last state is the output's."""
    *inputs, gradient = states
    inputs = [state.clone().requires_grad_() for state in inputs]
    longest = int((borders[1:] - borders[:-1]).max())
    output = torch.ops.assay.line_attention(*inputs, borders, longest, HEAD_WIDTH**-0.5, -1)[0]
    return (output.detach(), *torch.autograd.grad(output, inputs, gradient))


def _capture(device: torch.device) -> dict[str, bool]:
    """Compare a captured forward and backward pass of two layers with plain calls."""
    width = HEADS * HEAD_WIDTH
    layers = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width))
    layers = layers.to(device, torch.bfloat16)
    inputs = torch.randn(256, width, device=device, dtype=torch.bfloat16)

    found: list[Tensor] = []

    def compute() -> None:
        found[:] = torch.autograd.grad(layers(inputs).float().square().sum(), tuple(layers.parameters()))

    compute()
    plain = list(found)
    replay = GraphCapture()(compute) if device.type == "cuda" else compute
    replay()
    return {"captured_graph": all(map(torch.equal, plain, found))}


def _median_s(work: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a call, without those that warm up."""
    found = []
    for _ in range(WARM_UPS + NUM_CALLS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started_s = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - started_s)
    return statistics.median(found[WARM_UPS:])
