"""`assay eval`: run suites, evaluate the commits of a run, show scores, import results, check coverage."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.command import CommandGroup
from assay.cli.parameters import (
    FILE,
    FOLDER,
    PATH,
    RUN,
    InputFile,
    OutFile,
    current_home,
    force_option,
    json_option,
    print_view,
    python_graders_option,
    set_python_graders,
    writable_ledger,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.evals.config import Suite
    from assay.records.benchmark import BenchmarkResult
    from assay.reporting.views.benchmark_items import Which
    from assay.scoring.grader_runner import Tools
    from assay.store.home import Home
    from assay.store.ledger.writer import LedgerWriter


NAME_A_LOG = "Name a samples_*.jsonl of lm-eval, or an .eval or .json log of inspect."


_MODULES = {
    "run": ("assay.cli.eval.group", "Evaluate a model folder or an endpoint on a suite."),
    "work": ("assay.cli.eval.group", "Evaluate the commits of a run that its recipe selects."),
    "history": ("assay.cli.eval.group", "Show scores over checkpoints, and which one is the best."),
    "items": ("assay.cli.eval.group", "Show the items of a result: completions and scores."),
    "import": ("assay.cli.eval.group", "Import scores of lm-eval, inspect, OpenAI Evals, Promptfoo."),
    "coverage": ("assay.cli.eval.group", "Show which failure modes the benchmarks would detect."),
    "predict": ("assay.cli.eval.predict", "Predict for the rows of a file."),
    "chat": ("assay.cli.eval.chat", "Chat with a language model."),
}


@click.group(cls=CommandGroup, name="eval", modules=_MODULES)
def eval_() -> None:
    """Evaluate checkpoints on the benchmarks of a suite; show scores and coverage; predict, and chat."""


_RUN_SECTIONS = {
    "Record": (
        "run_id",
        "candidate",
        "seed",
        "step",
    ),
    "Contamination": (
        "trained_on",
        "dataset",
        "tokenizer",
    ),
}


@eval_.command(sections=_RUN_SECTIONS)
@click.argument("model")
@click.option("--suite", type=FILE, required=True, help="YAML file of the suite (docs/suites.md).")
@click.option("--run-id", help="Name to record the results under; by default the name of the folder or model.")
@click.option("--candidate", help="Candidate that the checkpoint belongs to; by default the run id.")
@click.option("--seed", default=0, help="Seed of the training run, the unit of replication.")
@click.option("--step", default=0, help="Optimizer step of the checkpoint.")
@click.option(
    "--endpoint",
    metavar="URL",
    help="Evaluate the model named MODEL at this OpenAI-compatible endpoint, instead of a folder.",
)
@click.option("--judge", metavar="URL", help="Endpoint of the judge model that graders call.")
@click.option(
    "--judge-model",
    help="Name of the judge model; by default the one that each grader names. Registry benchmarks need it.",
)
@click.option(
    "--trained-on",
    type=PATH,
    multiple=True,
    help="Training text (file or folder) to search for the benchmark's n-grams. May be repeated.",
)
@click.option("--dataset", type=PATH, help="Training dataset of assay to search for the benchmark's n-grams.")
@click.option("--tokenizer", type=PATH, help="Tokenizer of that dataset; by default the checkpoint's.")
@python_graders_option
@json_option
def run(
    model: str,
    suite: Path,
    run_id: str | None,
    candidate: str | None,
    seed: int,
    step: int,
    endpoint: str | None,
    judge: str | None,
    judge_model: str | None,
    trained_on: tuple[Path, ...],
    dataset: Path | None,
    tokenizer: Path | None,
    python_graders: str | None,
    as_json: bool,
) -> None:
    """Evaluate MODEL: a folder written by save_pretrained with a tokenizer.json, or a model name at --endpoint.

    Scores are stored in chunks, so a command that was killed continues where it stopped. A benchmark that was
    scored before on the same weights and the same version of the suite is not scored again.
    """
    set_python_graders(python_graders)
    home = current_home()
    if endpoint is None and not Path(model).is_dir() and home.has_run(model):
        raise ConfigError(f"{model} is a run. Evaluate its commits with 'assay eval work {model} --suite {suite}'.")
    from assay.models.config import checkpoint_path

    if endpoint is None:
        checkpoint_path(model)
    if judge is None and judge_model:
        raise ConfigError("--judge-model needs --judge URL, the endpoint of the judge.")
    from assay.evals.compatibility import refuse_unfenced_graders
    from assay.evals.config import read_suite

    loaded_suite = read_suite(suite)
    refuse_unfenced_graders(loaded_suite)
    from assay.evals.queue import Checkpoint
    from assay.inference.endpoint import HttpEngine
    from assay.reporting.terminal.terminal import show_progress
    from assay.store.ledger.writer import FINISH_S
    from assay.workflows.evaluation import evaluate as wiring

    run_id = run_id or Path(model).name
    wiring.check_results_are_of_run(home, run_id, step, None if endpoint is not None else Path(checkpoint_path(model)))
    tools = _tools(loaded_suite, judge, judge_model)
    own_tokenizer = Path(model) if endpoint is None else None
    text = wiring.training_text(trained_on, dataset, tokenizer or own_tokenizer)
    if endpoint is not None:
        sampler = HttpEngine(base_url=endpoint, model=model)
        digest = wiring.endpoint_digest(endpoint, model)
        scorers = wiring.scorers_of_model(suite, sampler, tools=tools, training_text=text)
    else:
        local, digest = wiring.local_model(model)
        scorers = wiring.scorers_of_model(suite, local, tools=tools, training_text=text)
    checkpoint = Checkpoint(run_id, candidate or run_id, seed, step, digest)
    with _writer(home, run_id) as writer:
        results = wiring.evaluate_model(home, checkpoint, scorers, writer, on_chunk=show_progress)
        writer.wait(FINISH_S)
    _print_results(results, as_json=as_json)


@eval_.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option("--suite", type=FILE, help="Suite to use instead of the recipe's.")
@click.option("--follow", is_flag=True, help="Wait for new commits until the run has finished.")
@python_graders_option
@json_option
def work(run_id: str, suite: Path | None, follow: bool, python_graders: str | None, as_json: bool) -> None:
    """Evaluate the commits of RUN that its recipe selects and that are not evaluated yet.

    Several workers may do so at the same time, on any machines that see the run's store.
    """
    from assay.reporting.terminal.terminal import show_progress
    from assay.workflows.bookkeeping import writer_of
    from assay.workflows.evaluation import queue as evaluation_queue
    from assay.workflows.run import load_run

    set_python_graders(python_graders)
    home = current_home()
    run_id = home.meant_run(run_id)
    is_recorded = home.has_run(run_id) and home.run(run_id).is_recorded()
    found = home.run(run_id) if is_recorded and suite is not None else load_run(home, run_id)
    queue = evaluation_queue.queue_of(found, suite=None if suite is None else str(suite.resolve()))
    with writer_of(home, found) as writer:
        evaluation_queue.work(queue, writer, clock=SystemClock(), follow=follow, on_chunk=show_progress)
        results = evaluation_queue.record_results(queue, writer)
    _print_results(results, as_json=as_json)
    _note_retired(home, run_id, results)


@eval_.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--benchmark", help="Show this benchmark only.")
@click.option("--campaign", default="", help="Without RUN: show the runs of this campaign only.")
@json_option
def history(run_id: str | None, benchmark: str | None, campaign: str, as_json: bool) -> None:
    """Show the scores of RUN over its checkpoints, benchmark by benchmark, with the best so far. Without RUN, show the
    best of all checkpoints.

    The best of many checkpoints is biased upwards by the selection: decide on declared checkpoints, over seeds.
    """
    home = current_home()
    if run_id is not None and campaign:
        raise click.UsageError("--campaign applies to all runs of a campaign: name no RUN.")
    if run_id is not None and not home.has_results(run_id):
        raise _no_results(run_id)
    from assay.reporting.documents.benchmarks import history_document, matrix_document
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.benchmark_history import benchmark_matrix, history_lines, runs_of_campaign
    from assay.reporting.views.view import json_list

    with writable_ledger(home) as ledger:
        is_member = runs_of_campaign(ledger, campaign)
        matrix = benchmark_matrix(
            ledger, benchmark=benchmark, is_selected=lambda row: run_id in (None, row.run_id) and is_member(row.run_id)
        )
        is_wrong = not matrix.rows and (run_id or benchmark)
        results = ledger.benchmark_results(run_id) if run_id or as_json or is_wrong else []
        if run_id is not None and not results:
            named = sorted({result.run_id for result in ledger.benchmark_results()})
            raise _no_results(run_id, f" There are results of {', '.join(named[:5])}." if named else "")
        device_s = 0.0 if run_id is None else ledger.evaluation_s(run_id)
    if is_wrong and results:
        of_run = f" in run '{run_id}'" if run_id else ""
        others = ", ".join(sorted({result.benchmark for result in results}))
        raise ConfigError(f"no results of '{benchmark}'{of_run}; there are results of {others}.")
    if as_json:
        click.echo(json_list(history_lines(matrix, results)))
    elif run_id is None:
        print_document(matrix_document(matrix, shown=range(min(len(matrix.rows), 40)), campaign=campaign))
    else:
        print_document(history_document(matrix, device_s=device_s))
    if run_id is not None:
        _note_retired(home, run_id, results)


def _no_results(run_id: str, hint: str = "") -> ConfigError:
    return ConfigError(
        f"no benchmark results of '{run_id}'.{hint} Create them with 'assay eval work {run_id} --suite FILE'."
    )


@eval_.command()
@click.argument("run_id", metavar="RUN")
@click.option("--benchmark", required=True, help="Name of the benchmark.")
@click.option("--step", required=True, type=int, help="Optimizer step of the checkpoint.")
@click.option(
    "--show",
    "which",
    type=click.Choice(("all", "failed", "zero", "positive")),
    default="all",
    help="Show all items, those without a score, with score 0, or with a higher one.",
)
@json_option
def items(run_id: str, benchmark: str, step: int, which: "Which", as_json: bool) -> None:
    """Show the items of a benchmark result of RUN: completion and score of each.

    If a checkpoint has results of several versions of the benchmark, the last one is shown.
    """
    home = current_home()
    if not home.has_results(run_id):
        raise _no_results(run_id)
    from assay.reporting.documents.benchmark_items import result_document
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.benchmark_items import newest_result, result_items
    from assay.reporting.views.view import json_list

    with writable_ledger(home) as ledger:
        result = newest_result(ledger, run_id, benchmark, step)
    found = result_items(home.run_dir(run_id), result, which)
    if as_json:
        click.echo(json_list(found))
    else:
        print_document(result_document(result, found, num_items=len(found)))


def _note_retired(home: "Home", run_id: str, results: "Sequence[BenchmarkResult]") -> None:
    """Print a note about commits that retention deleted before they were evaluated."""
    from assay.records.commit import Commit
    from assay.training.recipe import recipe_of

    with writable_ledger(home) as ledger:
        commits = [entry for entry in ledger.log_entries(run_id) if isinstance(entry, Commit)]
    retired = {folder for commit in commits for folder in commit.retires}
    known = {result.step for result in results} | {item.step for item in commits if item.folder not in retired}
    if missing := sorted({commit.step for commit in commits} - known):
        steps = ", ".join(f"{step:,}" for step in missing[:10]) + (", ..." if missing[10:] else "")
        keep_last = recipe_of(home.run(run_id)).retention.keep_last
        click.echo(
            f"note: retention.keep_last={keep_last} deleted the weights of steps {steps} before they were "
            f"evaluated. To keep all: retention.keep_last={len(commits)}. To evaluate them during training: "
            "'evaluation: {suite: FILE, every_steps: N}' in the recipe.",
            err=True,
        )


@eval_.command(name="import")
@click.argument("files", nargs=-1, required=True, type=InputFile(NAME_A_LOG))
@click.option("--run-id", help="Name to record the results under; by default the model name in the log.")
@click.option("--candidate", help="Candidate that the checkpoint belongs to; by default the run id.")
@click.option("--seed", default=0, help="Seed of the training run.")
@click.option("--step", default=0, help="Optimizer step of the checkpoint.")
@click.option("--metric", help="Score to import if items have several; by default the first.")
@click.option(
    "--partial",
    is_flag=True,
    help="Import an incomplete log: missing items count as failed, and decisions do not use the result.",
)
@click.option(
    "--suite",
    "suite_dir",
    type=FOLDER,
    help="New folder for the definition as a suite, with FILES of hosted evals or Promptfoo.",
)
@json_option
def import_(
    files: tuple[Path, ...],
    run_id: str | None,
    candidate: str | None,
    seed: int,
    step: int,
    metric: str | None,
    partial: bool,
    suite_dir: Path | None,
    as_json: bool,
) -> None:
    """Import per-item scores of other tools.

    FILES are samples_*.jsonl of lm-evaluation-harness (next to its results_*.json), logs of inspect-ai (.eval
    or .json), records of OpenAI Evals' oaieval (.jsonl), objects of OpenAI's hosted evals as the API returns them
    (eval, runs and output items, in one file or several), or results of Promptfoo. A configuration of Promptfoo
    (.yaml) has no scores: give it with --suite.
    """
    from assay.evals.imports import read_files
    from assay.store.ledger.writer import FINISH_S
    from assay.workflows.evaluation.evaluate import check_results_are_of_run, import_results

    if suite_dir is not None:
        _write_suite(files, suite_dir)
    scored = [path for path in files if suite_dir is None or path.suffix not in (".yaml", ".yml")]
    found = read_files(scored, metric=metric, is_partial_allowed=partial)
    home, results = current_home(), []
    for imported in found:
        name = run_id or imported.model.replace("/", "_") or "imported"
        check_results_are_of_run(home, name, step)
        known_as = {"run_id": name, "candidate": candidate or name}
        if imported.difference:
            click.echo(f"{imported.identity.benchmark}: {imported.difference}.", err=True)
        with _writer(home, name) as writer:
            results.append(import_results(home, imported, writer, **known_as, seed=seed, step=step))
            writer.wait(FINISH_S)
    if results or as_json:
        _print_results(results, as_json=as_json)


def _write_suite(files: tuple[Path, ...], folder: Path) -> None:
    """Write the suite that the files define: suite.yaml and items.jsonl."""
    from assay.evals.imports import read_suite_definition
    from assay.reporting.documents.render import write_file

    suite = read_suite_definition(files)
    if (folder / "suite.yaml").exists():
        raise ConfigError(f"{folder / 'suite.yaml'}: exists already. Name another folder.")
    for name, text in suite.files().items():
        write_file(folder / name, text)
    for text in suite.left_out:
        click.secho(f"left out: {text}", err=True, fg="yellow")
    click.echo(f"wrote {folder / 'suite.yaml'} with {len(suite.items):,} items", err=True)


@eval_.command()
@click.argument("coverage_file", type=FILE)
@click.option(
    "--suite",
    "suites",
    type=FILE,
    multiple=True,
    required=True,
    help="Suite whose benchmarks name failure modes. May be repeated.",
)
@click.option("--run", "run_id", help="Use the results of this run only to measure the benchmarks' power.")
@click.option("--out", type=OutFile('"kind":"coverage"'), help="File for the JSON record.")
@force_option
@json_option
def coverage(
    coverage_file: Path, suites: tuple[Path, ...], run_id: str | None, out: Path | None, as_json: bool
) -> None:
    """Show which failure modes the benchmarks would detect.

    COVERAGE_FILE lists the failure modes with their owners and the smallest regression that matters. A
    benchmark covers a failure mode if it names it and a result shows enough power. Exit code 1 if a failure
    mode is not covered.
    """
    from assay.decision.coverage import coverage as covered
    from assay.decision.coverage import read_coverage_config
    from assay.evals.version import present_suite
    from assay.reporting.documents.benchmarks import coverage_document
    from assay.reporting.documents.render import write_file
    from assay.reporting.terminal.document import print_document
    from assay.store.followed import FollowedCoverage, follow_coverage

    config, read = read_coverage_config(coverage_file), [present_suite(path) for path in suites]
    with writable_ledger(current_home()) as ledger:
        results = ledger.benchmark_results(run_id)
    if run_id is not None and not results:
        raise ConfigError(
            f"no benchmark results of '{run_id}'. Create them with 'assay eval work {run_id} --suite FILE'."
        )
    found = covered(config, read, results)
    follow_coverage(current_home(), FollowedCoverage(file=coverage_file, suites=suites))
    if out is not None:
        write_file(out, found.to_json() + "\n")
    print_view(found, lambda coverage: print_document(coverage_document(coverage)), as_json=as_json)
    sys.exit(1 if found.holes else 0)


def _tools(suite: "Suite", judge: str | None, judge_model: str | None) -> "Tools":
    from assay.scoring.grader_runner import Tools
    from assay.workflows.evaluation.evaluate import judges_at

    return Tools() if judge is None else judges_at(judge, suite, judge_model)


def _writer(home: "Home", name: str) -> "LedgerWriter":
    """Return a background writer that records what is stored under a name in the ledger."""
    from assay.store.ledger.writer import LedgerWriter
    from assay.workflows.rebuild import fold_in

    home.run_dir(name)  # raises if the name is invalid
    return LedgerWriter(home, name, again=lambda ledger: fold_in(home, name, ledger))


def _print_results(results: "Sequence[BenchmarkResult]", *, as_json: bool) -> None:
    from assay.reporting.documents.benchmarks import results_document
    from assay.reporting.terminal.document import print_document

    if as_json:
        for result in results:
            click.echo(result.to_json())
    else:
        print_document(results_document(results))
