"""Attention of a line: rows end to end in one sequence, told apart by their borders.

    query, key, value [1, head, token, width]  --borders-->  each row attends to itself, causally

On a GPU it is torch's flash attention over borders (`varlen_attn` calls the same operator, with a signature that
changes between torch 2.10 and 2.13); on a CPU, a loop over rows. As transformers does not know it, no mask is built,
and nothing depends on values of the device. In the deterministic mode the backward pass has one order of additions.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from assay.base.errors import ConfigError
from assay.base.shapes import Bool, Float, Int, Shaped
from assay.models.causal_config import PACKS

LINE_ATTENTION = "assay_line"
UNBOUNDED = -1
"""Window of a layer that has none."""


class Borders(NamedTuple):
    """How a line is divided into rows."""

    borders: Int[Tensor, "border"]
    longest_row: Bool[Tensor, "token"]
    """Has as many entries as the longest row has tokens; only its shape is read."""


def line_keywords(decoder: Any, rows: Borders) -> dict[str, Any]:
    """Return the keywords with which a decoder's layers attend within rows.

    Passes without borders keep their attention: the decoder then calls transformers' own function with its mask.
    """
    config = decoder.config
    if config._attn_implementation != LINE_ATTENTION:
        if config.model_type not in PACKS:
            raise ConfigError(
                f"loader.layout.type=line: the attention of a '{config.model_type}' model is not known (known: "
                f"{', '.join(sorted(PACKS))}). Use loader.layout.type=bucketed."
            )
        config._attn_implementation = LINE_ATTENTION
    return {
        # Four dimensions: transformers takes it for a complete mask, and builds none.
        "attention_mask": rows.borders.view(1, 1, 1, -1),
        "cu_seq_lens_q": rows.borders,
        "max_length_q": len(rows.longest_row),
    }


def _attention(
    module: Any,
    query: Float[Tensor, "line head token width"],
    key: Float[Tensor, "line kv_head token width"],
    value: Float[Tensor, "line kv_head token width"],
    attention_mask: Shaped[Tensor, "..."] | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    cu_seq_lens_q: Int[Tensor, "border"] | None = None,
    max_length_q: int = 0,
    **keywords: Any,
) -> tuple[Float[Tensor, "line token head width"], None]:
    """Return the attention of a layer, as transformers calls it."""
    if cu_seq_lens_q is None:
        if sliding_window is not None:
            keywords["sliding_window"] = sliding_window
        own: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **keywords
        )
        return own
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if keywords.get(name) is not None]
    if unknown or dropout:
        raise ConfigError(
            f"loader.layout.type=line: {type(module).__name__} uses {unknown[0] if unknown else 'dropout'} in its "
            "attention, which is not supported. Use loader.layout.type=bucketed."
        )
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # rotations return float32
        query, key, value = (states.to(torch.get_autocast_dtype(kind)) for states in (query, key, value))
    window = UNBOUNDED if sliding_window is None else sliding_window - 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = (states[0].transpose(0, 1) for states in (query, key, value))
    attended, _ = _attend(*rows, cu_seq_lens_q, max_length_q, scale, window)
    return attended[None], None


AttentionInterface.register(LINE_ATTENTION, _attention)
AttentionMaskInterface.register(LINE_ATTENTION, sdpa_mask)


_ARGUMENTS = "Tensor borders, int longest, float scale, int window"


@torch.library.custom_op(
    "assay::line_attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor query, Tensor key, Tensor value, {_ARGUMENTS}) -> (Tensor, Tensor)",
)
def _attend(query: Any, key: Any, value: Any, borders: Any, longest: int, scale: float, window: int) -> Any:  # noqa: ARG001
    """Return attention [token, head, width] and the log of its denominators [head, token].

    A query sees itself and the `window` tokens of its row before it.
    """
    attended, log_totals = _results(query)
    for row in _rows(borders):
        states = _of_row(row, query, key, value)
        found, log_total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *states, is_causal=True, **_mask(states[0], window), scale=scale
        )
        attended[row], log_totals[:, row] = found[0].transpose(0, 1), log_total[0]
    return attended, log_totals


@_attend.register_fake
def _(query: Any, *_: object) -> Any:
    return _results(query)


@torch.library.custom_op(
    "assay::line_attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor attended, Tensor log_totals, "
    f"{_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
)
def _attend_backward(gradient: Any, *saved: Any) -> Any:
    *inputs, attended, log_totals, borders, _, scale, window = saved
    gradients = tuple(map(_empty, inputs))
    for row in _rows(borders):
        states = _of_row(row, *inputs)
        own_gradient, own_attended = _alone(gradient, row), _alone(attended, row)
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            own_gradient,
            *states,
            own_attended,
            log_totals[None, :, row],
            0.0,
            True,
            **_mask(states[0], window),
            scale=scale,
        )
        for whole, part in zip(gradients, found, strict=True):
            # Heads that share a key add their gradients.
            shared = part[0].unflatten(0, (whole.shape[1], -1)).sum(dim=1)
            whole[row] = shared.transpose(0, 1)
    return gradients


@_attend_backward.register_fake
def _(_: Any, query: Any, key: Any, value: Any, *__: object) -> Any:
    return tuple(map(_empty, (query, key, value)))


def _saved(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, borders, *ctx.numbers = inputs
    ctx.save_for_backward(query, key, value, *output, borders)


def _backward(ctx: Any, gradient: Any, _: object) -> tuple[Any, ...]:
    return (*_attend_backward(gradient, *ctx.saved_tensors, *ctx.numbers), None, None, None, None)


_attend.register_autograd(_backward, setup_context=_saved)


@_attend.register_kernel("cuda")
def _(query: Any, key: Any, value: Any, *borders_and_numbers: Any) -> Any:
    if query.dtype not in (torch.bfloat16, torch.float16) or query.shape[-1] % 8:
        raise ConfigError(
            f"loader.layout.type=line: on a GPU attention takes bfloat16 and heads whose width is a multiple of 8, not "
            f"{str(query.dtype).removeprefix('torch.')} and {query.shape[-1]}. Use trainer.precision=bfloat16, or "
            "loader.layout.type=bucketed, whose passes have no fixed shape and are started kernel by kernel."
        )
    attended, log_totals, *_ = _flash("forward", (query, key, value), *borders_and_numbers, False)
    # Their layout is what the fake kernels say.
    return attended.contiguous(), log_totals


@_attend_backward.register_kernel("cuda")
def _(gradient: Any, *saved: Any) -> Any:
    *inputs, borders, longest, scale, window = saved
    # Without dropout the two states of its generator are not read.
    generator, unused = torch.zeros(2, dtype=torch.uint64, device=gradient.device), gradient.new_empty(0)
    states = (gradient.contiguous(), *inputs)
    gradients = _flash("backward", states, borders, longest, scale, window, generator, unused)
    return tuple(found.contiguous() for found in gradients)


def _flash(name: str, states: Any, borders: Any, longest: int, scale: float, window: int, *others: Any) -> Any:
    """Run torch's causal flash attention over borders; raise `ConfigError` if there is none here."""
    operator = getattr(torch.ops.aten, f"_flash_attention_{name}")
    options = {"scale": scale, "window_size_left": window, "window_size_right": 0}
    try:
        return operator(*states, borders, borders, longest, longest, 0.0, True, *others, **options)
    except (RuntimeError, TypeError) as error:
        # Not e.g. that memory is short.
        if isinstance(error, RuntimeError) and "flash" not in str(error).lower():
            raise
        raise ConfigError(
            f"loader.layout.type=line: torch {torch.__version__} on {torch.cuda.get_device_name()} has no flash "
            f"attention over row borders ({str(error).splitlines()[0]}). Use loader.layout.type=bucketed."
        ) from error


