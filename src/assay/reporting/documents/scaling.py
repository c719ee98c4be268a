"""The document of a scaling law: predictions, how far to trust them, and the fitted parameters."""

import math
from collections.abc import Callable, Iterator

from assay.base.clock import utc_text
from assay.base.units import count_text, number_of, power_text
from assay.records.scaling import BandCheck, LawParameter, ScalingPrediction
from assay.reporting.charts.scaling_plots import back_test_plot, loss_plot
from assay.reporting.document import Cell, Document, Fact, Figure, Listing, Section, Table, TitledTable, Verdict, figure
from assay.statistics.scaling.study import ExtrapolatedTarget, ScalingStudy


def scaling_document(scaling: ScalingStudy, check: BandCheck | None, *, name: str, created_s: float) -> Document:
    """Return the predictions, their figures and the fitted law."""
    law, chosen_by = scaling.law, errors_text(scaling)
    fitted = (
        f"{f'{chosen_by[0].upper()}{chosen_by[1:]}. ' if chosen_by else ''}Huber loss of log loss, delta "
        f"{law.huber_delta}; {law.num_resamples} bootstrap resamples, seed {law.seed}. Points: "
        f"{law.points_sha256[:16]}…"
    )
    sections = [
        Section("What it says", [_loss_figure(scaling)]),
        Section("How far to trust it", [*_back_test(scaling)]),
    ]
    if scaling.back_test is not None and scaling.back_test.left_out:
        left_out = [Cell(reason, "open") for reason in scaling.back_test.left_out]
        sections.append(Section("Left out of the back-test", [Listing(left_out)]))
    if scaling.targets:
        sections.append(Section("Targets", [TitledTable("Predictions", "", targets_table(scaling))]))
    sections.append(Section("The law", [TitledTable(law.formula, fitted, parameters_table(scaling))]))
    return Document(
        title=name,
        kind="scaling law",
        subtitle=utc_text(created_s),
        verdict=scaling_verdict(scaling),
        tiles=_tiles(scaling, check),
        sections=[section for section in sections if section.blocks],
        footer="Every number here follows from the points, the form and the seed; the same facts as JSON: "
        "'assay scaling fit ... --json'.",
    )


def scaling_verdict(scaling: ScalingStudy) -> Verdict:
    """Return the predictions, or why there are none."""
    failed = [target for target in scaling.targets if target.error is not None]
    if scaling.back_test_error is not None:
        return Verdict("open", "fitted, not tested", str(scaling.back_test_error))
    if failed:
        return Verdict("bad", "refused", str(failed[0].error))
    if not scaling.targets:
        return Verdict("good", "fitted", f"{scaling.law.formula}, on {number_of(scaling.law.num_points, 'run')}.")
    sentences = " ".join(prediction_sentence(target) for target in scaling.targets)
    if any(target.is_untested for target in scaling.targets):
        return Verdict("open", "untested", f"{sentences} {level_text(scaling)}".rstrip())
    if level := level_text(scaling):
        return Verdict("open", "chance level not given", f"{sentences} {level}")
    return Verdict("good", "within reach", sentences)


def level_text(scaling: ScalingStudy) -> str:
    """Return a warning if scores level off above the given chance level; else empty."""
    if scaling.task is None or scaling.task.level is None:
        return ""
    level = f"{scaling.task.level:.2g}"
    return (
        f"The scores level off at about {level}, above the {scaling.task.sigmoid.task.chance:g} that was given for "
        f"guessing, and predictions go by that: say what guessing scores, '--chance {level}' perhaps."
    )


def prediction_sentence(target: ExtrapolatedTarget) -> str:
    """At parameters 70.0 G and tokens 1.4 T the loss will be 1.973, 90% band 1.896 to 2.054: known to 4.1%."""
    assert target.prediction is not None, "a refused target has no sentence"
    loss = target.prediction.loss
    band = f"{loss.confidence:.0%} band {loss.low:.4g} to {loss.high:.4g}"
    assert loss.low is not None and loss.high is not None, "a prediction has a band"
    known = max(loss.high / loss.value - 1.0, 1.0 - loss.low / loss.value)
    sentence = f"At {target_text(target)} the loss will be {loss.value:.4g}, {band}: known to {known:.1%}."
    if target.score is not None:
        sentence += f" The score will be {target.score.value:.3f}, {target.score.low:.3f} to {target.score.high:.3f}."
    beyond, supported = target.prediction.times_beyond_data, target.prediction.times_supported
    distance = f"{power_text(beyond)} times beyond the largest run"
    if target.is_untested:
        return f"{sentence} Untested: it is {distance}, and such bands were tested up to {power_text(supported)} times."
    return f"{sentence} That is {distance if beyond > 1 else 'inside the data'}."


def errors_text(scaling: ScalingStudy) -> str:
    """Return such as: form tokens: its back-test erred by 2.40% on average, chinchilla's by 2.31%. Or empty."""
    own, others = scaling.fit.form.name, dict(scaling.errors)
    if own not in others:
        return ""
    error = others.pop(own)
    other_errors = "".join(f", {name}'s by {value:.2%}" for name, value in others.items())
    return f"form {own}: its back-test erred by {error:.2%} on average{other_errors}"


def target_text(target: ExtrapolatedTarget) -> str:
    """`parameters 70.0 G and tokens 1.4 T`."""
    return " and ".join(
        f"compute {power_text(value)} FLOP" if name == "compute" else f"{name} {count_text(value)}"
        for name, value in target.target.items()
    )


