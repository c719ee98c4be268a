"""`assay demo`: the main job on real data that every machine has."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.units import count_text, duration_text
from assay.cli.given import FOLDER, given_home

if TYPE_CHECKING:
    from assay.reporting.views.comparison import ComparisonView
    from assay.store.home import Home
    from assay.workflows.demo.classifier import DemoResult
    from assay.workflows.demo.fine_tuning import FineTuned
    from assay.workflows.train import RunResult


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--sft", is_flag=True, help="Fine-tune a small language model instead: docstrings of signatures.")
@click.option("--functions", default=16_000, show_default=True, help="Rows of the dataset, before the split.")
@click.option(
    "--out",
    type=FOLDER,
    help="Folder for the dataset and what is made; by default runs/demo, or runs/demo-sft.",
)
def demo(overrides: tuple[str, ...], sft: bool, functions: int, out: Path | None) -> None:
    """Train a classifier twice on functions of the installed packages, kill a worker, and prove that
    nothing was lost: each row learned exactly once, the same weights, the same AUC. Then run a campaign, a
    pilot against two candidates over several seeds, and write the memo: one is scaled, one is stopped,
    unless the functions on this machine say otherwise. Exit 1 if anything was lost.

    With --sft: fine-tune a language model to write a function's docstring from its signature, kill a worker,
    audit the run, export the model, and show what it writes for functions of files that were held out.

    OVERRIDES change the demo's recipe, e.g. trainer.epochs=1. Takes about four minutes on two cores.
    """
    home = given_home()
    if sft:
        _fine_tune(home, out or home.folder / "demo-sft", functions, overrides)
    else:
        _classify(home, out or home.folder / "demo", functions, overrides)


def _say(text: str) -> None:
    click.secho(f"· {text}", fg="cyan", err=True)


def _classify(home: "Home", folder: Path, functions: int, overrides: tuple[str, ...]) -> None:
    from assay.cli.progress import RunProgress
    from assay.reporting.documents.render import render_comparison_page, render_run_page
    from assay.reporting.views.comparison import comparison_page
    from assay.reporting.views.run_page import run_page
    from assay.workflows.demo.classifier import run_demo

    began_s = time.monotonic()
    with home.open_ledger() as ledger:
        result = run_demo(
            home,
            folder,
            ledger,
            num_functions=functions,
            overrides=overrides,
            watcher_of=RunProgress,
            say=_say,
        )
        run_id = result.candidate.run.run_id
        (folder / "run.html").write_text(render_run_page(run_page(ledger, run_id)), encoding="utf-8")
        page = comparison_page(ledger, result.baseline.run.run_id, [run_id], out=folder / "comparison.html")
        (folder / "comparison.html").write_text(render_comparison_page(page), encoding="utf-8")
    compared = page.candidates[0].compared
    click.echo(_screen(result, compared, folder, seconds=time.monotonic() - began_s))
    if not _is_proved(result, compared):
        raise SystemExit(1)


def _fine_tune(home: "Home", folder: Path, functions: int, overrides: tuple[str, ...]) -> None:
    from assay.cli.progress import RunProgress
    from assay.workflows.demo.fine_tuning import run_sft_demo

    began_s = time.monotonic()
    found = run_sft_demo(
        home, folder, num_functions=functions, overrides=overrides, watcher_of=RunProgress, say=_say
    )
    click.echo(_sft_screen(found, seconds=time.monotonic() - began_s))
    if not found.result.audit or found.result.audit.verdict != "pass":
        raise SystemExit(1)


def _sft_screen(found: "FineTuned", *, seconds: float) -> str:
    evaluation, run_id = found.result.evaluation, found.result.run.run_id
    assert evaluation and evaluation.loss and evaluation.loss.estimate
    written = [
        line
        for each in found.written
        for line in (each.signature, f"    people  {each.by_people}", f"    model   {each.by_model}", "")
    ]
    lines = [
        f"dataset    {found.dataset.num_rows:,} docstrings, {count_text(found.dataset.num_tokens)} tokens, "
        f"fingerprint {found.dataset.fingerprint[:12]}",
        f"run        {run_id}: 2 workers, weights {evaluation.weights_digest[:16]}",
        f"           {_killed(found.result, found.killed_after_step)}",
        f"audit      {_audited(found.result)}",
        f"held out   {evaluation.loss.metric.title} {evaluation.loss.estimate.value:.3f} over "
        f"{evaluation.overall.num_rows:,} rows of other files; who guesses needs {found.guess_nats:.2f}",
        f"took       {duration_text(seconds)}",
        "",
        *written,
        f"look at    {_shown(found.model)}: what transformers loads, and its card, README.md",
        f"           assay show {run_id}",
    ]
    return "\n".join(["", *lines])


def _is_proved(result: "DemoResult", compared: "ComparisonView") -> bool:
    """Rows and weights; what the campaign decides is a finding, about the functions of this machine."""
    audits = [side.audit for side in (result.baseline, result.candidate)]
    return compared.weights_equal and all(audit and audit.verdict == "pass" for audit in audits)


def _screen(result: "DemoResult", auc: "ComparisonView", folder: Path, *, seconds: float) -> str:
    baseline, candidate = result.baseline, result.candidate
    assert baseline.evaluation and candidate.evaluation and baseline.audit and candidate.audit
    equal = "the same, bit for bit" if auc.weights_equal else "DIFFERENT: this should not happen"
    low, high = (auc.difference.low or 0.0), (auc.difference.high or 0.0)
    lines = [
        f"dataset    {result.dataset.num_rows:,} functions, {count_text(result.dataset.num_tokens)} tokens, "
        f"fingerprint {result.dataset.fingerprint[:12]}",
        f"baseline   1 worker    {baseline.evaluation.weights_digest[:16]}  AUC {auc.baseline_value:.4f}",
        f"candidate  2 workers   {candidate.evaluation.weights_digest[:16]}  AUC {auc.candidate_value:.4f}",
        f"           {_killed(candidate, result.killed_at_step)}",
        f"weights    {equal}",
        f"audit      {_audited(candidate)}",
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


def _killed(result: "RunResult", after_step: int) -> str:
    last = result.last_attempt
    assert last
    return (
        f"one worker was killed with SIGKILL after step {after_step}; attempt {last.attempt} went on from step "
        f"{last.start_step}"
    )


def _audited(result: "RunResult") -> str:
    audit = result.audit
    assert audit
    return (
        f"{audit.verdict}: {audit.rows_learned:,} rows learned, {audit.rows_expected:,} expected, "
        f"{len(audit.missing)} missing, {len(audit.repeated)} repeated"
    )


def _shown(path: Path) -> Path:
    """Relative to where the reader stands, if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
