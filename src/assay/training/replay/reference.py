"""Reference outputs of operators in float64, with bounds on the rounding error.

Sums, means and matrix products are recomputed by NumPy, which shares no kernel with torch; all other operators are run
in float64 on contiguous copies, which uses another kernel. The bounds:

    sums over n numbers       g(n) eps sum|x|           g(n) = min(n, 8 sqrt(n)): the worst case is n eps; with
    matrix products           g(k) eps |A| |B|          probability 1 - 2 n exp(-128) no order of summation
    elementwise               64 eps (|y| + sum|x|)     errs by more than 8 sqrt(n) eps (Higham & Mary 2019)
    copies                    none: the same bits
    all others                (g(n) + 64) eps max|y|    n: numbers of the largest input

plus one rounding to the output's type. `eps` is that of the type in which an operator accumulates: float32 for bfloat16
and float16.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from assay.training.replay.watch import Call

Numbers = npt.NDArray[Any]

_MOVES = {
    "aten::_to_copy", "aten::cat", "aten::clone", "aten::copy_", "aten::embedding", "aten::fill_",
    "aten::gather", "aten::index", "aten::index_select", "aten::masked_fill", "aten::masked_fill_",
    "aten::stack", "aten::where", "aten::zero_",
}  # fmt: skip
_ELEMENTWISE_ULPS = 64


class Reference(NamedTuple):
    """The reference of one output."""

    value: Numbers
    """float64; int64 for integer outputs."""
    bound: Numbers
    """Bound on |output - value|, broadcastable; 0: the same bits."""
    basis: str
    """Name of the bound."""


def growth(num_terms: int) -> float:
    """Return the factor of eps by which rounding can change a sum of so many numbers, relative to the sum of
    magnitudes."""
    return min(float(num_terms), 8 * math.sqrt(num_terms))


def references(call: Call, outputs: Sequence[Tensor]) -> list[Reference | None] | str | None:
    """Return a reference for each output (None without arithmetic), or None if the whole operator has no arithmetic,
    or the reason why it cannot be audited.

    `call` holds the inputs from before the operator ran.
    """
    name = call.operator._schema.name
    if name in _EXACT:
        return [_EXACT[name](call.named(), outputs[0])]
    if not call.tensors() or not any(output.is_floating_point() for output in outputs) or _is_view(call):
        return None
    if "empty" in name:
        return None
    is_random = torch.Tag.nondeterministic_seeded in call.operator.tags
    if is_random and call.named().get("dropout_p") != 0.0:
        return "random"
    try:
        again = _in_float64(call)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return f"has no float64 form: {str(error).splitlines()[0][:80]}"
    return [
        _reference(call, output, value) if output.is_floating_point() else None
        for output, value in zip(outputs, again, strict=True)
    ]


def float64_of(tensor: Tensor) -> Numbers:
    """Return the numbers exactly in float64; integers and booleans in int64."""
    wide = tensor.detach().to(torch.float64 if tensor.is_floating_point() else torch.int64)
    values: Numbers = wide.cpu().numpy()
    return values


def _reduction(arguments: dict[str, Any], output: Tensor, *, mean: bool) -> Reference:
    x = float64_of(arguments["self"])
    axes = arguments.get("dim")
    axes = tuple(range(x.ndim)) if axes is None or len(axes) == 0 else tuple(axes)
    keepdims = bool(arguments.get("keepdim", False))
    num_terms = math.prod(x.shape[axis] for axis in axes)
    value, magnitude = (part.sum(axis=axes, keepdims=keepdims) for part in (x, np.abs(x)))
    if mean:
        value, magnitude = value / num_terms, magnitude / num_terms
    return _accumulated(value, magnitude, num_terms, output, f"g(n) eps sum|x|, n = {num_terms}")


def _cumulative_sum(arguments: dict[str, Any], output: Tensor) -> Reference:
    x, axis = float64_of(arguments["self"]), arguments["dim"]
    if x.ndim == 0:
        return _accumulated(x, np.abs(x), 1, output, "the number itself")
    basis = f"g(n) eps sum|x|, n = {x.shape[axis]}"
    return _accumulated(np.cumsum(x, axis), np.cumsum(np.abs(x), axis), x.shape[axis], output, basis)


def _product(arguments: dict[str, Any], output: Tensor) -> Reference:
    names = [name for name in ("mat1", "batch1", "self") if name in arguments]
    left = float64_of(arguments[names[0]])
    right = float64_of(next(arguments[name] for name in ("mat2", "batch2", "vec", "tensor") if name in arguments))
    value, magnitude = left @ right, np.abs(left) @ np.abs(right)
    if names[0] != "self":
        added, alpha, beta = float64_of(arguments["self"]), arguments["alpha"], arguments["beta"]
        value = alpha * value + beta * added
        magnitude = abs(alpha) * magnitude + np.abs(beta * added)
    terms = left.shape[-1] + 1
    return _accumulated(value, magnitude, terms, output, f"g(k) eps |A| |B|, k = {left.shape[-1]}")


def _accumulated(value: Numbers, magnitude: Numbers, terms: int, output: Tensor, basis: str) -> Reference:
    if not output.is_floating_point():
        return Reference(np.asarray(value), np.zeros(()), "integers: exact")
    eps, rounding = _accumulator_eps(output), _eps(output)
    bound = growth(terms) * eps * magnitude + rounding * np.abs(value) + torch.finfo(output.dtype).tiny
    return Reference(np.asarray(value, np.float64), np.asarray(bound), basis)


_EXACT: dict[str, Callable[[dict[str, Any], Tensor], Reference]] = {
    "aten::sum": partial(_reduction, mean=False),
    "aten::mean": partial(_reduction, mean=True),
    "aten::cumsum": _cumulative_sum,
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::mv": _product,
    "aten::dot": _product,
    "aten::addmm": _product,
    "aten::baddbmm": _product,
}
"""Operators that NumPy recomputes."""


def _reference(call: Call, output: Tensor, again: Tensor) -> Reference:
    value = float64_of(again)
    magnitude, eps, rounding = np.abs(value), _accumulator_eps(output), _eps(output)
    smallest = torch.finfo(output.dtype).tiny
    if call.operator._schema.name in _MOVES:
        return Reference(value, rounding * magnitude if _changes_type(call, output) else np.zeros(()), "a copy")
    if torch.Tag.pointwise in call.operator.tags and not _has_lists(call):
        inputs = [np.abs(float64_of(tensor)) for tensor in call.tensors() if tensor.is_floating_point()]
        scale = magnitude + sum((np.broadcast_to(part, value.shape) for part in inputs), np.zeros(()))
        bound = _ELEMENTWISE_ULPS * eps * scale + rounding * magnitude + smallest
        return Reference(value, bound, f"elementwise, {_ELEMENTWISE_ULPS} ulp")
    largest = float(np.max(magnitude, initial=0.0, where=np.isfinite(value)))
    terms = max(tensor.numel() for tensor in call.tensors())
    bound = (growth(terms) + _ELEMENTWISE_ULPS) * eps * largest + rounding * magnitude + smallest
    return Reference(value, bound, f"(g(n) + 64) eps max|y|, n = {terms}")


def _in_float64(call: Call) -> list[Tensor]:
    """Return the outputs and in-place results of the operator, run on float64 copies."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        wide = leaf.detach().to(torch.float64) if leaf.is_floating_point() else leaf.detach()
        return wide.clone(memory_format=torch.contiguous_format)

    arguments, keywords = tree_map(copied, (call.arguments, call.keywords))
    if keywords.get("dtype") in (torch.float32, torch.bfloat16, torch.float16):
        keywords = {**keywords, "dtype": torch.float64}
    again = Call(call.operator, arguments, keywords)
    return again.outputs(call.operator(*arguments, **keywords))


def _is_view(call: Call) -> bool:
    """Return whether the operator only returns a view of its input."""
    returned = call.operator._schema.returns
    return any(result.alias_info is not None and not result.alias_info.is_write for result in returned)


def _has_lists(call: Call) -> bool:
    return any(isinstance(argument, list | tuple) for argument in call.arguments)


def _changes_type(call: Call, output: Tensor) -> bool:
    return any(tensor.is_floating_point() and tensor.dtype != output.dtype for tensor in call.tensors())


def _eps(output: Tensor) -> float:
    return torch.finfo(output.dtype).eps


def _accumulator_eps(output: Tensor) -> float:
    if output.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        return 2.0**-10
    return min(_eps(output), torch.finfo(torch.float32).eps)
