"""The named parts of a run's state in a commit, besides cursor and receipts.

    "model"      the weights, whose digest is the commit's
    "optimizer"  the moments
    "rollouts"   rollouts that are not trained yet; a fork starts without them

Parts return their state when a commit is made, and receive one, read at any world size, when a run resumes. Tensors are
read in place: a restore allocates nothing that a part has already.
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
OPTIMIZER = "optimizer"
ROLLOUTS = "rollouts"

State = dict[str, Any]
"""Nested dictionaries of tensors, sharded ones too, and plain values."""


class StatefulPart(Protocol):
    """A part of a run's state; all ranks call the same methods in the same order."""

    def state(self) -> State:
        """Return the current state, with the same names at every world size."""
        ...

    def restore(self, state: State) -> None:
        """Restore a state with the names of `state()`."""
        ...


class _Part(NamedTuple):
    """A part that torch's state-dict functions handle, with names that do not depend on wrappers."""

    state: Callable[[], State]
    restore: Callable[[State], Any]


def model_state(model: nn.Module) -> State:
    """Return a model's state in a commit: buffers and trained weights."""
    return get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))


def restore_model(model: nn.Module, state: State) -> None:
    """Restore the state of `model_state`."""
    is_whole = all(parameter.requires_grad for parameter in model.parameters())
    set_model_state_dict(model, state, options=StateDictOptions(strict=is_whole))


def training_parts(
    model: nn.Module, optimizer: Optimizer, restored: Callable[[], None] = lambda: None
) -> Mapping[str, StatefulPart]:
    """Return the parts that all training runs commit; `restored` is called when the model's weights were restored."""

    def restore(state: State) -> None:
        restore_model(model, state)
        restored()

    return {
        MODEL: _Part(partial(model_state, model), restore),
        OPTIMIZER: _Part(
            partial(get_optimizer_state_dict, model, optimizer), partial(set_optimizer_state_dict, model, optimizer)
        ),
    }
