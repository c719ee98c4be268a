"""The views of a scaling law and of code lengths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from assay.records.evaluation import Estimate
from assay.records.scaling import BandCheck, ScalingLaw, ScalingPrediction
from assay.reporting.views.view import AsWritten, View
from assay.statistics.code_length import CodeLength
from assay.statistics.scaling.study import ScalingStudy


class TargetPredictionView(View):
    """A target and its prediction."""

    target: Mapping[str, float]
    """Parameters, tokens or compute."""
    prediction: Annotated[ScalingPrediction, AsWritten] | None
    score: Annotated[Estimate, AsWritten] | None
    """Null without `--score`."""
    is_untested: bool
    """Beyond the range of the back-test."""
    error: str | None
    """Why there is no prediction."""


class ScalingView(View):
    """A scaling law and its predictions."""

    law: Annotated[ScalingLaw, AsWritten]
    form_errors: Mapping[str, float]
    """Back-test error of each form, in log loss."""
    predictions: tuple[TargetPredictionView, ...]
    """One per `--predict`."""
    band_multiplier: float | None
    """Factor on standard errors from the back-test."""
    score_level: float | None
    """Floor, if clearly above `--chance`."""
    untested: str | None
    """Why there is no back-test."""
    left_out: tuple[str, ...]
    """Back-test origins without a fit."""
    band_check: Annotated[BandCheck, AsWritten] | None
    """Null without `--check-bands`."""
    page: str | None


class CodeLengthView(View):
    """Code length of a run's labels."""

    run_id: str
    bits: float
    bits_per_row: float
    num_rows: int
    is_whole_pass: bool
    """The first epoch is complete."""


class CodeLengthsView(View):
    """Prequential code lengths."""

    runs: tuple[CodeLengthView, ...]
    saved_bits_per_row: Annotated[Estimate, AsWritten] | None
    """Baseline minus candidate."""


def scaling_view(found: ScalingStudy, check: BandCheck | None, page: Path | None) -> ScalingView:
    """Return the view of a study, its band check and its page."""
    return ScalingView(
        law=found.law,
        form_errors=found.errors,
        predictions=tuple(
            TargetPredictionView.of(target, error=str(target.error) if target.error else None)
            for target in found.targets
        ),
        band_multiplier=found.back_test.multiplier(found.confidence) if found.back_test else None,
        score_level=found.task.level if found.task else None,
        untested=str(found.back_test_error) if found.back_test_error else None,
        left_out=found.back_test.left_out if found.back_test else (),
        band_check=check,
        page=str(page) if page else None,
    )


def code_lengths_view(lengths: Sequence[CodeLength], saved: Estimate | None) -> CodeLengthsView:
    """Return the view of the runs and what the candidates save."""
    return CodeLengthsView(runs=tuple(map(CodeLengthView.of, lengths)), saved_bits_per_row=saved)
