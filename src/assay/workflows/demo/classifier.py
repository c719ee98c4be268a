"""The classifier demo: train with a killed worker on real rows, audit, compare, and run a small campaign.

functions of the installed packages -> dataset
baseline on 1 worker   .............................. undisturbed
candidate on 2 workers ......X one is killed ........ recovers
audit of both, digests compared, AUC compared, report
campaign: a pilot's recipe against two candidates, some seeds each ... one is scaled, one stopped: memo
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

import yaml

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig, read_config_file
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import train_tokenizer
from assay.records.dataset import DatasetManifest
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.campaign import run_campaign
from assay.workflows.campaign.folder import declare, load_campaign
from assay.workflows.campaign.memo import WrittenMemo
from assay.workflows.campaign.train import ExecutionSettings, InProcessLauncher, ObserverFactory
from assay.workflows.demo.corpus import read_texts, write_corpus
from assay.workflows.demo.runs import kill_half_way, train_demo_run
from assay.workflows.train import RunResult

PILOT = (
    "name=pilot",
    "data.split.validation_fraction=0.4",
    "loader.lanes=2",
    "loader.global_batch_size=32",
    "method.encoder.hidden_size=32",
    "method.encoder.num_layers=1",
    "method.encoder.intermediate_size=64",
    "method.categorical_columns=[kind]",
    "method.numeric_columns=[]",
    "trainer.max_steps=240",
    "trainer.commit_every=240",
    "trainer.optimizer.learning_rate=1.5e-4",
    "trainer.optimizer.schedule.warmup_steps=10",
)
"""Overrides of the demo's recipe for the campaign: a small, short run with a learning rate that is too low, but
good enough to beat a constant."""

VOCABULARY = 4096
MAX_TOKENS = 64
CANDIDATE_WORKERS = 2
OnMessage = Callable[[str], None]


class DemoResult(NamedTuple):
    """Results of the demo."""

    dataset: DatasetManifest
    baseline: RunResult
    candidate: RunResult
    killed_at_step: int
    memo: WrittenMemo


def build_demo_dataset(folder: Path, *, num_functions: int, on_message: OnMessage) -> DatasetManifest:
    """Build a dataset of functions of the installed packages in `folder`."""
    corpus = folder / "corpus"
    count = write_corpus(corpus, max_functions=num_functions)
    on_message(f"read {count:,} functions from the installed packages")
    source, tokenizer = corpus / "functions.jsonl", corpus / "tokenizer.json"
    train_tokenizer(read_texts(source, max_texts=4_000), vocab_size=VOCABULARY).save(str(tokenizer))
    config = BuildConfig(
        tokenizer=str(tokenizer),
        metadata_fields=("package", "kind", "returns", "decorator", "num_parameters", "num_statements"),
        time_field="created_at",
        key_field="shard_id",
        max_tokens=MAX_TOKENS,
        control_tokens="text",  # some functions hold "[PAD]"
        rows_per_shard=2_000,
        rows_per_group=250,
    )
    return build_dataset([source], folder, config, name="docstrings")


def demo_recipe(dataset: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return the packaged recipe for this dataset."""
    with as_file(files("assay.workflows.demo") / "classifier.yaml") as path:
        return read_config_file(path, [f"data.dataset={dataset}", *overrides])


def run_demo(
    home: Home,
    folder: Path,
    ledger: Ledger,
    *,
    num_functions: int,
    overrides: Sequence[str],
    make_observer: ObserverFactory,
    on_message: OnMessage,
) -> DemoResult:
    """Run the demo; `make_observer` creates the progress display of a run."""
    dataset = build_demo_dataset(folder / "dataset", num_functions=num_functions, on_message=on_message)
    recipe = demo_recipe(folder / "dataset", overrides)
    on_message("baseline: 1 worker, undisturbed")
    baseline = train_demo_run(home, recipe, 1, make_observer)
    on_message(f"candidate: {CANDIDATE_WORKERS} workers; one is killed with SIGKILL half-way")
    kill = kill_half_way(baseline.run.num_steps, workers=CANDIDATE_WORKERS)
    candidate = train_demo_run(home, recipe, CANDIDATE_WORKERS, make_observer, kill)
    memo = run_demo_campaign(home, folder, ledger, make_observer=make_observer, on_message=on_message)
    return DemoResult(dataset, baseline, candidate, kill.step - 1, memo)


def run_demo_campaign(
    home: Home, folder: Path, ledger: Ledger, *, make_observer: ObserverFactory, on_message: OnMessage
) -> WrittenMemo:
    """Run a campaign with a helpful and a useless candidate against a pilot, and write the memo.

    Its two files stay in `folder`, so that it can be repeated by hand.
    """
    clock = SystemClock()
    recipe = demo_recipe(folder / "dataset", PILOT)
    (folder / "pilot.yaml").write_text(yaml.safe_dump(recipe.values, sort_keys=False), encoding="utf-8")
    with as_file(files("assay.workflows.demo") / "campaign.yaml") as packaged:
        text = packaged.read_text(encoding="utf-8")
    stamp = datetime.fromtimestamp(clock.now_s(), UTC).strftime("%m%d-%H%M%S")
    path = folder / "campaign.yaml"
    path.write_text(text.replace("name: set-by-the-demo", f"name: docstrings-{stamp}"), encoding="utf-8")
    loaded = load_campaign(home, path)
    config = loaded.config
    on_message(f"campaign {config.name}: {len(config.candidates)} candidates, at most {config.seeds} seeds each")
    campaign = declare(loaded, clock)
    execution = ExecutionSettings(InProcessLauncher(home, make_observer, clock), clock=clock)
    return run_campaign(campaign, ledger, execution=execution, on_message=on_message)
