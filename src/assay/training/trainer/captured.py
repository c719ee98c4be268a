"""Forward and backward pass of a micro-batch, captured as a CUDA graph once its shapes have come again.

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
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.method import Tensors

PLAIN_PASSES = 2
"""Passes of a shape before it is captured: capturing takes the time of several passes."""
_Key = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


class _CapturedPass(NamedTuple):
    inputs: Tensors
    sums: Float64[Tensor, "number"]
    """The result of the last replay."""
    replay: Replay


class LanePasses:
    """Runs the passes of a rank's lanes within `LaneGradients.backward_pass`."""

    def __init__(
        self,
        forward: LaneForward,
        lane_sum: LaneGradients,
        *,
        capture: Capture | None = None,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        """`capture`: None if no pass is captured. `warn` receives the reason why passes stay plain."""
        self._forward = forward
        self._lane_sum = lane_sum
        # Only flat gradients have one address in all passes.
        self._capture = capture if isinstance(lane_sum, FlatLaneSum) else None
        self._warn = warn
        self._captured: dict[_Key, _CapturedPass] = {}
        self._num_seen: Counter[_Key] = Counter()
        self.spent_s = {"forward_s": 0.0, "backward_s": 0.0}
        """The host's seconds in passes since it was set; replays count as backward."""

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
