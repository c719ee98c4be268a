"""Trains a cluster's parts again in one process, from nothing but the log of outer steps and the dataset.

    log of outer steps -> lanes, positions, changes of the others  \
                                                                     ClusterTrainer -> part -> compare, field by field
    dataset, seed -> rows, dropout                                 /

The trainer is the one that clusters run. It meets on record: a part that it puts is compared with the recorded one,
and an outer step is the recorded one, with the recorded changes. Its commits stay in memory.
"""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace

from assay.base.errors import DataError
from assay.records.commit import Commit
from assay.records.outer import OuterPart, OuterStep
from assay.records.phase import Phase
from assay.records.replay import PartReplay
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.checkpoint.parts import StatefulPart, model_state
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import Saver, weights_digest
from assay.training.outer.cluster import ClusterTrainer
from assay.training.outer.config import OuterConfig
from assay.training.outer.meeting import Meeting, differences
from assay.training.outer.state import OuterState
from assay.training.trainer.context import RankContext


class _RecordedMeeting(Meeting):
    """A meeting place on record; writes nothing but damaged changes that it is to restore."""

    def __init__(self, meeting: Meeting, cluster: str, config: OuterConfig, damaged: Collection[OuterPart]) -> None:
        super().__init__(meeting.store, cluster, config)
        self.replayed: list[PartReplay] = []
        self._damaged = damaged

    def put_part(self, part: OuterPart, change: bytes) -> None:
        self._changes[part.change_sha256] = change
        recorded = next(item for item in self._step(part.outer_step).parts if item.cluster == self.cluster)
        differing = differences(recorded, part)
        if is_restored := recorded in self._damaged:
            if differing:
                raise DataError(
                    f"the part of cluster '{self.cluster}' in outer step {part.outer_step} came out differently here "
                    f"({', '.join(differing)}), so its change is not restored. Use a machine of that cluster."
                )
            self.replace_change(part.change_sha256, change)
        found = PartReplay(
            outer_step=part.outer_step, cluster=self.cluster, differing=differing, is_restored=is_restored
        )
        self.replayed.append(found)

    def poll(self, state: OuterState, *, may_close: bool, must_read: bool = False) -> OuterStep:  # noqa: ARG002
        entry, own = self._step(state.outer_step + 1), self._changes
        self._changes = {part.change_sha256: own.get(part.change_sha256) or self.change(part) for part in entry.parts}
        return entry

    def _step(self, outer_step: int) -> OuterStep:
        entry = self.entries()[outer_step]
        assert isinstance(entry, OuterStep), outer_step
        return entry


class _MemorySaver(Saver):
    """Restores commits of the run, and commits to memory."""

    def __init__(self, parts: Mapping[str, StatefulPart], context: RankContext, source: CommitLog) -> None:
        arguments = (parts, context.ranks)
        super().__init__(*arguments, context.log, RetentionConfig(keep_last=1), context.clock)
        self._reader = Saver(*arguments, source, RetentionConfig(), context.clock)

    def restore(self, commit: Commit) -> None:
        self._reader.restore(commit)

    def close(self) -> None:
        self._reader.close()
        super().close()


class _NoRecord:
    """Takes what a rank records."""

    def phase(self, name: Phase) -> None: ...

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def sync(self) -> None: ...


def replay_cluster(
    context: RankContext,
    config: OuterConfig,
    meeting: Meeting,
    cluster: str,
    last: int,
    commit: Commit | None = None,
    damaged: Collection[OuterPart] = (),
) -> tuple[list[PartReplay], str]:
    """Train the parts of a cluster up to outer step `last` again, from `commit` or from the start.

    `context.log`: the commits of the run of the meeting's cluster. Returns what came of the parts, and the digest of
    the weights after that outer step. The changes of `damaged` parts are put into the meeting place again.
    """
    # The last inner step of each outer step is committed in any case.
    trainer_config = context.config.model_copy(update={"commit_every": config.every + 1, "evaluate_every": None})
    log = CommitLog(open_store("memory:"))
    log.begin_attempt(world_size=1, now_s=0.0)
    in_memory = replace(context, config=trainer_config, log=log, is_replay=True)
    recorded = _RecordedMeeting(meeting, cluster, config, damaged)
    trainer = ClusterTrainer(
        in_memory,
        config,
        recorded,
        OuterState.after_entries(recorded.entries()[:1]),
        _NoRecord(),
        make_saver=lambda parts: _MemorySaver(parts, in_memory, context.log),
        evaluate=lambda parts, step: None,
        failure_s=1e9,
    )
    with closing(trainer):
        trainer.restore(commit)
        trainer.train(last)
        return recorded.replayed, weights_digest(model_state(trainer.parts.model), context.ranks.saving)