def parameters_table(scaling: ScalingStudy) -> Table:
    """Return each parameter with its standard error and interval."""
    return Table.of(
        scaling.law.parameters,
        ("parameter", lambda parameter: parameter.name),
        ("value", lambda parameter: f"{parameter.estimate.value:.5g}"),
        (
            "standard error",
            lambda parameter: "—" if parameter.standard_error is None else f"{parameter.standard_error:.3g}",
        ),
        ("95% interval", _interval_text),
    )


def _interval_text(parameter: LawParameter) -> str:
    low, high = (
        "no number" if end is None else f"{end:.4g}" for end in (parameter.estimate.low, parameter.estimate.high)
    )
    return f"{low} to {high}"


def targets_table(scaling: ScalingStudy) -> Table:
    """Return each target with its band, or why there is none."""

    def cell(text: Callable[[ScalingPrediction], str], refused: str = "") -> Callable[[ExtrapolatedTarget], str]:
        return lambda target: refused if target.prediction is None else text(target.prediction)

    def score(target: ExtrapolatedTarget) -> str:
        if target.prediction is None or target.score is None:
            return ""
        return f"{target.score.value:.3f} ({target.score.low:.3f} to {target.score.high:.3f})"

    return Table.of(
        scaling.targets,
        ("target", target_text),
        ("loss", cell(lambda prediction: f"{prediction.loss.value:.4f}", refused="refused")),
        (
            f"{scaling.confidence:.0%} band",
            cell(lambda prediction: f"{prediction.loss.low:.4f} to {prediction.loss.high:.4f}"),
        ),
        ("reach", cell(_extrapolation_text)),
        *([("task score", score)] if scaling.task is not None else []),
    )


def _extrapolation_text(prediction: ScalingPrediction) -> str:
    beyond, supported = power_text(prediction.times_beyond_data), power_text(prediction.times_supported)
    return f"{beyond}x the data; {supported}x was tested"


def _tiles(scaling: ScalingStudy, check: BandCheck | None) -> list[Fact]:
    scale = scaling.fit.points.variables[scaling.fit.form.scale]
    unit = " FLOP" if scaling.fit.form.scale == "compute" else ""
    tiles = [
        Fact(
            "runs",
            str(scaling.law.num_points),
            f"{power_text(scale.min(), digits=2)} to {power_text(scale.max(), digits=2)}{unit}",
        ),
        *(
            Fact(
                parameter.name,
                f"{parameter.estimate.value:.4g}",
                f"± {parameter.standard_error:.2g} (standard error)",
            )
            for parameter in scaling.law.parameters
            if parameter.name in ("alpha", "beta", "E")
        ),
    ]
    if scaling.back_test is not None:
        factor = f"{scaling.back_test.multiplier(scaling.confidence):.2f}"
        limit = power_text(scale.max() * math.exp(scaling.back_test.max_horizon))
        calibrated = f"calibrated at {number_of(len(scaling.back_test.origins), 'origin')}, more with distance"
        tiles.append(Fact("band", f"{factor} standard errors", f"each way; {calibrated}; tested up to {limit}{unit}"))
    if check is not None:
        others = (
            f"uncalibrated {check.covered_uncalibrated:.1%}; bootstrap alone {check.covered_by_bootstrap_alone:.1%}"
        )
        note = f"of {check.num_predictions} held-out larger runs; nominal {check.confidence:.0%}; {others}"
        tiles.append(Fact("bands held", f"{check.covered:.1%}", note))
    if scaling.task is not None:
        (chance, ceiling), midpoint, _ = scaling.task.sigmoid
        tiles.append(Fact("score", f"half at loss {midpoint:.4g}", f"of the way from {chance:g} to {ceiling:g}"))
    return tiles


def _loss_figure(scaling: ScalingStudy) -> Figure:
    two = len(scaling.fit.form.variables) > 1
    caption = "Every run is a dot. " + (
        "The line is the law at its own best split of compute between parameters and tokens, so runs lie on or "
        "above it. "
        if two
        else "The line is the law. "
    )
    if scaling.back_test is not None:
        caption += "The band ends where no back-test reaches."
    legend = [("s3", "runs"), ("s1", "the law and its band"), ("s2", "targets")]
    return figure(
        lambda width: loss_plot(scaling, width=width, label="loss over scale"),
        title="Loss over scale",
        caption=caption,
        legend=legend if scaling.targets else legend[:2],
    )


def _back_test(scaling: ScalingStudy) -> Iterator[Figure]:
    if scaling.back_test is None:
        return
    back_test = scaling.back_test
    yield figure(
        lambda width: back_test_plot(back_test, scaling.confidence, width=width, label="back-test of the band"),
        title="Predictions that could be checked",
        caption="Each dot is a larger run, predicted from smaller ones only. The band is made so wide that at "
        f"every origin {scaling.confidence:.0%} of what came lies between the dashed lines.",
        table=Table.of(
            back_test.origins,
            ("runs fitted", lambda origin: str(origin.num_fitted)),
            ("runs predicted", lambda origin: str(len(origin.errors))),
            ("mean absolute error", lambda origin: f"{100 * abs(origin.errors).mean():.2f}%"),
            ("mean error", lambda origin: f"{100 * origin.errors.mean():+.2f}%"),
        ),
    )
