"""The document of one run. `assay runs show` prints its brief form, `assay report` writes all of it as a page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import yaml

from assay.base.clock import utc_text
from assay.base.config import dotted_leaves
from assay.base.units import bytes_text, count_text, duration_text, number_of
from assay.records.evaluation import AnyEvaluation, ClassifierMetrics
from assay.records.launch import Launch
from assay.records.run import ImportedFrom
from assay.reporting.charts.run_figures import (
    curve_figures,
    life_figures,
    machines_table,
    metrics_table,
    quality_figures,
    reward_reading,
    rewards_table,
)
from assay.reporting.document import (
    Block,
    Cell,
    Code,
    Commands,
    Document,
    Fact,
    FactList,
    Fold,
    Listing,
    Paragraph,
    Section,
    Text,
    TitledTable,
    name,
    number,
)
from assay.reporting.documents.runs.clusters import clusters_blocks
from assay.reporting.documents.runs.lineage import Address, commit_blocks, lineage_blocks
from assay.reporting.documents.runs.rollouts import score_text, scores_text, tokens_text
from assay.reporting.documents.runs.run_verdict import incident_lines, next_commands, run_tiles, run_verdict
from assay.reporting.documents.runs.session import session_blocks
from assay.reporting.values import world_sizes_text
from assay.reporting.views.runs.run import LISTED_METRICS, GpuUseView, RunView
from assay.reporting.views.runs.run_page import RunPage
from assay.reporting.views.runs.samples import SampleView
from assay.store.settings import Money

SILENT_AFTER_S = 60.0
"""A running run without a sign of life for this long gets a hint."""
MAX_PROBLEMS = 50
"""Problems of an audit that are listed, by kind."""
MAX_SAMPLE_WIDTH = 60
"""Characters of a completion in the table of samples."""


def run_document(page: RunPage, *, now_s: float, address: Address = lambda *_: "") -> Document:
    """Return the document of a run. `address`: of other pages."""
    run = page.view
    copied_from = run.copied_from()
    facts = _progress(run, now_s) if copied_from is None else _imported_facts(run, copied_from)
    sections = [
        Section("", [FactList(list(facts)), *(session_blocks(run.session) if run.session else ())]),
        Section("Together with other clusters", list(clusters_blocks(run.clusters)) if run.clusters else []),
        Section("Did it learn?", list(_learning_blocks(page))),
        Section("What is it worth?", list(_worth(page))),
        Section("What happened", list(_history(run))),
        Section("Is every row accounted for?", list(_proof(run))),
        Section("Where it comes from", [] if copied_from else list(_origin(page, address)), pages_only=True),
        Section("What to do next", [Commands(next_commands(run))]),
    ]
    return Document(
        title=run.run_id,
        kind="run",
        subtitle=utc_text(run.created),
        verdict=run_verdict(run),
        tiles=run_tiles(run),
        tags=run.tags,
        sections=[section for section in sections if section.blocks],
        footer="Every number here follows from records in the run's folder and ledger; the same facts as JSON: "
        f"assay runs show {run.run_id} --json",
    )


def _learning_blocks(page: RunPage) -> Iterator[Block]:
    """Yield what a run learned: its curves and, if it trained on rewards, sample completions."""
    if (reading := reward_reading(page.curves)) is not None:
        yield Paragraph(reading)
    figures = list(curve_figures(page.curves, page.view.run_id))
    if (rewards := rewards_table(figures)).rows:
        yield TitledTable("Beginning and end", "", rewards, pages_only=True)
    yield from (drawn for drawn in figures if not drawn.pages_only)
    if page.view.samples:
        yield from _samples(page.view.samples)
    yield from (drawn for drawn in figures if drawn.pages_only)
    if page.view.imported is not None:
        yield _metrics_of_tool(page.view)  # under the tool's names, which no figure may know
    elif (left := page.view.num_metrics - len(page.view.metrics)) > 0:
        command = f"assay runs show {page.view.run_id} --json"
        yield Paragraph(f"{number_of(left, 'more metric')}: '{command}'; the dashboard lists all names.")


def _imported_facts(run: RunView, imported: ImportedFrom) -> Iterator[Fact]:
    """Yield where an imported run comes from and what is missing of it."""
    yield Fact("imported from", f"{imported.tool}, run {imported.tool_run_id}", imported.source)
    yield Fact("named", imported.name, f"of {run.name}")
    yield Fact("status there", imported.tool_status or "not recorded")
    times = [utc_text(moment) for moment in (imported.started_s, imported.ended_s) if moment is not None]
    yield Fact("time", " to ".join(times) or "not recorded")
    yield Fact("last step", f"{run.step:,}")
    for text in imported.left_out:
        yield Fact("left out", Cell(text, "open"))
    yield from _parameters(run)
    for tag, text in imported.tags.items():
        yield Fact(tag, text or "yes", f"tag of {imported.tool}")
    yield from _note_facts(run)


def _parameters(run: RunView) -> Iterator[Fact]:
    for key, value in dotted_leaves(run.recipe.get("params", {})):
        yield Fact(key, f"{value}", "parameter")


def _recorded_facts(run: RunView, imported: ImportedFrom) -> Iterator[Fact]:
    """Yield what trained a recorded run, and what its loop does not show."""
    yield Fact("trained by", imported.tool, imported.source)
    yield Fact("named", imported.name, f"of {run.name}")
    num_parameters = sum(1 for _ in _parameters(run))
    yield Fact("parameters", f"{num_parameters:,}", f"assay runs show {run.run_id} --json")
    for text in imported.left_out:
        yield Fact("not known", Cell(text, "open"))


def _progress_facts(run: RunView) -> Iterator[Fact]:
    """Yield how far a run is, how fast it goes, and what its device time went into."""
    ranks = "1 rank" if set(run.world_sizes) == {1} else f"{world_sizes_text(run.world_sizes) or 'no'} ranks"
    reached = run.reached_step()
    note = f"committed: {run.step:,}" if reached != run.step else ""
    yield Fact("step", f"{reached:,} of {run.total_steps:,} on {ranks}", note)
    if run.speed is not None:
        tokens = "" if run.speed.tokens_per_s is None else f"{count_text(run.speed.tokens_per_s)} tokens/s, "
        yield Fact("speed", f"{tokens}{run.speed.steps_per_s:.3g} steps/s")
    if run.gpu_use is not None:
        yield _mfu_fact(run.gpu_use)
    if (left_s := run.left_s()) is not None:
        yield Fact("time left", duration_text(left_s), "at the speed so far")


def _mfu_fact(use: GpuUseView) -> Fact:
    reached = f"{use.model_flops_per_s / 1e12:.3g} TFLOP/s of model FLOPs"
    waits = "" if use.host_waits is None else f", the host waits {use.host_waits:.3g} times a step"
    note = f"{bytes_text(use.memory_peak_bytes)} of GPU memory{waits}"
    if use.mfu is None or use.dense_flops_per_s is None:
        return Fact("MFU", reached, f"the card's rate is not known; {note}")
    return Fact("MFU", f"{use.mfu:.1%}", f"{reached}, of {use.dense_flops_per_s / 1e12:.4g} in bfloat16; {note}")


def _last_sign(run: RunView, now_s: float) -> Iterator[Fact]:
    """Yield how long a run that is not over has been silent."""
    if run.status not in ("running", "unknown", "gone"):
        return
    note = f"launched as {run.launches[-1].where()}" if run.launches else "no launch is recorded"
    if run.last_seen is None:
        yield Fact("last sign of life", Cell("none", "open"), note)
        return
    silent_s = max(0.0, now_s - run.last_seen)
    is_silent = silent_s >= SILENT_AFTER_S
    if run.status == "running":
        note = "it starts, commits, evaluates or hangs" if is_silent else ""
    yield Fact("last sign of life", Cell(f"{duration_text(silent_s)} ago", "open" if is_silent else None), note)


def _progress(run: RunView, now_s: float) -> Iterator[Fact]:
    yield from _progress_facts(run)
    yield from _last_sign(run, now_s)
    if run.launches:
        yield Fact("started", _started_text(run.launches[-1]))
    if run.commits:
        yield Fact("commits" if run.imported is None else "checkpoints", *_commits_text(run))
    if run.prompts is not None:
        yield Fact("prompts", str(run.prompts))
    if run.cost is not None and run.currency:
        yield Fact("cost of training", str(Money(run.cost, run.currency)))
    if run.evaluation_cost and run.currency:
        yield Fact("cost of evaluation", str(Money(run.evaluation_cost, run.currency)))
    if run.imported is not None:
        yield from _recorded_facts(run, run.imported)
    else:
        yield Fact("recipe", f"{run.name or run.run_id}", run.recipe_sha256[:12])
        yield Fact("dataset", f"{run.dataset_fingerprint[:12]}…")
    if run.parent is not None:
        changes = ", ".join(f"{key} {was} → {now}" for key, (was, now) in run.parent.changes.items())
        yield Fact("forked from", str(run.parent), changes)
    for processor in dict.fromkeys(attempt.processor for attempt in run.attempts):
        yield Fact("processor", processor)
    if run.evaluation is not None and run.evaluation.num_leaking is None:
        unchecked = "validation rows were not checked for copies of training rows"
        yield Fact("leaks", Cell(unchecked, "open"), "'assay data split --check-leaks' does")
    yield from _note_facts(run)


def _note_facts(run: RunView) -> Iterator[Fact]:
    for note in run.notes:
        yield Fact("note", note.text, f"{note.by}, {utc_text(note.at_s)}")


def _started_text(launch: Launch) -> str:
    return f"{launch.job_name()}, by {launch.started_by} on {launch.host}, {utc_text(launch.started_s)}"


def _commits_text(run: RunView) -> tuple[Text, str]:
    intact = [commit for commit in run.commits if not commit.is_quarantined]
    if not intact:
        return Cell(f"{number_of(len(run.commits), 'commit')} found damaged and quarantined", "bad"), ""
    text = f"{len(intact)}, the last at step {intact[-1].step:,} ({bytes_text(intact[-1].num_bytes)})"
    retained = [f"{commit.step:,}" for commit in intact if not commit.is_retired]
    note = ""
    if len(retained) < len(intact):
        note = f"kept: {'step' if len(retained) == 1 else 'steps'} {', '.join(retained)}"
    damaged = len(run.commits) - len(intact)
    return (Cell(f"{text}; {damaged} more found damaged and quarantined", "open") if damaged else text), note


def _samples(samples: Sequence[SampleView]) -> Iterator[Block]:
    several = len(samples[0].scores) > 1
    yield TitledTable.of(
        "Sample completions",
        "The first and the last step, and the best and the worst of the last steps, of the completions whose tokens "
        "are in the rollout log. Read them: a reward that rises over nonsense is being exploited.",
        samples,
        (name("which"), lambda sample: sample.choice),
        (number("step"), lambda sample: f"{sample.step:,}"),
        (number("reward"), _reward_cell),
        *([(name("by grader", drop_order=2), scores_text)] if several else []),
        (number("tokens", drop_order=1), tokens_text),
        ("prompt", lambda sample: _cut(sample.prompt)),
        ("completion", lambda sample: _cut(sample.completion)),
    )
    for sample in samples:
        if max(len(sample.prompt or ""), len(sample.completion or "")) > MAX_SAMPLE_WIDTH:
            title = f"{sample.choice.capitalize()}: reward {score_text(sample.reward)}, step {sample.step:,}"
            texts = [("Prompt", sample.prompt), ("Completion", sample.completion)]
            codes = [Code(text, title) for title, text in texts if text is not None]
            yield Fold(title, codes, f"row {sample.row_id:,}, completion {sample.sample}", pages_only=True)


def _metrics_of_tool(run: RunView) -> Block:
    """Return the metrics of an imported run under the tool's names."""
    shown = list(run.metrics.items())[:LISTED_METRICS]
    left = run.num_metrics - len(shown)
    return TitledTable.of(
        "Metrics",
        f"{left:,} more are in 'assay runs show {run.run_id} --json'." if left else "",
        shown,
        (name("metric"), lambda item: _cut(item[0])),
        (number("points"), lambda item: f"{item[1].num_points:,}"),
        *(
            (number(key), lambda item, key=key: _metric_text(getattr(item[1], key)))
            for key in ("last", "minimum", "maximum")
        ),
    )


