"""AdamW and its learning rate. The rate is a function of the step, so there is no scheduler state."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from assay.base.shapes import Bool, Float, Float64, Shaped
from assay.distributed.lane_sum import trained_parameters
from assay.training.trainer.config import OptimizerConfig, ScheduleConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only.

    On a CPU, the fused kernel rounds the last elements of a tensor differently, so a sharded tensor would get
    other bits than a whole one; the foreach kernels treat all elements alike.
    """
    trained = trained_parameters(model)
    is_on_gpu = all(parameter.is_cuda for parameter in trained)
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        fused=is_on_gpu,
        foreach=not is_on_gpu,
    )


def learning_rate(config: OptimizerConfig, *, step: int, num_steps: int) -> float:
    """Return the learning rate of step `step` (from 1) of `num_steps`."""
    schedule = config.schedule
    if step <= schedule.warmup_steps:
        return config.learning_rate * step / schedule.warmup_steps
    return config.learning_rate * _decayed(schedule, step, num_steps)


def _decayed(schedule: ScheduleConfig, step: int, num_steps: int) -> float:
    if schedule.type == "constant":
        return 1.0
    progress = (step - schedule.warmup_steps) / (num_steps - schedule.warmup_steps)
    falling = 1 - progress if schedule.type == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return schedule.final_fraction + (1 - schedule.final_fraction) * falling


def average_and_clip(
    gradients: Sequence[Float[Tensor, "..."]], *, weight: int, max_norm: float | None
) -> Float64[Tensor, ""]:
    """Turn summed gradients into the clipped mean, in place; return the mean's 2-norm, on the device.

    `weight` is what the mean is over (rows, tokens, pairs). Mean and clipping are one factor, so there is one
    pass over the gradients. If the norm is not finite, the gradients stay as they are.
    """
    norm = gradient_norm(gradients) / weight
    factor = torch.full_like(norm, 1 / weight)
    if max_norm is not None:
        factor = torch.where(norm > max_norm, factor * (max_norm / norm), factor)
    factor = torch.where(norm.isfinite(), factor, 1.0)
    torch._foreach_mul_([local_part(gradient) for gradient in gradients], factor.to(gradients[0].dtype))
    return norm


def apply_update(optimizer: torch.optim.Optimizer, rate: float, is_finite: Bool[Tensor, ""]) -> None:
    """Make the update with learning rate `rate`, unless loss or gradient are not finite.

    The fused kernels of a GPU read on the device that an update must change nothing; the host does not wait for it.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    group = optimizer.param_groups[0]
    if group["fused"] and not isinstance(group["params"][0], DTensor):
        # As torch.amp.GradScaler tells it: where `found_inf` is 1, neither weights nor moments nor step counts change.
        optimizer.found_inf = is_finite.logical_not().float()  # type: ignore[attr-defined]
    elif not is_finite:
        return
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def gradient_norm(gradients: Sequence[Float[Tensor, "..."]]) -> Float64[Tensor, ""]:
    """Return the 2-norm over all gradients, with the same bits for any sharding of their rows.

    Each row's norm is computed where the row is; the norms of all rows are then added in one order.
    """
    norms = torch.cat([_row_norms(gradient) for gradient in gradients]).double()
    sharded = next((gradient for gradient in gradients if isinstance(gradient, DTensor)), None)
    if sharded is not None:
        # Rows of other ranks are zeros here, and adding a zero is exact.
        dist.all_reduce(norms, group=sharded.device_mesh.get_group())
    return norms.square().sum().sqrt()


def local_part(tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return this rank's shard, or the whole tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return the whole tensor; if it is sharded, all ranks must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _row_norms(gradient: Float[Tensor, "*dims"]) -> Float[Tensor, "row"]:
    """Return the norms of the rows (first dimension); zeros for rows of other ranks."""
    local = local_part(gradient)
    local_norms = local.abs() if local.ndim < 2 else torch.linalg.vector_norm(local.flatten(1), dim=1)
    if not isinstance(gradient, DTensor):
        return local_norms.reshape(-1)
    num_rows, mesh = gradient.shape[0], gradient.device_mesh
    first = min(num_rows, mesh.get_local_rank() * -(-num_rows // mesh.size()))
    norms = local_norms.new_zeros(num_rows)
    norms[first : first + len(local_norms)] = local_norms
    return norms
