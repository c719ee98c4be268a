"""Compiles the layers of a transformer with `torch.compile`: one program for one sequence of tokens, one for several.

The bits of a layer must not depend on the process's history, because restarts, other ranks and replays start elsewhere.
So all programs are compiled before the first step, from the same shapes in the same order, with dynamic sizes of
sequences and tokens; later calls never recompile. If micro-batches are lines of one shape (`LineShape`), there is one
program, of that shape:

    a layer in training, several tokens  --a program fits-->  the program
    anything else                        ------------------>  the eager layer

Layers are compiled before the weights are sharded.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.base.errors import ConfigError
from assay.base.shapes import Float, Int
from assay.data.loader.line import LineShape, line_arrays
from assay.models.causal import longest_sequence
from assay.models.line_attention import Borders
from assay.models.token_scores import hidden_states

NUM_LINES = (1, 3)
"""Lines of the inputs that programs are compiled from. torch specializes on size 1, so a single line has its
own program."""
NUM_TOKENS = 61
"""Tokens of these inputs: a prime, so that no model width equals it."""
MAX_PROGRAMS = 64
"""Limit for layers of one class; torch's own is 8, and it falls back to eager without an error."""


def compile_layers(model: nn.Module, autocast: AbstractContextManager[object], line: LineShape | None = None) -> None:
    """Compile a language model's layers for training, under `autocast`; `line`: the shape of all micro-batches.

    The model trains all weights on rows that are not packed, is not wrapped yet, and is the only one in its process.
    """
    backbone = next(module for module in model.modules() if isinstance(module, PreTrainedModel)).base_model
    layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    num_tokens = min(NUM_TOKENS, longest_sequence(backbone.config))
    inputs = [_Input(torch.zeros(num_lines, num_tokens, dtype=torch.int64)) for num_lines in NUM_LINES]
    _configure(str(num_tokens) if line is None else f"line-{'-'.join(map(str, line))}")
    if line is not None:
        inputs = [_line_input(line)]
    for layer in layers:
        # FSDP2 changes the class of the layer, which would invalidate the program: it gets a shallow copy.
        program = _program(inspect.unwrap(type(layer).forward))
        layer.forward = partial(_forward, layer, copy.copy(layer), program)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own internals
            with torch.compiler.set_stance("default"), _sizes_marked([] if line else layers):
                _compute(backbone, inputs, autocast)
            with torch.compiler.set_stance("fail_on_recompile"):
                _compute(backbone, inputs, autocast)
    except RuntimeError as error:
        reason = next(filter(str.strip, str(error).splitlines()), type(error).__name__).strip()
        raise ConfigError(
            f"trainer.compile: torch cannot compile {type(layers[0]).__name__} for any number of "
            f"tokens: {reason} Leave trainer.compile out."
        ) from error
    torch.compiler.set_stance("eager_on_recompile")


def disable_compiled_layers() -> None:
    """Run all further computations of this process in eager mode.

    Once a layer is compiled, torch runs the program for all layers of its class if activations are not
    checkpointed, also for models that should not be compiled.
    """
    torch.compiler.set_stance("default")


def eager_layers() -> AbstractContextManager[None]:
    """Run layers in eager mode within this context."""
    as_written: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return as_written


def _configure(sizes: str) -> None:
    # Imported here because it takes more than a second.
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor
    import torch.compiler.config as compiler

    dynamo.automatic_dynamic_shapes = False  # only marked sizes are dynamic, whatever shapes came before
    dynamo.recompile_limit = MAX_PROGRAMS
    inductor.compile_threads = 1  # more would start processes
    inductor.deterministic = True  # no choice of kernels by timing
    # torch caches programs across processes. The key separates other sizes, and other vector widths, whose programs
    # write beyond their buffers.
    compiler.cache_key_tag = f"assay-{sizes}-{torch.backends.cpu.get_cpu_capability()}"


@cache
def _program(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a forward function once for all layers of a class; weights are inputs."""
    program: Callable[..., Any] = torch.compile(forward, fullgraph=True)
    return program


def _forward(
    layer: Any,
    twin: nn.Module,
    program: Callable[..., Any],
    states: Float[Tensor, "line token width"],
    *arguments: Any,
    **keywords: Any,
) -> Any:
    if not layer.training or not torch.is_grad_enabled() or states.shape[1] == 1:
        return type(layer).forward(layer, states, *arguments, **keywords)
    run = partial(program, twin, **keywords)
    if layer.gradient_checkpointing:
        return layer._gradient_checkpointing_func(run, states, *arguments)
    return run(states, *arguments)


class _Input(NamedTuple):
    input_ids: Int[Tensor, "line token"]
    position_ids: Int[Tensor, "line token"] | None = None
    rows: Borders | None = None


def _line_input(line: LineShape) -> _Input:
    arrays = line_arrays(np.zeros((1, 1), np.int64), np.ones(1, np.int32), line)
    ids, positions, borders, longest_row = map(torch.from_numpy, arrays.values())
    return _Input(ids, positions, Borders(borders, longest_row))


def _compute(backbone: Any, inputs: Sequence[_Input], autocast: AbstractContextManager[object]) -> None:
    """Run forward and backward: the backward program is compiled at its first use."""
    weights = list(backbone.parameters())
    for one in inputs:
        on_device = tree_map(lambda tensor: tensor if tensor is None else tensor.to(weights[0].device), one)
        with autocast:
            states = hidden_states(backbone, *on_device)
        torch.autograd.grad(states.square().sum(), weights)


@contextmanager
def _sizes_marked(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Mark the sizes of lines and tokens of all layer inputs as dynamic."""
    hooks = [layer.register_forward_pre_hook(_mark, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mark(_: nn.Module, arguments: Any, keywords: Any) -> None:
    import torch._dynamo as dynamo

    for tensor in tree_leaves((arguments, keywords)):
        if isinstance(tensor, Tensor):
            for dim in range(min(2, tensor.dim())):
                if tensor.shape[dim] > 1:
                    dynamo.mark_dynamic(tensor, dim)
