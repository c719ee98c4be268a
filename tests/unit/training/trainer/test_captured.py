"""Passes that are captured, steps that are started ahead, and weights that are computed with in bfloat16.

On a CPU, the capture of a pass is replaced by a plain call on the graph's input buffers.
"""

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.data.loader.batch import LaneShare, MicroBatch, StepShare
from assay.distributed.flat_lane_sum import FlatLaneSum
from assay.distributed.ranks import Ranks
from assay.models.graph_capture import Capture
from assay.records.cursor import Cursor
from assay.training.numerics import MetricSum
from assay.training.samples import DatasetRows
from assay.training.trainer.captured import LanePasses
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer
from assay.training.trainer.method import Loss
from assay.training.trainer.optimizer import apply_update, build_optimizer
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Stepper, StepTotals, initial_model
from forked_ranks import on_ranks
from no_host_waits import NoHostWaits
from noisy_regression import NoisyRegression, micro_batch
from shared_lanes import lane_sum_of, shares_of
from unit.training.trainer.test_step import CONFIG, CPU, SEED, NotFinite, SteepAtZero

LANES = [[[1, 2], [3]], [[4, 5]], [[6, 9]], [[7], [8], [9, 10]]]
"""[lane][micro-batch][row]; micro-batches of one row and of two."""
NUM_STEPS = 6


