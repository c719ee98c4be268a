"""The state that a cluster needs beside model and optimizer, as a part of each commit.

    weights    the outer weights, with which the inner steps began
    momentum   of the outer optimizer, if it has one
    moments    of the inner optimizer, after the last part of this cluster that an entry names
    first      digest of the moments with which the inner steps began
    weight     what the inner steps so far were trained on: rows, tokens or pairs

If an outer step does not name the cluster, its model returns to `weights` and its optimizer to `moments`.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from assay.base.shapes import UInt8
from assay.training.checkpoint.parts import State, StatefulPart
from assay.training.checkpoint.saver import weights_digest
from assay.training.outer.config import OuterOptimizerConfig
from assay.training.outer.update import OuterOptimizer, Tensors, WeightedChange

OUTER = "outer"
"""Name of the part in a commit."""


class OuterWeights:
    """A `StatefulPart`: outer weights, outer momentum, and the moments to return to."""

    def __init__(self, model: nn.Module, optimizer: StatefulPart, config: OuterOptimizerConfig) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimizer = optimizer
        self._update = OuterOptimizer(config)
        self.weights: Tensors = {name: p.detach().to("cpu", copy=True) for name, p in self._parameters.items()}
        self.momentum = self._update.momentum_of(self.weights)
        self.moments = deepcopy(optimizer.state())
        # PyTorch fills the state of a new AdamW by a step with zero gradients, which its step count would include.
        for _, tensor in _tensors(self.moments["state"]):
            tensor.zero_()
        self.return_to_moments()
        self._first_digest = self._digest_of_moments()
        self._weight = torch.zeros((), dtype=torch.int64)

    def state(self) -> State:
        """See `StatefulPart`."""
        return {
            "weights": self.weights,
            "momentum": self.momentum,
            "moments": self.moments,
            "first": self._first_digest,
            "weight": self._weight,
        }

    def restore(self, state: State) -> None:
        """See `StatefulPart`."""
        self.weights, self.momentum, self.moments, self._first_digest, self._weight = (
            state[name] for name in ("weights", "momentum", "moments", "first", "weight")
        )

    @property
    def weight(self) -> int:
        """Weight of the inner steps so far."""
        return int(self._weight)

    def add_weight(self, weight: int) -> None:
        self._weight += weight

    def change(self) -> Tensors:
        """Return what the inner steps have changed so far."""
        return {name: p.detach().cpu() - self.weights[name] for name, p in self._parameters.items()}

    def accept_moments(self) -> None:
        """Make the optimizer's moments those to return to."""
        self.moments = deepcopy(self._optimizer.state())

    def return_to_moments(self) -> None:
        self._optimizer.restore(deepcopy(self.moments))

    @torch.no_grad()
    def take_step(self, changes: Sequence[WeightedChange]) -> None:
        """Take an outer step with (weight, change) of each cluster, and give the model the outer weights."""
        if any(weight for weight, _ in changes):
            self._update.update(self.weights, self.momentum, changes)
        for name, parameter in self._parameters.items():
            parameter.copy_(self.weights[name])
        self._first_digest = self._digest_of_moments()
        self._weight.zero_()

    def digest(self) -> str:
        """Return the digest of the outer weights."""
        return weights_digest(self.weights)

    def first_moments_digest(self) -> str:
        """Return the digest of the moments that the optimizer had before the inner steps."""
        return bytes(self._first_digest.tolist()).hex()

    def moments_digest(self) -> str:
        """Return the digest of the optimizer's moments."""
        return weights_digest(dict(_tensors(self._optimizer.state())))

    def _digest_of_moments(self) -> UInt8[Tensor, "byte"]:
        return torch.tensor(list(bytes.fromhex(self.moments_digest())), dtype=torch.uint8)


def _tensors(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in state.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{name}/")