def _results(
    query: Float[Tensor, "token head width"],
) -> tuple[Float[Tensor, "token head width"], Float[Tensor, "head token"]]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return _empty(query), query.new_empty((query.shape[1], query.shape[0]), dtype=dtype)


def _empty(states: Float[Tensor, "token head width"]) -> Float[Tensor, "token head width"]:
    return states.new_empty(states.shape)


def _rows(borders: Int[Tensor, "border"]) -> list[slice]:
    edges: list[int] = borders.tolist()
    return [slice(start, stop) for start, stop in pairwise(edges) if stop > start]


def _alone(states: Float[Tensor, "token head width"], row: slice) -> Float[Tensor, "1 head place width"]:
    return states[row].transpose(0, 1)[None]


def _of_row(
    row: slice, query: Float[Tensor, "token head width"], *states: Float[Tensor, "token kv_head width"]
) -> tuple[Float[Tensor, "1 head place width"], ...]:
    """Return a row's queries, and its keys and values repeated for the query heads that share them."""
    shared = (_alone(state, row) for state in states)
    return (_alone(query, row), *(state.repeat_interleave(query.shape[1] // state.shape[1], dim=1) for state in shared))


def _mask(query: Float[Tensor, "1 head place width"], window: int) -> dict[str, Any]:
    """Return the mask of a layer with a window, for rows that are longer."""
    indices = torch.arange(query.shape[2])
    if window == UNBOUNDED or len(indices) <= window + 1:
        return {}
    outside = indices[:, None] - indices > window
    return {"attn_mask": torch.zeros(outside.shape, dtype=query.dtype).masked_fill_(outside, -torch.inf)}
