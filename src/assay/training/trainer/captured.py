"""Forward and backward passes of a rank's lanes; a pass is captured as a CUDA graph once its shapes have come again.

    first passes of a shape    plain: the host starts each kernel
    the next one               plain, then captured; both must have the same bits
    later ones                 tensors are copied into the graph's inputs; one call of the host starts all kernels

A graph holds the operators of a pass with their shapes and addresses, so it stays right as long as the host decides
nothing within a pass: not by a value of the device, and not by a random draw. Otherwise passes stay plain, with the
same bits, and the reason is told once.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from assay.base.shapes import Float, Float64, Shaped
from assay.data.loader.batch import LaneShare
from assay.distributed.flat_lane_sum import FlatLaneSum
from assay.distributed.lane_sum import LaneGradients
from assay.models.graph_capture import Capture, Replay
from assay.training.numerics import MetricSum
from assay.training.samples import LaneSamples
from assay.training.trainer.lane_forward import LaneForward, num_backwards
from assay.training.trainer.method import Tensors

LANE_S = "lane_{:04d}_s"
"""Metric of the seconds that a lane took in a step, if lanes are timed."""
BUCKET_BYTES = "bucket_{:03d}_bytes"
BUCKET_BEFORE_S = "bucket_{:03d}_before_last_s"
PLAIN_PASSES = 2
"""Passes of a shape before it is captured: capturing takes the time of several passes."""
_Key = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


class _CapturedPass(NamedTuple):
    inputs: Tensors
    sums: Float64[Tensor, "number"]
    """The result of the last replay."""
    replay: Replay


class LanePasses:
    """Runs the passes of a rank's lanes, and sums their gradients."""

    def __init__(
        self,
        forward: LaneForward,
        lane_sum: LaneGradients,
        device: torch.device,
        *,
        times_lanes: bool = False,
        capture: Capture | None = None,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        """If `times_lanes`, the device is synchronized after each lane. `capture`: None if no pass is captured. `warn`
        receives the reason why passes stay plain."""
        self._forward = forward
        self._lane_sum = lane_sum
        self._device = device
        self._times_lanes = times_lanes
        self._lane_s: dict[int, float] = {}
        """[lane]: seconds in the current step without waiting for others."""
        # Only flat gradients have one address in all passes.
        self._capture = capture if isinstance(lane_sum, FlatLaneSum) else None
        self._warn = warn
        self._captured: dict[_Key, _CapturedPass] = {}
        self._num_seen: Counter[_Key] = Counter()
        self.spent_s = {"forward_s": 0.0, "backward_s": 0.0}
        """The host's seconds in passes since it was set; replays count as backward."""

    def reset_times(self) -> None:
        """Begin to measure a step."""
        self.spent_s = {"forward_s": 0.0, "backward_s": 0.0}
        self._lane_s.clear()

    def lane_times(self) -> dict[str, float]:
        """Return the seconds of the step's lanes and buckets by metric name, if lanes are timed."""
        if not self._times_lanes:
            return {}
        times = {LANE_S.format(lane): seconds for lane, seconds in self._lane_s.items()}
        for number, (num_bytes, before_last_s) in enumerate(self._lane_sum.buckets()):
            times[BUCKET_BYTES.format(number)] = float(num_bytes)
            times[BUCKET_BEFORE_S.format(number)] = before_last_s
        return times

    def sum_gradients(
        self, samples: list[LaneSamples], *, step: int, update: int
    ) -> tuple[Float64[Tensor, "lane number"], float]:
        """Run the passes of this rank's lanes, so that `.grad` becomes the sum over all lanes of all ranks.

        Returns loss and metrics of each lane on the device, and the seconds that this rank waited for gradients of
        other ranks.
        """
        num_passes = self._lane_sum.begin_step([num_backwards(lane_samples.lane) for lane_samples in samples])
        sums = [
            self._timed_lane(lane_samples, position, num_passes[position], step=step, update=update)
            for position, lane_samples in enumerate(samples)
        ]
        # Ranks with fewer lanes than others compute blanks, because gathering sharded weights is a collective.
        for position in range(len(samples), len(num_passes)):
            blank = LaneSamples(LaneShare(samples[-1].lane.lane, ()))
            self._lane_backward(blank, position, num_passes[position], step=step, update=update)
        exchange_s = self._lane_sum.step_is_done()
        if self._times_lanes:
            self._lane_s[samples[-1].lane.lane] -= exchange_s
        return torch.stack(sums), exchange_s

    def _timed_lane(
        self, samples: LaneSamples, position: int, num_passes: int, *, step: int, update: int
    ) -> Float64[Tensor, "number"]:
        """Run `_lane_backward`, and record its seconds if lanes are timed."""
        began_s = time.monotonic()
        sums = self._lane_backward(samples, position, num_passes, step=step, update=update)
        if self._times_lanes:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            lane = samples.lane.lane
            self._lane_s[lane] = self._lane_s.get(lane, 0.0) + time.monotonic() - began_s
        return sums

    def _lane_backward(
        self, samples: LaneSamples, position: int, num_passes: int, *, step: int, update: int
    ) -> Float64[Tensor, "number"]:
        """Return the lane's loss, then sum and weight of each metric; its gradients are added to the tree."""
        total = torch.zeros(1 + 2 * len(self._forward.metrics), dtype=torch.float64, device=self._device)
        if samples.metrics:
            total += self.sums_of(total[0], samples.metrics)
        for index in range(num_passes):
            with self._lane_sum.backward_pass(position, index):
                total += self.run(samples.lane, index, step=step, update=update)
        return total

    def run(self, lane: LaneShare, index: int, *, step: int, update: int) -> Float64[Tensor, "number"]:
        """Run pass `index` of a lane; return its loss, then sum and weight of each metric."""
        tensors = self._forward.begin(lane, index, step=step, update=update)
        if tensors is None or self._capture is None or self._forward.carries or is_in_torch_dispatch_mode():
            return self._plain(tensors)
        key = tuple(sorted((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()))
        if (captured := self._captured.get(key)) is not None:
            began_s = time.monotonic()
            for name, tensor in tensors.items():
                captured.inputs[name].copy_(tensor, non_blocking=True)
            captured.replay()
            self.spent_s["backward_s"] += time.monotonic() - began_s
            return captured.sums.clone()
        self._num_seen[key] += 1
        is_due = self._num_seen[key] > PLAIN_PASSES
        return self._capture_pass(self._capture, key, tensors) if is_due else self._plain(tensors)

    def _plain(self, tensors: Tensors | None) -> Float64[Tensor, "number"]:
        is_watched = self._capture is not None
        before = _generator_states() if is_watched else []
        began_s = time.monotonic()
        loss = self._forward.loss_of_tensors(self._lane_sum.module, tensors)
        self.spent_s["forward_s"] += (half_s := time.monotonic()) - began_s
        self._lane_sum.backward(loss.sum)
        self.spent_s["backward_s"] += time.monotonic() - half_s
        if is_watched and not all(map(torch.equal, before, _generator_states())):
            self._stay_plain("they draw random numbers (dropout)")
        return self.sums_of(loss.sum, loss.metrics)

    def _capture_pass(self, capture: Capture, key: _Key, tensors: Tensors) -> Float64[Tensor, "number"]:
        """Run a pass plainly and capture it, if the captured pass has the same bits."""
        flat = self._lane_sum
        assert isinstance(flat, FlatLaneSum), flat
        sums = self._plain(tensors)
        gradient = flat.pass_gradient.clone()
        inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        captured_sums = torch.zeros_like(sums)

        def compute() -> None:
            loss = self._forward.loss_of_tensors(flat.module, inputs)
            flat.backward(loss.sum)
            captured_sums.copy_(self.sums_of(loss.sum, loss.metrics))

        try:
            replay = capture(compute)
            flat.pass_gradient.zero_()
            replay()
        except RuntimeError as error:
            self._stay_plain(f"torch cannot capture them ({str(error).partition(chr(10))[0]})")
        else:
            compared = ((sums, captured_sums), (gradient, flat.pass_gradient))
            if all(torch.equal(_bits(plain), _bits(replayed)) for plain, replayed in compared):
                self._captured[key] = _CapturedPass(inputs, captured_sums, replay)
            else:
                self._stay_plain("a captured pass has other bits than a plain one")
        flat.pass_gradient.copy_(gradient)
        return sums

    def _stay_plain(self, reason: str) -> None:
        if self._capture is not None:
            self._capture = None
            self._captured.clear()
            self._warn(
                f"Passes are not captured as CUDA graphs: {reason}. The bits are the same, but the host starts each "
                "kernel, so a GPU may wait for it (docs/gpu.md)."
            )

    def sums_of(self, loss: Float[Tensor, ""], metrics: Mapping[str, MetricSum]) -> Float64[Tensor, "number"]:
        """Return loss, sums and weights as one vector; zeros for metrics that are not among these."""
        parts = [loss.detach().double()]
        for name in self._forward.metrics:
            parts += [_number(value, parts[0]) for value in metrics.get(name, MetricSum(0.0, 0.0))]
        return torch.stack(parts)


def _number(value: Shaped[Tensor, ""] | float, like: Float64[Tensor, ""]) -> Float64[Tensor, ""]:
    # A number is filled in by a kernel: a copy from the host would make it wait.
    return value.detach().to(like) if isinstance(value, Tensor) else torch.full_like(like, value)


def _bits(tensor: Float[Tensor, "number"]) -> Shaped[Tensor, "byte"]:
    """Return the bits of numbers, so that NaN equals itself."""
    return tensor.view(torch.uint8)


def _generator_states() -> list[Shaped[Tensor, "byte"]]:
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states
