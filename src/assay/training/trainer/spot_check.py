"""Finds a device that computes wrongly: at a set rate, every rank computes a lane of another rank again.

    rank r, step s:   gradient of one of its lanes ------digest--\\
    rank r + k:       the same lane, rows sent over -----digest---- equal in every bit, or one of them is wrong

The lane and k are drawn anew for each check, from (seed, step). A difference is put to the vote: every rank
computes the disputed lane once more, and who disagrees with the majority is the suspect. A check sees what a
device does *then*: a device that is wrong from some step on is found by the next check; a single flip only by a
check of that very step and lane. At world size 1 the rank checks itself, and finds only what does not happen
twice alike.

Only lanes whose gradient stands alone before it is added to others can be drawn: the 1st, 3rd, 5th, ... of
each of a rank's blocks of lanes with `LaneSum`, any with `ShardedLaneSum`. What it costs is one lane's pass
per check and rank. Where rows are prompts, that is with all that the model said to them: a wrong draw is
wrong arithmetic, too. With sharded weights all ranks make that pass together, each over the lane that it
checks.
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
from assay.distributed.lane_sum import OnOwnGradients
from assay.distributed.ranks import Ranks
from assay.records.suspect import Suspect, WrongArithmeticError
from assay.training.trainer.numerics import GradientDigest
from assay.training.trainer.rollout_buffer import AnsweredLane, with_said


class _Witness(NamedTuple):
    """What a rank says of its own lane."""

    lane: LaneShare
    digest: int
    node: str
    device: str


class _Vote(NamedTuple):
    """A rank's digest of a lane's gradient."""

    rank: int
    digest: int


class Checked(NamedTuple):
    """A check that passed: this rank's lane."""

    lane: int
    digest: int | None
    """The digest of the lane's gradient; None where only its passes' gradients were looked at, one by one."""
    by_rank: int


class OwnGradients(Protocol):
    """Shows the gradients of a rank's lanes before they are added to others: `LaneSum`, `ShardedLaneSum`."""

    on_own_gradients: OnOwnGradients | None

    @property
    def adds_passes(self) -> bool:
        """What it shows of a lane is the sum over the lane's passes; otherwise each by itself."""
        ...

    def seen_alone(self, num_positions: int) -> Sequence[int]:
        """Positions among the rank's lanes that can be looked at."""
        ...


class Recomputer(Protocol):
    """Computes a lane again; all ranks call it together."""

    def digest(self, lane: LaneShare, *, step: int) -> int:
        """The digest of the lane's gradient in update number `step`."""
        ...


class SpotCheck:
    """Makes the checks of one rank; all ranks call the same methods in the same steps."""

    def __init__(
        self,
        recomputer: Recomputer,
        lane_sum: OwnGradients,
        ranks: Ranks,
        *,
        is_due: Callable[[int], bool],
        seed: int,
    ) -> None:
        self._recomputer = recomputer
        self._lane_sum = lane_sum
        self._ranks = ranks
        self.is_due = is_due
        """Whether update number `step` is checked; the same on all ranks."""
        self._seed = seed
        self._position = 0
        self._own = GradientDigest()

    def begin(self, share: StepShare, *, step: int) -> None:
        """Call before the step's first lane: has the gradient of the lane to check digested on its way."""
        choices = self._lane_sum.seen_alone(len(share.lanes))
        self._position = choices[derive_key(self._seed, "spot check", step, self._ranks.rank) % len(choices)]
        self._own = GradientDigest()
        self._lane_sum.on_own_gradients = self._take

    def finish(self, share: StepShare, num_passes: Sequence[int], *, step: int) -> Checked:
        """Call after the last lane and before the update; raises `WrongArithmeticError` on every rank.

        `num_passes`: that each lane of the share took.
        """
        self._lane_sum.on_own_gradients = None
        rank, world_size = self._ranks.rank, self._ranks.world_size
        own = self._own.combined()
        lane = share.lanes[self._position]
        shown = with_said(own, lane.said) if isinstance(lane, AnsweredLane) else own
        witnesses = self._gathered(_Witness(lane, shown, socket.gethostname(), str(self._ranks.device)))
        distance = _distance(self._seed, step, world_size)
        owner = (rank - distance) % world_size
        digests = self._gathered(self._recomputer.digest(witnesses[owner].lane, step=step))
        votes = [
            (_Vote(rank, witness.digest), _Vote(checker, digests[checker]))
            for rank, witness in enumerate(witnesses)
            for checker in [(rank + distance) % world_size]
        ]
        disputed = [rank for rank, (mine, theirs) in enumerate(votes) if mine.digest != theirs.digest]
        if disputed:
            self._settle({rank: list(votes[rank]) for rank in disputed}, witnesses, step)
        is_whole = self._lane_sum.adds_passes or num_passes[self._position] == 1
        return Checked(lane.lane, own if is_whole else None, (rank + distance) % world_size)

    def _take(
        self, position: int, parameter_indices: Sequence[int], gradients: Sequence[Float[Tensor, "..."]]
    ) -> None:
        if position == self._position:
            self._own.take(parameter_indices, gradients)

    def _settle(self, disputed: dict[int, list[_Vote]], witnesses: list[_Witness], step: int) -> None:
        suspects: dict[int, Suspect] = {}
        for owner, votes in disputed.items():
            witness = witnesses[owner]
            again = self._gathered(self._recomputer.digest(witness.lane, step=step))
            votes += [_Vote(rank, digest) for rank, digest in enumerate(again)]
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

    def _gathered(self, mine: Any) -> list[Any]:
        """Everybody's, by rank."""
        if self._ranks.world_size == 1:
            return [mine]
        everyone = [None] * self._ranks.world_size
        dist.all_gather_object(everyone, mine, group=self._ranks.control)
        return everyone


def outvoted(votes: list[tuple[int, int]] | list[_Vote]) -> tuple[list[int], bool]:
    """Ranks with a vote (rank, digest) that is not the most frequent one; all ranks, uncertain, in a tie."""
    counts = Counter(digest for _, digest in votes).most_common(2)
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return sorted({rank for rank, _ in votes}), False
    truth = counts[0][0]
    return sorted({rank for rank, digest in votes if digest != truth}), True


def _distance(seed: int, step: int, world_size: int) -> int:
    """From a rank to the one that checks it: 1 to world_size - 1."""
    if world_size == 1:
        return 0
    return 1 + derive_key(seed, "spot check partner", step) % (world_size - 1)


def _message(suspects: list[Suspect], step: int) -> str:
    named = ", ".join(
        f"rank {suspect.rank} on node {suspect.node} ({suspect.device}), lane {suspect.lane}"
        for suspect in suspects
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
