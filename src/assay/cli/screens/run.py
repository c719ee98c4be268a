"""One run on one screen: what it is, how far it got, what it cost, how it learned, how it died and rose."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assay.base.clock import SystemClock
from assay.base.units import bytes_text, count_text, duration_text
from assay.cli.screens.terminal import (
    PHASE_STYLES,
    STATUS_STYLES,
    VERDICT_STYLES,
    device_hours_text,
    phase_bar,
    sparkline,
    stdout,
    world_sizes_text,
)
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import events, last_sign_of_life_s, metric_series

SILENT_AFTER_S = 60.0
"""A run that is said to run and was not heard of for so long gets a hint."""

MAX_ATTEMPTS = 12
MAX_EVENTS = 8


def print_run(ledger: Ledger, tree: dict[str, Any]) -> None:
    """Print what `run_tree` found, and the curve of the loss."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, value in _facts(ledger, tree):
        facts.add_row(name, value)
    status = tree["status"]
    title = Text.assemble((tree["run_id"], "bold"), "  ", (status.upper(), f"bold {STATUS_STYLES[status]}"))
    stdout().print(Group(title, "", facts, *_attempts(tree), *_events(ledger, tree)))


def _facts(ledger: Ledger, tree: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    yield "recipe", f"{tree['name'] or ''} {tree['recipe_sha256'][:12]}…, begun {tree['created']}"
    yield "dataset", f"{tree['dataset_fingerprint'][:12]}…"
    total = "" if tree["total_steps"] is None else f" of {tree['total_steps']:,}"
    yield "step", f"{tree['step']:,}{total} on {world_sizes_text(tree['world_sizes']) or 'no'} ranks"
    if tree["status"] == "running" and (hint := _silence(ledger, tree)):
        yield "", Text(hint, style="yellow")
    if tree["weights_digest"]:
        yield "weights", f"{tree['weights_digest'][:24]}…"
    if tree["commits"]:
        yield "commits", _commits_text(tree["commits"])
    yield "AUC", _auc_text(tree["evaluation"])
    yield "audit", _audit_text(tree)
    if any(tree["device_seconds"].values()):
        yield "device time", _cost(tree)
    yield from _curves(ledger, tree)


def _silence(ledger: Ledger, tree: dict[str, Any]) -> str:
    seen_s = last_sign_of_life_s(ledger, tree["run_id"])
    silent_s = 0.0 if seen_s is None else SystemClock().now_s() - seen_s
    if silent_s < SILENT_AFTER_S:
        return ""
    return (
        f"silent for {duration_text(silent_s)}: if its supervisor is gone, "
        f"'assay train --resume {tree['run_id']}' goes on"
    )


def _commits_text(commits: list[dict[str, Any]]) -> str:
    intact = [commit for commit in commits if not commit["is_quarantined"]]
    text = f"{len(intact)}"
    if intact:
        text += f", the last of step {intact[-1]['step']:,} ({bytes_text(intact[-1]['num_bytes'])})"
    damaged = len(commits) - len(intact)
    return f"{text}; {damaged} more found damaged and quarantined" if damaged else text


def _auc_text(evaluation: dict[str, Any] | None) -> str:
    if evaluation is None:
        return "not evaluated yet"
    overall = evaluation["overall"]
    auc = overall["auc"]
    if auc is None:
        return f"none: the {overall['num_rows']:,} rows of '{evaluation['split']}' are all of one class"
    interval = "" if auc["low"] is None else f" [{auc['low']:.4f}, {auc['high']:.4f}] {auc['method']}"
    return f"{auc['value']:.4f}{interval} on {overall['num_rows']:,} rows of '{evaluation['split']}'"


def _audit_text(tree: dict[str, Any]) -> RenderableType:
    audit = tree["audit"]
    if audit is None:
        return f"none yet: 'assay audit {tree['run_id']}'"
    problems = sum(len(audit[kind]) for kind in ("missing", "repeated", "problems"))
    return Text.assemble(
        (audit["verdict"], VERDICT_STYLES[audit["verdict"]]),
        f": {audit['rows_learned']:,} of {audit['rows_expected']:,} rows learned once",
        f", {audit['rows_quarantined']:,} quarantined" if audit["rows_quarantined"] else "",
        f"; {problems} problems ('assay audit {tree['run_id']}' names them)" if problems else "",
    )


def _cost(tree: dict[str, Any]) -> RenderableType:
    seconds: dict[str, float] = tree["device_seconds"]
    total = sum(seconds.values())
    legend = Text()
    for phase, style in PHASE_STYLES.items():
        if seconds[phase] > 0:
            legend.append("■ ", style=style).append(f"{phase} {seconds[phase] / total:.1%}   ")
    lost = tree["lost_steps"]
    words = f"{device_hours_text(total)} over all ranks" + (f"; {lost:,} steps made twice" if lost else "")
    return Group(words, phase_bar(seconds), legend)


def _curves(ledger: Ledger, tree: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    run_id = tree["run_id"]
    for name in ("loss", "validation_auc"):
        curve = metric_series(ledger, run_id, name)
        if len(curve.steps) > 1:
            line = sparkline(curve.values.tolist())
            yield name.replace("_", " "), f"{curve.values[0]:.4f} {line} {curve.values[-1]:.4f}"
    tokens = metric_series(ledger, run_id, "tokens", max_points=1_000_000)
    seconds = metric_series(ledger, run_id, "step_s", max_points=1_000_000)
    if len(tokens.steps) and len(tokens.steps) == len(seconds.steps) and (spent := seconds.values.sum()) > 0:
        steps_per_s = len(seconds.steps) / spent
        yield "speed", f"{count_text(tokens.values.sum() / spent)} tokens/s, {steps_per_s:.3g} steps/s"


def _attempts(tree: dict[str, Any]) -> Iterator[RenderableType]:
    attempts = tree["attempts"]
    if not attempts:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("attempt", "ranks", "steps", "lasted"):
        table.add_column(title, justify="right")
    table.add_column("end")
    table.add_column("why")
    for attempt in attempts[-MAX_ATTEMPTS:]:
        end_step = "…" if attempt["end_step"] is None else f"{attempt['end_step']:,}"
        outcome = attempt["outcome"]
        style = STATUS_STYLES.get(outcome, "red")
        table.add_row(
            str(attempt["attempt"]),
            str(attempt["world_size"]),
            f"{attempt['start_step']:,} to {end_step}",
            "" if attempt["held_s"] is None else duration_text(attempt["held_s"]),
            Text(outcome, style=style),
            Text(attempt["reason"]),
        )
    yield from ("", table)
    if len(attempts) > MAX_ATTEMPTS:
        yield f"and {len(attempts) - MAX_ATTEMPTS} earlier attempts (--json lists all)"


def _events(ledger: Ledger, tree: dict[str, Any]) -> Iterator[RenderableType]:
    for event in events(ledger, tree["run_id"])[-MAX_EVENTS:]:
        yield Text(f"attempt {event.attempt}, rank {event.rank}: {event.text}", style="dim")
