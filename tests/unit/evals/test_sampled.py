"""Benchmarks whose answers are sampled."""

import json
from pathlib import Path

import pytest

from assay.base.errors import ConfigError, DataError
from assay.evals.config import Generation, RegistryBenchmark
from assay.evals.contamination import TextFiles
from assay.evals.queue import Checkpoint, result_of
from assay.evals.sampled import GenerationScorer, RegistryScorer
from assay.evals.scorer import mean_details, num_prompts_cut
from assay.inference.protocol import Completion, SamplerError
from assay.reporting.documents.benchmarks import notes
from assay.scoring.grader_runner import Tools
from assay.statistics.benchmark_items import items_of, items_table

GRADER = {
    "type": "string_check",
    "operation": "eq",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.ideal }}",
}


def generation(path: Path, model, tools: Tools = Tools(), **options):  # noqa: B008
    config = Generation.model_validate(
        {"type": "generation", "name": "g", "items": path.name, "grader": GRADER, "chunk_items": 2, **options}
    )
    return GenerationScorer(config, path.parent, model, tools)


def shout(prompt):
    text = prompt[-1]["content"]
    return SamplerError("timeout", "60 s") if text == "c" else text.upper()


def test_completions_are_graded_chunk_by_chunk_and_failures_stay_in_their_place(write_lines, scripted):
    rows = [{"prompt": "a", "ideal": "A"}, {"prompt": "b", "ideal": "x"}, {"prompt": "c", "ideal": "C"}]
    scorer = generation(write_lines("g.jsonl", *rows), scripted(shout))
    assert scorer.num_chunks == 2
    first, second = scorer.score_chunk(0)
    assert (first.score, first.completion, second.score) == (1.0, "A", 0.0)
    (third,) = scorer.score_chunk(1)
    assert (third.score, third.failure) == (None, ("sampler_timeout", "60 s"))


def test_a_multi_graders_parts_are_kept_as_details(write_lines, scripted):
    grader = {"type": "multi", "graders": {"exact": GRADER}, "calculate_output": "exact / 2"}
    scorer = generation(write_lines("g.jsonl", {"prompt": "a", "ideal": "A"}), scripted(shout), grader=grader)
    (item,) = scorer.score_chunk(0)
    assert item.score == 0.5
    assert mean_details([item]) == {"exact": 1.0}


class Forgetful:
    """Answers `A`; of a prompt of more than two letters it reads the end only."""

    name = "forgetful"

    def generate(self, prompts, params):
        lengths = [len(prompt[-1]["content"]) for prompt in prompts]
        return [Completion("A", prompt_tokens_cut=max(0, length - 2)) for length in lengths]


def test_prompts_that_were_not_read_whole_are_counted(write_lines, registry):
    path = write_lines(
        "g.jsonl",
        {"prompt": "ab", "ideal": "A"},
        {"prompt": "abcde", "ideal": "A"},
        {"prompt": "abc", "ideal": "A"},
    )
    scorer = generation(path, Forgetful(), chunk_items=3)
    items = scorer.score_chunk(0)
    assert (num_prompts_cut(items), mean_details(items)) == (2, {})
    assert num_prompts_cut(registry("fuzzy.dev.v0", Forgetful()).score_chunk(0)) == 1
    graded = registry("closed.dev.v0", Forgetful()).score_chunk(0)
    assert num_prompts_cut(graded) == len(graded), "the judge's prompt is cut, too"


def test_why_a_completion_ended_is_kept_with_its_item_and_the_cut_ones_are_counted(write_lines, registry):
    class Wordy:
        name = "wordy"

        def generate(self, prompts, params):
            texts = [prompt[-1]["content"] for prompt in prompts]
            return [
                SamplerError("server", "spent on reasoning")
                if text == "?"
                else Completion("A", "length" if len(text) > 2 else "stop")
                for text in texts
            ]

    rows = [{"prompt": prompt, "ideal": "A"} for prompt in ("ab", "abcde", "abc", "?")]
    scorer = generation(write_lines("g.jsonl", *rows), Wordy(), chunk_items=4)
    items = scorer.score_chunk(0)
    assert [item.finish_reason for item in items] == ["stop", "length", "length", None]
    assert items_of(items_table(items)) == items
    result = result_of(Checkpoint("r", "c", 0, 1, "w"), scorer.identity, items, 1.0)
    assert (result.num_completions_cut, result.num_failed) == (2, 1)
    assert "2 of 3 completions (67%) cut at the token limit" in notes(result)[1]
    graded = registry("closed.dev.v0", Wordy()).score_chunk(0)
    assert {item.failure.kind for item in graded} == {"model_grader_parse_error"}, "its judge was cut"
    older = items_table(items).drop_columns(["finish_reason"])
    assert [item.finish_reason for item in items_of(older)] == [None] * 4


