"""The blocks of a run's document that say where it comes from: lineage, recipe changes, commits and capsules."""

from collections.abc import Callable, Iterator
from typing import Literal

from assay.base.clock import utc_text
from assay.base.names import shell_line
from assay.base.units import bytes_text, number_of
from assay.reporting.document import Block, Cell, Table, Text, TitledTable, name, number
from assay.reporting.values import estimate_text, value_text
from assay.reporting.views.runs.lineage import Lineage
from assay.reporting.views.runs.run import CommitView, RunView

MAX_ROWS = 50
"""Newest commits, shards and results that are listed."""

Address = Callable[[Literal["run", "campaign", "benchmark"], str], str]
"""Returns the address of the page of a thing, given its kind and name; empty if there is none."""


def lineage_blocks(run: RunView, lineage: Lineage, address: Address) -> Iterator[Block]:
    """Yield the chain of digests from the dataset's files to the decisions, and what the recipe changes."""
    yield TitledTable(
        "From the files to the decisions",
        "A digest changes with everything above it.",
        Table((name("what"), "digest", "of"), list(_links(run, lineage, address))),
        pages_only=True,
    )
    if lineage.changes:
        yield TitledTable.of(
            f"What the recipe changes from that of {lineage.reference}",
            "",
            lineage.changes.items(),
            (name("key"), lambda change: change[0]),
            ("there", lambda change: value_text(change[1][0])),
            ("here", lambda change: value_text(change[1][1])),
        )
    if lineage.capsules:
        replay = ("assay", "runs", "replay", run.run_id, "--step")
        yield TitledTable.of(
            "Capsules",
            "Steps that can be run again.",
            lineage.capsules,
            (number("step"), lambda capsule: f"{capsule.step:,}"),
            (number("attempt"), lambda capsule: f"{capsule.attempt}"),
            (name("kept", drop_order=1), lambda capsule: utc_text(capsule.created_s)),
            ("why", lambda capsule: capsule.reason),
            ("run it again", lambda capsule: shell_line(*replay, str(capsule.step))),
        )


_Link = tuple[str, Text, str]
"""What it is, its digest or name, and a note."""


def _links(run: RunView, lineage: Lineage, address: Address) -> Iterator[_Link]:
    for shard in lineage.shards[:MAX_ROWS]:
        yield "Parquet file", shard.sha256, f"{shard.path}, {number_of(shard.num_rows, 'row')}"
    if len(lineage.shards) > MAX_ROWS:
        yield "Parquet files", "…", f"{len(lineage.shards) - MAX_ROWS:,} more"
    if run.dataset_fingerprint:
        yield "dataset", run.dataset_fingerprint, str(run.recipe.get("data", {}).get("dataset", ""))
    if lineage.reference:
        yield "recipe of", Cell(lineage.reference, link=address("run", lineage.reference)), "the one that this changes"
    yield "recipe" if run.imported is None else "parameters", run.recipe_sha256, run.name or ""
    yield "code", run.code_version, ""
    last = run.last_commit()
    if last is not None:
        yield "weights", last.weights_digest, last.adopted_from or f"commit of step {last.step:,}"
    if run.evaluation is not None:
        yield "predictions", run.evaluation.predictions_sha256, f"step {run.evaluation.step:,}, {run.evaluation.split}"
    last_step = max((result.step for result in lineage.results), default=0)
    for result in [result for result in lineage.results if result.step == last_step][:MAX_ROWS]:
        link = address("benchmark", result.benchmark)
        score = "" if result.score is None else f", {estimate_text(result.score)}"
        yield "benchmark", Cell(result.benchmark, link=link), f"step {result.step:,}{score}"
    for decision in lineage.decisions:
        link = address("campaign", decision.campaign)
        yield "decision", Cell(f"{decision.campaign}: {decision.candidate}", link=link), decision.recommendation


def commit_blocks(run: RunView) -> Iterator[Block]:
    """Yield the commits, newest first."""
    if not run.commits:
        return
    shown = list(reversed(run.commits))[:MAX_ROWS]
    left = len(run.commits) - len(shown)
    yield TitledTable(
        "Commits" if run.imported is None else "Checkpoints of the training script",
        f"The newest {MAX_ROWS}; {left:,} more are in 'assay runs show {run.run_id} --json'." if left else "",
        Table.of(
            shown,
            (number("step"), lambda commit: f"{commit.step:,}"),
            (number("attempt"), lambda commit: f"{commit.attempt}"),
            (number("ranks"), lambda commit: f"{commit.world_size}"),
            (name("committed"), lambda commit: utc_text(commit.committed)),
            (number("size"), lambda commit: bytes_text(commit.num_bytes)),
            (number("rows since"), lambda commit: f"{commit.rows_trained:,}"),
            (name("weights"), lambda commit: commit.weights_digest[:12]),
            ("folder", lambda commit: commit.adopted_from)
            if run.imported
            else (name("spot check"), lambda commit: Cell("passed", "good") if commit.is_verified else "not made"),
            (name("state"), _state),
        ),
        pages_only=True,
    )


def _state(commit: CommitView) -> Text:
    if commit.is_quarantined:
        return Cell("damaged", "bad")
    if commit.flags:
        return Cell(", ".join(flag.rule for flag in commit.flags), "open")
    return "files deleted" if commit.is_retired else "kept"
