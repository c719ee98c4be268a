"""Code lengths: exact sums over the first pass, paired on the same rows, with intervals that hold."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from assay.base.errors import DataError
from assay.records.commit import AttemptBegan, Commit, FileDigest, LogEntry
from assay.records.cursor import Cursor
from assay.records.run import Attempt, Run
from assay.statistics.code_length import CodeLength, code_length, compare_code_lengths, newey_west
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.metrics.fold import fold_run
from assay.store.metrics.segment import SegmentWriter, segment_path
from assay.training.recipe import recipe_sha256
from clocks import ManualClock
from machine import MACHINE
from tiny_recipe import tiny_recipe


def commit(step: int, attempt: int, cursor: Cursor) -> Commit:
    return Commit(
        attempt=attempt,
        world_size=1,
        step=step,
        cursor=cursor,
        committed_s=0.0,
        folder=f"checkpoints/{step}-{attempt}",
        files=(FileDigest(path="model", num_bytes=1, sha256="f" * 64),),
        weights_digest="w",
        receipts_from_step=0,
        rows_trained=step,
    )


def record(
    ledger: Ledger,
    home: Path,
    run_id: str,
    entries: list[LogEntry],
    lives: dict[int, dict[int, float]],
    *,
    method: dict[str, Any] | None = None,
    weights: Mapping[int, float] = MappingProxyType({}),
) -> None:
    """A run whose attempts logged these losses by step; each step has 8 rows, every fourth 3."""
    recipe = tiny_recipe(loader={"seed": 1}, **({} if method is None else {"method": method}))
    run = Run(
        run_id=run_id,
        created_s=0.0,
        recipe=recipe,
        recipe_sha256=recipe_sha256(recipe, "d"),
        dataset_fingerprint="d",
        code_version="0",
        run_dir=str(home / run_id),
        store_url="memory:///",
        num_steps=10,
    )
    ledger.record_run(run)
    for number, losses in lives.items():
        ledger.record_attempt(
            Attempt(
                run_id=run_id,
                attempt=number,
                world_size=1,
                start_step=min(losses) - 1,
                started_s=0.0,
                **MACHINE,
            )
        )
        path = segment_path(Path(run.run_dir), number, 0)
        writer = SegmentWriter(path, run_id=run_id, attempt=number, rank=0, clock=ManualClock(1.8e9))
        for step, loss in losses.items():
            values = {"loss": loss, "rows": 8.0 if step % 4 else 3.0}
            writer.log(step, values | ({"weight": weights[step]} if step in weights else {}))
        writer.close()
    ledger.record_log_entries(run_id, dict(enumerate(entries)))
    fold_run(ledger, run)


@pytest.fixture
def ledger(tmp_path: Path):
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


def test_each_row_of_the_first_pass_is_coded_once_whatever_was_rolled_back(ledger, tmp_path):
    # Four steps an epoch; the first attempt dies at step 3 and is resumed from 2; the second epoch is no news.
    entries = [
        AttemptBegan(attempt=1, world_size=1, began_s=0.0),
        commit(2, 1, Cursor(epoch=0, step_in_epoch=2)),
        AttemptBegan(attempt=2, world_size=1, began_s=0.0),
        commit(6, 2, Cursor(epoch=1, step_in_epoch=2)),
    ]
    lives = {1: {1: 0.7, 2: 0.6, 3: 9.9}, 2: {3: 0.5, 4: 0.4, 5: 0.01, 6: 0.01}}
    record(ledger, tmp_path, "a", entries, lives)
    found = code_length(ledger, "a")
    assert found.is_whole_pass
    assert found.num_rows == 8 + 8 + 8 + 3
    assert found.bits == pytest.approx((0.7 * 8 + 0.6 * 8 + 0.5 * 8 + 0.4 * 3) / np.log(2))


def test_a_model_that_knows_nothing_pays_one_bit_per_binary_label(ledger, tmp_path):
    entries = [AttemptBegan(attempt=1, world_size=1, began_s=0.0), commit(3, 1, Cursor(step_in_epoch=3))]
    record(ledger, tmp_path, "a", entries, {1: dict.fromkeys((1, 2, 3), float(np.log(2)))})
    found = code_length(ledger, "a")
    assert found.bits_per_row == pytest.approx(1.0)
    assert not found.is_whole_pass


def test_a_step_that_is_not_on_record_is_refused(ledger, tmp_path):
    entries = [AttemptBegan(attempt=1, world_size=1, began_s=0.0), commit(3, 1, Cursor(step_in_epoch=3))]
    record(ledger, tmp_path, "a", entries, {1: {1: 0.7, 3: 0.5}})
    with pytest.raises(DataError, match="2 values for 3 steps; step 2 is missing"):
        code_length(ledger, "a")
    record(ledger, tmp_path, "b", entries[:1], {1: {1: 0.7}})
    with pytest.raises(DataError, match="no commit yet"):
        code_length(ledger, "b")


def length(bits: np.ndarray, *, name: str = "a", **order: object) -> CodeLength:
    return CodeLength(name, bits, np.full(len(bits), 8.0), True, {"dataset": "d", **order})


def test_runs_on_other_rows_are_not_compared():
    bits = np.full(10, 5.0)
    with pytest.raises(DataError, match="they differ in dataset"):
        compare_code_lengths([(length(bits), length(bits, dataset="e"))])
    fewer = length(bits)._replace(rows_per_step=np.r_[np.full(9, 8.0), 7.0])
    with pytest.raises(DataError, match="step 10 has 8 rows in one and 7"):
        compare_code_lengths([(length(bits), fewer)])


def correlated(rng: np.random.Generator, num_steps: int) -> np.ndarray:
    """Autocorrelated noise, like that of one run's weights."""
    noise = rng.normal(size=num_steps + 50)
    return np.convolve(noise, 0.7 ** np.arange(8), mode="valid")[:num_steps]


