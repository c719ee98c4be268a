"""What a cluster's run shows of the outer steps that it takes with others."""

from typing import Annotated

from assay.base.errors import AssayError
from assay.base.shown_url import without_secrets
from assay.records.goodput import Goodput, goodput_key
from assay.records.outer import OuterStep
from assay.records.run import ClusterOf
from assay.reporting.views.view import AsWritten, View
from assay.store.logs.outer_log import outer_log
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy
from assay.training.outer.state import OuterState

NEWEST_STEPS = 10
"""Outer steps that a view lists."""


class ClusterView(View):
    """What one cluster contributed so far."""

    lanes: tuple[int, ...]
    """In the next outer step."""
    num_parts: int
    """Outer steps that it is in."""
    num_absent: int
    """Outer steps that it was expected in, and is not."""
    num_rows: int
    weight: int
    """Rows, tokens or pairs that the others learned from it, as the method counts."""
    num_bytes: int
    """Size of the changes that it put."""
    goodput: Annotated[Goodput, AsWritten] | None
    """Device time of its attempts that have ended; null if none has."""


class ClustersView(View):
    """A run that trains its share of the lanes with other clusters."""

    cluster: str
    """This run's."""
    meeting_url: str
    """Store in which the clusters meet, without secrets."""
    problem: str = ""
    """Why the meeting place could not be read; then the other fields are empty."""
    outer_steps: int = 0
    """Outer steps so far."""
    lane_steps: int = 0
    """Steps of every lane in the whole run."""
    lane_positions: tuple[int, ...] = ()
    """[lane]: its steps so far."""
    clusters: dict[str, ClusterView] = {}  # noqa: RUF012
    """By name."""
    newest: tuple[Annotated[OuterStep, AsWritten], ...] = ()
    """The last outer steps, oldest first."""


def clusters_view(of: ClusterOf, goodput: Goodput) -> ClustersView:
    """Return the view; `goodput` is this cluster's. A meeting place that cannot be read is told in it."""
    store, url = open_store(of.meeting_url, RetryPolicy(0.0)), without_secrets(of.meeting_url)
    try:
        if not (entries := outer_log(store).state()):
            return ClustersView(cluster=of.cluster, meeting_url=url)
        state = OuterState.after_entries(entries)
        names = sorted({name for entry in entries for name in entry.lanes})
        keys = {name: key for name in names if store.exists(key := goodput_key(name))}
        known = {name: Goodput.from_json(store.get(key), source=key) for name, key in keys.items()}
    except AssayError as error:
        return ClustersView(cluster=of.cluster, meeting_url=url, problem=without_secrets(str(error)))
    steps = [entry for entry in entries if isinstance(entry, OuterStep)]
    known[of.cluster] = goodput
    return ClustersView(
        cluster=of.cluster,
        meeting_url=url,
        outer_steps=state.outer_step,
        lane_steps=state.lane_steps,
        lane_positions=state.positions,
        clusters={name: _cluster(name, steps, state.lanes.get(name, ()), known.get(name)) for name in names},
        newest=tuple(steps[-NEWEST_STEPS:]),
    )


def _cluster(name: str, steps: list[OuterStep], lanes: tuple[int, ...], goodput: Goodput | None) -> ClusterView:
    parts = [part for step in steps for part in step.parts if part.cluster == name]
    return ClusterView(
        lanes=lanes,
        num_parts=len(parts),
        num_absent=sum(name in step.absent for step in steps),
        num_rows=sum(lane.num_rows for part in parts for lane in part.lanes),
        weight=sum(part.weight for part in parts),
        num_bytes=sum(part.num_bytes for part in parts),
        goodput=goodput if goodput and goodput.held_device_s else None,
    )
