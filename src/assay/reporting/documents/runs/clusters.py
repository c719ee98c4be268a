"""What a run's document says of the outer steps that its cluster takes with others."""

from collections.abc import Iterator

from assay.base.units import bytes_text, duration_text, number_of
from assay.reporting.document import Block, Fact, FactList, Paragraph, TitledTable, name, number
from assay.reporting.views.runs.clusters import ClustersView, OuterStepView


def clusters_blocks(view: ClustersView) -> Iterator[Block]:
    """Yield who was in which outer step."""
    if view.problem:
        yield FactList([Fact("cluster", view.cluster), Fact("meets at", view.meeting_url)])
        yield Paragraph(f"The log of outer steps cannot be read: {view.problem}")
        return
    behind, ahead = min(view.lane_positions, default=0), max(view.lane_positions, default=0)
    done = f"{behind:,}" if behind == ahead else f"{behind:,} to {ahead:,}"
    yield FactList(
        [
            Fact("cluster", f"{view.cluster}, with {number_of(len(view.num_parts), 'cluster')} in all"),
            Fact("meets at", view.meeting_url),
            Fact("outer steps", f"{view.outer_steps:,}; lanes are at step {done} of {view.lane_steps:,}"),
        ]
    )
    yield TitledTable.of(
        "Clusters",
        "",
        sorted(view.num_parts),
        (name("cluster"), str),
        (number("lanes next"), lambda cluster: str(len(view.lanes.get(cluster, ())))),
        (number("outer steps"), lambda cluster: f"{view.num_parts[cluster]:,} of {view.outer_steps:,}"),
        (number("sent"), lambda cluster: bytes_text(view.num_bytes[cluster])),
    )
    yield TitledTable.of(
        "Last outer steps",
        "",
        view.newest,
        (number("outer step"), lambda step: str(step.outer_step)),
        ("clusters (rows, inner steps)", _parts_text),
        ("absent", lambda step: ", ".join(step.absent)),
    )


def _parts_text(step: OuterStepView) -> str:
    return ", ".join(f"{part.cluster} ({part.num_rows:,}, {duration_text(part.inner_s)})" for part in step.parts)
