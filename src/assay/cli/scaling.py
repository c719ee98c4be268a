"""`assay scaling`: scaling laws over parameters, tokens and compute; data efficiency of runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, DataError
from assay.cli.command import CommandGroup
from assay.cli.parameters import (
    FILE_OR_RUN,
    OUT_PAGE,
    RUN,
    current_home,
    force_option,
    json_option,
    print_view,
    seed_option,
    writable_ledger,
)

if TYPE_CHECKING:
    from assay.records.scaling import BandCheck
    from assay.reporting.views.scaling import CodeLengthsView
    from assay.statistics.scaling.points import ScalingPoints
    from assay.statistics.scaling.study import ScalingStudy

FORMS = ("chinchilla", "over-training", "compute", "tokens")
MANY_POINTS = 500
"""Number of points from which fits take seconds."""


_MODULES = {
    "fit": ("assay.cli.scaling", "Fit a scaling law to finished runs; predict larger ones."),
    "code-length": ("assay.cli.scaling", "Compare how fast runs learn, by the bits of their labels."),
}


@click.group(cls=CommandGroup, modules=_MODULES)
def scaling() -> None:
    """Fit scaling laws, predict larger runs, and compare how fast two runs learn."""


_FIT_SECTIONS = {
    "Task": (
        "score_column",
        "chance",
        "ceiling",
    ),
    "Fit": (
        "drop_highest",
        "delta",
        "least_absolute",
        "resamples",
        "confidence",
        "seed",
    ),
}


@scaling.command(sections=_FIT_SECTIONS)
@click.argument("sources", nargs=-1, required=True, type=FILE_OR_RUN, metavar="FILE.csv | RUN...")
@click.option(
    "--form",
    "form_name",
    type=click.Choice(["auto", *FORMS]),
    default="auto",
    help="Form of the law; auto: the simplest one among those with the smallest back-test error.",
)
@click.option(
    "--predict",
    "targets",
    multiple=True,
    metavar="NAME=VALUE,...",
    help="Run to predict, e.g. parameters=7e10,tokens=1.4e12 or compute=1e21. May be repeated.",
)
@click.option("--score", "score_column", help="Column with a task's accuracy (0 to 1) to predict as well.")
@click.option("--chance", type=float, default=0.0, help="Score of the task by guessing.")
@click.option("--ceiling", type=float, default=1.0, help="Best possible score of the task.")
@click.option(
    "--drop-highest",
    type=click.IntRange(min=0),
    default=0,
    help="Number of points with the highest losses to leave out.",
)
@click.option(
    "--delta", type=click.FloatRange(min=0, min_open=True), default=1e-3, help="Delta of the Huber loss, in log loss."
)
@click.option("--least-absolute", is_flag=True, help="Use least absolute deviations, the limit of a small delta.")
@click.option("--resamples", type=click.IntRange(min=100), default=1000, help="Number of bootstrap resamples.")
@click.option(
    "--confidence", type=click.FloatRange(0.5, 0.99), default=0.9, help="Confidence level of the predictions."
)
@seed_option("the bootstrap")
@click.option("--strict", "is_strict", is_flag=True, help="Reject targets beyond the tested range.")
@click.option("--check-bands", is_flag=True, help="Also measure how often such bands contain held-out runs.")
@click.option("--out", type=OUT_PAGE, help="HTML page with figures to write.")
@force_option
@json_option
def fit(
    sources: tuple[str, ...],
    form_name: str,
    targets: tuple[str, ...],
    score_column: str | None,
    chance: float,
    ceiling: float,
    drop_highest: int,
    delta: float,
    least_absolute: bool,
    resamples: int,
    confidence: float,
    seed: int,
    is_strict: bool,
    check_bands: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fit a scaling law to finished runs, and predict larger ones.

    The points come from a CSV file with a header (loss, and two of parameters, tokens and compute, or what the
    form needs; a column 'run' groups checkpoints of one run), or from RUNs on record, each one a point:
    parameters of its recipe, tokens trained on, loss on the held-out rows.

    Bands are for one new run, and calibrated: fits on the smaller points predict the larger ones, and the band
    is as wide as that requires. A target beyond the range of these tests is marked as untested, or rejected
    (--strict). Exit code 2 if a target is rejected, after the others are printed.
    """
    requested = [_target(text) for text in targets]
    _check_sources(sources, score_column)
    from assay.statistics.scaling.downstream import Task
    from assay.statistics.scaling.extrapolate import check_bands as checked
    from assay.statistics.scaling.fit import LEAST_ABSOLUTE_DELTA
    from assay.statistics.scaling.forms import form_named
    from assay.statistics.scaling.study import study

    form = None if form_name == "auto" else form_named(form_name)
    used_delta = LEAST_ABSOLUTE_DELTA if least_absolute else delta
    points = _points(sources, score_column).without_highest_losses(drop_highest)
    if points.num_points >= MANY_POINTS:
        click.echo(f"fitting {points.num_points:,} points, and testing the law on them ...", err=True)
    result = study(
        points,
        form,
        targets=requested,
        task=None if score_column is None else Task(chance, ceiling),
        delta=used_delta,
        num_resamples=resamples,
        confidence=confidence,
        seed=seed,
        is_strict=is_strict,
    )
    check = None
    if check_bands:
        check = checked(points, form, delta=used_delta, confidence=confidence, seed=seed)
    _show_study(result, check, sources, out, as_json=as_json)
    refused = dict.fromkeys(str(target.error) for target in result.targets if target.error is not None)
    if refused:
        raise DataError("\n".join(refused))


