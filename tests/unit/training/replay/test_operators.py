"""Operators watched and audited on a small model, with a wrong kernel planted through torch.library."""

import re
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.loader.batch import MicroBatch, Packing, Ragged
from assay.training.replay.audit import OutsideBound
from assay.training.replay.watch import NotFinite, OperatorWatch

NUM_ROWS, NUM_TOKENS, WIDTH = 4, 13, 8


class Pooled(nn.Module):
    """Pools what precedes a mask's end, and looks the end's position up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.ends = nn.Embedding(NUM_TOKENS, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.mix(self.words(ids)) * mask[:, :, None]
        last = mask.long().sum(dim=1) - 1
        pooled = states.sum(dim=1) / (last[:, None] + 1) + self.ends(last)
        return self.head(nn.functional.dropout(pooled, 0.1)).squeeze(-1)


def micro_batch() -> MicroBatch:
    ids = np.random.default_rng(0).integers(0, 50, (NUM_ROWS, NUM_TOKENS))
    lengths = np.full(NUM_ROWS, NUM_TOKENS, np.int32)
    return MicroBatch(np.arange(70, 70 + NUM_ROWS, dtype=np.uint64), {"input_ids": Ragged(ids, lengths)}, {})


@pytest.fixture
def wrong_sum() -> Iterator:
    """`wrong_sum(corner)`: from now on `corner(x, right result)` is what torch.sum gives along an axis."""
    right = torch.library.get_kernel(torch.ops.aten.sum.dim_IntList, "CPU")
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def plant(corner) -> None:
            def kernel(keyset, x, dim, keepdim=False, dtype=None):
                return corner(x, right.call_boxed(keyset, x, dim, keepdim, dtype=dtype))

            library.impl("sum.dim_IntList", kernel, "CPU", with_keyset=True, allow_override=True)

        yield plant


def watched(inspector, *, scale: float = 1.0) -> tuple[OperatorWatch, str]:
    """Forward, backward and an update of the model; what was found, and the error that it ended with."""
    torch.manual_seed(0)
    model, batch = Pooled(), micro_batch()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    watch = OperatorWatch(model, inspector, lambda: (3, batch))
    with watch:
        try:
            mask = torch.ones(NUM_ROWS, NUM_TOKENS)
            loss = (model(torch.from_numpy(batch.tokens.values), mask) * scale).square().mean()
            loss.backward()
            optimizer.step()
        except IndexError as error:
            return watch, str(error)
    return watch, ""


@pytest.mark.parametrize("inspector", [NotFinite, OutsideBound])
def test_a_sound_step_has_no_finding(inspector) -> None:
    watch, _ = watched(inspector())
    assert watch.finding is None
    assert watch.num_calls > 40


def off_by_the_tail(x, right):
    return right - x[:, -1] if x.dim() == 3 else right


def not_a_number(x, right):
    return torch.where(x[:, 0, :1] > 0.5, float("nan"), right) if x.dim() == 3 else right


def too_many(x, right):
    return right + NUM_TOKENS if x.dtype == torch.int64 else right


@pytest.mark.parametrize("corner", [off_by_the_tail, not_a_number, too_many])
def test_whatever_the_symptom_the_audit_names_the_wrong_sum(corner, wrong_sum) -> None:
    wrong_sum(corner)
    watch, raised = watched(OutsideBound())
    assert watch.finding is not None
    assert (watch.finding.operator, watch.finding.module) == ("aten.sum.dim_IntList", "Pooled")
    assert (watch.finding.phase, watch.finding.lane) == ("forward", 3)
    assert set(watch.finding.row_ids) <= {70, 71, 72, 73}
    assert bool(raised) == (corner is too_many)  # the symptom comes later: an index out of range


def test_the_watch_names_the_module_in_whose_backward_the_first_infinity_is_made() -> None:
    # The largest float32 times the mean's 2/n is finite; times the head's weights and activations it is not.
    watch, _ = watched(NotFinite(), scale=3e37)
    assert watch.finding is not None
    assert watch.finding.problem == "not finite"
    (largest,) = re.findall(r"all inputs are finite, the largest (\S+)", watch.finding.detail)
    assert 1e30 < float(largest) < 3.5e38, "so the operator that overflowed is not to blame"


def test_infinities_that_were_asked_for_are_no_finding() -> None:
    watch = OperatorWatch(nn.Identity(), NotFinite(), lambda: (None, None))
    with watch:
        scores = torch.zeros(2, 3).masked_fill(torch.tensor([[False, True, False]]), -float("inf"))
        torch.softmax(scores, dim=1)
    assert watch.finding is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (64, 4096)])
def test_honest_rounding_is_within_the_bounds(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype)
    y = torch.randn(shape, generator=generator).to(dtype)
    watch = OperatorWatch(nn.Identity(), OutsideBound(), lambda: (None, None))
    with watch:
        torch.nn.functional.gelu((x @ y.T).sum(dim=0).cumsum(0) / 3).exp()
        torch.softmax(x - y, dim=1).mean()
        torch.nn.functional.layer_norm(x * 1e3, (shape[1],))
    assert watch.finding is None, watch.finding


@pytest.mark.parametrize("num_terms", [100, 4096])
def test_one_number_left_out_of_a_sum_is_outside_the_bound(num_terms: int, wrong_sum) -> None:
    wrong_sum(lambda x, right: right - x[:, -1])
    watch = OperatorWatch(nn.Identity(), OutsideBound(), lambda: (None, None))
    with watch:
        torch.ones(2, num_terms).sum(dim=1)
    assert watch.finding is not None


class Surprise(nn.Module):
    """Of each token, one number; that of token 0 is infinite."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return -ids.double().log()


