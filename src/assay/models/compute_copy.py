"""A copy of a model in bfloat16, in which passes are computed; the optimizer owns the float32 weights (the master).

    master (float32) --rounded after each update--> copy (bfloat16) --passes--> gradients, summed in float32

Under autocast, weights are cast in each pass, and everything but matrix products is computed in float32. In the copy
nothing is cast, which moves a third of the bytes, and rounds differently: losses differ in the fourth digit.
"""

import copy

import torch
from torch import nn

from assay.base.shapes import Float

ALIGNED_NUMBERS = 64
"""Weights begin at multiples of this, so that kernels read them in the largest pieces."""


class ComputeCopy:
    """The copy of a model; its weights are views of one buffer."""

    def __init__(self, master: nn.Module) -> None:
        self._masters = [parameter.detach() for parameter in master.parameters()]
        self.model = copy.deepcopy(master)
        as_bfloat16(self.model)
        self._weights = [parameter.detach() for parameter in self.model.parameters()]

    def refresh(self) -> None:
        """Round the master's current weights into the copy."""
        torch._foreach_copy_(self._weights, self._masters)


@torch.no_grad()
def as_bfloat16(model: nn.Module) -> Float[torch.Tensor, "number"]:
    """Make a model's weights bfloat16 views of one buffer, and return that; its buffers keep their type.

    Buffers such as the frequencies of rotary positions need more digits.
    """
    parameters = list(model.parameters())
    widths = [-(-parameter.numel() // ALIGNED_NUMBERS) * ALIGNED_NUMBERS for parameter in parameters]
    flat = torch.zeros(sum(widths), dtype=torch.bfloat16, device=parameters[0].device)
    for parameter, part in zip(parameters, torch.split(flat, widths), strict=True):
        view = part[: parameter.numel()].view(parameter.shape)
        parameter.data = view.copy_(parameter)
    return flat
