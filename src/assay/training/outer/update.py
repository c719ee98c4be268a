"""The outer step: from the clusters' changes to the next outer weights.

    mean = sum of weight x change / sum of weights
    average:   weights += mean
    nesterov:  momentum = mu * momentum + mean
               weights += rate * (mean + mu * momentum)

A change points downhill, so `nesterov` is `torch.optim.SGD(nesterov=True)` with the gradient -mean (DiLoCo, Douillard
et al. 2023). Every cluster computes this from the same bytes, so the result must not depend on the processor: products
and sums are separate calls, because a processor with fused multiply-add rounds a combined call differently.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assay.base.shapes import Float
from assay.training.outer.config import AverageConfig, OuterOptimizerConfig

Tensors = dict[str, Float[Tensor, "..."]]
WeightedChange = tuple[int, Mapping[str, Float[Tensor, "..."]]]
"""What the cluster trained on (rows, tokens or pairs), and the change of its weights."""


class OuterOptimizer:
    """Averaging, or SGD with Nesterov momentum; the caller holds the state."""

    def __init__(self, config: OuterOptimizerConfig) -> None:
        self._config = config

    def momentum_of(self, weights: Mapping[str, Float[Tensor, "..."]]) -> Tensors:
        """Return the momentum before the first outer step; empty if the optimizer has none."""
        if isinstance(self._config, AverageConfig):
            return {}
        return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}

    @torch.no_grad()
    def update(self, weights: Tensors, momentum: Tensors, changes: Sequence[WeightedChange]) -> None:
        """Update float32 weights and momentum in place; the order of the changes decides the rounding."""
        assert all(change.keys() == weights.keys() for _, change in changes), "all began with the same weights"
        for name, weight in weights.items():
            mean = _mean([(share, change[name]) for share, change in changes])
            if isinstance(self._config, AverageConfig):
                weight.add_(mean)
                continue
            momentum[name].mul_(self._config.momentum).add_(mean)
            weight.add_((momentum[name] * self._config.momentum).add_(mean).mul_(self._config.rate))


def _mean(changes: Sequence[tuple[int, Float[Tensor, "..."]]]) -> Float[Tensor, "..."]:
    """Return the weighted mean. In float64 the products are exact: the mean of equal changes is that change."""
    total = torch.zeros_like(changes[0][1], dtype=torch.float64)
    for weight, change in changes:
        total.add_(change.double().mul_(weight))
    return total.div_(sum(weight for weight, _ in changes)).float()