def test_the_identity_follows_items_grader_prompts_and_judge(write_lines, scripted):
    path = write_lines("g.jsonl", {"prompt": "a", "ideal": "A"})
    base = generation(path, scripted("x")).identity
    hotter = generation(path, scripted("x"), sampling={"temperature": 1.0}).identity
    assert hotter.prompt_sha256 != base.prompt_sha256
    assert hotter.benchmark_sha256 == base.benchmark_sha256
    assert (
        generation(path, scripted("x"), grader={**GRADER, "operation": "ne"}).identity.grader_sha256
        != base.grader_sha256
    )
    graded = generation(path, scripted("x"), Tools({"*": scripted("", name="judge-2")})).identity
    assert graded.grader_sha256 != base.grader_sha256


def test_an_item_without_a_prompt_is_named(write_lines, scripted):
    with pytest.raises(DataError, match="item '000001' has neither messages nor a prompt"):
        generation(write_lines("g.jsonl", {"ideal": "A"}), scripted("x"))


def test_an_id_that_occurs_twice_is_named(write_lines, scripted):
    rows = [{"id": "q", "prompt": "a"}, {"id": "q", "prompt": "b"}]
    with pytest.raises(DataError, match="id 'q' occurs twice"):
        generation(write_lines("g.jsonl", *rows), scripted("x"))


QUESTION = " ".join(f"word{k}" for k in range(30))


def test_prompts_are_searched_without_what_all_of_them_share(write_lines, scripted, tmp_path):
    shared = {"role": "system", "content": "You are asked. " + " ".join(f"rule{k}" for k in range(20))}
    rows = [
        {"id": name, "messages": [shared, {"role": "user", "content": text}], "ideal": "A"}
        for name, text in (("seen", QUESTION), ("new", QUESTION[::-1] + " x"), ("short", "Why?"))
    ]
    (tmp_path / "training.txt").write_text(f"{shared['content']}\n{QUESTION}")
    config = Generation.model_validate({"type": "generation", "name": "g", "items": "g.jsonl", "grader": GRADER})
    path = write_lines("g.jsonl", *rows)
    text = TextFiles([tmp_path / "training.txt"])
    scorer = GenerationScorer(config, path.parent, scripted("A"), Tools(), text)
    found = scorer.contamination(scorer.score_chunk(0))
    assert (found.items_found, found.num_items, found.num_items_searched) == (("seen",), 3, 2)


def test_a_grader_that_reads_what_no_sample_has_is_refused_before_anything_is_asked(write_lines, scripted):
    grader = {**GRADER, "input": "{{ sample.output_txt }}"}
    with pytest.raises(ConfigError, match=r"benchmark 'g': grader 'string_check' reads sample\.output_txt"):
        generation(write_lines("g.jsonl", {"prompt": "a", "ideal": "A"}), scripted("x"), grader=grader)


