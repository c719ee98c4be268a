"""`assay eval`: run suites, work at a run's queue, show scores over checkpoints, import, coverage."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.given import (
    FILE,
    PATH,
    RUN,
    CommandGroup,
    InputFile,
    OutFile,
    force_option,
    given_home,
    opened_ledger,
    python_graders_option,
    tell_python_graders,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.evals.config import Suite
    from assay.records.benchmark import BenchmarkResult
    from assay.scoring.grade import Tools
    from assay.store.home import Home
    from assay.store.ledger.writer import LedgerWriter


NAME_A_LOG = "Name samples_*.jsonl of lm-eval, an .eval or .json log of inspect."


@click.group(cls=CommandGroup, name="eval")
def eval_() -> None:
    """Ask checkpoints the questions of a suite, item by item; see the scores, and what is not covered."""


@eval_.command()
@click.argument("model")
@click.option("--suite", type=FILE, required=True, help="The suite's YAML (docs/suites.md).")
@click.option(
    "--run-id", help="File the results under this name; by default the folder's, or the endpoint's model."
)
@click.option("--candidate", help="Recipe that the checkpoint is of; by default the run id.")
@click.option("--seed", default=0, show_default=True, help="Of its training run: the unit of replication.")
@click.option("--step", default=0, show_default=True, help="Optimizer steps behind it.")
@click.option(
    "--endpoint", metavar="URL", help="MODEL is a name at this OpenAI-compatible endpoint, not a folder."
)
@click.option("--judge", metavar="URL", help="Endpoint of the judge that model-graded graders ask.")
@click.option(
    "--judge-model",
    help="The judge's name there; by default what each grader names. A registry's judge needs it.",
)
@click.option(
    "--trained-on",
    type=PATH,
    multiple=True,
    help="Text that the model was trained on (file or folder): searched for the benchmark's n-grams.",
)
@click.option("--dataset", type=PATH, help="Likewise a dataset of ours, spelled back.")
@click.option("--tokenizer", type=PATH, help="Its tokenizer; by default the checkpoint's.")
@python_graders_option
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, one object a line.")
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
    """Evaluate MODEL, a folder that save_pretrained wrote with a tokenizer.json, or a name at --endpoint.

    Scores are kept chunk by chunk: killed and started again, it goes on where it was. What was scored before,
    on the same weights and the same version of the suite, is not scored again.
    """
    tell_python_graders(python_graders)
    home = given_home()
    if endpoint is None and not Path(model).is_dir() and home.has_run(model):
        raise ConfigError(
            f"{model} is a run: its commits are asked by 'assay eval work {model} --suite {suite}'."
        )
    from assay.models.config import checkpoint_path

    if endpoint is None:
        checkpoint_path(model)
    if judge is None and judge_model:
        raise ConfigError("--judge-model needs --judge URL: the endpoint where it answers.")
    from assay.evals.compatibility import refuse_unfenced_graders
    from assay.evals.config import read_suite

    asked = read_suite(suite)
    refuse_unfenced_graders(asked)
    from assay.evals.queue import Checkpoint
    from assay.reporting.terminal.terminal import show_progress
    from assay.scoring.http_sampler import HttpSampler
    from assay.store.ledger.writer import FINISH_S
    from assay.workflows.evaluation import evaluate as wiring

    run_id = run_id or Path(model).name
    wiring.refuse_results_of_others(
        home, run_id, step, None if endpoint is not None else Path(checkpoint_path(model))
    )
    tools = _tools(asked, judge, judge_model)
    own_tokenizer = Path(model) if endpoint is None else None
    text = wiring.training_text(trained_on, dataset, tokenizer or own_tokenizer)
    if endpoint is not None:
        sampler = HttpSampler(base_url=endpoint, model=model)
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
@click.option("--suite", type=FILE, help="Instead of the recipe's own suite.")
@click.option("--follow", is_flag=True, help="Wait for further commits until the run has finished.")
@python_graders_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print all results of the run as JSON, one object a line."
)
def work(run_id: str, suite: Path | None, follow: bool, python_graders: str | None, as_json: bool) -> None:
    """Evaluate the commits of RUN that its recipe asks for and that nobody has evaluated yet.

    Any number of workers may do so at once, on any machine that sees the run's store.
    """
    from assay.reporting.terminal.terminal import show_progress
    from assay.workflows.bookkeeping import writer_of
    from assay.workflows.evaluation import queue as evaluation_queue
    from assay.workflows.run import existing_run

    tell_python_graders(python_graders)
    home = given_home()
    found = existing_run(home, run_id)
    queue = evaluation_queue.queue_of(found, suite=None if suite is None else str(suite.resolve()))
    with writer_of(home, found) as writer:
        evaluation_queue.work(queue, writer, clock=SystemClock(), follow=follow, on_chunk=show_progress)
        results = evaluation_queue.record_results(queue, writer)
    _print_results(results, as_json=as_json)
    _note_retired(home, run_id, results)


@eval_.command()
@click.argument("run_id", metavar="RUN")
@click.option("--benchmark", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object for each result.")
def history(run_id: str, benchmark: str | None, as_json: bool) -> None:
    """The scores of RUN over its checkpoints, benchmark by benchmark, with the best so far.

    The best of many checkpoints looks better than it is, because it was picked: decide on declared checkpoints,
    over seeds.
    """
    home = given_home()
    if not home.has_results(run_id):
        raise ConfigError(
            f"no benchmark results of '{run_id}'. 'assay eval work {run_id} --suite FILE' makes them."
        )
    from assay.reporting.terminal.benchmarks import print_history
    from assay.reporting.views.benchmark_history import history_lines
    from assay.reporting.views.view import json_list
    from assay.statistics.benchmark_history import benchmark_histories

    with opened_ledger(home) as ledger:
        known = ledger.benchmark_results()
        results = [result for result in known if result.run_id == run_id]
        if not results:
            named = sorted({result.run_id for result in known})
            hint = f" There are some of {', '.join(named[:5])}." if named else ""
            raise ConfigError(
                f"no benchmark results of '{run_id}'.{hint} 'assay eval work {run_id} --suite FILE' makes them."
            )
        device_s = ledger.evaluation_s(run_id)
    histories = [
        benchmark_history
        for benchmark_history in benchmark_histories(results)
        if benchmark in (None, benchmark_history.benchmark)
    ]
    if not histories:
        raise ConfigError(
            f"run '{run_id}' has no results of '{benchmark}', but of "
            f"{', '.join(sorted({result.benchmark for result in results}))}."
        )
    if as_json:
        click.echo(json_list(history_lines(histories)))
    else:
        print_history(histories, device_s=device_s)
    _note_retired(home, run_id, results)


def _note_retired(home: "Home", run_id: str, results: "Sequence[BenchmarkResult]") -> None:
    """Name on stderr the commits that were retired before they were evaluated, and what keeps them."""
    from assay.records.commit import Commit
    from assay.training.recipe import recipe_of

    with opened_ledger(home) as ledger:
        commits = [entry for entry in ledger.log_entries(run_id) if isinstance(entry, Commit)]
    retired = {folder for commit in commits for folder in commit.retires}
    known = {result.step for result in results} | {each.step for each in commits if each.folder not in retired}
    if missing := sorted({commit.step for commit in commits} - known):
        steps = ", ".join(f"{step:,}" for step in missing[:10]) + (", ..." if missing[10:] else "")
        keep_last = recipe_of(home.run(run_id)).retention.keep_last
        click.echo(
            f"note: retention.keep_last={keep_last} deleted the weights of steps {steps} before they were "
            f"evaluated. To keep all: retention.keep_last={len(commits)}. To evaluate them beside training: "
            "'evaluation: {suite: FILE, every_steps: N}' in the recipe.",
            err=True,
        )


@eval_.command(name="import")
@click.argument("files", nargs=-1, required=True, type=InputFile(NAME_A_LOG))
@click.option("--run-id", help="File the results under this name; by default the model's, as the tool has it.")
@click.option("--candidate", help="Recipe that the checkpoint is of; by default the run id.")
@click.option("--seed", default=0, show_default=True, help="Of its training run.")
@click.option("--step", default=0, show_default=True, help="Optimizer steps behind it.")
@click.option("--metric", help="Which of several scores of an item; by default the first.")
@click.option(
    "--partial",
    is_flag=True,
    help="Take over a log that was cut short: missing items count as failed, and no decision takes the result.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, one object a line.")
def import_(
    files: tuple[Path, ...],
    run_id: str | None,
    candidate: str | None,
    seed: int,
    step: int,
    metric: str | None,
    partial: bool,
    as_json: bool,
) -> None:
    """Take over per-item scores of other tools.

    FILES are samples_*.jsonl of lm-evaluation-harness (with results_*.json beside them), logs of inspect-ai
    (.eval or .json), or records of OpenAI Evals' oaieval (.jsonl).
    """
    from assay.evals.imports import read_foreign
    from assay.store.ledger.writer import FINISH_S
    from assay.workflows.evaluation.evaluate import import_results, refuse_results_of_others

    found = [each for path in files for each in read_foreign(path, metric=metric, is_partial_allowed=partial)]
    home, results = given_home(), []
    for imported in found:
        name = run_id or imported.model.replace("/", "_") or "imported"
        refuse_results_of_others(home, name, step)
        known_as = {"run_id": name, "candidate": candidate or name}
        if imported.difference:
            click.echo(f"{imported.identity.benchmark}: {imported.difference}.", err=True)
        with _writer(home, name) as writer:
            results.append(import_results(home, imported, writer, **known_as, seed=seed, step=step))
            writer.wait(FINISH_S)
    _print_results(results, as_json=as_json)


@eval_.command()
@click.argument("coverage_file", type=FILE)
@click.option(
    "--suite",
    "suites",
    type=FILE,
    multiple=True,
    required=True,
    help="A suite whose benchmarks name failure modes; may be given more than once.",
)
@click.option("--run", "run_id", help="Take the benchmarks' power from this run's results only.")
@click.option("--out", type=OutFile('"kind":"coverage"'), help="Write the record there, too.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
def coverage(
    coverage_file: Path, suites: tuple[Path, ...], run_id: str | None, out: Path | None, as_json: bool
) -> None:
    """Which failure modes would be noticed, and which would not.

    COVERAGE_FILE lists them with their owners and the least worsening that matters. A benchmark covers one if
    it says so and a result shows that it has the power. Exit code 1 if there is a hole.
    """
    from assay.decision.coverage import coverage as covered
    from assay.decision.coverage import read_coverage_config
    from assay.evals.version import present_suite
    from assay.reporting.documents.render import write_file
    from assay.reporting.terminal.benchmarks import print_coverage

    config, read = read_coverage_config(coverage_file), [present_suite(path) for path in suites]
    with opened_ledger(given_home()) as ledger:
        results = ledger.benchmark_results(run_id)
    if run_id is not None and not results:
        raise ConfigError(
            f"no benchmark results of '{run_id}'. 'assay eval work {run_id} --suite FILE' makes them."
        )
    found = covered(config, read, results)
    if out is not None:
        write_file(out, found.to_json() + "\n")
    if as_json:
        click.echo(found.to_json())
    else:
        print_coverage(found)
    sys.exit(1 if found.holes else 0)


def _tools(suite: "Suite", judge: str | None, judge_model: str | None) -> "Tools":
    from assay.scoring.grade import Tools
    from assay.workflows.evaluation.evaluate import judges_at

    return Tools() if judge is None else judges_at(judge, suite, judge_model)


def _writer(home: "Home", name: str) -> "LedgerWriter":
    """Writes what is filed under a name into the ledger; the work does not wait for it."""
    from assay.store.ledger.writer import LedgerWriter
    from assay.workflows.rebuild import fold_in

    home.run_dir(name)  # is one, or says why not
    return LedgerWriter(home, name, again=lambda ledger: fold_in(home, name, ledger))


def _print_results(results: "Sequence[BenchmarkResult]", *, as_json: bool) -> None:
    from assay.reporting.terminal.benchmarks import print_results

    if as_json:
        for result in results:
            click.echo(result.to_json())
    else:
        print_results(results)
