r"""Finds devices that compute wrongly: at a set interval, each rank recomputes a lane of another rank.

    rank r, step s:   gradient of one of its lanes ------digest--\
    rank r + k:       the same lane, rows sent over -----digest---- equal in each bit, or one of them is wrong

The lane and k follow from (seed, step). If digests differ, all ranks compute the disputed lane once more, and a rank
that disagrees with the majority is the suspect. A check covers only its own step: a device that is wrong from some
step on is found by the next check, a single bit flip only by a check of that step and lane. At world size 1 the rank
checks itself, which finds only errors that do not repeat.

Only lanes whose gradient is visible before it is added to others can be checked: the 1st, 3rd, 5th, ... of each block
of lanes with `LaneSum`, all with `ShardedLaneSum`. A check costs one lane's passes on each rank, rollouts included,
because a wrongly sampled token is wrong arithmetic, too. With sharded weights all ranks make the passes together.
"""

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist
from torch import Tensor

from assay.base.seeds import derive_key
from assay.base.shapes import Float
from assay.data.loader.batch import LaneShare, StepShare
from assay.distributed.lane_sum import LaneGradients
from assay.distributed.ranks import Ranks
from assay.records.suspect import Suspect, WrongArithmeticError
from assay.training.numerics import GradientDigest, extended_digest

Vote = tuple[int, int]
"""A rank, and its digest of a lane's gradient."""


class _Witness(NamedTuple):
    """A rank's lane with the digest of its gradient."""

    lane: LaneShare
    digest: int
    node: str
    device: str


class Checked(NamedTuple):
    """A passed check of this rank's lane."""

    lane: int
    digest: int | None
    """Digest of the lane's gradient; None if only the gradients of single passes were visible."""
    by_rank: int


class Recomputer(Protocol):
    """Recomputes a lane; all ranks call it together."""

    def digest(self, lane: LaneShare, *, step: int) -> int:
        """Return the digest of the lane's gradient in step `step`."""
        ...


class SpotCheck:
    """Runs the checks of one rank; all ranks call the same methods in the same steps."""

    def __init__(
        self, recomputer: Recomputer, lane_sum: LaneGradients, ranks: Ranks, *, is_due: Callable[[int], bool], seed: int
    ) -> None:
        self._recomputer = recomputer
        self._lane_sum = lane_sum
        self._ranks = ranks
        self.is_due = is_due
        """Returns whether step `step` is checked; the same on all ranks."""
        self._seed = seed
        self._position = 0
        self._own = GradientDigest()

    def begin(self, share: StepShare, *, step: int) -> None:
        """Call before the step's first lane, so that the gradient of the checked lane is digested during backward."""
        choices = self._lane_sum.seen_alone(len(share.lanes))
        self._position = choices[derive_key(self._seed, "spot check", step, self._ranks.rank) % len(choices)]
        self._own = GradientDigest()
        self._lane_sum.on_own_gradients = self._take

    def finish(self, share: StepShare, num_passes: Sequence[int], *, step: int) -> Checked:
        """Call after the last lane and before the update; raises `WrongArithmeticError` on all ranks.

        `num_passes`: passes of each lane of the share.
        """
        self._lane_sum.on_own_gradients = None
        rank, world_size = self._ranks.rank, self._ranks.world_size
        own = self._own.combined()
        lane = share.lanes[self._position]
        shown = extended_digest(own, lane.further_digests)
        witnesses = self._gathered(_Witness(lane, shown, socket.gethostname(), str(self._ranks.device)))
        distance = _distance(self._seed, step, world_size)
        owner = (rank - distance) % world_size
        digests = self._gathered(self._recomputer.digest(witnesses[owner].lane, step=step))
        votes = [
            [(rank, witness.digest), (checker, digests[checker])]
            for rank, witness in enumerate(witnesses)
            for checker in [(rank + distance) % world_size]
        ]
        disputed = [rank for rank, (reported, recomputed) in enumerate(votes) if reported[1] != recomputed[1]]
        if disputed:
            self._vote_on({rank: votes[rank] for rank in disputed}, witnesses, step)
        is_whole = self._lane_sum.adds_passes or num_passes[self._position] == 1
        return Checked(lane.lane, own if is_whole else None, (rank + distance) % world_size)

    def _take(self, position: int, parameter_indices: Sequence[int], gradients: Sequence[Float[Tensor, "..."]]) -> None:
        if position == self._position:
            self._own.take(parameter_indices, gradients)

    def _vote_on(self, disputed: dict[int, list[Vote]], witnesses: list[_Witness], step: int) -> None:
        suspects: dict[int, Suspect] = {}
        for owner, votes in disputed.items():
            witness = witnesses[owner]
            revotes = self._gathered(self._recomputer.digest(witness.lane, step=step))
            votes += enumerate(revotes)
            wrong, is_certain = outvoted(votes)
            for rank in wrong:
                suspects[rank] = Suspect(
                    rank=rank,
                    node=witnesses[rank].node,
                    device=witnesses[rank].device,
                    step=step,
                    lane=witness.lane.lane,
                    is_certain=is_certain,
                )
        raise WrongArithmeticError(_message(list(suspects.values()), step), tuple(suspects.values()))

    def _gathered(self, reported: Any) -> list[Any]:
        if self._ranks.world_size == 1:
            return [reported]
        everyone = [None] * self._ranks.world_size
        dist.all_gather_object(everyone, reported, group=self._ranks.control)
        return everyone


def outvoted(votes: list[Vote]) -> tuple[list[int], bool]:
    """Return the ranks whose vote is not the most frequent digest, and whether that is certain; in a tie, all
    ranks and False."""
    counts = Counter(digest for _, digest in votes).most_common(2)
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return sorted({rank for rank, _ in votes}), False
    truth = counts[0][0]
    return sorted({rank for rank, digest in votes if digest != truth}), True


def _distance(seed: int, step: int, world_size: int) -> int:
    """Return the distance from a rank to the one that checks it: 1 to world_size - 1."""
    if world_size == 1:
        return 0
    return 1 + derive_key(seed, "spot check partner", step) % (world_size - 1)


def _message(suspects: list[Suspect], step: int) -> str:
    named = ", ".join(
        f"rank {suspect.rank} on node {suspect.node} ({suspect.device}), lane {suspect.lane}" for suspect in suspects
    )
    if all(suspect.is_certain for suspect in suspects):
        return (
            f"wrong arithmetic at step {step}: {named}: the other computations of that lane's gradient agree "
            "on other bits. Take the device out of service and test it."
        )
    return (
        f"wrong arithmetic at step {step}, by one of: {named}: two computations of one gradient differ, and "
        "the vote was a tie. Run on more ranks to tell which, or test each device."
    )