class Quiet(NoisyRegression):
    """Draws nothing at random, so its passes can be captured."""

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> dict[str, torch.Tensor]:
        rows = torch.from_numpy(micro_batch.row_ids.astype(np.float32)).to(device)
        return {"points": torch.stack([rows / 10, rows.sin(), rows.cos()], dim=1)}

    def loss(self, model: torch.nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        error = model(tensors["points"])
        return Loss(error.square().sum(), {"error": MetricSum(error.detach().abs().sum(), len(error))})


class QuietNotFinite(Quiet):
    """Wrong on row 6."""

    def loss(self, model: torch.nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        found = super().loss(model, tensors, frozen_models)
        is_wrong = (tensors["points"][:, 0] == 0.6).any()
        return found._replace(sum=torch.where(is_wrong, torch.nan, found.sum))


class PlainCalls:
    """Stands for the capture of CUDA graphs; counts the replays."""

    def __init__(self) -> None:
        self.num_captured = self.num_replays = 0

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        self.num_captured += 1

        def replay() -> None:
            self.num_replays += 1
            compute()

        return replay


def steps_of(
    ranks: Ranks,
    method: Any,
    *,
    is_flat: bool,
    capture: Capture | None = None,
    defers: bool = False,
    is_fused: bool = False,
    within: Any = nullcontext,
) -> tuple[list[StepTotals], list[float]]:
    """Totals of the steps, of which every third is spot-checked, and the last weights.

    `is_fused`: the optimizer's kernels are those that a GPU has. `within`: a context around each deferred step.
    """
    forward = LaneForward(method, device=CPU, precision="float32", seed=SEED)
    model = initial_model(method, seed=SEED, device=CPU)
    shares = shares_of(ranks, len(LANES))
    lane_sum = FlatLaneSum(model, ranks, shares) if is_flat else lane_sum_of(model, ranks, len(LANES))
    recomputer = LaneRecomputer(forward, DatasetRows(), model)
    optimizer = build_optimizer(model, CONFIG)
    for group in optimizer.param_groups:
        group.update(fused=is_fused, foreach=not is_fused)
    stepper = Stepper(
        DatasetRows(), forward, lane_sum, optimizer, ranks, config=CONFIG, num_steps=NUM_STEPS,
        spot_check=SpotCheck(recomputer, lane_sum, ranks, is_due=lambda step: step % 3 == 0, seed=SEED),
        capture=capture, defers=defers,
    )  # fmt: skip
    share = StepShare(
        Cursor(), tuple(LaneShare(number, tuple(map(micro_batch, lane))) for number, lane in enumerate(LANES))
    )
    found, unread = list[StepTotals](), None
    for step in range(1, NUM_STEPS + 1):
        with within() if step % 3 else nullcontext():
            started = stepper.start(share, step=step, stop_requested=False)
        assert started.is_running == (defers and step % 3 != 0)
        if unread is not None:
            found.append(unread.totals())
        unread = started
    assert unread is not None
    found.append(unread.totals())
    lane_sum.close()
    numbers = [p for parameter in model.parameters() for p in parameter.flatten().tolist()]
    return [portable(totals) for totals in found], numbers


def portable(totals: StepTotals) -> StepTotals:
    mappings = {name: dict(getattr(totals, name)) for name in ("metrics", "digests")}
    return totals._replace(**mappings, costs={}, exchange_s=0.0)


@pytest.mark.parametrize("defers", [False, True])
@pytest.mark.parametrize("method", [Quiet(), NoisyRegression()], ids=["captured", "with random draws"])
def test_flat_captured_and_deferred_steps_have_the_bits_of_plain_ones(method, defers, tmp_path: Path) -> None:
    def compared(ranks: Ranks):
        capture = PlainCalls()
        ahead = steps_of(ranks, method, is_flat=True, capture=capture, defers=defers)
        return steps_of(ranks, method, is_flat=False), ahead, (capture.num_captured, capture.num_replays)

    [(plain, ahead, counts)] = on_ranks(1, compared, tmp_path)
    assert ahead == plain
    assert {len(totals.digests) for totals in plain[0]} == {0, 3}
    # The passes have two shapes; of each, the first two are plain, and the third is captured and tried.
    num_passes = sum(map(len, LANES)) * NUM_STEPS
    assert counts == ((2, num_passes - 4) if isinstance(method, Quiet) else (0, 0))


@pytest.mark.parametrize(
    "method", [QuietNotFinite(), SteepAtZero(), NotFinite()], ids=lambda method: type(method).__name__
)
@pytest.mark.parametrize(("defers", "is_fused"), [(False, False), (True, False), (True, True)])
def test_a_step_that_is_not_finite_changes_no_weight(method, defers: bool, is_fused: bool, tmp_path: Path) -> None:
    def compared(ranks: Ranks):
        initial = initial_model(method, seed=SEED, device=CPU)
        before = [p for parameter in initial.parameters() for p in parameter.flatten().tolist()]
        steps = steps_of(ranks, method, is_flat=True, capture=PlainCalls(), defers=defers, is_fused=is_fused)
        return before, steps

    [(before, (totals, weights))] = on_ranks(1, compared, tmp_path)
    assert weights == before
    assert not any(step.is_applied for step in totals)
    lanes = {QuietNotFinite: (2,), SteepAtZero: (), NotFinite: (3,)}[type(method)]
    assert {step.bad_lanes for step in totals} == {lanes}


def test_a_deferred_step_makes_the_host_wait_for_nothing(tmp_path: Path) -> None:
    def compared(ranks: Ranks):
        options: dict[str, Any] = {"is_flat": True, "defers": True, "is_fused": True}
        return steps_of(ranks, Quiet(), within=NoHostWaits, **options), steps_of(ranks, Quiet(), **options)

    [(watched, free)] = on_ranks(1, compared, tmp_path)
    assert watched == free


@pytest.mark.parametrize("is_fused", [False, True])
def test_an_update_that_is_not_finite_changes_neither_weights_nor_moments_nor_counts(is_fused: bool) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(model, CONFIG)
    for group in optimizer.param_groups:
        group.update(fused=is_fused, foreach=not is_fused)
    states = []
    for is_finite in (True, False, True):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5 if is_finite else torch.nan)
        apply_update(optimizer, 0.1, torch.tensor(is_finite))
        states.append([t.clone() for s in optimizer.state.values() for t in (*s.values(), *model.parameters())])
    good, skipped, after = states
    assert all(map(torch.equal, good, skipped)) and not any(map(torch.equal, skipped, after))
    assert {optimizer.state[parameter]["step"].item() for parameter in model.parameters()} == {2.0}


class Passes:
    """Passes of a method over micro-batches of rows, on flat gradients."""

    def __init__(self, ranks: Ranks, method: Any, capture: Capture, *, updates_per_step: int = 1) -> None:
        self.messages: list[str] = []
        forward = LaneForward(method, device=CPU, precision="float32", seed=SEED, updates_per_step=updates_per_step)
        self.lane_sum = FlatLaneSum(method.build_model(), ranks, shares_of(ranks, 1))
        self._passes = LanePasses(forward, self.lane_sum, CPU, capture=capture, warn=self.messages.append)

    def run(self, rows: list[int]) -> list[float]:
        """Loss, metrics and gradient."""
        sums = self._passes.run(LaneShare(0, (micro_batch(rows),)), 0, step=1, update=0)
        return [*sums.tolist(), *self.lane_sum.pass_gradient.tolist()]


def messages_of(method: Any, rows: list[list[int]], tmp_path: Path, capture: Capture) -> list[str]:
    def run(ranks: Ranks) -> list[str]:
        passes = Passes(ranks, method, capture)
        for some in rows:
            passes.run(some)
        return passes.messages

    [found] = on_ranks(1, run, tmp_path)
    return found


def cannot_capture(compute: Callable[[], None]) -> Callable[[], None]:
    raise RuntimeError("operation not permitted when stream is capturing\nmore")


def captures_wrongly(compute: Callable[[], None]) -> Callable[[], None]:
    return lambda: None


@pytest.mark.parametrize(
    ("method", "rows", "capture", "reason"),
    [
        (NoisyRegression(), [[1]] * 4, PlainCalls(), r"they draw random numbers \(dropout\)"),
        (Quiet(), [[1]] * 4, cannot_capture, r"torch cannot capture them \(operation not permitted .* capturing\)"),
        (Quiet(), [[1]] * 4, captures_wrongly, "a captured pass has other bits than a plain one"),
    ],
)
def test_passes_that_stay_plain_say_so_once_with_the_reason(method, rows, capture, reason, tmp_path):
    [message] = messages_of(method, rows, tmp_path, capture)
    assert re.search(reason, message) and "docs/gpu.md" in message


def test_passes_whose_tensors_later_updates_read_stay_plain(tmp_path: Path) -> None:
    """A replay would not hand over the tensors of its own lane."""

    def run(ranks: Ranks) -> int:
        capture = PlainCalls()
        passes = Passes(ranks, Quiet(), capture, updates_per_step=2)
        for _ in range(5):
            passes.run([1])
        return capture.num_captured

    assert on_ranks(1, run, tmp_path) == [0]


def test_a_replay_computes_the_rows_that_it_is_given_and_not_the_captured_ones(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> tuple[list[list[float]], list[list[float]]]:
        rows = [[1, 2], [3, 4], [5, 6], [7, 8], [1, 2]]
        torch.manual_seed(0)
        replayed = Passes(ranks, Quiet(), PlainCalls())
        torch.manual_seed(0)
        plain = Passes(ranks, Quiet(), cannot_capture)
        return [replayed.run(some) for some in rows], [plain.run(some) for some in rows]

    [(replayed, plain)] = on_ranks(1, run, tmp_path)
    assert replayed == plain and len({tuple(numbers) for numbers in replayed}) == 4
