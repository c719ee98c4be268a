"""The document of a session of the Tinker API."""

from assay.base.clock import utc_text
from assay.base.units import number_of
from assay.reporting.document import Block, Document, Fact, Listing, Section, TitledTable, name, number
from assay.reporting.values import device_hours_text
from assay.reporting.views.session import SessionModelView, SessionView
from assay.store.settings import Money


def session_document(view: SessionView) -> Document:
    """Return the models of a session, what they wait for, and what they cost."""
    facts = [
        Fact("project", view.project),
        Fact("begun", utc_text(view.created)),
        Fact("status", view.finished or "open"),
        Fact("samples", number_of(view.num_samples, "request")),
        Fact("device time", device_hours_text(3600 * view.device_hours)),
    ]
    if view.cost is not None:
        facts.append(Fact("cost", str(Money(view.cost, view.currency))))
    table = TitledTable.of(
        "",
        "",
        view.models,
        (name("model"), lambda model: model.model.partition(":")[2]),
        ("base", lambda model: model.base_model),
        (number("rank"), lambda model: "" if model.lora_rank is None else str(model.lora_rank)),
        (number("executed"), lambda model: f"{model.num_results:,} of {model.num_requests:,}"),
        (number("loss, sum"), lambda model: _number(model.loss)),
        (number("gradient norm"), lambda model: _number(model.gradient_norm)),
        (number("saved"), lambda model: f"{len(model.saved):,}"),
    )
    blocks: list[Block] = [table]
    if lines := [line for model in view.models for line in _lines(model)]:
        blocks.append(Listing(lines))
    return Document(title=view.session_id, kind="session", tiles=facts, sections=[Section("", blocks)])


def _lines(model: SessionModelView) -> list[str]:
    waiting = [] if model.waiting_for is None else [f"{model.model} waits. {model.waiting_for}"]
    return [*waiting, *model.saved]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
