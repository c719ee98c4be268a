import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, MicroBatch, Ragged, StepShare
from assay.distributed.ranks import Ranks
from assay.records.cursor import Cursor
from assay.records.suspect import Suspect, WrongArithmeticError
from assay.training.numerics import digest_of_tensors
from assay.training.trainer import spot_check
from assay.training.trainer.spot_check import Checked, SpotCheck, outvoted
from forked_ranks import on_ranks

RIGHT, WRONG = 1, 2
LANES_PER_RANK = 4
ONE_TOKEN = np.ones((1, 1), np.int64), np.ones(1, np.int32)


def test_the_rank_whose_first_result_alone_was_wrong_is_outvoted() -> None:
    assert outvoted([(0, WRONG), (1, RIGHT), (0, RIGHT), (1, RIGHT)]) == ([0], True)


def test_the_checking_rank_may_be_the_wrong_one() -> None:
    assert outvoted([(0, RIGHT), (1, WRONG), (0, RIGHT), (1, WRONG), (2, RIGHT)]) == ([1], True)


def test_suspects_are_named_in_the_order_of_their_ranks() -> None:
    votes = [(8, WRONG), (1, WRONG), *((rank, RIGHT) for rank in (0, 2, 3))]
    assert outvoted(votes) == ([1, 8], True)


def test_whom_everybody_agrees_with_is_no_suspect() -> None:
    assert outvoted([(0, RIGHT), (1, RIGHT)]) == ([], True)


def test_two_ranks_that_each_insist_are_both_suspects_and_nobody_is_sure() -> None:
    assert outvoted([(0, WRONG), (1, RIGHT), (0, WRONG), (1, RIGHT)]) == ([0, 1], False)
    assert outvoted([(8, WRONG), (1, RIGHT)]) == ([1, 8], False)


@settings(deadline=None, max_examples=50)
@given(world_size=st.integers(3, 16), data=st.data())
def test_one_persistently_wrong_rank_among_three_or_more_is_always_the_only_suspect(world_size, data) -> None:
    owner = data.draw(st.integers(0, world_size - 1))
    checker = data.draw(st.integers(0, world_size - 1).filter(lambda rank: rank != owner))
    wrong = data.draw(st.sampled_from([owner, checker]))

    def digest(rank: int) -> int:
        return WRONG if rank == wrong else RIGHT

    votes = [(owner, digest(owner)), (checker, digest(checker))]
    votes += [(rank, digest(rank)) for rank in range(world_size)]
    assert outvoted(votes) == ([wrong], True)


def gradient_of(lane: int, *, is_wrong: bool = False) -> torch.Tensor:
    return torch.arange(3.0) + lane + (0.5 if is_wrong else 0.0)


class Lanes:
    """Shows gradients as a sum over lanes does: every other lane's alone."""

    on_own_gradients = None
    adds_passes = True

    def seen_alone(self, num_positions: int) -> range:
        return range(0, num_positions, 2)


class Again:
    """Computes a lane again, on a device that may be wrong."""

    def __init__(self, *, is_wrong: bool) -> None:
        self.is_wrong = is_wrong
        self.lanes: list[int] = []

    def digest(self, lane: LaneShare, *, step: int) -> int:
        self.lanes.append(lane.lane)
        return digest_of_tensors([gradient_of(lane.lane, is_wrong=self.is_wrong)])


def check_steps(ranks: Ranks, steps: range, wrong_rank: int | None = None, *, recovers: bool = False):
    """Makes the checks of some steps; `wrong_rank` computes wrongly, and again if it does not recover."""
    is_wrong, sums = ranks.rank == wrong_rank, Lanes()
    again = Again(is_wrong=is_wrong and not recovers)
    check = SpotCheck(again, sums, ranks, is_due=lambda step: step % 2 == 0, seed=7)
    assert check.is_due(4) and not check.is_due(5)
    first = ranks.rank * LANES_PER_RANK
    share = StepShare(Cursor(), tuple(LaneShare(first + i, ()) for i in range(LANES_PER_RANK)))
    found = []
    for step in steps:
        check.begin(share, step=step)
        for position, lane in enumerate(share.lanes):
            sums.on_own_gradients(position, [0], [gradient_of(lane.lane, is_wrong=is_wrong)])
        try:
            found.append((check.finish(share, [1] * len(share.lanes), step=step), again.lanes.copy()))
        except WrongArithmeticError as error:
            return str(error), error.suspects
        assert sums.on_own_gradients is None, "nobody listens between checks"
        again.lanes.clear()
    return found


def test_every_rank_has_a_lane_of_its_own_checked_by_another_and_the_draws_change(tmp_path: Path) -> None:
    of_ranks = on_ranks(4, lambda ranks: check_steps(ranks, range(20)), tmp_path)
    for step in range(20):
        checks = [found[step][0] for found in of_ranks]
        for rank, (checked, again) in enumerate(found[step] for found in of_ranks):
            assert checked.lane // LANES_PER_RANK == rank and checked.lane % 2 == 0
            assert checked.digest == digest_of_tensors([gradient_of(checked.lane)])
            assert checked.by_rank != rank
            [owner] = [owner for owner, other in enumerate(checks) if other.by_rank == rank]
            assert again == [checks[owner].lane]
    for found in of_ranks:
        assert len({checked.by_rank for checked, _ in found}) == 3
        assert len({checked.lane for checked, _ in found}) == LANES_PER_RANK // 2
    together = {tuple(found[step][0].lane % LANES_PER_RANK for found in of_ranks) for step in range(20)}
    assert any(len(set(lanes)) > 1 for lanes in together), "ranks draw their own positions"


