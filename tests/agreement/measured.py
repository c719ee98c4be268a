"""The loss of one batch and its gradient, and how far two of them are apart."""

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

LOSS_WITHIN = 1e-6
"""Of the loss, or of 1 where that is smaller."""
GRADIENT_WITHIN = 1e-5
"""Of the gradient's norm."""


class Measured(NamedTuple):
    """A mean loss over a batch, and its gradient by the names that transformers has for weights."""

    loss: float
    gradient: dict[str, Tensor]

    @property
    def norm(self) -> float:
        """Of the gradient."""
        return float(torch.cat([tensor.flatten() for tensor in self.gradient.values()]).norm())

    def save(self, path: Path, *, built_by: str) -> None:
        """As safetensors, with the loss and who computed it."""
        save_file(self.gradient, path, {"loss": repr(self.loss), "made_by": built_by})

    @classmethod
    def load(cls, path: Path) -> "Measured":
        """What `save` wrote."""
        with safe_open(path, "pt") as file:
            names = file.keys()  # no dictionary: it cannot be iterated
            return cls(float(file.metadata()["loss"]), {name: file.get_tensor(name) for name in names})


class Apart(NamedTuple):
    """How far one is from another."""

    loss: float
    gradient: float

    @property
    def agree(self) -> bool:
        """Within what the arithmetic of 32 bits explains."""
        return self.loss <= LOSS_WITHIN and self.gradient <= GRADIENT_WITHIN


def measured(model: nn.Module, loss: Tensor, **renamed: str) -> Measured:
    """The loss, and what its backward pass leaves; `renamed`: how names begin here -> and there."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    gradient = {}
    for name, weight in model.named_parameters():
        assert weight.grad is not None, f"{name} has no gradient"
        begins = next((begin for begin in renamed if name.startswith(f"{begin}.")), None)
        stored = name if begins is None else renamed[begins] + name.removeprefix(f"{begins}.")
        gradient[stored] = weight.grad.detach().clone()
    return Measured(float(loss.detach()), gradient)


def apart(ours: Measured, reference: Measured) -> Apart:
    """Both relative; weights that only one of them has are an error."""
    assert set(ours.gradient) == set(reference.gradient), set(ours.gradient) ^ set(reference.gradient)
    own, other = (
        torch.cat([metric.gradient[name].double().flatten() for name in sorted(metric.gradient)])
        for metric in (ours, reference)
    )
    return Apart(
        loss=abs(ours.loss - reference.loss) / max(1.0, abs(reference.loss)),
        gradient=float((own - other).norm() / other.norm()),
    )
