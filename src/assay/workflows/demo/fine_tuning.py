"""The SFT demo: a language model learns to write docstrings for signatures of real functions.

functions of the installed packages -> dataset (a signature, then what is trained: its docstring)
SFT on 2 workers ......X one is killed ........ recovers; audited, evaluated on files held out
exported folder -> completions of signatures that were held out
"""

import math
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from assay.base.config import read_config_file
from assay.data.dataset.build import build_dataset
from assay.data.dataset.columns import KEY, SPANS, TOKENS
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.split import split_view
from assay.data.dataset.tokens import load_tokenizer
from assay.inference.protocol import Completion, Message, SamplingParams
from assay.records.dataset import DatasetManifest
from assay.store.home import Home
from assay.training.recipe import Recipe
from assay.workflows.campaign.train import ObserverFactory
from assay.workflows.demo.classifier import VOCABULARY, OnMessage
from assay.workflows.demo.corpus import write_corpus
from assay.workflows.demo.runs import kill_half_way, train_demo_run
from assay.workflows.run import check_recipe, count_steps
from assay.workflows.train import RunResult

WORKERS = 2
MAX_TOKENS = 128
SHOWN = 4
"""Number of docstrings to show."""
LONGEST_ROW = 64
"""Maximum length of a shown row in tokens."""
LONGEST_DOCSTRING = 24
"""Maximum length of a generated docstring in tokens."""


class DocstringSample(NamedTuple):
    """A held-out signature with two docstrings."""

    signature: str
    by_people: str
    by_model: str


class SftDemoResult(NamedTuple):
    """Results of the demo."""

    dataset: DatasetManifest
    result: RunResult
    killed_after_step: int
    model: Path
    """Folder of the exported model."""
    guess_nats: float
    """Loss per token of a uniform guess."""
    written: tuple[DocstringSample, ...]


def run_sft_demo(
    home: Home,
    folder: Path,
    *,
    num_functions: int,
    overrides: Sequence[str],
    make_observer: ObserverFactory,
    on_message: OnMessage,
) -> SftDemoResult:
    """Run the demo; `make_observer` creates the progress display of a run."""
    count = write_corpus(folder / "dataset" / "corpus", max_functions=num_functions, rows="documented")
    on_message(f"read {count:,} docstrings from the installed packages")
    source = folder / "dataset" / "corpus" / "functions.jsonl"
    config = BuildConfig(
        tokenizer=f"new:{VOCABULARY}",
        format="chat",
        label_field=None,
        key_field="shard_id",
        max_tokens=MAX_TOKENS,
        control_tokens="text",  # some docstrings speak of <|endoftext|>
        rows_per_shard=2_000,
        rows_per_group=250,
    )
    manifest = build_dataset([source], folder / "dataset", config, name="docstrings-sft")
    with as_file(files("assay.workflows.demo") / "fine_tuning.yaml") as path:
        values = read_config_file(path, [f"data.dataset={folder / 'dataset'}", *overrides])
    recipe, dataset = check_recipe(values)
    kill = kill_half_way(count_steps(recipe, dataset).planned, workers=WORKERS)
    on_message(f"SFT: {WORKERS} workers; one is killed with SIGKILL half-way")
    result = train_demo_run(home, values, WORKERS, make_observer, kill)
    from assay.workflows.export.export import export_run  # imports torch, which only the ranks needed so far

    exported = export_run(
        home,
        result.run.run_id,
        step=None,
        to=folder / result.run.run_id,
        tokenizer=None,
        adapters="merged",
        progress=lambda done, total: None,
    )
    written = tuple(_sample_docstrings(exported.folder, recipe, dataset))
    return SftDemoResult(manifest, result, kill.step - 1, exported.folder, math.log(VOCABULARY), written)


def _sample_docstrings(model_folder: Path, recipe: Recipe, dataset: Dataset) -> Iterator[DocstringSample]:
    """Yield the first short row of each of some held-out files, with the model's docstring."""
    # imports torch
    from assay.workflows.evaluation.evaluate import local_model

    model, _ = local_model(str(model_folder))
    tokenizer = load_tokenizer(model_folder)
    view = split_view(dataset, recipe.data.split, "validation")
    first = {
        row[KEY]: row
        for group in view.num_rows.nonzero()[0].tolist()
        for row in reversed(view.read(group, [TOKENS, SPANS, KEY]).to_pylist())
        if len(row[TOKENS]) <= LONGEST_ROW
    }
    for row in islice(first.values(), SHOWN):
        start = row[SPANS][0]
        signature, by_people = (tokenizer.decode(item) for item in (row[TOKENS][:start], row[TOKENS][start:]))
        prompt = [Message(role="user", content=signature)]
        (completion,) = model.generate([prompt], SamplingParams(max_tokens=LONGEST_DOCSTRING))
        assert isinstance(completion, Completion), completion
        yield DocstringSample(signature.strip(), by_people.strip(), completion.text.strip())
