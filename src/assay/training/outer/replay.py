"""Trains a cluster's parts again in one process, from nothing but the log of outer steps and the dataset.

    log of outer steps -> lanes, positions, changes of the others  \
                                                                     ClusterTrainer -> part -> compare, field by field
    dataset, seed -> rows, dropout                                 /

The trainer is the one that clusters run. It meets on record: a part that it puts is compared with the recorded one,
and an outer step is the recorded one, with the recorded changes. Its commits stay in memory.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from assay.base.clock import SystemClock
from assay.records.commit import Commit
from assay.records.outer import OuterEntry, OuterPart, OuterStep
from assay.records.phase import Phase
from assay.records.replay import PartReplay
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.checkpoint.parts import StatefulPart, model_state
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import Saver, weights_digest
from assay.training.outer.cluster import ClusterTrainer
from assay.training.outer.config import OuterConfig
from assay.training.outer.meeting import Meeting
from assay.training.outer.state import OuterState
from assay.training.trainer.context import RankContext

_OF_TIME = "inner_s"


class _RecordedMeeting(Meeting):
    """A meeting place on record; writes nothing."""

    def __init__(self, meeting: Meeting, cluster: str, config: OuterConfig) -> None:
        super().__init__(meeting.store, cluster, config, SystemClock())
        self.replayed: list[PartReplay] = []

    def put_part(self, part: OuterPart, change: bytes) -> None:  # noqa: ARG002
        entry = self.entries()[part.outer_step]
        assert isinstance(entry, OuterStep), part.outer_step
        recorded = next(item for item in entry.parts if item.cluster == self.cluster)
        names = [name for name in OuterPart.model_fields if getattr(recorded, name) != getattr(part, name)]
        differing = tuple(name for name in names if name != _OF_TIME)
        self.replayed.append(PartReplay(outer_step=part.outer_step, cluster=self.cluster, differing=differing))

    def request_lanes(self, state: OuterState) -> None: ...


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


class OuterReplayer:
    """Replays clusters of one run."""

    def __init__(self, context: RankContext, config: OuterConfig, meeting: Meeting) -> None:
        """`context.log`: the commits of the run of the meeting's cluster."""
        self._source = context.log
        # The last inner step of each outer step is committed in any case.
        trainer_config = context.config.model_copy(update={"commit_every": config.every + 1, "evaluate_every": None})
        log = CommitLog(open_store("memory:"))
        log.begin_attempt(world_size=1, now_s=0.0)
        self._context = replace(context, config=trainer_config, log=log, is_replay=True)
        self._config = config
        self._meeting = meeting

    def replay(self, cluster: str, last: int, commit: Commit | None = None) -> tuple[list[PartReplay], str]:
        """Train the parts of a cluster up to outer step `last` again, from `commit` or from the start.

        Returns what came of them, and the digest of the weights after that outer step.
        """
        meeting = _RecordedMeeting(self._meeting, cluster, self._config)
        trainer = ClusterTrainer(
            self._context,
            self._config,
            meeting,
            OuterState.after_entries(meeting.entries()[:1]),
            _NoRecord(),
            make_saver=lambda parts: _MemorySaver(parts, self._context, self._source),
            evaluate=lambda parts, step: None,
            failure_s=1e9,
        )
        with closing(trainer):
            trainer.restore(commit)
            trainer.train(last)
            return meeting.replayed, weights_digest(model_state(trainer.parts.model), self._context.ranks.saving)


def clusters_of(entries: Sequence[OuterEntry], outer_steps: Sequence[int]) -> list[str]:
    """Return the clusters with a part in any of some outer steps, by name."""
    steps = [entry for entry in entries if isinstance(entry, OuterStep) and entry.outer_step in outer_steps]
    return sorted({part.cluster for entry in steps for part in entry.parts})
