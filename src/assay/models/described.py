"""Models without numbers: their operators have shapes and compute nothing, so a model of any size is built at once."""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor

from assay.base.shapes import Shaped

Model = TypeVar("Model", bound=nn.Module)


def builds_without_numbers() -> bool:
    """Return whether models that are built now have shapes only, so nothing can be checked about their values."""
    return active_fake_mode() is not None


def has_numbers(tensor: Shaped[Tensor, "..."]) -> bool:
    """Return False for a tensor that has a shape only."""
    return not isinstance(tensor, FakeTensor)


def on_device(model: Model, device: torch.device) -> Model:
    """Move a model to a device; one without numbers stays where it is."""
    return model if builds_without_numbers() else model.to(device)
