"""A registry folder, as OpenAI Evals lays it out."""

import gzip
import json
from pathlib import Path

import pytest

from assay.base.errors import ConfigError, DataError
from assay.scoring.registry.registry import Registry

MATCH = """
sums:
  id: sums.dev.v0
  metrics: [accuracy]
sums.dev.v0:
  class: evals.elsuite.basic.match:Match
  args: {samples_jsonl: sums/samples.jsonl, num_few_shot: 1, few_shot_jsonl: sums/few_shot.jsonl}
facts.dev.v0:
  class: evals.elsuite.modelgraded.classify:ModelBasedClassify
  args: {samples_jsonl: sums/samples.jsonl.gz, modelgraded_spec: fact, eval_type: cot_classify}
chess.dev.v0:
  class: evals.elsuite.chess:Chess
"""
SAMPLE = {"input": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}], "ideal": ["2"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("evals", "modelgraded", "data/sums"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "evals" / "sums.yaml").write_text(MATCH)
    (tmp_path / "modelgraded" / "fact.yaml").write_text(
        "fact: {prompt: 'Judge {completion}', choice_strings: AB, input_outputs: {input: completion}, author: me}"
    )
    data = tmp_path / "data" / "sums"
    (data / "samples.jsonl").write_text(json.dumps(SAMPLE) + "\n" + json.dumps({**SAMPLE, "ideal": "3"}))
    (data / "samples.jsonl.gz").write_bytes(gzip.compress(json.dumps(SAMPLE).encode()))
    shot = {"sample": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}
    (data / "few_shot.jsonl").write_text(json.dumps(shot) + "\n" + json.dumps(shot))
    return tmp_path


def test_an_alias_leads_to_its_eval_with_its_samples(folder: Path):
    found = Registry(folder).eval("sums")
    assert (found.name, found.rule, len(found.samples)) == ("sums.dev.v0", "Match", 2)
    assert (found.ideals(0), found.ideals(1)) == (("2",), ("3",))
    assert found.sample_id(1) == "sums.dev.1"


def test_few_shot_examples_stand_before_the_last_turn(folder: Path):
    assert [turn["content"] for turn in Registry(folder).eval("sums").prompt(0)] == ["Add.", "2+2", "4", "1+1"]


def test_a_model_graded_eval_brings_its_spec_and_reads_gzip(folder: Path):
    found = Registry(folder).eval("facts.dev.v0")
    assert found.spec.choice_strings == "AB"
    assert len(found.samples) == 1


def test_an_eval_of_another_class_is_refused_with_what_to_do(folder: Path):
    with pytest.raises(ConfigError, match=r"of class evals\.elsuite\.chess:Chess.*import its log"):
        Registry(folder).eval("chess.dev.v0")


def test_a_mistyped_name_is_answered_with_the_one_meant(folder: Path):
    with pytest.raises(ConfigError, match=r"no eval 'sum'\. Perhaps you meant sums"):
        Registry(folder).eval("sum")


def test_a_sample_without_ideal_is_named(folder: Path):
    (folder / "data" / "sums" / "samples.jsonl").write_text('{"input": "x", "ideal": "1"}\n{"input": "y"}')
    with pytest.raises(DataError, match="sample 1 has no 'ideal'"):
        Registry(folder).eval("sums")


def test_a_line_that_is_not_json_is_named(folder: Path):
    (folder / "data" / "sums" / "samples.jsonl").write_text('{"input": "x", "ideal": "1"}\n{')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        Registry(folder).eval("sums")


def test_the_digest_follows_the_samples(folder: Path):
    before = Registry(folder).eval("sums").sha256()
    (folder / "data" / "sums" / "samples.jsonl").write_text(json.dumps({**SAMPLE, "ideal": "9"}))
    assert Registry(folder).eval("sums").sha256() != before


def test_a_folder_without_evals_is_no_registry(tmp_path: Path):
    with pytest.raises(ConfigError, match="no registry there"):
        Registry(tmp_path)
