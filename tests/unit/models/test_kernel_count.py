"""Kernels of a pass and bytes that it moves for each token: what a compiled line takes may fall and never rise.

The model is a Llama of 141 M weights (12 layers of width 768, vocabulary 32,000) in bfloat16, in lines of 16,384
tokens. As written and in float32 under autocast it takes 1,876 kernels and 11.3 MB a token, counted by operators.

What is counted is inductor's plan for one layer on a CPU, forward and backward: its fused loops, products and
attention, with the bytes that each reads and writes. A GPU's fusions differ a little. The plan is made at two lengths;
bytes are linear in between and beyond. C++ is generated and not compiled, so the numbers of the pass mean nothing.
Around the layers, operators are counted. The head's counts are those of `head._HeadLoss`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from assay.data.loader.line import LineShape
from assay.models.causal_config import NewCausalConfig
from assay.models.compiled import compile_layers
from assay.models.token_scores import CausalNetwork, hidden_states

LAYERS, WIDTH, VOCABULARY, TOKENS, CHUNK = 12, 768, 32_000, 16_384, 4096
LENGTHS = (256, 512)
MOST_KERNELS, MOST_BYTES = 560, 3.2e6
"""The ratchet; the goals were 600 kernels and 4 MB."""
HEAD_KERNELS = 6 * TOKENS // CHUNK + 8
"""For each chunk: logits, scores and gradients, two products, a copy and a sum."""
HEAD_BYTES = 5 * 2 * VOCABULARY + 16 * VOCABULARY * WIDTH / CHUNK
"""Logits are written, replaced, and read by two products; the weight is read twice, its gradient added in float32."""


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch._inductor.config as inductor
    import torch._inductor.cpu_vec_isa as vector_instructions
    from torch._inductor.async_compile import AsyncCompile

    # Torch compiles a program for each kind of vector instructions to see whether it works; no plan depends on it.
    monkeypatch.setattr(vector_instructions, "valid_vec_isa_list", list)
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch.compiler.set_stance("default")


def network(vocab_size: int = 100) -> CausalNetwork:
    keys = {"num_layers": 1, "num_heads": 12, "intermediate_size": 2048, "max_tokens": TOKENS}
    return CausalNetwork(NewCausalConfig(vocab_size=vocab_size, hidden_size=WIDTH, **keys)).bfloat16().train()


def layer_plan(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Kernels and bytes of a layer's forward and backward pass."""
    from torch._inductor.graph import GraphLowering

    sizes: list[int] = []
    generate = GraphLowering.compile_to_module

    def counted(graph: Any) -> Any:
        module = generate(graph)
        sizes.extend(node.get_read_write_buffers_sizes() for node in graph.scheduler.nodes)
        return module

    with monkeypatch.context() as patched:
        patched.setattr(GraphLowering, "compile_to_module", counted)
        compile_layers(network(), nullcontext(), LineShape(num_tokens, 8, num_tokens))
    return sum(size > 0 for size in sizes), sum(sizes)  # without views and parts of tuples


class Operators(TorchDispatchMode):
    """Counts operators that are no views, and the bytes of their arguments and results."""

    kernels = num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        is_view = any(result.alias_info and not result.alias_info.is_write for result in func._schema.returns)
        if not is_view and "view" not in func._schema.name and "empty" not in func._schema.name:
            self.kernels += 1
            tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)]
            self.num_bytes += sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        return found


def around_layers() -> tuple[int, float]:
    """Kernels and bytes a token of embedding, rotations and last norm."""
    model = network(VOCABULARY)
    model.network.model.layers = nn.ModuleList()
    tokens = torch.zeros(1, 64, dtype=torch.int64)
    with Operators() as counted:
        states = hidden_states(model.network.model, tokens, torch.arange(64)[None])
        torch.autograd.grad(states.sum(), list(model.network.model.parameters()))
    table = 2 * VOCABULARY * WIDTH  # written once for a whole line, not for 64 tokens
    return counted.kernels, (counted.num_bytes - 2 * table) / 64 + 2 * table / TOKENS


@pytest.mark.slow
def test_a_pass_takes_few_kernels_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernels, short), (same, long) = (layer_plan(length, monkeypatch) for length in LENGTHS)
    assert kernels == same
    a_token = (long - short) / (LENGTHS[1] - LENGTHS[0])
    weights = short - a_token * LENGTHS[0]
    kernels_around, bytes_around = around_layers()
    total_kernels = LAYERS * kernels + kernels_around + HEAD_KERNELS
    total_bytes = LAYERS * (a_token + weights / TOKENS) + bytes_around + HEAD_BYTES
    assert LAYERS * kernels > kernels_around > 5 and 0 < bytes_around < 0.2e6
    assert total_kernels <= MOST_KERNELS, f"{total_kernels} kernels: {kernels} a layer, {kernels_around} around them"
    assert 2e6 < total_bytes <= MOST_BYTES, f"{total_bytes:,.0f} bytes a token, {a_token:,.0f} a layer"
