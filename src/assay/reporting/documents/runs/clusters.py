"""What a run's document says of the outer steps that its cluster takes with others."""

from collections.abc import Iterator

from assay.base.units import bytes_text, count_text, duration_text, number_of, tenths_text
from assay.records.goodput import useful_share
from assay.records.outer import OuterStep
from assay.reporting.charts.plots import PHASES
from assay.reporting.charts.run_figures import phase_figure
from assay.reporting.document import Block, Cell, Fact, FactList, Paragraph, Text, TitledTable, name, number
from assay.reporting.documents.goodput import goodput_parts
from assay.reporting.views.runs.clusters import ClustersView
from assay.store.settings import Money


def clusters_blocks(view: ClustersView) -> Iterator[Block]:
    """Yield who was in which outer step, what each cluster sent, and where its device time went."""
    facts = [Fact("cluster", view.cluster), Fact("meets at", view.meeting_url)]
    if view.problem:
        yield from (FactList(facts), Paragraph(f"The meeting place cannot be read: {view.problem}"))
        return
    done = " to ".join(dict.fromkeys(f"{end(view.lane_positions, default=0):,}" for end in (min, max)))
    facts[0] = Fact("cluster", f"{view.cluster}, with {number_of(len(view.clusters), 'cluster')} in all")
    facts.append(Fact("outer steps", f"{view.outer_steps:,}; lanes are at step {done} of {view.lane_steps:,}"))
    known = {name: cluster.goodput for name, cluster in view.clusters.items() if cluster.goodput is not None}
    total = {phase: sum(part.by_phase.get(phase, 0.0) for part in known.values()) for phase in PHASES}
    if unknown := ", ".join(sorted(view.clusters.keys() - known)):
        facts.append(Fact("device time", Cell(f"not known of {unknown}", "open"), "no attempt has ended there"))
    elif known:
        facts.append(Fact("goodput", tenths_text(useful_share(total) or 0.0), "of all clusters"))
    costs = [Money(part.cost, part.currency) for part in known.values() if part.cost is not None]
    if len(costs) == len(view.clusters) and len({cost.currency for cost in costs}) == 1:
        facts.append(Fact("cost", str(costs[0]._replace(amount=sum(cost.amount for cost in costs))), "of all clusters"))
    yield FactList(facts)
    yield TitledTable.of(
        "Clusters",
        "Rows that were learned; their weight is rows, tokens or pairs, as the method counts.",
        view.clusters.items(),
        (name("cluster"), lambda item: item[0]),
        (number("lanes next"), lambda item: str(len(item[1].lanes))),
        (number("outer steps"), lambda item: f"{item[1].num_parts:,} of {view.outer_steps:,}"),
        (number("absent"), lambda item: f"{item[1].num_absent:,}"),
        (number("rows"), lambda item: f"{item[1].num_rows:,}"),
        (number("weight"), lambda item: count_text(item[1].weight)),
        (number("sent"), lambda item: bytes_text(item[1].num_bytes)),
    )
    if known:
        caption = "Of attempts that have ended. Meeting: it waited for others. Late: steps that no outer step names."
        bars = [("all", total), *((cluster, part.by_phase) for cluster, part in known.items())]
        yield phase_figure("Device time of all clusters", caption, bars)
        yield goodput_parts(known, "cluster")
    yield TitledTable.of(
        "Last outer steps",
        "Rows that each cluster trained, and the time of its inner steps.",
        view.newest,
        (number("outer step"), lambda step: str(step.outer_step)),
        *((name(cluster), lambda step, cluster=cluster: _part(step, cluster)) for cluster in view.clusters),
        (number("sent"), lambda step: bytes_text(sum(part.num_bytes for part in step.parts))),
    )


def _part(step: OuterStep, cluster: str) -> Text:
    part = next((part for part in step.parts if part.cluster == cluster), None)
    if part is None:
        return Cell("absent", "bad") if cluster in step.absent else "no lanes"
    return f"{sum(lane.num_rows for lane in part.lanes):,} in {duration_text(part.inner_s)}"
