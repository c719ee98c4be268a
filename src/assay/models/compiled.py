"""Layers of a transformer as programs, by `torch.compile`: one for a single line of tokens, one for several.

What a layer computes must not hang on what came before: a restart, another rank, a replay begin elsewhere. So
all programs are made before the first step, from the same sizes in the same order, and take any number of
lines and tokens; none is made later:

    a layer in training, several tokens  --a program fits-->  the program
    anything else                        ------------------>  the layer as it is written

Programs are made before weights are shared out, and know nothing of that.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.base.errors import ConfigError
from assay.base.shapes import Float
from assay.models.causal import longest_sequence
from assay.models.token_scores import hidden_states

NUM_LINES = (1, 3)
"""Programs are made from so many. One is apart: what torch makes of a size of 1 takes no other."""
NUM_TOKENS = 61
"""Prime, so that no width of a model is taken for it."""
MAX_PROGRAMS = 64
"""For layers of one class; torch's own limit is 8, and it says nothing there."""


def compile_layers(model: nn.Module, autocast: AbstractContextManager[object]) -> None:
    """Have a language model's layers run as programs in training, and make these under `autocast`.

    It trains all of its weights on rows that share no line. It is not wrapped yet, and alone in its process.
    """
    backbone = next(module for module in model.modules() if isinstance(module, PreTrainedModel)).base_model
    layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    num_tokens = min(NUM_TOKENS, longest_sequence(backbone.config))
    _configure(num_tokens)
    for layer in layers:
        # FSDP2 will give the layer another class, which no program would fit: programs see a twin of its parts.
        program = _program(inspect.unwrap(type(layer).forward))
        layer.forward = partial(_forward, layer, copy.copy(layer), program)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own doings
            with torch.compiler.set_stance("default"), _sizes_marked(layers):
                _compute(backbone, num_tokens, autocast)
            with torch.compiler.set_stance("fail_on_recompile"):
                _compute(backbone, num_tokens, autocast)
    except RuntimeError as error:
        reason = next(filter(str.strip, str(error).splitlines()), type(error).__name__).strip()
        raise ConfigError(
            f"trainer.compile: torch makes no program of {type(layers[0]).__name__} that takes any number of "
            f"tokens: {reason} Leave trainer.compile out."
        ) from error
    torch.compiler.set_stance("eager_on_recompile")


def disable_compiled_layers() -> None:
    """What this process computes next is computed as it is written.

    torch hands a layer's program to every layer of its class once there is one, where activations are not kept:
    also to a model that was to have none.
    """
    torch.compiler.set_stance("default")


def eager_layers() -> AbstractContextManager[None]:
    """Layers are computed as they are written, in here."""
    as_written: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return as_written


def _configure(num_tokens: int) -> None:
    # Imported where it is wanted: a second and more that other runs need not wait for.
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor
    import torch.compiler.config as compiler

    dynamo.automatic_dynamic_shapes = False  # only what is marked may vary, whatever was seen before
    dynamo.recompile_limit = MAX_PROGRAMS
    inductor.compile_threads = 1  # more would be processes beside the rank
    inductor.deterministic = True  # no kernel is chosen by a stopwatch
    # torch keeps programs for later processes, by what they compute: never those made from other sizes, nor for
    # another width of the processor's vectors, which write beyond their buffers.
    compiler.cache_key_tag = f"assay-{num_tokens}-{torch.backends.cpu.get_cpu_capability()}"


@cache
def _program(forward: Callable[..., Any]) -> Callable[..., Any]:
    """One for all layers of a class: their weights are its inputs."""
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


def _compute(backbone: Any, num_tokens: int, autocast: AbstractContextManager[object]) -> None:
    """Forward and backward: the program of the latter is made with its first use."""
    weights = list(backbone.parameters())
    for num_lines in NUM_LINES:
        ids = torch.zeros(num_lines, num_tokens, dtype=torch.int64, device=weights[0].device)
        with autocast:
            states = hidden_states(backbone, ids)
        torch.autograd.grad(states.square().sum(), weights)


@contextmanager
def _sizes_marked(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Lines and tokens of what goes into a layer may be any number, but for a single line."""
    hooks = [layer.register_forward_pre_hook(_mark, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mark(_: nn.Module, arguments: Any, keywords: Any) -> None:
    """[line, token, ...]."""
    import torch._dynamo as dynamo

    for tensor in tree_leaves((arguments, keywords)):
        if isinstance(tensor, Tensor):
            for dim in range(min(2, tensor.dim())):
                if tensor.shape[dim] > 1:
                    dynamo.mark_dynamic(tensor, dim)
