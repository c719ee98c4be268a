"""One self-contained HTML file: style and drawings inside, nothing fetched, readable without any script."""

from functools import cache
from importlib.resources import files

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from assay.base.clock import utc_text
from assay.reporting.figures.comparison_figures import cost_table, difference_figures, overlay_figures
from assay.reporting.figures.figure import Figure
from assay.reporting.figures.run_figures import learning_figures, life_figures, metrics_table, quality_figures
from assay.reporting.pages.document import Document
from assay.reporting.views.pages import ComparisonPage, RunPage
from assay.reporting.views.verdict import Tile, comparison_verdict, run_tiles, run_verdict, throughput_ratio

Section = tuple[str, list[Figure]]


def render_run_page(page: RunPage) -> str:
    """The page of one run."""
    sections: list[Section] = [
        ("What happened", list(life_figures(page))),
        ("Did it learn?", list(learning_figures(page))),
        ("What is it worth?", list(quality_figures(page))),
    ]
    return (
        page_environment()
        .get_template("run.html")
        .render(
            title=page.run.run_id,
            kind="run",
            made=utc_text(page.run.created_s),
            verdict=run_verdict(page),
            tiles=run_tiles(page),
            sections=[section for section in sections if section[1]],
            page=page,
            commit=page.last_commit(),
            metrics=metrics_table(page.evaluation.overall) if page.evaluation else None,
            recipe=yaml.safe_dump(page.run.recipe, sort_keys=False, allow_unicode=True).strip(),
        )
    )


def render_comparison_page(page: ComparisonPage) -> str:
    """The page of a baseline and its candidates."""
    names = [each.page.run.run_id for each in page.candidates]
    sections: list[Section] = [
        ("Is it as good?", list(difference_figures(page))),
        ("Side by side", list(overlay_figures(page))),
    ]
    return (
        page_environment()
        .get_template("comparison.html")
        .render(
            title=f"{', '.join(names)} beside {page.baseline.run.run_id}",
            kind="comparison",
            made=utc_text(max(each.page.run.created_s for each in page.candidates)),
            verdict=comparison_verdict(page),
            tiles=[
                tile
                for each in page.candidates
                for tile in _comparison_tiles(page, names.index(each.page.run.run_id))
            ],
            sections=[section for section in sections if section[1]],
            page=page,
            costs=cost_table(page),
        )
    )


def render_document(document: Document) -> str:
    """A planning document as a page."""
    return (
        page_environment()
        .get_template("document.html")
        .render(
            title=document.title,
            kind=document.kind,
            made=document.made,
            verdict=document.verdict,
            tiles=document.tiles,
            sections=[],
            document=document,
        )
    )


def _comparison_tiles(page: ComparisonPage, index: int) -> list[Tile]:
    candidate = page.candidates[index]
    found, difference = candidate.comparison, candidate.comparison.difference
    ratio = throughput_ratio(page, candidate)
    both = (page.baseline, candidate.page)
    sizes = " and ".join(str(max(each.world_sizes(), default=0)) for each in both)
    hours = [each.held_s() for each in both]
    has_interval = difference.low is not None and difference.high is not None
    return [
        Tile(
            "difference of AUC",
            f"{difference.value:+.4f}",
            f"[{difference.low:+.4f}, {difference.high:+.4f}]" if has_interval else "no interval",
        ),
        Tile("rule", found.verdict, f"may lose {found.allowed_loss:g}"),
        Tile("throughput", f"{ratio:.2f}x" if ratio else "—", f"rows/s, {sizes} ranks"),
        Tile("device time", f"{hours[1] / hours[0]:.2f}x" if all(hours) else "—", "of the baseline's"),
        Tile("weights", "equal" if found.weights_equal else "differ", "bit for bit, by digest"),
    ]


@cache
def page_environment() -> Environment:
    """Templates with the stylesheet inside; undefined names are errors."""
    environment = Environment(
        loader=PackageLoader("assay.reporting"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = files("assay.reporting").joinpath("templates/page.css").read_text(encoding="utf-8")
    environment.globals["style"] = Markup(style)
    environment.filters["drawn"] = Markup
    return environment