def _metric_text(value: float | None) -> str:
    return "—" if value is None else f"{value:.6g}"


def _reward_cell(sample: SampleView) -> Text:
    return Cell("no grade", "bad") if sample.reward is None else score_text(sample.reward)


def _cut(text: str | None) -> str:
    """Return a text on one line, cut to the width of the table."""
    if text is None:
        return "not in the log"
    line = " ".join(text.split())
    return line if len(line) <= MAX_SAMPLE_WIDTH else f"{line[: MAX_SAMPLE_WIDTH - 1]}…"


def _worth(page: RunPage) -> Iterator[Block]:
    evaluation = page.view.evaluation
    if evaluation is None:
        return
    yield from (replace(drawn, pages_only=True) for drawn in quality_figures(page))
    yield TitledTable("Metrics", _rows_text(evaluation), metrics_table(evaluation.overall), pages_only=True)


def _rows_text(evaluation: AnyEvaluation) -> str:
    overall = evaluation.overall
    positive = f", {overall.num_positive:,} of them positive" if isinstance(overall, ClassifierMetrics) else ""
    rows = number_of(overall.num_rows, "row")
    return f"Step {evaluation.step:,} on {rows} of the {evaluation.split} split{positive}."


def _history(run: RunView) -> Iterator[Block]:
    yield from life_figures(run)
    yield from commit_blocks(run)
    flagged = [commit for commit in run.commits if commit.flags]
    if flagged:
        yield Listing(
            [
                Cell(f"step {commit.step:,}: " + " ".join(f"{flag.rule}: {flag.text}" for flag in commit.flags), "open")
                for commit in flagged
            ],
            "Warnings at commits",
        )
        if any(not commit.is_evaluated for commit in run.commits):
            yield Paragraph(
                "Evaluated commits are checked by their predictions, others by their training metrics and, if "
                "validation rows were scored, by whether all scores are equal. 'assay eval predict RUN@STEP' shows the "
                "predictions of a commit."
            )
    damaged = [commit for commit in run.commits if commit.is_quarantined]
    if damaged:
        yield Listing(
            [Cell(f"step {commit.step:,} ({commit.folder}): {commit.quarantine_reason}", "bad") for commit in damaged],
            "Quarantined commits",
        )
    messages = [f"attempt {event.attempt}, rank {event.rank}: {event.text}" for event in run.events]
    for title, lines in (("Incidents", incident_lines(run)), ("Messages of ranks", messages)):
        if lines:
            yield Listing(lines, title)


