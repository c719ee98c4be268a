"""Weights and moments of a session's model as one object: a safetensors file, whose numbers are all of the state.

    model.NAME                   a trained weight, or a buffer
    optimizer.NAME.exp_avg ...   moments and step count

The bytes are a function of the numbers, so two processes that store the same state store the same object.
"""

from collections.abc import Mapping

from safetensors.torch import load, save
from torch import Tensor

from assay.base.errors import DamagedDataError
from assay.base.shapes import Shaped
from assay.training.checkpoint.parts import MODEL, State

Tensors = dict[str, Shaped[Tensor, "..."]]
MOMENTS = "optimizer"


def stored(model: State, moments: Mapping[str, State] | None = None) -> bytes:
    """Return weights, and the moments of each parameter, as a file."""
    tensors = {f"{MODEL}.{name}": tensor for name, tensor in model.items()}
    for parameter, own in (moments or {}).items():
        tensors |= {f"{MOMENTS}.{parameter}.{name}": moment for name, moment in own.items()}
    data: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def stored_model(data: bytes, own: State) -> Tensors:
    """Return the weights of a file for a model with the state `own`. Raises `DamagedDataError` if it is of another."""
    return _like(own, _under(load(data), MODEL))


def stored_moments(data: bytes, own: Mapping[str, State]) -> dict[str, Tensors]:
    """Return the moments of each parameter likewise."""
    found = _under(load(data), MOMENTS)
    return {parameter: _like(moments, _under(found, parameter)) for parameter, moments in own.items()}


def _under(tensors: Tensors, prefix: str) -> Tensors:
    return {
        name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")
    }


def _like(own: State, found: Tensors) -> Tensors:
    for name, tensor in own.items():
        if name not in found or found[name].shape != tensor.shape:
            raise DamagedDataError(
                f"stored weights of another model: '{name}' is missing, or has another shape. Was the base model's "
                "file changed?"
            )
    return {name: found[name] for name in own}
