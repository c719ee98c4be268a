"""`assay demo`: the main job on real data that every machine has."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.units import count_text, duration_text
from assay.cli.given import FOLDER, given_home

if TYPE_CHECKING:
    from assay.launch.demo import DemoResult
    from assay.reporting.views.comparison import ComparisonView


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--functions", default=20_000, show_default=True, help="Rows of the dataset, before the split.")
@click.option("--out", type=FOLDER, help="Folder for the dataset and the report; by default runs/demo.")
def demo(overrides: tuple[str, ...], functions: int, out: Path | None) -> None:
    """Train a classifier twice on functions of the installed packages, kill a worker, and prove that
    nothing was lost: each row learned exactly once, the same weights, the same AUC. Then run a campaign, a
    pilot against two candidates over several seeds, and write the memo: one is scaled, one is stopped,
    unless the functions on this machine say otherwise. Exit 1 if anything was lost.

    OVERRIDES change the demo's recipe, e.g. trainer.epochs=1. Takes about four minutes on two cores.
    """
    from assay.cli.screens.progress import RunProgress
    from assay.launch.demo import run_demo
    from assay.reporting.pages.render import render_comparison_page, render_run_page
    from assay.reporting.views.comparison import comparison_page
    from assay.reporting.views.run_page import run_page

    began_s = time.monotonic()
    home = given_home()
    folder = out or home.folder / "demo"
    with home.open_ledger() as ledger:
        result = run_demo(
            home,
            folder,
            ledger,
            num_functions=functions,
            overrides=overrides,
            watcher_of=RunProgress,
            say=lambda text: click.secho(f"· {text}", fg="cyan", err=True),
        )
        run_id = result.candidate.run.run_id
        (folder / "run.html").write_text(render_run_page(run_page(ledger, run_id)), encoding="utf-8")
        page = comparison_page(ledger, result.baseline.run.run_id, [run_id], out=folder / "comparison.html")
        (folder / "comparison.html").write_text(render_comparison_page(page), encoding="utf-8")
    compared = page.candidates[0].compared
    click.echo(_screen(result, compared, folder, seconds=time.monotonic() - began_s))
    if not _is_proved(result, compared):
        raise SystemExit(1)


def _is_proved(result: "DemoResult", compared: "ComparisonView") -> bool:
    """Rows and weights; what the campaign decides is a finding, about the functions of this machine."""
    audits = [side.audit for side in (result.baseline, result.candidate)]
    return compared.weights_equal and all(audit and audit.verdict == "pass" for audit in audits)


def _screen(result: "DemoResult", auc: "ComparisonView", folder: Path, *, seconds: float) -> str:
    baseline, candidate = result.baseline, result.candidate
    assert baseline.evaluation and candidate.evaluation and baseline.audit and candidate.audit
    assert candidate.last_attempt
    equal = "the same, bit for bit" if auc.weights_equal else "DIFFERENT: this should not happen"
    low, high = (auc.difference.low or 0.0), (auc.difference.high or 0.0)
    lines = [
        f"dataset    {result.dataset.num_rows:,} functions, {count_text(result.dataset.num_tokens)} tokens, "
        f"fingerprint {result.dataset.fingerprint[:12]}",
        f"baseline   1 worker    {baseline.evaluation.weights_digest[:16]}  AUC {auc.baseline_value:.4f}",
        f"candidate  2 workers   {candidate.evaluation.weights_digest[:16]}  AUC {auc.candidate_value:.4f}",
        f"           one worker was killed with SIGKILL after step {result.killed_at_step}; attempt "
        f"{candidate.last_attempt.attempt} went on from step {candidate.last_attempt.start_step}",
        f"weights    {equal}",
        f"audit      {candidate.audit.verdict}: {candidate.audit.rows_learned:,} rows learned, "
        f"{candidate.audit.rows_expected:,} expected, {len(candidate.audit.missing)} missing, "
        f"{len(candidate.audit.repeated)} repeated",
        f"AUC rule   difference {auc.difference.value:+.4f} [{low:+.4f}, {high:+.4f}], allowed loss "
        f"{auc.allowed_loss}: {auc.verdict}",
        *(
            f"{'decision' if index == 0 else '':<10} {decision.sentence}"
            for index, decision in enumerate(result.memo.memo.decisions)
        ),
        f"took       {duration_text(seconds)}",
        "",
        f"look at    {_shown(result.memo.page)}",
        f"           {folder / 'comparison.html'}",
        f"           {folder / 'run.html'}",
        f"           assay show {candidate.run.run_id}",
    ]
    return "\n".join(["", *lines])


def _shown(path: Path) -> Path:
    """Relative to where the reader stands, if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