def _observed(run: RunView) -> Iterator[Block]:
    """Yield what is proved of a run that another tool trained."""
    if run.copied_from() is not None:
        return
    rows = "not observed: the loader is not assay's, so no receipt says which rows were read"
    facts = [] if run.shows_rows() else [Fact("rows", Cell(rows, "open"))]
    if (audit := run.audit) is not None and audit.whole_checkpoints is not None:
        whole = Cell(f"{audit.whole_checkpoints} whole", "bad" if audit.problems else "good")
        facts.append(Fact("checkpoints", whole, f"audit of step {audit.step:,}"))
    yield FactList(facts)
    if audit is not None and audit.problems and not run.shows_rows():
        yield Listing([*audit.problems[:MAX_PROBLEMS]], "Changed checkpoints")


def _proof(run: RunView) -> Iterator[Block]:
    audit = run.audit
    if run.imported is not None:
        yield from _observed(run)
    if audit is None or not run.shows_rows():
        return
    tone = {"pass": "good", "fail": "bad"}.get(audit.verdict, "open")
    facts = [
        Fact("audit", Cell(audit.verdict, tone), "" if run.audited_until() is None else f"up to step {audit.step:,}"),  # type: ignore[arg-type]
        Fact("epochs", f"{audit.epochs}"),
        Fact("rows expected", f"{audit.rows_expected:,}"),
        Fact("rows learned", f"{audit.rows_trained:,}"),
        Fact("rows quarantined", f"{audit.rows_quarantined:,}"),
    ]
    yield FactList(facts, pages_only=audit.verdict == "pass")
    lists = (
        ("not learned", audit.missing),
        ("learned more than once", audit.repeated),
        ("other problems", audit.problems),
    )
    for title, found in lists:
        if found:
            more = [f"… and {len(found) - MAX_PROBLEMS:,} more"] if len(found) > MAX_PROBLEMS else []
            yield Listing([*found[:MAX_PROBLEMS], *more], title.capitalize())


def _origin(page: RunPage, address: Address) -> Iterator[Block]:
    run = page.view
    yield from lineage_blocks(run, page.lineage, address)
    if run.attempts:
        yield TitledTable("Machines", "", machines_table(run), pages_only=True)
    recipe = yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True).strip()
    title = "The resolved recipe" if run.imported is None else "Its parameters"
    yield Fold(title, [Code(recipe)], pages_only=True)
