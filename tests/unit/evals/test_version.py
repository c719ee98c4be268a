"""Whether a result was made of a suite as it is now."""

from pathlib import Path

import pytest
import yaml

from assay.evals.config import read_suite
from assay.evals.likelihood import BitsPerByteScorer, MultipleChoiceScorer
from assay.evals.queue import Checkpoint, result_of
from assay.evals.sampled import GenerationScorer
from assay.evals.version import present_suite
from assay.records.benchmark import BenchmarkResult
from assay.scoring.grader_runner import Tools
from assay.statistics.benchmark_items import ItemScore

GRADER = {"type": "string_check", "name": "same", "operation": "eq", "input": "5", "reference": "5"}
BENCHMARKS = {
    "choice": ({"type": "multiple_choice", "items": "choice.jsonl"}, {"normalise": "bytes"}),
    "sums": (
        {"type": "generation", "items": "sums.jsonl", "grader": GRADER},
        {"sampling": {"temperature": 0.5}},
    ),
    "held": ({"type": "bits_per_byte", "files": ["held.txt"]}, {"window_tokens": 64}),
}
FILES = {
    "choice": ("choice.jsonl", '{"prompt": "2 + 3 =", "choices": ["5", "6"], "answer": 0}'),
    "sums": ("sums.jsonl", '{"prompt": "2 + 3 =", "answer": "5"}'),
    "held": ("held.txt", "five of 5"),
}


def write_suite(folder: Path, name: str, **changes: object) -> Path:
    benchmark = {"name": name, **BENCHMARKS[name][0], **changes}
    (folder / "suite.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": [benchmark]}))
    (folder / FILES[name][0]).write_text(FILES[name][1])
    return folder / "suite.yaml"


def scored(path: Path) -> BenchmarkResult:
    """A result with the digests of the benchmark's own scorer; no model is needed."""
    (config,) = read_suite(path).benchmarks
    match config.type:
        case "multiple_choice":
            scorer = MultipleChoiceScorer(config, path.parent, None)
        case "generation":
            scorer = GenerationScorer(config, path.parent, None, Tools())
        case _:
            scorer = BitsPerByteScorer(config, path.parent, None, None)
    items = [ItemScore("a", "a", 1.0), ItemScore("b", "b", 0.0)]
    return result_of(Checkpoint("r", "c", 0, 1, "w"), scorer.identity, items, 0.0)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_result_is_of_the_suite_until_its_items_or_its_way_of_asking_change(tmp_path, name):
    path = write_suite(tmp_path, name)
    result = scored(path)
    assert present_suite(path).covers(result)
    (tmp_path / FILES[name][0]).write_text(FILES[name][1].replace("5", "7"))
    assert not present_suite(path).covers(result)
    assert not present_suite(write_suite(tmp_path, name, **BENCHMARKS[name][1])).covers(result)
    assert present_suite(write_suite(tmp_path, name)).covers(result)


def test_a_benchmark_that_the_suite_has_not_is_not_asked(tmp_path):
    result = scored(write_suite(tmp_path, "held"))
    assert not present_suite(write_suite(tmp_path, "sums")).covers(result)
