"""How a rank uses its GPU, as costs of a step: model FLOPs, memory, and how often the host waited for the GPU.

    model_flops             of the rank's lanes in this step (see `models.flops`)
    gpu_memory_peak_bytes   largest memory of tensors in this attempt so far
    host_waits              operations of the step that made the host wait; in sampled steps only
    mfu                     model FLOPs over the card's dense bfloat16 rate in the time since the step before ended

A wait is counted by torch's synchronization warnings, which cost too much for every step.
"""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from assay.data.loader.batch import LaneShare
from assay.models.graph_capture import num_waits, recorded_waits
from assay.records.devices import dense_bf16_flops
from assay.training.trainer.lane_forward import LaneForward

FIRST_SAMPLED = 3
"""The step of an attempt whose waits are counted first; earlier ones allocate and compile."""
SAMPLED_EVERY = 200


class GpuUse:
    """Measures the use of one rank's GPU; measures nothing on a CPU."""

    def __init__(self, device: torch.device, forward: LaneForward) -> None:
        self._device = device if device.type == "cuda" else None
        self._forward = forward
        self._num_steps = 0
        self._caught: Sequence[warnings.WarningMessage] | None = None
        """Warnings of the current step so far; None if it is not sampled."""
        self._ended_s: float | None = None
        """When the step before ended."""
        self._dense_flops = dense_bf16_flops(torch.cuda.get_device_name(device)) if self._device else None
        """The card's dense bfloat16 rate in FLOP/s; None if it is not known."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Wrap a step with its `costs`; waits are counted if the step is sampled."""
        self._num_steps += 1
        self._caught = None
        if self._device is None or self._num_steps % SAMPLED_EVERY != FIRST_SAMPLED:
            yield
            return
        with recorded_waits() as self._caught:
            yield

    def costs(self, lanes: Sequence[LaneShare], *, num_updates: int) -> Mapping[str, float]:
        """Return the costs of the current step, which made `num_updates` updates from these lanes."""
        if self._device is None:
            return {}
        previous_s, self._ended_s = self._ended_s, time.monotonic()
        found = {"gpu_memory_peak_bytes": float(torch.cuda.max_memory_allocated(self._device))}
        if (flops := self._forward.model_flops(lanes)) is not None:
            found["model_flops"] = num_updates * flops
            if self._dense_flops is not None and previous_s is not None:
                found["mfu"] = num_updates * flops / (self._dense_flops * (self._ended_s - previous_s))
        if self._caught is not None:
            found["host_waits"] = float(num_waits(self._caught))
        return found
