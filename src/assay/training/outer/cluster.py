"""Trains one cluster's lanes between outer steps, and takes the outer steps with the other clusters.

    inner steps of the cluster's lanes -> commit -> part -> entry of the outer step -> outer weights
             ^                                                                              |
             +------------------------------------------------------------------------------+

A cluster is a run with its own attempts, commits and ranks. Step numbers count the inner steps, and each outer step as
one more: with `every` = 25, the steps 26, 52, 78, ... are outer steps. The commit before a part holds all that a death
could cost. What an entry names is final: a cluster that lost its last commit trains the same inner steps again, and
must arrive at the same change.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch.distributed as dist

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DamagedDataError
from assay.base.units import duration_text
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.ranks import Ranks
from assay.records.commit import Commit
from assay.records.outer import LaneSteps, OuterBegan, OuterPart, OuterStep
from assay.training.checkpoint.parts import OPTIMIZER, StatefulPart
from assay.training.checkpoint.saver import LaneReceipts, Saver
from assay.training.outer.change import decode, encode
from assay.training.outer.config import OuterConfig
from assay.training.outer.meeting import Meeting
from assay.training.outer.receipts import steps_of_lanes
from assay.training.outer.rows import LaneRows, slots_of
from assay.training.outer.state import OuterState
from assay.training.outer.weights import OUTER, OuterWeights
from assay.training.trainer.context import RankContext, RankParts
from assay.training.trainer.trainer import Outcome, Recorder, Trainer, TrainingPosition

POLL_S = 0.2
"""Seconds between two looks at the meeting place."""
PATIENCE = 3
"""A cluster without lanes takes an outer step alone after this many times the longest inner run, or the deadline. So
many deadlines a damaged change is waited for."""

Value = TypeVar("Value")


class _Inner(NamedTuple):
    """The parts of a rank for one number of lanes."""

    parts: RankParts
    saver: Saver
    outer: OuterWeights


class ClusterTrainer:
    """One rank of one cluster."""

    def __init__(
        self,
        context: RankContext,
        config: OuterConfig,
        meeting: Meeting,
        state: OuterState,
        recorder: Recorder,
        *,
        make_saver: Callable[[Mapping[str, StatefulPart]], Saver],
        evaluate: Callable[[RankParts, int], float | None],
        failure_s: float,
    ) -> None:
        """`meeting` is used on rank 0 only. `state`: before the first outer step. `failure_s`: see `Trainer`."""
        self._config = config
        self._meeting = meeting
        self._recorder = recorder
        self._make_saver = make_saver
        self._evaluate = evaluate
        self._failure_s = failure_s
        self._evaluate_every = context.config.evaluate_every
        # Inner steps are not evaluated: the outer weights are what all clusters share.
        inner_config = context.config.model_copy(update={"evaluate_every": None})
        self._context = replace(context, config=inner_config, schedule_step=self._schedule_step)
        self._ranks = context.ranks
        self.step = self._committed_step = 0
        """Steps done, inner and outer."""
        self._inner_s = 0.0
        self._state = state
        self._inner = self._built(self._slots)

    def restore(self, commit: Commit | None) -> None:
        """Restore a commit of this cluster, and the state of all lanes at it."""
        if commit is None:
            return
        self.step = self._committed_step = commit.step
        entries = from_rank_0(self._ranks, self._meeting.entries)
        outer_step = commit.step // self._round_steps
        if len(entries) <= outer_step:
            raise DamagedDataError(
                f"{self._meeting.store.url}: this cluster's commit of step {commit.step} follows outer step "
                f"{outer_step}, and the log there ends at {len(entries) - 1}. Restore the log of outer steps."
            )
        self._state = OuterState.after_entries(entries[: outer_step + 1])
        self._resize()
        self._inner.saver.restore(commit)

    def train(self, last_outer_step: int | None = None) -> Outcome:
        """Train to the last step of all lanes, to an outer step, or until a stop request; all steps are committed."""
        while not self._state.is_done and self._state.outer_step != last_outer_step:
            if self._take_outer_step() == "stopped":
                return "stopped"
        return "finished"

    def close(self) -> None:
        self._inner.saver.close()
        self._inner.parts.lane_sum.close()

    @property
    def parts(self) -> RankParts:
        return self._inner.parts

    def _take_outer_step(self) -> Outcome:
        """Take the next outer step: with a part of this cluster, unless it is too late or has no lanes."""
        number = self._state.outer_step + 1
        entry = from_rank_0(self._ranks, lambda: next(iter(self._meeting.entries()[number:]), None))
        assert not isinstance(entry, OuterBegan)
        has_part = bool(self._state.unfinished(self._lanes)) and (entry is None or self._is_named(entry))
        if has_part:
            if self._train_inner() == "stopped":
                return "stopped"
            if self._ranks.rank == 0:
                self._check_deadline()
                self._recorder.phase("meeting")
                self._put_part()
        if (entry := self._wait_for_entry(has_part=has_part)) is None:
            return "stopped"
        self._apply(entry)
        return "finished"

    def _train_inner(self) -> Outcome:
        """Train the inner steps that are left before the next outer step."""
        first = self._state.outer_step * self._round_steps
        last = first + max(end - start for start, end in map(self._state.planned, self._lanes))
        loader, inner, done = self._context.loader, self._inner, self.step - first
        trainer = Trainer(
            self._context,
            inner.parts.stepper,
            inner.saver,
            self._recorder,
            lanes=[self._slots[position] for position in inner.parts.lanes],
            failure_s=self._failure_s,
            evaluate=lambda step: None,
            rows=LaneRows(loader, self._state, done),
            after_update=lambda totals: inner.outer.add_weight(totals.weight),
        )
        began_s = self._context.clock.monotonic_s()
        cursor = loader.cursor_at(self._state.schedule_step + done)
        outcome = trainer.train(TrainingPosition(self.step, cursor), last)
        self._inner_s = self._context.clock.monotonic_s() - began_s
        if outcome == "finished":
            self.step = self._committed_step = last
        return outcome

    def _put_part(self) -> None:
        """Put the change of the weights, and what the inner steps trained."""
        outer, state = self._inner.outer, self._state
        trained = steps_of_lanes(self._context.log, after=state.outer_step * self._round_steps, last=self.step)
        lanes = [
            LaneSteps(
                lane=lane, from_step=start, to_step=end, num_rows=rows.num_rows, rows_digest=f"{rows.digest:016x}"
            )
            for lane in self._lanes
            for (start, end), rows in [(state.planned(lane), trained[lane])]
        ]
        change = encode(outer.change(), self._config.bits)
        part = OuterPart(
            outer_step=state.outer_step + 1,
            cluster=self._meeting.cluster,
            lanes=tuple(lanes),
            weight=outer.weight,
            change_sha256=sha256_of_bytes(change),
            num_bytes=len(change),
            weights_digest=outer.digest(),
            moments_digest=outer.first_moments_digest(),
            last_moments_digest=outer.moments_digest(),
            inner_s=self._inner_s,
        )
        self._meeting.put_part(part, change)

    def _wait_for_entry(self, *, has_part: bool) -> OuterStep | None:
        """Wait for the entry of the outer step, or put it; None after a stop request."""
        meeting, state, deadline_s = self._meeting, self._state, self._config.deadline_s
        if not has_part and self._ranks.rank == 0:
            last = meeting.entries()[-1]
            inner_s = [part.inner_s for part in last.parts] if isinstance(last, OuterStep) else []
            deadline_s = PATIENCE * max([deadline_s, *inner_s])
            if not self._lanes:
                meeting.request_lanes(state)

        def poll(waited_s: float) -> OuterStep | None:
            # The cluster of a damaged change puts it again when it has trained its next inner steps.
            must_read = waited_s >= PATIENCE * deadline_s
            return meeting.poll(state, may_close=waited_s >= deadline_s, must_read=must_read)

        return wait_for(self._context, self._recorder, poll, pause_s=min(POLL_S, deadline_s / 10))

    def _apply(self, entry: OuterStep) -> None:
        """Compute the outer weights from the entry's parts, and go on from them."""
        self._recorder.phase("communication")
        changes = from_rank_0(self._ranks, lambda: self._meeting.changes(entry))
        inner, parts = self._inner, self._inner.parts
        late_steps = 0
        if self._is_named(entry):
            inner.outer.accept_moments()
        else:
            inner.outer.return_to_moments()
            late_steps = self.step - self._state.outer_step * self._round_steps
        inner.outer.take_step(
            [(part.weight, decode(change)) for part, change in zip(entry.parts, changes, strict=True)]
        )
        parts.weights_changed()
        self._state = self._state.after(entry)
        self.step = entry.outer_step * self._round_steps
        values = {"outer_step": entry.outer_step, "clusters": len(entry.parts), "late_steps": late_steps}
        self._recorder.log(self.step, values)
        self._resize()
        if self._state.is_done or self._is_evaluated(entry.outer_step):
            self._commit(entry.outer_step)

    def _commit(self, outer_step: int) -> None:
        """Commit the outer weights, with their metric if this outer step is evaluated."""
        metric = None
        if self._is_evaluated(outer_step):
            self._recorder.phase("evaluation")
            metric = self._evaluate(self._inner.parts, self.step)
        self._recorder.phase("checkpoint")
        self._recorder.sync()
        self._inner.saver.begin(
            step=self.step,
            cursor=self._context.loader.cursor_at(self._state.schedule_step),
            from_step=self._committed_step,
            receipts=LaneReceipts(),
            metric=metric,
        )
        self._inner.saver.wait()
        self._committed_step = self.step

    def _is_evaluated(self, outer_step: int) -> bool:
        interval = self._evaluate_every
        return interval is not None and outer_step % (interval // self._config.every) == 0

    @property
    def _round_steps(self) -> int:
        """Step numbers from one outer step to the next."""
        return self._config.every + 1

    @property
    def _lanes(self) -> tuple[int, ...]:
        return self._state.lanes.get(self._meeting.cluster, ())

    @property
    def _slots(self) -> tuple[int, ...]:
        num_lanes = self._context.loader.config.lanes
        return slots_of(self._lanes, num_lanes=num_lanes, world_size=self._ranks.world_size)

    def _is_named(self, entry: OuterStep) -> bool:
        return any(part.cluster == self._meeting.cluster for part in entry.parts)

    def _schedule_step(self, step: int) -> int:
        """Return the learning rate's step: the mean position of all lanes, and the inner steps since."""
        num_inner = step - self._state.outer_step * self._round_steps
        # Lanes that lag behind have inner steps left when the mean position is close to the last step.
        return min(self._state.schedule_step + num_inner, self._state.lane_steps)

    def _check_deadline(self) -> None:
        """Raise `ConfigError` if the deadline is shorter than the first inner steps took."""
        if self._state.outer_step or self._context.is_replay:
            return
        if self._inner_s > self._config.deadline_s:
            raise ConfigError(
                f"outer.deadline_s={self._config.deadline_s:g}: {self._config.every} inner steps take "
                f"{duration_text(self._inner_s)} here, so a cluster that dies once would miss every deadline. Use "
                f"outer.deadline_s={2 * self._inner_s:.2g} or more, or fewer inner steps (outer.every), and let all "
                "clusters begin again in another folder (--meet). No outer step was taken."
            )

    def _built(self, slots: tuple[int, ...]) -> _Inner:
        shares = LaneShares(len(slots), self._ranks.world_size)
        parts = RankParts(self._context, shares)
        outer = OuterWeights(parts.model, parts.state[OPTIMIZER], self._config.optimizer)
        saver = self._make_saver({**parts.state, OUTER: outer})
        parts.stepper.before_update = saver.before_update
        return _Inner(parts, saver, outer)

    def _resize(self) -> None:
        """Rebuild the parts of this rank for another number of lanes, with the same state."""
        slots, before = self._slots, self._inner
        if len(slots) == before.parts.lane_sum.shares.num_lanes:
            return
        state = {name: part.state() for name, part in [*before.parts.state.items(), (OUTER, before.outer)]}
        self.close()
        self._inner = self._built(slots)
        for name, part in [*self._inner.parts.state.items(), (OUTER, self._inner.outer)]:
            part.restore(state[name])


def wait_to_begin(
    context: RankContext, meeting: Meeting, recorder: Recorder, *, recipe_sha256: str
) -> OuterState | None:
    """Wait until the run has begun; return the state before the first outer step, or None after a stop request."""
    sizes = {"num_lanes": context.loader.config.lanes, "lane_steps": context.num_steps}
    begin = partial(meeting.begin, recipe_sha256=recipe_sha256, **sizes)
    began = wait_for(context, recorder, begin, pause_s=POLL_S)
    return None if began is None else OuterState.after_entries([began])


def wait_for(
    context: RankContext, recorder: Recorder, look: Callable[[float], Value | None], *, pause_s: float
) -> Value | None:
    """Return what `look`, with the seconds waited so far, finds on rank 0; None after a stop request."""
    ranks, clock = context.ranks, context.clock
    began_s = clock.monotonic_s()
    while True:
        recorder.phase("meeting")
        found = from_rank_0(ranks, lambda: look(clock.monotonic_s() - began_s))
        if found is not None or any(flag for (flag,) in ranks.all_gather_numbers([context.is_stopping()])):
            return found
        clock.sleep_s(pause_s)


def from_rank_0(ranks: Ranks, make: Callable[[], Value]) -> Value:
    """Return on all ranks what `make` returns on rank 0."""
    if ranks.world_size == 1:
        return make()
    values = [make() if ranks.rank == 0 else None]
    dist.broadcast_object_list(values, src=0, group=ranks.control)
    return values[0]  # type: ignore[return-value]
