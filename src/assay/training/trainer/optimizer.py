"""AdamW and its learning rate: the rate is a function of the step, so there is no scheduler state."""

import math

import torch
from torch import Tensor, nn

from assay.training.trainer.config import OptimizerConfig, ScheduleConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Weight decay on matrices only; fused kernels."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        fused=True,
    )


def learning_rate(config: OptimizerConfig, *, step: int, num_steps: int) -> float:
    """The rate of the update that makes `step` (from 1) of `num_steps`."""
    schedule = config.schedule
    if step <= schedule.warmup_steps:
        return config.learning_rate * step / schedule.warmup_steps
    return config.learning_rate * _decayed(schedule, step, num_steps)


def _decayed(schedule: ScheduleConfig, step: int, num_steps: int) -> float:
    if schedule.type == "constant":
        return 1.0
    progress = (step - schedule.warmup_steps) / max(1, num_steps - schedule.warmup_steps)
    falling = 1 - progress if schedule.type == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return schedule.final_fraction + (1 - schedule.final_fraction) * falling


def average_and_clip(gradients: list[Tensor], *, num_rows: int, max_norm: float | None) -> float:
    """Turn summed gradients into the mean over rows, clipped, in place; returns the mean's 2-norm.

    One pass over the gradients: the mean and the clipping are one factor.
    """
    norm = float(torch.nn.utils.get_total_norm(gradients)) / num_rows
    factor = 1 / num_rows
    if max_norm is not None and norm > max_norm:
        factor *= max_norm / norm
    torch._foreach_mul_(gradients, factor)
    return norm
