"""What was said and waits to be learned: whose it is, by which weights, and that a commit brings it back."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import DamagedDataError
from assay.data.loader.batch import LaneShare, MicroBatch, Ragged
from assay.records.rollout_log import GroupRecord
from assay.training.numerics import MetricSum
from assay.training.rollouts.buffer import RolloutBuffer
from assay.training.samples import LaneSamples
from noisy_regression import completion_of, micro_batch
from payloads import Payload

ROWS = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 99), max_size=5), st.floats(-9, 9)), max_size=4
)

TWO_ROWS_IN_ONE_LINE = np.ones((1, 4), np.int64), np.array([2, 2], np.int32)


def completions(rows: list[tuple[int, list[int], float]]) -> MicroBatch:
    """Rows with tokens, a list of numbers for them, a number, and a word that some have."""
    lengths = np.array([len(tokens) for _, tokens, _ in rows], np.int32)
    values = np.zeros((len(rows), int(lengths.max(initial=0))), np.int64)
    for line, (_, tokens, _) in zip(values, rows, strict=True):
        line[: len(tokens)] = tokens
    columns = {
        "logprobs": pa.array([[token / 7 for token in tokens] for _, tokens, _ in rows], pa.list_(pa.float32())),
        "advantage": pa.array([number for *_, number in rows], pa.float64()),
        "word": pa.array([None if index % 2 else "x" for index in range(len(rows))], pa.string()),
    }
    ids = np.array([row_id for row_id, *_ in rows], np.uint64)
    return MicroBatch(ids, {"input_ids": Ragged(values, lengths)}, columns)


def prompts(lane: int, *rows: int) -> LaneShare:
    return LaneShare(lane, (micro_batch(rows),))


def became(lane: int, digest: int = 0, *batches: MicroBatch) -> LaneSamples:
    rollout_log = (GroupRecord(1, lane, digest, "trained", "[]", (completion_of(digest), completion_of(7))),)
    metrics = {"shaped_reward": MetricSum(torch.tensor(0.1 * digest, dtype=torch.float64), 3.0)}
    return LaneSamples(LaneShare(lane, batches), metrics, digest, rollout_log)


def holding(lane: int, *buffered: tuple[int, int], lanes: tuple[int, ...] = ()) -> RolloutBuffer:
    """(step, weights that said it), in this order; the digest names both."""
    held = RolloutBuffer(lanes or (lane,))
    for step, policy_step in buffered:
        samples = became(lane, 100 * step + policy_step)
        held.put(step, [prompts(lane, step)], [samples], policy_step=policy_step)
    return held


def steps_of(held: RolloutBuffer, lane: int = 2) -> list[int]:
    return [step for step in range(10) if held.has(step, lane)]


def assert_same(one: LaneSamples, other: LaneSamples) -> None:
    assert one.lane.lane == other.lane.lane and one.digest == other.digest and one.log == other.log
    assert one.metrics.keys() == other.metrics.keys()
    for name, (total, weight) in one.metrics.items():
        again = other.metrics[name]
        assert torch.equal(total, again.sum) and total.dtype == again.sum.dtype and weight == again.weight
    for left, right in zip(one.lane.micro_batches, other.lane.micro_batches, strict=True):
        np.testing.assert_array_equal(left.row_ids, right.row_ids)
        assert left.row_ids.dtype == right.row_ids.dtype
        assert left.tokens.values.tolist() == right.tokens.values.tolist()
        assert left.tokens.values.shape == right.tokens.values.shape
        assert left.tokens.lengths.tolist() == right.tokens.lengths.tolist()
        assert left.tokens.lengths.dtype == right.tokens.lengths.dtype
        assert left.ragged.keys() == right.ragged.keys() and left.columns.keys() == right.columns.keys()
        assert all(left.columns[name].equals(right.columns[name]) for name in left.columns)


def test_what_is_learned_or_was_said_in_an_abandoned_step_is_forgotten() -> None:
    buffered = (3, 1), (4, 1), (5, 2), (6, 3)
    held = holding(2, *buffered)
    assert steps_of(held) == [3, 4, 5, 6] and steps_of(held, lane=3) == []
    held.discard_trained(4)
    assert steps_of(held) == [5, 6]
    held = holding(2, *buffered)
    held.discard_sampled_by(1)
    assert steps_of(held) == [5, 6]
    held.discard_sampled_by(3)
    assert steps_of(held) == [5]


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ([4, 5], [4], "2 then, 1 now"),
        ([4, 5], [5, 4], "2 then, 2 now"),
        ([], [0], "0 then, 1 now"),
        ([0], [], "1 then, 0 now"),
    ],
)
def test_answers_to_other_prompts_than_the_dataset_gives_are_refused(then, now, message) -> None:
    held = RolloutBuffer((2,))
    requested = [LaneShare(2, (micro_batch(rows),) if rows else ()) for rows in (then, now)]
    held.put(6, requested[:1], [became(2)], policy_step=3)
    assert held.of(6, requested[0]) is held.of(6, requested[0])
    with pytest.raises(DamagedDataError, match=rf"step 6, lane 2: its rollouts were generated 2 steps.*{message}"):
        held.of(6, requested[1])


def test_prompts_count_whatever_micro_batches_they_come_in() -> None:
    held = RolloutBuffer((2,))
    held.put(1, [LaneShare(2, (micro_batch([4]), micro_batch([5])))], [became(2, 9)], policy_step=0)
    assert held.of(1, prompts(2, 4, 5)).digest == 9


@pytest.mark.parametrize("order", [1, -1])
def test_a_lane_is_checked_with_what_it_said_in_the_same_step(order: int) -> None:
    """Step 5 with weights of 4: it learns what was said by 2, and says 6 and 7, of which 7 is past the end."""
    buffered = [(5, 2), (6, 4), (4, 4), (7, 4), (3, 3)][::order]
    held = holding(2, *buffered)
    other = became(3, 1)
    held.put(6, [prompts(3, 6)], [other], policy_step=4)
    upcoming = {step: prompts(2, step) for step in (3, 4, 5, 6)}
    checked = held.for_recomputation(5, prompts(2, 5), upcoming)
    assert checked.lane == 2 and checked.micro_batches == ()
    assert checked.upcoming == ((4, upcoming[4]), (6, upcoming[6])) and checked.further_digests == (404, 604)


def test_a_checked_lane_learns_what_its_prompts_became() -> None:
    held, batch = RolloutBuffer((2,)), completions([(1, [4], 0.5)])
    held.put(5, [prompts(2, 5)], [became(2, 7, batch)], policy_step=2)
    checked = held.for_recomputation(5, prompts(2, 5), {})
    assert checked.micro_batches == (batch,) and checked.upcoming == () and checked.further_digests == ()


@settings(deadline=None, max_examples=60)
@given(batches=st.lists(ROWS, max_size=3), digest=st.integers(0, 2**52 - 1))
def test_a_commit_brings_back_what_waits(batches, digest) -> None:
    held, samples = RolloutBuffer((2,)), became(2, digest, *map(completions, batches))
    held.put(4, [prompts(2, 3, 8)], [samples], policy_step=1)
    again = RolloutBuffer((2,))
    again.restore(held.state())
    assert_same(again.of(4, prompts(2, 3, 8)), samples)
    again.discard_sampled_by(1)
    assert not again.has(4, 2)


def test_each_lane_goes_where_its_rank_goes() -> None:
    held = RolloutBuffer((2, 11))
    for lane in (2, 11, 5):
        held.put(4, [prompts(lane, lane)], [became(lane, lane)], policy_step=3)
    state = held.state()
    assert list(state) == ["00002", "00011"], "lane 5 is another rank's"
    moved = RolloutBuffer((11,))
    moved.restore({"00011": state["00011"]})
    assert moved.of(4, prompts(11, 11)).digest == 11 and not moved.has(4, 2)
    assert list(RolloutBuffer().state()) == []


def test_the_bytes_of_a_lane_do_not_tell_in_which_order_it_was_answered() -> None:
    assert holding(2, (3, 1), (4, 2)).state() == holding(2, (4, 2), (3, 1)).state()


def test_restoring_takes_the_place_of_what_was_there() -> None:
    held = holding(2, (3, 1))
    held.restore(holding(2, (4, 2), (5, 2)).state())
    assert steps_of(held) == [4, 5]


def test_a_state_that_would_run_something_is_refused(tmp_path: Path) -> None:
    payload = Payload(tmp_path / "it ran")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, head=np.array([payload], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        RolloutBuffer((2,)).restore({"00002": buffer.getvalue()})
    assert not payload.ran()


def test_every_lane_has_an_answer_and_every_row_a_line() -> None:
    held = RolloutBuffer((2, 3))
    with pytest.raises(ValueError, match="shorter"):
        held.put(4, [prompts(2, 1), prompts(3, 2)], [became(2)], policy_step=1)
    packed = MicroBatch(np.arange(2, dtype=np.uint64), {"input_ids": Ragged(*TWO_ROWS_IN_ONE_LINE)}, {})
    held.put(4, [prompts(2, 1)], [became(2, 1, packed)], policy_step=1)
    with pytest.raises(ValueError, match="longer"):
        held.state()
