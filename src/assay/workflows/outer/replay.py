"""Replays outer steps of a run over several clusters: every cluster's parts, from the record and the dataset alone."""

from contextlib import suppress
from pathlib import Path

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.errors import ConfigError, DamagedDataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.elastic.capsules import nearest_commit
from assay.records.commit import Commit
from assay.records.replay import Compared, OuterReplayReport, PartReplay
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.methods.registry import method_of
from assay.training.model_folders import check_unchanged
from assay.training.outer.meeting import Meeting, damages, named_parts
from assay.training.outer.replay import replay_cluster
from assay.training.recipe import Recipe, recipe_of
from assay.training.replay.replayer import lone_rank
from assay.training.trainer.context import RankContext


def replay_outer(run: Run, outer_step: int | None, *, restores: bool = False) -> OuterReplayReport:
    """Replay all clusters' parts of an outer step, or of all that were taken, and compare them with the record.

    With `restores`, changes that are damaged in the meeting place are put there again.

    A cluster's moments follow from all its earlier parts, so these are trained as well: from the start, or from a
    commit before, which this run has of its own cluster only.
    """
    of, recipe = run.cluster_of, recipe_of(run)
    if of is None or recipe.outer is None:
        raise ConfigError(f"run '{run.run_id}' takes no outer steps: it trains on one cluster. Replay a step (--step).")
    meeting = Meeting(open_store(of.meeting_url), of.cluster, recipe.outer)
    num_steps = len(meeting.entries()) - 1
    first, last = outer_step or 1, num_steps if outer_step is None else outer_step
    if not 1 <= last <= num_steps:
        raise ConfigError(f"--outer {last}: the clusters took outer steps 1 to {max(0, num_steps)} so far.")
    check_unchanged(run, recipe)
    parts, digest = _replayed_parts(run, recipe, meeting, first, last, restores=restores)
    log = CommitLog(open_store(run.store_url))
    weights = _compared_weights(log, last * (recipe.outer.every + 1), digest) if parts else None
    differs = any(part.differing for part in parts) or (weights is not None and not weights.is_equal)
    return OuterReplayReport(
        run_id=run.run_id,
        first_outer_step=first,
        last_outer_step=last,
        recorded_code_version=run.code_version,
        code_version=code_version(),
        verdict="differs" if differs else "equal" if parts else "not recorded",
        parts=tuple(parts),
        weights=weights,
    )


def _replayed_parts(
    run: Run, recipe: Recipe, meeting: Meeting, first: int, last: int, *, restores: bool
) -> tuple[list[PartReplay], str]:
    """Return the parts of the outer steps, trained again cluster by cluster, and the digest of the last weights."""
    assert recipe.outer is not None
    view = split_view(Dataset.open(Path(recipe.data.dataset)), recipe.data.split, "train")
    loader, log = Loader(view, recipe.loader, recipe.method.columns), CommitLog(open_store(run.store_url))
    parts, digest = list[PartReplay](), ""
    with lone_rank(recipe.trainer) as ranks:
        context = RankContext(
            ranks, method_of(recipe.method), loader, recipe.trainer, recipe.seed, log, SystemClock(), is_replay=True
        )
        commits = {meeting.cluster: nearest_commit(log, (first - 1) * (recipe.outer.every + 1) + 1)}
        recorded = named_parts(meeting.entries()[first : last + 1])
        damaged = [part for part, _ in damages(meeting, recorded)] if restores else []
        for cluster in sorted({part.cluster for part in damaged}):
            with suppress(DamagedDataError):  # a change of a cluster that is replayed later
                replay_cluster(context, recipe.outer, meeting, cluster, last, commits.get(cluster), damaged)
        for cluster in sorted({part.cluster for part in recorded}):
            found, digest = replay_cluster(context, recipe.outer, meeting, cluster, last, commits.get(cluster), damaged)
            parts += [part for part in found if part.outer_step >= first]
    return parts, digest


def _compared_weights(log: CommitLog, step: int, replayed: str) -> Compared | None:
    recorded = [entry.weights_digest for entry in log.entries() if isinstance(entry, Commit) and entry.step == step]
    if not recorded:
        return None
    is_equal = recorded[-1] == replayed
    return Compared(step=step, quantity="weights_digest", recorded=recorded[-1], replayed=replayed, is_equal=is_equal)