@scaling.command("code-length")
@click.argument("run_ids", nargs=-1, required=True, type=RUN, metavar="BASELINE CANDIDATE [BASELINE CANDIDATE]...")
@json_option
def code_length(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Print how many bits the labels cost a learner that predicts each one first: fewer bits mean faster
    learning.

    A single RUN is described. Pairs of a baseline and a candidate on the same rows in the same order are
    compared; several pairs (one per seed) give an interval for the method.
    """
    if len(run_ids) > 1 and len(run_ids) % 2:
        raise ConfigError(f"{len(run_ids)} runs are not pairs. Give one run, or baseline and candidate alternately.")
    from assay.reporting.views.scaling import code_lengths_view
    from assay.statistics.code_length import code_length as of_run
    from assay.statistics.code_length import compare_code_lengths
    from assay.store.metrics.fold import fold_run

    with writable_ledger(current_home()) as ledger:
        for run_id in run_ids:
            fold_run(ledger, ledger.run(run_id))
        lengths = [of_run(ledger, run_id) for run_id in run_ids]
    pairs = list(zip(lengths[::2], lengths[1::2], strict=False))
    result = code_lengths_view(lengths, compare_code_lengths(pairs) if pairs else None)
    print_view(result, _print_code_lengths, as_json=as_json)


def _check_sources(sources: tuple[str, ...], score_column: str | None) -> None:
    if _is_file(sources[0]) and len(sources) > 1:
        raise ConfigError(f"{len(sources)} files given. Put all points of a law into one CSV file.")
    if not _is_file(sources[0]) and score_column is not None:
        raise ConfigError("--score names a column of a CSV file; runs on record have no such column.")


def _is_file(source: str) -> bool:
    return source.lower().endswith(".csv") or Path(source).is_file()


def _points(sources: tuple[str, ...], score_column: str | None) -> "ScalingPoints":
    if _is_file(sources[0]):
        from assay.statistics.scaling.points import read_points

        return read_points(Path(sources[0]), score_column=score_column)
    from assay.statistics.scaling.from_runs import points_of_runs

    with writable_ledger(current_home()) as ledger:
        return points_of_runs(ledger, sources)


def _target(text: str) -> dict[str, float]:
    from assay.statistics.scaling.points import VARIABLES

    target = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            target[name] = float(value)
        except ValueError:
            target = {}
        if name not in VARIABLES or name not in target:
            raise ConfigError(f"--predict {text}: '{part}' is not {' or '.join(VARIABLES)}=NUMBER, e.g. tokens=1.4e12.")
    return target


def _show_study(
    result: "ScalingStudy", check: "BandCheck | None", sources: tuple[str, ...], out: Path | None, *, as_json: bool
) -> None:
    from assay.reporting.documents.scaling import scaling_document

    name = Path(sources[0]).name if len(sources) == 1 else f"{len(sources)} runs"
    document = scaling_document(result, check, name=name, created_s=SystemClock().now_s())
    if out is not None:
        from assay.reporting.documents.render import render_document, write_file

        write_file(out, render_document(document))
    if as_json:
        from assay.reporting.views.scaling import scaling_view

        click.echo(scaling_view(result, check, out).to_json())
    else:
        from assay.reporting.terminal.document import print_document

        print_document(document)
        if out is not None:
            click.echo(out)


def _print_code_lengths(result: "CodeLengthsView") -> None:
    for run in result.runs:
        part = "" if run.is_whole_pass else ", not yet the whole first pass"
        click.echo(
            f"{run.run_id}: {run.bits:,.0f} bits for {run.num_rows:,} rows{part}: {run.bits_per_row:.4f} bits per row"
        )
    if (saved := result.saved_bits_per_row) is not None:
        assert saved.low is not None and saved.high is not None, "a comparison has an interval"
        if saved.low == saved.high == 0:
            verdict = "the same code, bit for bit"
        elif saved.low > 0:
            verdict = "it learns faster"
        else:
            verdict = "it learns more slowly" if saved.high < 0 else "undecided"
        interval = f"[{saved.low:+.4f}, {saved.high:+.4f}]"
        click.secho(f"the candidate saves {saved.value:+.4f} bits per row {interval}: {verdict}", bold=True)
        click.echo(f"  {saved.confidence:.0%} interval: {saved.method}")
