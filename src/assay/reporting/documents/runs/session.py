"""What a run's document says of a session of the Tinker API beyond other runs."""

from collections.abc import Iterator

from assay.base.units import number_of
from assay.reporting.document import Block, Fact, FactList, Listing, TitledTable, name, number
from assay.reporting.views.runs.session import SessionView


def session_blocks(view: SessionView) -> Iterator[Block]:
    """Yield the models of a session and their saved weights."""
    samples = number_of(view.num_samples, "request")
    yield FactList([Fact("project", view.project), Fact("samples", samples)])
    yield TitledTable.of(
        "Models",
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
    if saved := [path for model in view.models for path in model.saved]:
        yield Listing(saved)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
