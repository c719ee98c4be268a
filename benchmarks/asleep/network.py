"""The network: stages that take their time, and whose gradients are as many numbers as shall be exchanged."""

import time
from typing import Any

import torch
from torch import Tensor, nn

FORWARD_SHARE = 1 / 3
"""Of a lane's time; backward takes the rest, as it does where matrices are multiplied."""


class _Asleep(torch.autograd.Function):
    """Passes numbers on as they are, and takes its time both ways."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds * FORWARD_SHARE)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds * (1 - FORWARD_SHARE))
        return gradients[0], None


class Stage(nn.Module):
    """Scales its numbers by one weight, which is the product of many."""

    direction: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.register_buffer("direction", torch.linspace(-1.0, 2.0, width) / width, persistent=False)

    def forward(self, values: Tensor, seconds: float) -> Tensor:
        """[row] in, [row] out. Backward sleeps first, and has the weight's gradient then."""
        scaled: Tensor = _Asleep.apply(values * (1.0 + self.direction @ self.weight), seconds)  # type: ignore[no-untyped-call]
        return scaled


class AsleepNetwork(nn.Module):
    """One number a row in, a guess of it out."""

    def __init__(self, num_parameters: int, num_stages: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(num_parameters // num_stages) for _ in range(num_stages))
        self.dropout = nn.Dropout(0.1)

    def forward(self, values: Tensor, seconds: float = 0.0) -> Tensor:
        """`seconds`: that forward and backward sleep together."""
        for stage in self.stages:
            values = stage(self.dropout(values), seconds / len(self.stages))
        return values
