"""`assay show`: what a run did, cost and measured."""

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from assay.store.ledger.ledger import Ledger

BAR = 40
SPARKS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print stable keys as JSON (docs/json.md).")
def show(run_id: str, as_json: bool) -> None:
    """What RUN (its id, or the start of it) did, cost and measured."""
    from assay.store.ledger.ledger import open_ledger

    with open_ledger() as ledger:
        tree = run_tree(ledger, ledger.run(run_id).run_id)
        if as_json:
            click.echo(json.dumps(tree))
            return
        _print(tree, _losses(ledger, tree["run_id"]))


def run_tree(ledger: "Ledger", run_id: str) -> dict[str, Any]:
    """The JSON of `assay show`; its keys are documented and stay."""
    from assay.records.commit import Commit
    from assay.reporting.gather import run_status
    from assay.store.metrics.curves import metric_summaries

    run = ledger.run(run_id)
    attempts = ledger.attempts(run_id)
    commits = [entry for entry in ledger.log_entries(run_id) if isinstance(entry, Commit)]
    evaluations = ledger.evaluations(run_id)
    audit = ledger.audit(run_id)
    seconds: dict[str, float] = {}
    for each in ledger.phase_seconds(run_id):
        for phase, spent in each.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    return {
        "run_id": run_id,
        "name": run.recipe.get("name"),
        "status": run_status(ledger, run_id),
        "run_dir": run.run_dir,
        "recipe_sha256": run.recipe_sha256,
        "dataset_fingerprint": run.dataset_fingerprint,
        "code_version": run.code_version,
        "step": commits[-1].step if commits else 0,
        "weights_digest": commits[-1].weights_digest if commits else None,
        "world_sizes": [attempt.world_size for attempt in attempts],
        "attempts": [attempt.model_dump(mode="json") for attempt in attempts],
        "commits": [{"step": each.step, "attempt": each.attempt, "folder": each.folder} for each in commits],
        "audit": None if audit is None else audit.model_dump(mode="json"),
        "metrics": {each.name: each.last_value for each in metric_summaries(ledger, run_id)},
        "device_seconds": seconds,
        "held_s": sum(each.held_s for each in ledger.phase_seconds(run_id)),
        "evaluation": evaluations[-1].overall.model_dump(mode="json") if evaluations else None,
    }


def _losses(ledger: "Ledger", run_id: str) -> list[float]:
    from assay.store.metrics.curves import metric_series

    values = metric_series(ledger, run_id, "loss", max_points=1_000_000).values
    size = max(1, len(values) // BAR)
    return [float(values[start : start + size].mean()) for start in range(0, len(values), size)]


def _print(tree: dict[str, Any], losses: list[float]) -> None:
    from assay.base.units import duration_text

    colour = {"succeeded": "green", "failed": "red"}.get(tree["status"], "yellow")
    click.secho(f"{tree['run_id']}  {tree['status']}", fg=colour, bold=True)
    click.echo(
        f"step {tree['step']:,}, weights {(tree['weights_digest'] or 'none')[:16]}, in {tree['run_dir']}"
    )
    if losses:
        low, high = min(losses), max(losses)
        spark = "".join(SPARKS[int(7 * (loss - low) / max(1e-12, high - low))] for loss in losses)
        click.echo(f"loss  {spark}  {losses[0]:.4f} to {losses[-1]:.4f}")
    auc = (tree["evaluation"] or {}).get("auc")
    if auc:
        click.echo(f"AUC   {auc['value']:.4f} [{auc['low']:.4f}, {auc['high']:.4f}] on validation rows")
    audit = tree["audit"]
    if audit:
        click.echo(
            f"audit {audit['verdict']}: {audit['rows_learned']:,} of {audit['rows_expected']:,} rows learned"
        )
    click.echo("\nattempts")
    for each in tree["attempts"]:
        end = "…" if each["end_step"] is None else each["end_step"]
        steps = f"steps {each['start_step']} to {end}"
        click.echo(
            f"  {each['attempt']}  {each['world_size']} ranks  {steps:<22} {each['outcome']}  {each['reason']}"
        )
    total = sum(tree["device_seconds"].values())
    click.echo(f"\ndevice time  {duration_text(total)}")
    for phase, spent in sorted(tree["device_seconds"].items(), key=lambda item: -item[1]):
        bar = "█" * round(BAR * spent / max(1e-9, total))
        click.echo(f"  {phase:<14} {spent / max(1e-9, total):6.1%}  {bar}")
