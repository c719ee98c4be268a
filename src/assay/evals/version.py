"""Digests of a benchmark's version that are known without a model; results carry them.

Scorers take their digests from here, so a result can be checked against the present suite without a model. Digests that
need a model's side (the judges behind a grader, the rows that a run's recipe holds out) are left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from assay.base.digest import sha256_of_bytes, sha256_of_json
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
from assay.evals.items import HeldOutText, Item, checked_choices, conversation, read_documents, read_items
from assay.inference.protocol import Message
from assay.records.benchmark import BenchmarkResult
from assay.scoring.registry.registry import Registry, RegistryEval

Version = Mapping[str, str]
"""Field of `Identity` -> value; fields that need a model are missing."""


class PresentSuite(NamedTuple):
    """A suite as its files are now."""

    suite: Suite
    versions: Mapping[str, Version]
    """By benchmark."""

    def covers(self, result: BenchmarkResult) -> bool:
        """Return whether a result is of a benchmark of this suite in its present version."""
        version = self.versions.get(result.benchmark)
        return version is not None and all(getattr(result, key) == value for key, value in version.items())


def present_suite(path: Path) -> PresentSuite:
    """Read a suite with its items; raise `DataError` for files that are missing or unreadable."""
    suite = read_suite(path)
    return PresentSuite(suite, {benchmark.name: _version(benchmark, path.parent) for benchmark in suite.benchmarks})


def multiple_choice_version(config: MultipleChoice, items: Sequence[Item], path: Path) -> Version:
    """Return the digests of items, grader and prompts."""
    prompts = [[item.fields["prompt"], list(checked_choices(item, path))] for item in items]
    return {
        "benchmark_sha256": _items_sha256(items),
        "grader_sha256": sha256_of_json(["likeliest choice", config.normalise]),
        "prompt_sha256": sha256_of_json(prompts),
    }


def generation_version(config: Generation, items: Sequence[Item], prompts: Sequence[Sequence[Message]]) -> Version:
    """Return the digests of items and prompts; the grader's digest depends on its judges."""
    return {
        "benchmark_sha256": _items_sha256(items),
        "prompt_sha256": sha256_of_json([prompts, config.sampling.model_dump(mode="json")]),
    }


def bits_per_byte_version(config: BitsPerByte, documents: Sequence[HeldOutText]) -> Version:
    """Return the digests of documents, grader and prompts."""
    digests = {document.name: sha256_of_bytes(document.text.encode()) for document in documents}
    return {
        "benchmark_sha256": sha256_of_json([digests, config.block_bytes]),
        "grader_sha256": sha256_of_json(["bits per byte", config.block_bytes]),
        "prompt_sha256": sha256_of_json(["half a window of context at least", config.window_tokens]),
    }


def registry_version(evaluation: RegistryEval) -> Version:
    """Return the digests of samples and prompts; the grader's digest depends on the judge."""
    sampling = evaluation.sampling().model_dump(mode="json")
    return {"benchmark_sha256": evaluation.sha256(), "prompt_sha256": sha256_of_json([evaluation.sha256(), sampling])}


def classification_version(config: Classification) -> Version:
    """Return the digest of the score only: the rows are those of each run."""
    return {"grader_sha256": sha256_of_json(["classification", config.score])}


def held_out_version(config: HeldOutRows) -> Version:
    """Return the digest of the score and the row filter: the rows are those of each run."""
    return {"grader_sha256": sha256_of_json(["held out", config.score, config.where])}


def _version(benchmark: Benchmark, folder: Path) -> Version:
    match benchmark:
        case MultipleChoice():
            path = folder / benchmark.items
            return multiple_choice_version(benchmark, read_items(path), path)
        case Generation():
            path = folder / benchmark.items
            items = read_items(path)
            return generation_version(benchmark, items, [conversation(item, path) for item in items])
        case BitsPerByte():
            return bits_per_byte_version(benchmark, read_documents(benchmark, folder))
        case RegistryBenchmark():
            return registry_version(Registry(folder / benchmark.registry).eval(benchmark.eval))
        case Classification():
            return classification_version(benchmark)
        case HeldOutRows():
            return held_out_version(benchmark)


def _items_sha256(items: Sequence[Item]) -> str:
    return sha256_of_json([dict(item.fields) for item in items])
