"""The named parts of a run's state: what a commit holds besides its cursor and receipts.

    "model"      the weights, whose digest is the commit's
    "optimizer"  the moments
    others       whatever a method must not lose at a restart

A part is asked for its state when a commit is made, and given one back, read at any world size, when a run goes
on. Tensors of the state are read in place: a restore allocates nothing that a part has already.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

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


class _Part(NamedTuple):
    """One that torch knows how to take apart, by names that are the same in any wrapper."""

    state: Callable[[], State]
    restore: Callable[[State], Any]


def training_parts(model: nn.Module, optimizer: Optimizer) -> Mapping[str, StatefulPart]:
    """What every training run commits."""
    return {
        MODEL: _Part(partial(get_model_state_dict, model), partial(set_model_state_dict, model)),
        "optimizer": _Part(
            partial(get_optimizer_state_dict, model, optimizer),
            partial(set_optimizer_state_dict, model, optimizer),
        ),
    }