def named_rows(batch: MicroBatch, ids: np.ndarray) -> tuple[int, ...]:
    model = Surprise()
    watch = OperatorWatch(model, NotFinite(), lambda: (0, batch))
    with watch:
        model(torch.from_numpy(ids))
    assert watch.finding is not None
    return watch.finding.row_ids


def ragged(*rows: list[int]) -> Ragged:
    return Ragged(np.array(rows), np.full(len(rows), len(rows[0]), np.int32))


@pytest.mark.parametrize("cut", [lambda lines: lines, lambda lines: lines[:, 1:].flatten()])
@pytest.mark.parametrize(("line", "row"), [(0, 7), (1, 8), (2, 7), (3, 8)])
def test_both_sequences_of_a_pair_are_its_rows(line: int, row: int, cut) -> None:
    chosen, rejected = ragged([1, 2, 3], [4, 5, 6]), ragged([1, 2, 9], [4, 5, 9])
    batch = MicroBatch(np.array([7, 8], np.uint64), {"input_ids": chosen, "rejected_ids": rejected}, {})
    lines = np.concatenate([chosen.values, rejected.values])
    lines[line, 2] = 0
    assert named_rows(batch, cut(lines)) == (row,)


@pytest.mark.parametrize(("index", "row"), [(1, 7), (3, 8), (4, 8)])
def test_of_packed_rows_the_one_is_named_whose_token_it_is(index: int, row: int) -> None:
    positions, segments = np.array([[0, 1, 0, 1, 2]], np.int32), np.array([[1, 1, 2, 2, 2]], np.int32)
    packing = Packing(positions, segments, np.array([0, 2, 5], np.int32))
    batch = MicroBatch(np.array([7, 8], np.uint64), {"input_ids": ragged([1, 2, 3, 4, 5])}, {}, packing)
    line = batch.tokens.values.copy()
    line[0, index] = 0
    assert named_rows(batch, line) == (row,)


def test_a_model_that_is_asked_beside_the_trained_one_is_no_update() -> None:
    batch, frozen_model = micro_batch(), Surprise()
    watch = OperatorWatch(Pooled(), NotFinite(), lambda: (0, batch), frozen_models={"reference": frozen_model})
    with watch, torch.no_grad():
        frozen_model(torch.zeros(NUM_ROWS, NUM_TOKENS))
    assert watch.finding is not None
    assert (watch.finding.module, watch.finding.phase, watch.finding.lane) == ("reference", "forward", 0)


def test_what_a_loss_does_between_modules_is_no_update() -> None:
    batch = micro_batch()
    watch = OperatorWatch(Pooled(), NotFinite(), lambda: (0, batch), is_forward=lambda: True)
    with watch:
        torch.zeros(NUM_ROWS).log()
    assert watch.finding is not None and (watch.finding.phase, watch.finding.lane) == ("forward", 0)
