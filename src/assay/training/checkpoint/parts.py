"""The named parts of a run's state: what a commit holds besides its cursor and receipts.

    "model"      the weights, whose digest is the commit's
    "optimizer"  the moments
    others       whatever a method must not lose at a restart

A part is asked for its state when a commit is made, and given one back, read at any world size, when a run goes
on. Tensors of the state are read in place: a restore allocates nothing that a part has already.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

MODEL = "model"

State = dict[str, Any]
"""Tensors, sharded ones too, and plain values, by name; nested."""


class StatefulPart(Protocol):
    """A part of a run's state; all ranks call the same methods in the same order."""

    def state(self) -> State:
        """As it is now; the same names at every world size."""
        ...

    def restore(self, state: State) -> None:
        """Go back to a state that has the names of `state()`."""
        ...


class ModelPart:
    """A model's weights, by the names that they have without any wrapper."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state(self) -> State:
        """See `StatefulPart`."""
        return get_model_state_dict(self._model)

    def restore(self, state: State) -> None:
        """See `StatefulPart`."""
        set_model_state_dict(self._model, state)


class OptimizerPart:
    """An optimizer's moments, by the names of their weights."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer

    def state(self) -> State:
        """See `StatefulPart`."""
        return get_optimizer_state_dict(self._model, self._optimizer)

    def restore(self, state: State) -> None:
        """See `StatefulPart`."""
        set_optimizer_state_dict(self._model, self._optimizer, state)


def training_parts(model: nn.Module, optimizer: Optimizer) -> Mapping[str, StatefulPart]:
    """What every training run commits."""
    return {MODEL: ModelPart(model), "optimizer": OptimizerPart(model, optimizer)}