def test_a_rank_alone_checks_itself(tmp_path: Path) -> None:
    [found] = on_ranks(1, lambda ranks: check_steps(ranks, range(5)), tmp_path)
    for checked, again in found:
        assert checked == Checked(again[0], digest_of_tensors([gradient_of(again[0])]), 0)


def test_a_device_that_is_wrong_is_named_on_every_rank(tmp_path: Path) -> None:
    of_ranks = on_ranks(4, lambda ranks: check_steps(ranks, range(6, 7), wrong_rank=2), tmp_path)
    for message, suspects in of_ranks:
        [suspect] = suspects
        assert (suspect.rank, suspect.step, suspect.is_certain) == (2, 6, True)
        assert (suspect.node, suspect.device) == (socket.gethostname(), "cpu")
        assert message == (
            f"wrong arithmetic at step 6: rank 2 on node {suspect.node} (cpu), lane {suspect.lane}: the other "
            "computations of that lane's gradient agree on other bits. Take the device out of service and test "
            "it."
        )


def test_two_ranks_that_differ_are_both_suspects(tmp_path: Path) -> None:
    for message, suspects in on_ranks(2, lambda ranks: check_steps(ranks, range(1, 3), wrong_rank=1), tmp_path):
        assert [(suspect.rank, suspect.is_certain) for suspect in suspects] == [(0, False), (1, False)]
        assert message.startswith("wrong arithmetic at step 1, by one of: rank 0 on node")
        assert "the vote was a tie. Run on more ranks" in message


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_flip_that_does_not_happen_again_is_the_owners(world_size, tmp_path: Path) -> None:
    of_ranks = on_ranks(
        world_size, lambda ranks: check_steps(ranks, range(1, 2), wrong_rank=0, recovers=True), tmp_path
    )
    for _, suspects in of_ranks:
        assert [(suspect.rank, suspect.is_certain) for suspect in suspects] == [(0, True)]


@pytest.mark.parametrize(
    ("adds_passes", "num_micro_batches", "has_digest"),
    [(True, 1, True), (True, 2, True), (False, 1, True), (False, 0, True), (False, 2, False)],
)
def test_a_lane_has_a_digest_of_its_own_where_it_was_seen_whole(
    adds_passes, num_micro_batches, has_digest, tmp_path: Path
) -> None:
    def check(ranks: Ranks) -> int | None:
        sums = Lanes()
        sums.adds_passes = adds_passes
        check = SpotCheck(Again(is_wrong=False), sums, ranks, is_due=lambda step: True, seed=7)
        batch = MicroBatch(np.zeros(1, np.uint64), {"input_ids": Ragged(*ONE_TOKEN)}, {})
        share = StepShare(Cursor(), (LaneShare(0, (batch,) * num_micro_batches),))
        check.begin(share, step=1)
        sums.on_own_gradients(0, [0], [gradient_of(0)])
        return check.finish(share, [max(1, num_micro_batches)], step=1).digest

    [digest] = on_ranks(1, check, tmp_path)
    assert digest == (digest_of_tensors([gradient_of(0)]) if has_digest else None)


def test_who_checks_what_is_drawn_from_seed_step_and_rank(tmp_path: Path) -> None:
    """So a replay knows the lane, and no rank has to tell another."""
    of_ranks = on_ranks(4, lambda ranks: check_steps(ranks, range(4)), tmp_path)
    for step in range(4):
        distance = 1 + derive_key(7, "spot check partner", step) % 3
        for rank, found in enumerate(of_ranks):
            position = 2 * (derive_key(7, "spot check", step, rank) % 2)
            assert found[step][0].lane == LANES_PER_RANK * rank + position
            assert found[step][0].by_rank == (rank + distance) % 4


def test_a_check_begins_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Not even where that was given up in its midst, with gradients of more parameters."""

    def abandoned(ranks: Ranks) -> int | None:
        sums, share = Lanes(), StepShare(Cursor(), (LaneShare(0, ()),))
        check = SpotCheck(Again(is_wrong=False), sums, ranks, is_due=lambda step: True, seed=7)
        check.begin(share, step=1)
        sums.on_own_gradients(0, [0, 1], [gradient_of(3), gradient_of(4)])
        check.begin(share, step=1)
        sums.on_own_gradients(0, [0], [gradient_of(0)])
        return check.finish(share, [1], step=1).digest

    assert on_ranks(1, abandoned, tmp_path) == [digest_of_tensors([gradient_of(0)])]


@pytest.mark.parametrize(("certain", "text"), [((True, True), "agree on"), ((True, False), "the vote was a tie")])
def test_nobody_is_named_for_sure_where_one_vote_was_a_tie(certain: tuple[bool, bool], text: str) -> None:
    suspects = [
        Suspect(rank=rank, node="n", device="cpu", step=3, lane=rank, is_certain=is_certain)
        for rank, is_certain in enumerate(certain)
    ]
    assert text in spot_check._message(suspects, 3)
