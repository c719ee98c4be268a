"""A suite's identity: what it says, and the bytes of what it names."""

import json
import re
from pathlib import Path

import pytest
import yaml

from assay.evals.config import read_suite
from assay.evals.items import named_files, suite_sha256

EVALS = {
    "sums": {"id": "sums.dev.v0"},
    "sums.dev.v0": {
        "class": "evals.elsuite.basic.match:Match",
        "args": {"samples_jsonl": "sums/samples.jsonl"},
    },
}
GRADER = {"type": "string_check", "name": "same", "operation": "eq", "input": "a", "reference": "b"}
FILES = {
    "items.jsonl": '{"prompt": "2 + 3 =", "choices": ["5", "6"], "answer": 0}\n',
    "asked/sums.jsonl": '{"prompt": "2 + 3 =", "answer": "5"}\n',
    "held/one.txt": "text that was never trained on\n",
    "registry/evals/sums.yaml": yaml.safe_dump(EVALS),
    "registry/data/sums/samples.jsonl": json.dumps({"input": "2 + 3 =", "ideal": "5"}) + "\n",
}
SUITE = {
    "name": "all-kinds",
    "benchmarks": [
        {"type": "multiple_choice", "name": "choice", "items": "items.jsonl"},
        {"type": "generation", "name": "sums", "items": "asked/sums.jsonl", "grader": GRADER},
        {"type": "bits_per_byte", "name": "held", "files": ["held/**/*.txt"], "exclude": ["held/no.txt"]},
        {"type": "registry", "name": "registry", "registry": "registry", "eval": "sums"},
        {"type": "classification", "name": "rows"},
    ],
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(SUITE))
    return path


@pytest.mark.parametrize("name", FILES)
def test_one_byte_of_any_file_that_a_suite_names_makes_it_another_suite(suite, name):
    before, file = suite_sha256(suite), suite.parent / name
    edits = {"5": "7", "never": "newer", "dev.v0": "dev.v1"}
    file.write_text(re.sub("|".join(edits), lambda found: edits[found[0]], FILES[name]))
    assert file.stat().st_size == len(FILES[name])
    after = suite_sha256(suite)
    file.write_text(FILES[name])
    assert after != before
    assert suite_sha256(suite) == before


@pytest.mark.parametrize("name", ["held/two.txt", "held/deeper/three.txt"])
def test_a_further_held_out_text_makes_it_another_suite(suite, name):
    before = suite_sha256(suite)
    (suite.parent / name).parent.mkdir(exist_ok=True)
    (suite.parent / name).write_text("more")
    assert suite_sha256(suite) != before


@pytest.mark.parametrize("name", ["held/no.txt", "registry/data/other.jsonl", "notes.md"])
def test_a_file_that_it_does_not_name_changes_nothing(suite, name):
    before = suite_sha256(suite)
    (suite.parent / name).write_text("5")
    assert suite_sha256(suite) == before


def test_the_same_suite_in_another_folder_is_the_same(suite, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "moved"
    suite.parent.rename(other)
    moved = suite_sha256(other / "suite.yaml")
    other.rename(suite.parent)
    assert moved == suite_sha256(suite)


def test_a_file_that_is_not_there_counts_as_absent(suite):
    before = suite_sha256(suite)
    (suite.parent / "items.jsonl").unlink()
    assert named_files(read_suite(suite), suite.parent)["items.jsonl"] is None
    assert suite_sha256(suite) != before


def test_a_file_is_read_once_while_it_stays_as_it_is(suite, monkeypatch):
    before = suite_sha256(suite)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("read a second time"))
    assert suite_sha256(suite) == before


def test_a_suite_that_names_no_file_is_known_by_its_definition(tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text("name: s\nbenchmarks: [{type: classification, name: c}]")
    assert suite_sha256(path) == read_suite(path).sha256()
