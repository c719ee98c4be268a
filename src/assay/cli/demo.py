"""`assay demo`: train, kill, audit and decide on data that every machine has."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.units import count_text, duration_text
from assay.cli.parameters import FOLDER, current_home, print_status

if TYPE_CHECKING:
    from assay.reporting.views.comparison import ComparisonView
    from assay.store.home import Home
    from assay.workflows.demo.classifier import DemoResult
    from assay.workflows.demo.fine_tuning import SftDemoResult
    from assay.workflows.train import RunResult


@click.command()
@click.argument("overrides", nargs=-1)
@click.option("--sft", is_flag=True, help="Fine-tune a small language model to write docstrings instead.")
@click.option("--functions", default=16_000, help="Number of rows in the dataset before the split.")
@click.option("--out", type=FOLDER, help="Output folder; by default runs/demo, or runs/demo-sft.")
def demo(overrides: tuple[str, ...], sft: bool, functions: int, out: Path | None) -> None:
    """Train a classifier twice on functions of the installed packages, kill a worker once, and check that
    nothing was lost: each row was used exactly once, and the weights and the AUC are equal. Then run a campaign
    of two candidates against a pilot over several seeds and write the memo; usually one candidate is scaled and
    one is stopped. Exit code 1 if anything was lost.

    With --sft: fine-tune a language model to write the docstring of a signature, kill a worker, audit the run,
    export the model, and show docstrings that it writes for held-out functions.

    OVERRIDES change the recipe, e.g. trainer.epochs=1. Takes about four minutes on two cores.
    """
    home = current_home()
    if sft:
        _fine_tune(home, out or home.folder / "demo-sft", functions, overrides)
    else:
        _classify(home, out or home.folder / "demo", functions, overrides)


def _classify(home: "Home", folder: Path, functions: int, overrides: tuple[str, ...]) -> None:
    from assay.cli.progress import ProgressObserver
    from assay.reporting.documents.comparison import comparison_document
    from assay.reporting.documents.render import render_document
    from assay.reporting.documents.runs.run import run_document
    from assay.reporting.views.comparison import comparison_page
    from assay.reporting.views.runs.run_page import run_page
    from assay.workflows.demo.classifier import run_demo

    start_s = time.monotonic()
    with home.open_ledger() as ledger:
        result = run_demo(
            home,
            folder,
            ledger,
            num_functions=functions,
            overrides=overrides,
            make_observer=ProgressObserver,
            on_message=print_status,
        )
        run_id = result.candidate.run.run_id
        document = run_document(run_page(ledger, run_id), now_s=time.time())
        (folder / "run.html").write_text(render_document(document), encoding="utf-8")
        page = comparison_page(ledger, result.baseline.run.run_id, [run_id], out=folder / "comparison.html")
        (folder / "comparison.html").write_text(render_document(comparison_document(page)), encoding="utf-8")
    compared = page.candidates[0].compared
    click.echo(_summary(result, compared, folder, seconds=time.monotonic() - start_s))
    if not _is_proven(result, compared):
        raise SystemExit(1)


def _fine_tune(home: "Home", folder: Path, functions: int, overrides: tuple[str, ...]) -> None:
    from assay.cli.progress import ProgressObserver
    from assay.workflows.demo.fine_tuning import run_sft_demo

    start_s = time.monotonic()
    result = run_sft_demo(
        home,
        folder,
        num_functions=functions,
        overrides=overrides,
        make_observer=ProgressObserver,
        on_message=print_status,
    )
    click.echo(_sft_summary(result, seconds=time.monotonic() - start_s))
    if not result.result.audit or result.result.audit.verdict != "pass":
        raise SystemExit(1)


def _sft_summary(result: "SftDemoResult", *, seconds: float) -> str:
    evaluation, run_id = result.result.evaluation, result.result.run.run_id
    assert evaluation and evaluation.loss and evaluation.loss.estimate
    written = [
        line
        for item in result.written
        for line in (item.signature, f"    people  {item.by_people}", f"    model   {item.by_model}", "")
    ]
    lines = [
        f"dataset    {result.dataset.num_rows:,} docstrings, {count_text(result.dataset.num_tokens)} tokens, "
        f"fingerprint {result.dataset.fingerprint[:12]}",
        f"run        {run_id}: 2 workers, weights {evaluation.weights_digest[:16]}",
        f"           {_kill_text(result.result, result.killed_after_step)}",
        f"audit      {_audit_text(result.result)}",
        f"held out   {evaluation.loss.metric.title} {evaluation.loss.estimate.value:.3f} over "
        f"{evaluation.overall.num_rows:,} rows of other files; guessing gives {result.guess_nats:.2f}",
        f"took       {duration_text(seconds)}",
        "",
        *written,
        f"look at    {_relative_to_cwd(result.model)}: what transformers loads, and its card, README.md",
        f"           assay runs show {run_id}",
    ]
    return "\n".join(["", *lines])


def _is_proven(result: "DemoResult", compared: "ComparisonView") -> bool:
    """Return whether rows and weights are right. The decision of the campaign depends on the installed
    packages."""
    audits = [side.audit for side in (result.baseline, result.candidate)]
    return compared.weights_equal and all(audit and audit.verdict == "pass" for audit in audits)


def _summary(result: "DemoResult", auc: "ComparisonView", folder: Path, *, seconds: float) -> str:
    from assay.reporting.views.statements import decision_text

    baseline, candidate = result.baseline, result.candidate
    assert baseline.evaluation and candidate.evaluation and baseline.audit and candidate.audit
    equal = "the same, bit for bit" if auc.weights_equal else "DIFFERENT: this should not happen"
    low, high = (auc.difference.low or 0.0), (auc.difference.high or 0.0)
    lines = [
        f"dataset    {result.dataset.num_rows:,} functions, {count_text(result.dataset.num_tokens)} tokens, "
        f"fingerprint {result.dataset.fingerprint[:12]}",
        f"baseline   1 worker    {baseline.evaluation.weights_digest[:16]}  AUC {auc.baseline_value:.4f}",
        f"candidate  2 workers   {candidate.evaluation.weights_digest[:16]}  AUC {auc.candidate_value:.4f}",
        f"           {_kill_text(candidate, result.killed_at_step)}",
        f"weights    {equal}",
        f"audit      {_audit_text(candidate)}",
        f"AUC rule   difference {auc.difference.value:+.4f} [{low:+.4f}, {high:+.4f}], allowed loss "
        f"{auc.allowed_loss}: {auc.verdict}",
        *(
            f"{'decision' if index == 0 else '':<10} {decision_text(decision)}"
            for index, decision in enumerate(result.memo.memo.decisions)
        ),
        f"took       {duration_text(seconds)}",
        "",
        f"look at    {_relative_to_cwd(result.memo.page)}",
        f"           {folder / 'comparison.html'}",
        f"           {folder / 'run.html'}",
        f"           assay runs show {candidate.run.run_id}",
        "           assay serve --open",
    ]
    return "\n".join(["", *lines])


def _kill_text(result: "RunResult", after_step: int) -> str:
    last = result.last_attempt
    assert last
    return (
        f"one worker was killed with SIGKILL after step {after_step}; attempt {last.attempt} went on from step "
        f"{last.start_step}"
    )


def _audit_text(result: "RunResult") -> str:
    audit = result.audit
    assert audit
    return (
        f"{audit.verdict}: {audit.rows_trained:,} rows learned, {audit.rows_expected:,} expected, "
        f"{len(audit.missing)} missing, {len(audit.repeated)} repeated"
    )


def _relative_to_cwd(path: Path) -> Path:
    cwd = Path.cwd()
    return path.relative_to(cwd) if path.is_relative_to(cwd) else path
