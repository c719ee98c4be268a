"""What a cluster's run shows of the outer steps that it takes with others."""

from assay.base.errors import AssayError
from assay.base.shown_url import without_secrets
from assay.records.outer import OuterBegan, OuterEntry, OuterPart, OuterStep
from assay.records.run import ClusterOf
from assay.reporting.views.view import View
from assay.store.logs.outer_log import outer_log
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy

NEWEST_STEPS = 10
"""Outer steps that a view lists."""


class ClusterPartView(View):
    """What one cluster contributed to one outer step."""

    cluster: str
    """Its name."""
    num_lanes: int
    """Lanes that it trained."""
    num_rows: int
    num_bytes: int
    """Size of the change that it put."""
    inner_s: float
    """Duration of its inner steps."""


class OuterStepView(View):
    """One outer step."""

    outer_step: int
    """From 1."""
    parts: tuple[ClusterPartView, ...]
    """In the order of the clusters' names."""
    absent: tuple[str, ...]
    """Clusters that were expected and are not in it."""


class ClustersView(View):
    """A run that trains its share of the lanes with other clusters."""

    cluster: str
    """This run's."""
    meeting_url: str
    """Store in which the clusters meet, without secrets."""
    problem: str = ""
    """Why the log of outer steps could not be read; then the other fields are empty."""
    outer_steps: int = 0
    """Outer steps so far."""
    lane_steps: int = 0
    """Steps of every lane in the whole run."""
    lane_positions: tuple[int, ...] = ()
    """[lane]: its steps so far."""
    lanes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012
    """Cluster to its lanes in the next outer step."""
    num_parts: dict[str, int] = {}  # noqa: RUF012
    """Cluster to the number of outer steps that it is in."""
    num_bytes: dict[str, int] = {}  # noqa: RUF012
    """Cluster to the bytes that it put so far."""
    newest: tuple[OuterStepView, ...] = ()
    """The last outer steps, oldest first."""


def clusters_view(of: ClusterOf) -> ClustersView:
    """Return the view; a meeting place that cannot be read is told in it."""
    try:
        entries = outer_log(open_store(of.meeting_url, RetryPolicy(0.0))).state() or ()
    except AssayError as error:
        return ClustersView(
            cluster=of.cluster, meeting_url=without_secrets(of.meeting_url), problem=without_secrets(str(error))
        )
    began = entries[0] if entries else None
    lane_steps = began.lane_steps if isinstance(began, OuterBegan) else 0
    steps = [entry for entry in entries if isinstance(entry, OuterStep)]
    parts = [part for step in steps for part in step.parts]
    lanes = dict(entries[-1].lanes) if entries else {}
    names = sorted({*lanes, *(part.cluster for part in parts)})
    return ClustersView(
        cluster=of.cluster,
        meeting_url=without_secrets(of.meeting_url),
        outer_steps=len(steps),
        lane_steps=lane_steps,
        lane_positions=_positions(entries, parts),
        lanes=lanes,
        num_parts={name: sum(part.cluster == name for part in parts) for name in names},
        num_bytes={name: sum(part.num_bytes for part in parts if part.cluster == name) for name in names},
        newest=tuple(map(_step_view, steps[-NEWEST_STEPS:])),
    )


def _positions(entries: tuple[OuterEntry, ...], parts: list[OuterPart]) -> tuple[int, ...]:
    num_lanes = sum(map(len, entries[0].lanes.values())) if entries else 0
    last = {steps.lane: steps.to_step for part in parts for steps in part.lanes}
    return tuple(last.get(lane, 0) for lane in range(num_lanes))


def _step_view(step: OuterStep) -> OuterStepView:
    parts = tuple(
        ClusterPartView.of(part, num_lanes=len(part.lanes), num_rows=sum(steps.num_rows for steps in part.lanes))
        for part in step.parts
    )
    return OuterStepView(outer_step=step.outer_step, parts=parts, absent=tuple(sorted(step.absent)))
