"""The page of a scaling law: what it predicts, how far it may be trusted, and the parameters behind it."""

from collections.abc import Callable, Iterator

from assay.base.clock import utc_text
from assay.base.units import count_text, number_of, power_text
from assay.records.scaling import BandCheck, LawParameter, ScalingPrediction
from assay.reporting.charts.figure import Figure, Table, figure
from assay.reporting.charts.scaling_plots import back_test_chart, loss_chart
from assay.reporting.documents.render import render_page
from assay.reporting.views.verdict import Tile, Verdict
from assay.statistics.scaling.study import ExtrapolatedTarget, ScalingStudy


def render_scaling_page(study: ScalingStudy, check: BandCheck | None, *, name: str, created_s: float) -> str:
    """One self-contained HTML page."""
    return render_page(
        "scaling.html",
        title=name,
        kind="scaling law",
        subtitle=utc_text(created_s),
        verdict=scaling_verdict(study),
        tiles=_tiles(study, check),
        sections=[("What it says", [_loss_figure(study)]), ("How far to trust it", _back_test(study))],
        parameters=parameters_table(study),
        asked=targets_table(study),
        law=study.law,
        chosen_by=errors_text(study),
    )


def scaling_verdict(study: ScalingStudy) -> Verdict:
    """What the law predicts, or why it does not."""
    failed = [target for target in study.targets if target.error is not None]
    if study.back_test_error is not None:
        return Verdict("open", "fitted, not tested", str(study.back_test_error))
    if failed:
        return Verdict("bad", "refused", str(failed[0].error))
    if not study.targets:
        return Verdict("good", "fitted", f"{study.law.formula}, on {number_of(study.law.num_points, 'run')}.")
    sentences = " ".join(prediction_sentence(target) for target in study.targets)
    if any(target.is_untested for target in study.targets):
        return Verdict("open", "untested", f"{sentences} {level_text(study)}".rstrip())
    if level := level_text(study):
        return Verdict("open", "chance level not given", f"{sentences} {level}")
    return Verdict("good", "within reach", sentences)


def level_text(study: ScalingStudy) -> str:
    """That scores level off above what was said to be guessing; nothing where they do not."""
    if study.task is None or study.task.level is None:
        return ""
    level = f"{study.task.level:.2g}"
    return (
        f"The scores level off at about {level}, above the {study.task.sigmoid.task.chance:g} that was given for "
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
    if target.is_untested:
        beyond, tested = target.prediction.times_beyond_data, target.prediction.times_supported
        sentence += (
            f" Untested: it is {power_text(beyond)} times beyond the largest run, and such bands were tested "
            f"up to {power_text(tested)} times."
        )
    return sentence


def errors_text(study: ScalingStudy) -> str:
    """Such as: form tokens: its back-test erred by 2.40% on average, chinchilla's by 2.31%. Or nothing."""
    own, others = study.fit.form.name, dict(study.errors)
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


def parameters_table(study: ScalingStudy) -> Table:
    """Each parameter with its standard error and interval."""
    return Table.of(
        study.law.parameters,
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


def targets_table(study: ScalingStudy) -> Table:
    """Each target with its band, or the reason why there is none."""

    def cell(text: Callable[[ScalingPrediction], str], refused: str = "") -> Callable[[ExtrapolatedTarget], str]:
        return lambda target: refused if target.prediction is None else text(target.prediction)

    def score(target: ExtrapolatedTarget) -> str:
        if target.prediction is None or target.score is None:
            return ""
        return f"{target.score.value:.3f} ({target.score.low:.3f} to {target.score.high:.3f})"

    return Table.of(
        study.targets,
        ("target", target_text),
        ("loss", cell(lambda prediction: f"{prediction.loss.value:.4f}", refused="refused")),
        (
            f"{study.confidence:.0%} band",
            cell(lambda prediction: f"{prediction.loss.low:.4f} to {prediction.loss.high:.4f}"),
        ),
        ("reach", cell(_extrapolation_text)),
        *([("task score", score)] if study.task is not None else []),
    )


def _extrapolation_text(prediction: ScalingPrediction) -> str:
    beyond, supported = power_text(prediction.times_beyond_data), power_text(prediction.times_supported)
    return f"{beyond}x the data; {supported}x was tested"


def _tiles(study: ScalingStudy, check: BandCheck | None) -> list[Tile]:
    scale = study.fit.points.variables[study.fit.form.scale]
    unit = " FLOP" if study.fit.form.scale == "compute" else ""
    tiles = [
        Tile(
            "runs",
            str(study.law.num_points),
            f"{power_text(scale.min(), digits=2)} to {power_text(scale.max(), digits=2)}{unit}",
        ),
        *(
            Tile(
                parameter.name,
                f"{parameter.estimate.value:.4g}",
                f"± {parameter.standard_error:.2g} (standard error)",
            )
            for parameter in study.law.parameters
            if parameter.name in ("alpha", "beta", "E")
        ),
    ]
    if study.back_test is not None:
        factor = f"{study.back_test.multiplier(study.confidence):.2f}"
        tiles.append(Tile("band", f"{factor} s", f"calibrated at {len(study.back_test.origins)} origins"))
    if check is not None:
        note = f"nominal {check.confidence:.0%}; bootstrap alone {check.covered_by_bootstrap_alone:.0%}"
        tiles.append(Tile("bands held", f"{check.covered:.0%}", note))
    return tiles


def _loss_figure(study: ScalingStudy) -> Figure:
    two = len(study.fit.form.variables) > 1
    caption = "Every run is a dot. " + (
        "The line is the law at its own best split of compute between parameters and tokens, so runs lie on or "
        "above it. "
        if two
        else "The line is the law. "
    )
    if study.back_test is not None:
        caption += "The band ends where no back-test reaches."
    legend = [("s3", "runs"), ("s1", "the law and its band"), ("s2", "targets")]
    return figure(
        lambda width: loss_chart(study, width=width, label="loss over scale"),
        title="Loss over scale",
        caption=caption,
        legend=legend if study.targets else legend[:2],
    )


def _back_test(study: ScalingStudy) -> Iterator[Figure]:
    if study.back_test is None:
        return
    tested = study.back_test
    yield figure(
        lambda width: back_test_chart(tested, study.confidence, width=width, label="back-test of the band"),
        title="Predictions that could be checked",
        caption="Each dot is a larger run, predicted from smaller ones only. The band is made so wide that at "
        f"every origin {study.confidence:.0%} of what came lies between the dashed lines.",
        table=Table.of(
            tested.origins,
            ("runs fitted", lambda origin: str(origin.num_fitted)),
            ("runs predicted", lambda origin: str(len(origin.errors))),
            ("mean absolute error", lambda origin: f"{100 * abs(origin.errors).mean():.2f}%"),
            ("mean error", lambda origin: f"{100 * origin.errors.mean():+.2f}%"),
        ),
    )