REGISTRY = """
fuzzy.dev.v0: {class: evals.elsuite.basic.fuzzy_match:FuzzyMatch, args: {samples_jsonl: s.jsonl}}
json.dev.v0: {class: evals.elsuite.basic.json_match:JsonMatch, args: {samples_jsonl: j.jsonl}}
closed.dev.v0:
  class: evals.elsuite.modelgraded.classify:ModelBasedClassify
  args: {samples_jsonl: m.jsonl, modelgraded_spec: closed, metaeval: true}
facts.dev.v0:
  class: evals.elsuite.modelgraded.classify:ModelBasedClassify
  args: {samples_jsonl: m.jsonl, modelgraded_spec: facts, eval_type: cot_classify}
several.dev.v0:
  class: evals.elsuite.modelgraded.classify:ModelBasedClassify
  args: {samples_jsonl: m.jsonl, modelgraded_spec: best, multicomp_n: 2, eval_type: classify}
"""
SPECS = """
closed:
  prompt: "[Task]: {input} [Submission]: {completion} Y or N?"
  eval_type: cot_classify
  choice_scores: {"Y": 1.0, "N": 0.0}
  choice_strings: YN
  input_outputs: {input: completion}
facts: {prompt: "{input} {completion}", choice_strings: AB, input_outputs: {input: completion}}
best:
  prompt: "Which of {n}? {completion}"
  choice_strings: from_n
  choice_scores: {"1": 1.0, "2": 0.0}
  input_outputs: {input: completion}
  output_template: "{i}. {output}\\n"
"""


@pytest.fixture
def registry(tmp_path: Path):
    for name in ("evals", "modelgraded", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "evals" / "all.yaml").write_text(REGISTRY)
    (tmp_path / "modelgraded" / "all.yaml").write_text(SPECS)
    samples = {
        "s": [{"input": "cat", "ideal": ["The Cat!", "z"]}, {"input": "b", "ideal": "x y"}],
        "j": [{"input": "1", "ideal": "1.0"}, {"input": "{", "ideal": "{}"}],
        "m": [
            {"input": "say {x}", "choice": "Y"},
            {"input": [{"role": "user", "content": "hm"}], "choice": "N"},
        ],
    }
    for name, rows in samples.items():
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def scorer(name: str, model, tools: Tools = Tools()):  # noqa: B008
        config = RegistryBenchmark(type="registry", name="r", registry=".", eval=name)
        return RegistryScorer(config, tmp_path, model, tools)

    return scorer


def test_a_registrys_eval_is_scored_by_its_own_rule(registry, scripted):
    items = registry("fuzzy.dev.v0", scripted(shout)).score_chunk(0)
    assert [(item.item_id, item.score) for item in items] == [("fuzzy.dev.0", 1.0), ("fuzzy.dev.1", 0.0)]
    assert mean_details(items) == {"f1_score": 0.5}
    assert [item.score for item in registry("json.dev.v0", scripted(shout)).score_chunk(0)] == [1.0, 0.0]


def test_a_model_graded_eval_asks_the_model_then_the_judge(registry, scripted):
    model, judge = (
        scripted("sub{mission}"),
        scripted(lambda prompt: "Reasons.\nY\n\nY" if "say" in prompt[0]["content"] else "?"),
    )
    items = registry("closed.dev.v0", model, Tools({"*": judge})).score_chunk(0)
    assert model.requests[0] == [{"role": "system", "content": "say {x}"}]
    assert judge.requests[0][0]["content"] == "[Task]: say {{x}} [Submission]: sub{mission} Y or N?"
    assert [item.score for item in items] == [1.0, 0.0]
    assert mean_details(items) == {"counts/Y": 1, "counts/__invalid__": 1, "metascore": 0.5}


def test_a_spec_without_scores_counts_its_choices(registry, scripted):
    items = registry("facts.dev.v0", scripted("x"), Tools({"*": scripted("B")})).score_chunk(0)
    assert mean_details(items) == {"counts/B": 2}


def test_several_completions_are_numbered_for_the_judge(registry, scripted):
    judge = scripted("1")
    (first, _) = registry("several.dev.v0", scripted("answer"), Tools({"*": judge})).score_chunk(0)
    assert judge.requests[0][0]["content"].startswith("Which of 2? 1. answer\n2. answer\n\nAnswer the question")
    assert first.score == 1.0


def test_a_judge_that_is_away_fails_its_items(registry, scripted):
    away = scripted(lambda prompt: SamplerError("server", "gone"))
    (first, _) = registry("closed.dev.v0", scripted("x"), Tools({"*": away})).score_chunk(0)
    assert first.failure == ("model_grader_server_error", "gone")


def test_an_eval_that_is_not_there_is_a_clear_error(registry, scripted):
    with pytest.raises(ConfigError, match="no eval 'fuzy"):
        registry("fuzy.dev.v0", scripted("x"))
