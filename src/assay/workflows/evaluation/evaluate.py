"""Connects a suite to a model: a run's commit, a folder written by `save_pretrained`, or an endpoint."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from assay.base.clock import SystemClock
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DamagedDataError
from assay.data.dataset.checkpoint_tokens import dataset_end_ids, folder_end_ids
from assay.data.dataset.dataset import Dataset
from assay.evals.compatibility import check_benchmarks_supported
from assay.evals.config import (
    Benchmark,
    BitsPerByte,
    Classification,
    Generation,
    HeldOutRows,
    MultipleChoice,
    RegistryBenchmark,
    Suite,
    read_suite,
)
from assay.evals.contamination import DatasetText, TextFiles, TrainingText
from assay.evals.imported import Imported
from assay.evals.queue import (
    Checkpoint,
    OnChunk,
    benchmark_folder,
    evaluate,
    result_of,
)
from assay.evals.sampled import GenerationScorer, RegistryScorer
from assay.evals.scorer import Scorer
from assay.inference.endpoint import HttpEngine
from assay.records.benchmark import BenchmarkResult
from assay.records.commit import Commit
from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.records.run import Run
from assay.scoring.grader_runner import Tools
from assay.scoring.graders import LabelModel, Multi, ScoreModel
from assay.statistics.benchmark_items import ITEMS_FILE, RESULT_FILE, items_bytes, items_table
from assay.store.commit_log import CommitLog, first_problem
from assay.store.home import Home
from assay.store.leases import holding, take_lease
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.writer import LedgerWriter
from assay.store.objects import ObjectStore, open_store
from assay.training.recipe import recipe_of
from assay.workflows.evaluation.results import write_results
from assay.workflows.run import find_commit

if TYPE_CHECKING:
    from assay.data.dataset.formats.template import ChatTemplate
    from assay.inference.local.local_model import LocalModel


SUITE_DAY = date(2026, 1, 1)
"""Fixed date for chat templates that use the current date, so that scores do not depend on the day."""


def scorers_of_commit(suite: Suite, suite_path: str, run: Run, commit: Commit, store: ObjectStore) -> Iterator[Scorer]:
    """Yield a scorer for each benchmark on a run's commit.

    Raises `ConfigError` first if the run's method does not support a benchmark.
    """
    from assay.evals.commit_model import ClassificationScorer, HeldOutScorer, load_committed

    if commit.adopted_from:
        if (problem := first_problem(store, commit)) is not None:
            raise DamagedDataError(f"checkpoint at step {commit.step} of '{run.run_id}': {problem}. It is not used.")
        adopted, _ = local_model(commit.adopted_from)
        yield from scorers_of_model(Path(suite_path), adopted, tools=Tools())
        return
    method = recipe_of(run).method
    check_benchmarks_supported(suite, suite_path, method, owner=f"run '{run.run_id}'")
    model, text_model = load_committed(run, commit, store), None
    for benchmark in suite.benchmarks:
        if isinstance(benchmark, Classification):
            yield ClassificationScorer(benchmark, run, model)
        elif isinstance(benchmark, HeldOutRows):
            yield HeldOutScorer(benchmark, run, model)
        else:
            text_model = text_model or language_model(run, model, commit)
            yield _scorer_of_model(benchmark, Path(suite_path), text_model, tools=Tools())


_NEEDS_TOKENIZER = (
    "Benchmarks with texts need it: evaluate an exported folder ('assay runs export RUN --tokenizer FILE', then "
    "'assay eval run'), or build the dataset with 'assay data build'."
)


def language_model(
    run: Run,
    model: object,
    commit: Commit,
    *,
    tokenizer: Path | None = None,
    hint: str = _NEEDS_TOKENIZER,
    chat_day: date = SUITE_DAY,
) -> "LocalModel":
    """Return a commit's model with the tokenizer of its dataset; `hint` is what to do if there is none.

    Conversations use the dataset's chat template, if it has one; `chat_day` is the current date for the template.
    """
    from assay.data.dataset.tokens import load_tokenizer, tokenizer_of
    from assay.inference.local.local_model import LocalModel
    from assay.models.causal import causal_model
    from assay.models.token_scores import CausalNetwork

    assert isinstance(model, CausalNetwork), type(model)
    dataset = Dataset.open(Path(recipe_of(run).data.dataset))
    path = tokenizer_of(dataset.folder, dataset.manifest, tokenizer, hint).path
    has_template = dataset.manifest.chat_template_sha256 is not None
    return LocalModel(
        causal_model(model.network, load_tokenizer(path), where=f"run '{run.run_id}'"),
        name=f"weights {commit.weights_digest[:12]}",
        ends=[*dataset_end_ids(dataset.manifest, path), *recipe_of(run).method.end_ids()],
        template=_template(path, chat_day) if has_template else None,
        precision=recipe_of(run).trainer.precision,
    )


def beginning_model(
    model: object, tokenizer: str, digest: str, *, chat_template: str | None, chat_day: date
) -> "LocalModel":
    """Return a base model of fine-tuning jobs with a tokenizer.

    Conversations are rendered like rows of jobs, by `chat_template`, or the tokenizer's template if None.
    """
    from assay.data.dataset.tokens import end_tokens, load_tokenizer
    from assay.inference.local.local_model import LocalModel
    from assay.models.causal import causal_model
    from assay.models.token_scores import CausalNetwork

    assert isinstance(model, CausalNetwork), type(model)
    return LocalModel(
        causal_model(model.network, load_tokenizer(tokenizer)),
        name=f"weights {digest[:12]}",
        ends=end_tokens(tokenizer),
        template=_template(tokenizer, chat_day, chat_template),
    )


def scorers_of_model(
    suite_path: Path,
    model: "LocalModel | HttpEngine",
    *,
    tools: Tools,
    training_text: TrainingText | None = None,
) -> Iterator[Scorer]:
    """Yield a scorer for each benchmark of a suite on a language model; an endpoint gives completions, but no
    likelihoods."""
    for benchmark in read_suite(suite_path).benchmarks:
        yield _scorer_of_model(benchmark, suite_path, model, tools=tools, training_text=training_text)


def _scorer_of_model(
    benchmark: Benchmark,
    suite_path: Path,
    model: "LocalModel | HttpEngine",
    *,
    tools: Tools,
    training_text: TrainingText | None = None,
) -> Scorer:
    folder = suite_path.parent
    match benchmark:
        case Generation():
            return GenerationScorer(benchmark, folder, model, tools, training_text)
        case RegistryBenchmark():
            return RegistryScorer(benchmark, folder, model, tools, training_text)
        case MultipleChoice() if not isinstance(model, HttpEngine):
            from assay.evals.likelihood import MultipleChoiceScorer

            return MultipleChoiceScorer(benchmark, folder, model, training_text)
        case BitsPerByte() if not isinstance(model, HttpEngine):
            from assay.evals.likelihood import BitsPerByteScorer

            return BitsPerByteScorer(benchmark, folder, model, training_text)
    who = "an endpoint" if isinstance(model, HttpEngine) else "a language model"
    of_runs = isinstance(benchmark, Classification | HeldOutRows)
    hint = (
        f"The commits of a run support it: 'assay eval work RUN --suite {suite_path}'."
        if of_runs
        else "Evaluate the model's folder, or leave the benchmark out of the suite."
    )
    raise ConfigError(
        f"{suite_path}: benchmark '{benchmark.name}' is of type {benchmark.type}, which {who} cannot answer. {hint}"
    )


def _template(tokenizer: str | Path, day: date, name: str | None = None) -> "ChatTemplate | None":
    from assay.data.dataset.formats.template import load_template, tokenizer_template
    from assay.data.dataset.tokens import special_tokens, tokenizer_settings

    special = special_tokens(tokenizer_settings(tokenizer))
    return load_template(name, special, day) if name else tokenizer_template(tokenizer, special, day)


def local_model(folder: str, *, chat_day: date = SUITE_DAY) -> "tuple[LocalModel, str]":
    """Return the model in a checkpoint folder, and the digest of its weights; `chat_day` as in `language_model`."""
    from assay.inference.local.local_model import LocalModel
    from assay.models.causal import load_causal
    from assay.models.config import checkpoint_path
    from assay.training.checkpoint.saver import weights_digest

    model, path = load_causal(folder), checkpoint_path(folder)
    digest = weights_digest(model.network.state_dict())
    ends, template = folder_end_ids(path), _template(path, chat_day)
    return LocalModel(model, name=f"weights {digest[:12]}", ends=ends, template=template), digest


def check_results_are_of_run(home: Home, run_id: str, step: int, folder: Path | None = None) -> None:
    """Raise `ConfigError` if results would be recorded for a run's commit that they do not belong to.

    `folder` is the model's, whose export record names its weights. For an endpoint or another tool's scores
    this is unknown, and the run must have a commit of that step.
    """
    if not home.has_run(run_id):
        return
    run = home.run(run_id)
    find_commit(run, CommitLog(open_store(run.store_url)), step)
    if folder is None:
        return
    path = folder / EXPORT_FILE
    exported = ExportedModel.from_json(path.read_bytes(), source=path) if path.is_file() else None
    if exported is None or (exported.run_id, exported.step) != (run_id, step):
        other = f" (it is of run '{exported.run_id}' at step {exported.step:,})" if exported else ""
        raise ConfigError(
            f"{folder} is not an export of run '{run_id}' at step {step:,}{other}, so its results must not be "
            f"recorded for that commit. Choose another --run-id; 'assay eval work {run_id}' evaluates the commits "
            "of the run."
        )


def judges_at(base_url: str, suite: Suite, model: str | None) -> Tools:
    """Return the judges that a suite's graders name (or `model` for all) at an endpoint, and its embeddings."""
    if model is not None:
        judge = HttpEngine(base_url=base_url, model=model)
        return Tools({"*": judge}, judge)
    graders = [benchmark.grader for benchmark in suite.benchmarks if isinstance(benchmark, Generation)]
    singles = [
        single for grader in graders for single in (grader.graders.values() if isinstance(grader, Multi) else [grader])
    ]
    named = {single.model for single in singles if isinstance(single, ScoreModel | LabelModel)}
    judges = {name: HttpEngine(base_url=base_url, model=name) for name in sorted(named)}
    return Tools(judges, HttpEngine(base_url=base_url, model="embeddings"))


