"""Coverage: which failure modes the benchmarks would detect, holes first, as `assay eval coverage` computes it."""

from functools import partial

from assay.dashboard.access import Visit
from assay.dashboard.background import Computed
from assay.dashboard.dashboard import Dashboard, modified
from assay.dashboard.page import Page, path_to
from assay.decision.coverage import coverage, read_coverage_config
from assay.evals.version import present_suite
from assay.records.coverage import Coverage, CoverageCell
from assay.reporting.document import Block, Cell, Document, Paragraph, Section, Verdict
from assay.reporting.documents.benchmarks import coverage_document
from assay.store.followed import FollowedCoverage, followed_coverages

EVERY_S = 60.0
"""While somebody looks, items and results are read again at this interval."""
NOTHING = (
    "No coverage file is known in {folder} yet. It lists the failure modes that must not get worse, each with an owner "
    "and the smallest regression that matters; suites name the modes that each benchmark detects (docs/suites.md). "
    "Begin with 'assay eval coverage FILE --suite SUITE'; from then on this page shows the holes first."
)


def coverage_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the matrix of each known coverage file."""
    known = followed_coverages(dashboard.home)
    found = [(followed, _latest(dashboard, followed)) for followed in known]
    sections = [Section(followed.file.name, _blocks(computed)) for followed, computed in found]
    return Page(
        document=Document(
            title="Coverage",
            kind="coverage",
            subtitle="failure modes x benchmarks",
            verdict=_verdict([computed for _, computed in found]) if found else None,
            sections=sections or [Section("", [Paragraph(NOTHING.format(folder=dashboard.home.folder))])],
            footer="; ".join(f"The same as JSON: {followed.command()} --json" for followed in known),
            links=[("/benchmarks", "all results")],
        ),
        area="Coverage",
        topics=("followed", "runs", "minute", *(f"computed:{_task(followed)}" for followed in known)),
        retry_s=next(filter(None, (computed.retry_s for _, computed in found)), None),
    )


def _task(followed: FollowedCoverage) -> str:
    return f"coverage {followed.file}"


def _latest(dashboard: Dashboard, followed: FollowedCoverage) -> Computed[Coverage]:
    now = int(dashboard.clock.now_s() / EVERY_S)
    key = (followed, modified(followed.file), *map(modified, followed.suites), now)
    task = f"{_task(followed)} {'' if dashboard.reader.sees_all else dashboard.reader.project}".rstrip()
    return dashboard.background.latest(task, key, partial(_coverage, dashboard, followed))


def _coverage(dashboard: Dashboard, followed: FollowedCoverage) -> Coverage:
    config, suites = read_coverage_config(followed.file), [present_suite(path) for path in followed.suites]
    with dashboard.ledger() as ledger:
        return coverage(config, suites, ledger.benchmark_results())


def _blocks(computed: Computed[Coverage]) -> list[Block]:
    hope = "The page recovers by itself once this is right." if computed.is_current else "It is being computed again."
    error: list[Block] = [Paragraph(Cell(f"{computed.error} {hope}", "bad"))]
    if computed.value is None:
        return error if computed.error else [Paragraph("Being computed; this page shows it when it is ready.")]
    modes = sorted(computed.value.modes, key=lambda mode: not mode.is_hole)
    document = coverage_document(computed.value.model_copy(update={"modes": tuple(modes)}), address=_address)
    return [*(error if computed.error else []), *document.sections[0].blocks]


def _address(cell: CoverageCell) -> str:
    return path_to("benchmarks", cell.benchmark) if cell.result_sha256 is not None else ""


def _verdict(found: list[Computed[Coverage]]) -> Verdict:
    holes = [mode.name for computed in found if computed.value is not None for mode in computed.value.holes]
    count = sum(len(computed.value.modes) for computed in found if computed.value is not None)
    if any(computed.error for computed in found):
        return Verdict("bad", "not readable", "A coverage file or a suite cannot be read; see below.")
    if any(computed.value is None for computed in found):
        return Verdict("open", "being computed", "The suites are read; this page shows the matrix when it is ready.")
    if holes:
        return Verdict(
            "bad", f"{len(holes)} of {count} uncovered", f"A regression would go unnoticed: {', '.join(holes)}."
        )
    return Verdict("good", "no hole", f"A regression that matters would be noticed in each of {count} failure modes.")
