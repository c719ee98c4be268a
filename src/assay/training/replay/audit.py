"""Compares each operator with a float64 reference, to find arithmetic that is wrong without being infinite.

A kernel with a wrong corner case (one shape, one stride, one value in a million) shows itself far away: as NaN
in the loss, as a metric that is slightly off, as an index out of range. Here it shows where it is.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, from_numpy
from torch.utils._pytree import tree_map

from assay.training.replay.reference import Numbers, Reference, float64_of, references
from assay.training.replay.watch import BadOutput, Call


class OutsideBound:
    """Finds the first operator whose output differs from its reference by more than rounding can explain."""

    problem = "outside its error bound"

    def __init__(self) -> None:
        self.not_audited: dict[str, str] = {}
        """Operators without a reference -> reason."""

    def before(self, call: Call) -> Callable[[Sequence[Tensor]], BadOutput | None]:
        """Save the inputs; those that the operator changes are copied."""
        written = {id(tensor) for tensor in call.written()}

        def copied(leaf: object) -> object:
            return leaf.detach().clone() if isinstance(leaf, Tensor) and id(leaf) in written else leaf

        arguments, keywords = tree_map(copied, (call.arguments, call.keywords))
        return partial(self._first_too_far_off, Call(call.operator, arguments, keywords))

    def _first_too_far_off(self, call: Call, outputs: Sequence[Tensor]) -> BadOutput | None:
        """Return the first output with a number outside its bound; `call` holds the original inputs."""
        found = references(call, outputs)
        if isinstance(found, str):
            self.not_audited[str(call.operator)] = found
            return None
        for output, reference in zip(outputs, found or [], strict=False):
            if reference is not None and (problem := _compared(output, reference)) is not None:
                return problem
        return None


def _compared(output: Tensor, reference: Reference) -> BadOutput | None:
    seen = float64_of(output)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(seen - reference.value)
        wrong = ~((error <= reference.bound) | (seen == reference.value)) & _is_comparable(output, reference)
        if not wrong.any():
            return None
        ratio = np.where(wrong, error / np.maximum(np.broadcast_to(reference.bound, error.shape), 1e-300), -1.0)
    worst = np.unravel_index(int(np.nanargmax(np.where(np.isnan(ratio), np.inf, ratio))), ratio.shape)
    index = tuple(int(index) for index in worst)
    bound = float(np.broadcast_to(reference.bound, error.shape)[worst])
    detail = (
        f"{int(wrong.sum())} of {wrong.size} numbers; at index {list(index)} it is {seen[worst]:.9g}, the "
        f"reference {reference.value[worst]:.9g}, the error bound {bound:.2g} ({reference.basis})"
    )
    return BadOutput(output, from_numpy(np.atleast_1d(wrong)).reshape(output.shape), detail)


def _is_comparable(output: Tensor, reference: Reference) -> Numbers:
    """Return a mask of numbers whose reference is finite and fits the output's type."""
    if not output.is_floating_point():
        return np.ones(reference.value.shape, bool)
    comparable: Numbers = np.abs(reference.value) < torch.finfo(output.dtype).max
    return comparable