def endpoint_digest(base_url: str, model: str) -> str:
    """Return a digest in place of the weights' for a model known only by its address."""
    return sha256_of_json(["endpoint", base_url, model])


def training_text(texts: Sequence[Path], dataset: Path | None, tokenizer: Path | None) -> TrainingText | None:
    """Return the text to search for contamination: text files, or a dataset detokenized by its tokenizer."""
    if dataset is not None:
        if texts:
            raise ConfigError("--trained-on and --dataset exclude each other: give one of them.")
        from assay.data.dataset.tokens import load_tokenizer

        if tokenizer is None:
            raise ConfigError("a dataset contains tokens: add its tokenizer with --tokenizer.")
        return DatasetText(Dataset.open(dataset), load_tokenizer(tokenizer))
    return TextFiles(texts) if texts else None


def evaluate_model(
    home: Home,
    checkpoint: Checkpoint,
    scorers: Iterable[Scorer],
    writer: LedgerWriter,
    *,
    on_chunk: OnChunk = lambda *_: None,
) -> list[BenchmarkResult]:
    """Evaluate what is not scored yet and record the results in the home's folder for the run id."""
    clock, store = SystemClock(), home.store_of(checkpoint.run_id)
    lease = take_lease(store, checkpoint.folder, worker="eval run", clock=clock)
    if lease is None:
        raise ConfigError(
            f"{store.url}/{checkpoint.folder}: another process is evaluating this checkpoint. Wait until it is done."
        )
    results = []
    with holding(lease):
        for scorer in scorers:
            results.append(evaluate(store, checkpoint, scorer, lease, clock=clock, on_chunk=on_chunk))
            scorer.close()
    # An evaluation of a run's commit is charged to the run, as a queue worker's would be.
    run = home.run(checkpoint.run_id) if home.has_run(checkpoint.run_id) else None
    writer.put(lambda ledger: write_results(ledger, run) if run else _record(ledger, results))
    return results


def import_results(
    home: Home, imported: Imported, writer: LedgerWriter, *, run_id: str, candidate: str, seed: int, step: int
) -> BenchmarkResult:
    """Record another tool's scores as a result. The digest of its weights is made from the model's name."""
    store, identity = home.store_of(run_id), imported.identity
    digest = sha256_of_json(["model", imported.model])
    checkpoint = Checkpoint(run_id, candidate, seed, step, digest)
    data = items_bytes(items_table(imported.items))
    result = result_of(
        checkpoint,
        identity,
        imported.items,
        SystemClock().now_s(),
        source=imported.source,
        incomplete_reason=imported.incomplete_reason,
    )
    folder = benchmark_folder(checkpoint, identity)
    store.put(f"{folder}/{ITEMS_FILE}", data)
    store.put(f"{folder}/{RESULT_FILE}", (result.to_json() + "\n").encode())
    writer.put(lambda ledger: _record(ledger, [result]))
    return result


def _record(ledger: Ledger, results: Sequence[BenchmarkResult]) -> None:
    for result in results:
        ledger.record_benchmark_result(result)