def test_the_interval_of_one_pair_covers_the_truth_although_steps_are_correlated():
    rng, covered, naive = np.random.default_rng(5), [], []
    for _ in range(400):
        before = 6.0 + correlated(rng, 400)
        found = compare_code_lengths([(length(before), length(before - 0.4 + 0.5 * correlated(rng, 400)))])
        covered.append(found.low <= 0.05 <= found.high)
        naive.append(abs(found.value - 0.05) <= 1.96 * 0.5 * np.sqrt(1 / (1 - 0.49)) / 8 / np.sqrt(400))
    assert 0.90 <= np.mean(covered) <= 0.97
    assert np.mean(naive) < 0.75


def test_several_pairs_give_an_interval_over_pairs():
    rng = np.random.default_rng(6)
    savings = [0.3, -0.1, 0.5, 0.1]
    pairs = [(length(6 + correlated(rng, 50)),) * 2 for _ in savings]
    pairs = [
        (before, length(before.bits_per_step - 8 * noise)) for (before, _), noise in zip(pairs, savings, strict=True)
    ]
    found = compare_code_lengths(pairs)
    assert found.value == pytest.approx(0.2)
    assert found.high - found.value == pytest.approx(3.1824 * np.std(savings, ddof=1) / 2, rel=1e-3)


def test_the_variance_of_independent_deviations_is_their_sum_of_squares():
    deviations = np.random.default_rng(7).normal(size=20_000)
    assert newey_west(deviations) == pytest.approx(20_000, rel=0.1)


SFT = {"type": "sft", "train_on": "all", "model": {"type": "new", "vocab_size": 9}}
DPO = {"type": "dpo", "model": {"type": "pretrained", "path": "base"}}


def test_a_step_of_tokens_is_coded_by_the_tokens_that_it_trains(ledger, tmp_path):
    entries = [
        AttemptBegan(attempt=1, world_size=1, began_s=0.0),
        commit(2, 1, Cursor(epoch=0, step_in_epoch=2)),
    ]
    weights = {1: 100.0, 2: 8.0}  # of the second step, as many tokens as rows: not written down
    record(ledger, tmp_path, "a", entries, {1: {1: 0.7, 2: 0.6}}, method=SFT, weights={1: weights[1]})
    found = code_length(ledger, "a")
    assert found.bits_per_step == pytest.approx(np.array([0.7 * 100, 0.6 * 8]) / np.log(2))
    assert found.num_rows == 16
    in_spans = {**SFT, "train_on": "spans"}
    record(ledger, tmp_path, "spans", entries, {1: {1: 0.7, 2: 0.6}}, method=in_spans, weights=weights)
    with pytest.raises(DataError, match="they differ in what is learned"):
        compare_code_lengths([(found, code_length(ledger, "spans"))])


@pytest.mark.parametrize(
    ("method", "is_coded"),
    [
        (DPO, True),
        ({**DPO, "loss": {"type": "ipo"}}, False),
        ({**DPO, "loss": {"label_smoothing": 0.1}}, False),
        ({**DPO, "sft_weight": 1.0}, False),
        ({"type": "reward", "model": SFT["model"], "margin_column": None}, True),
        ({"type": "reward", "model": SFT["model"]}, False),
        (
            {
                "type": "classify",
                "encoder": {"type": "new", "vocab_size": 9, "hidden_size": 16},
                "label": {"type": "number"},
            },
            False,
        ),
    ],
)
def test_only_a_loss_that_is_minus_log_p_has_a_code(ledger, tmp_path, method, is_coded):
    entries = [
        AttemptBegan(attempt=1, world_size=1, began_s=0.0),
        commit(1, 1, Cursor(epoch=0, step_in_epoch=1)),
    ]
    record(ledger, tmp_path, "a", entries, {1: {1: 0.7}}, method=method)
    if is_coded:
        assert code_length(ledger, "a").bits == pytest.approx(0.7 * 8 / np.log(2))
    else:
        with pytest.raises(DataError, match="there is no code"):
            code_length(ledger, "a")
