"""What a scaling law says, and how many bits a run's labels cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from assay.records.evaluation import Estimate
from assay.records.scaling import BandCheck, ScalingLaw, ScalingPrediction
from assay.reporting.views.view import AsWritten, View
from assay.statistics.code_length import CodeLength
from assay.statistics.scaling.study import ScalingStudy


class AskedView(View):
    """A target, and what the law says of it."""

    target: Mapping[str, float]
    """Parameters, tokens or compute of the run that was asked about."""
    prediction: Annotated[ScalingPrediction, AsWritten] | None
    """Null where refused."""
    score: Annotated[Estimate, AsWritten] | None
    """The estimate of the downstream task; null without `--score`."""
    is_untested: bool
    """Further out than any back-test reached."""
    refused: str | None
    """Why nothing is said, or nothing of the score; null where all is."""


class ScalingView(View):
    """A law, and what follows from it."""

    law: Annotated[ScalingLaw, AsWritten]
    form_errors: Mapping[str, float]
    """Form -> mean error of its back-test, in log loss, by which the law's form was chosen; empty where it was
    given, or could not be."""
    predictions: tuple[AskedView, ...]
    """One for each `--at`."""
    band_multiplier: float | None
    """Claimed standard errors that the back-test found necessary; null where there is none."""
    score_level: float | None
    """Where the scores level off, clearly above the `--chance` that was given; null where they do not."""
    untested: str | None
    """Why there is no back-test; null where there is one."""
    left_out: tuple[str, ...]
    """Origins of the back-test that no law could be fitted to, and why."""
    band_check: Annotated[BandCheck, AsWritten] | None
    """Null without `--check-bands`."""
    page: str | None
    """The HTML file that was written; null without `--out`."""


class CodeLengthView(View):
    """What a run's labels cost somebody who learns along with it."""

    run_id: str
    bits: float
    bits_per_row: float
    num_rows: int
    is_whole_pass: bool
    """False: the first pass over the data is not over."""


class CodeLengthsView(View):
    """One run, or pairs of a baseline and a candidate in turn."""

    runs: tuple[CodeLengthView, ...]
    saved_bits_per_row: Annotated[Estimate, AsWritten] | None
    """Baseline minus candidate; null for one run."""


def scaling_view(found: ScalingStudy, check: BandCheck | None, page: Path | None) -> ScalingView:
    """The view of a study, its check and the page about it."""
    return ScalingView(
        law=found.law,
        form_errors=found.errors,
        predictions=tuple(
            AskedView.of(each, refused=str(each.error) if each.error else None) for each in found.targets
        ),
        band_multiplier=found.back_test.multiplier(found.confidence) if found.back_test else None,
        score_level=found.task.level if found.task else None,
        untested=str(found.back_test_error) if found.back_test_error else None,
        left_out=found.back_test.left_out if found.back_test else (),
        band_check=check,
        page=str(page) if page else None,
    )


def code_lengths_view(lengths: Sequence[CodeLength], saved: Estimate | None) -> CodeLengthsView:
    """The view of runs, and what the candidates among them save."""
    return CodeLengthsView(runs=tuple(map(CodeLengthView.of, lengths)), saved_bits_per_row=saved)
