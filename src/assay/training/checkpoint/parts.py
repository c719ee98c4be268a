"""The named parts of a run's state: what a commit holds besides its cursor and receipts.

    "model"      the weights, whose digest is the commit's
    "optimizer"  the moments
    "rollouts"   what a model said and has not learned yet; a fork takes none of it over

A part is asked for its state when a commit is made, and given one back, read at any world size, when a run goes
on. Tensors of the state are read in place: a restore allocates nothing that a part has already.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

MODEL = "model"
ROLLOUTS = "rollouts"

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


def model_state(model: nn.Module) -> State:
    """What a commit holds of a model: buffers, and the weights that are trained."""
    return get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))


def restore_model(model: nn.Module, state: State) -> None:
    """Put back what `model_state` gave."""
    is_whole = all(parameter.requires_grad for parameter in model.parameters())
    set_model_state_dict(model, state, options=StateDictOptions(strict=is_whole))


def training_parts(model: nn.Module, optimizer: Optimizer) -> Mapping[str, StatefulPart]:
    """What every training run commits."""
    return {
        MODEL: _Part(partial(model_state, model), partial(restore_model, model)),
        "optimizer": _Part(
            partial(get_optimizer_state_dict, model, optimizer),
            partial(set_optimizer_state_dict, model, optimizer),
        ),
    }
