"""Evals of OpenAI's platform and Promptfoo become results, and suites that score the same texts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.base.errors import ConfigError, DataError
from assay.evals.config import read_suite
from assay.evals.imports import read_files, read_suite_definition
from assay.evals.items import checked_items
from assay.scoring.grader_runner import GraderRunner, sample_values
from in_process import AssayAt

CRITERION = {
    "type": "string_check",
    "name": "match",
    "input": "{{ sample.output_text }}",
    "reference": "{{item.label}}",
    "operation": "eq",
}
JUDGE = {
    "type": "label_model",
    "name": "tone",
    "model": "gpt-4o",
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
    "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
}
EVAL = {"object": "eval", "id": "eval_1", "name": "Tickets", "testing_criteria": [CRITERION, JUDGE], "metadata": {}}
TEMPLATE = [{"type": "message", "role": "user", "content": {"type": "input_text", "text": "Sort: {{ item.text }}"}}]


def run(total: int = 3) -> dict[str, Any]:
    return {
        "object": "eval.run",
        "id": "run_1",
        "eval_id": "eval_1",
        "model": "gpt-4o-mini",
        "result_counts": {"total": total, "passed": 1, "failed": 1, "errored": 1},
        "data_source": {
            "type": "completions",
            "input_messages": {"type": "template", "template": TEMPLATE},
            "sampling_params": {"temperature": 0.5, "max_completion_tokens": 20, "reasoning_effort": "low"},
            "source": {"type": "file_content", "content": [{"item": {"text": "a", "label": "X"}}]},
        },
    }


def output(index: int, text: str, *, error: Any = None) -> dict[str, Any]:
    passed = text == "X"
    results = [
        {"name": "match-0f0f", "type": "string_check", "passed": passed, "score": float(passed)},
        {"name": "tone", "type": "label_model", "passed": True},
    ]
    return {
        "object": "eval.run.output_item",
        "id": f"out_{index}",
        "eval_id": "eval_1",
        "run_id": "run_1",
        "datasource_item_id": index,
        "datasource_item": {"text": f"text {index}", "label": "X"},
        "results": [] if error else results,
        "sample": {
            "input": [{"role": "user", "content": f"Sort: text {index}"}],
            "error": error,
            "model": "gpt-4o-mini-2024",
            "output": [{"role": "assistant", "content": text}],
            "finish_reason": "stop",
        },
    }


def saved(folder: Path, **files: Any) -> list[Path]:
    paths = []
    for name, value in files.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(value))
        paths.append(path)
    return paths


def outputs() -> dict[str, Any]:
    """A page of a list, as the API returns it."""
    rows = [output(0, "X"), output(1, "Y"), output(2, "", error={"code": "server_error", "message": "down"})]
    return {"object": "list", "data": rows, "has_more": False}


def test_each_criterion_of_a_run_is_a_benchmark_with_the_platforms_scores(tmp_path: Path) -> None:
    match, tone = read_files(saved(tmp_path, evaluation=EVAL, runs=[run()], outputs=outputs()))
    assert (match.identity.benchmark, tone.identity.benchmark) == ("Tickets.match", "Tickets.tone")
    assert (match.model, match.source) == ("gpt-4o-mini", "openai-evals-platform")
    assert [(item.item_id, item.score, item.completion) for item in match.items] == [
        ("000000", 1.0, "X"),
        ("000001", 0.0, "Y"),
        ("000002", None, ""),
    ]
    assert [item.score for item in tone.items] == [1.0, 1.0, None]
    assert match.items[2].failure is not None
    assert "down" in str(match.items[2].failure)


def test_the_order_of_files_and_repeated_pages_change_nothing(tmp_path: Path) -> None:
    paths = saved(tmp_path, evaluation=EVAL, runs=[run()], outputs=outputs(), again=outputs())
    assert read_files(paths) == read_files(paths[::-1])


def test_a_page_that_is_missing_makes_the_result_incomplete(tmp_path: Path) -> None:
    paths = saved(tmp_path, evaluation=EVAL, runs=[run(total=4)], outputs=outputs())
    with pytest.raises(DataError, match="3 of 4 items"):
        read_files(paths)
    assert len(read_files(paths, is_partial_allowed=True)[0].items) == 4


def test_an_eval_becomes_a_suite_with_the_messages_that_were_sent(tmp_path: Path) -> None:
    suite = read_suite_definition(saved(tmp_path, evaluation=EVAL, runs=[run()], outputs=outputs()))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite.tree))
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in suite.items))
    match, tone = read_suite(tmp_path / "suite.yaml").benchmarks
    assert (match.name, tone.grader.type, match.sampling.max_tokens) == ("match", "label_model", 20)
    items = checked_items(match, tmp_path)
    assert items[1].fields["messages"] == [{"role": "user", "content": "Sort: text 1"}]
    assert suite.left_out == ["sampling_params.reasoning_effort has no counterpart"]
    # The grader gives the recorded completions the scores that the platform gave them.
    runner = GraderRunner(match.grader)
    grades = runner.grade([sample_values(text, items[0].fields) for text in ("X", "Y")])
    assert [grade.score for grade in grades] == [1.0, 0.0]


def test_without_output_items_the_runs_template_gives_the_messages(tmp_path: Path) -> None:
    paths = saved(tmp_path, evaluation=EVAL, runs=[run()])
    (item,) = read_suite_definition(paths).items
    assert item["messages"] == [{"role": "user", "content": "Sort: a"}]
    with pytest.raises(DataError, match="no output items"):
        read_files(paths)


@pytest.mark.parametrize("key", ["results", "datasource_item_id", "eval_id"])
def test_an_output_item_that_lacks_a_key_is_one_error(tmp_path: Path, key: str) -> None:
    broken = output(0, "X")
    del broken[key]
    with pytest.raises(DataError, match="laid out as its tool writes it"):
        read_files(saved(tmp_path, outputs=[broken]))


def test_the_command_imports_results_and_writes_the_suite(tmp_path: Path) -> None:
    assay = AssayAt(tmp_path / "home")
    paths = saved(tmp_path, evaluation=EVAL, runs=[run()], outputs=outputs())
    done = assay("eval", "import", *paths, "--suite", tmp_path / "suite", "--run-id", "old")
    assert "wrote" in done.err
    assert "Tickets.match" in done.out
    assert read_suite(tmp_path / "suite" / "suite.yaml").name == "Tickets"
    assert "exists already" in assay("eval", "import", *paths, "--suite", tmp_path / "suite", code=2).err
    histories = assay.json("eval", "history", "old")
    assert {line["benchmark"] for line in histories} == {"Tickets.match", "Tickets.tone"}


# Promptfoo

CONFIG: dict[str, Any] = {
    "description": "Tickets",
    "prompts": [json.dumps([{"role": "system", "content": "Brief."}, {"role": "user", "content": "Sort: {{text}}"}])],
    "providers": ["openai:gpt-4o-mini"],
    "defaultTest": {"assert": [{"type": "equals", "value": "{{label}}", "metric": "match"}, {"type": "llm-rubric"}]},
    "tests": [{"vars": {"text": "a", "label": "X"}}, {"vars": {"text": "b", "label": "Y"}}],
}


def promptfoo_results() -> dict[str, Any]:
    rows = [
        {
            "testIdx": index,
            "promptIdx": 0,
            "provider": {"id": "openai:gpt-4o-mini"},
            "vars": test["vars"],
            "score": score,
            "success": bool(score),
            "response": {"output": "X"},
            "failureReason": reason,
            "error": error,
        }
        for index, test, score, reason, error in zip(
            (0, 1), CONFIG["tests"], (1, 0), (0, 2), (None, "limit"), strict=True
        )
    ]
    return {"evalId": "eval-1", "results": {"version": 3, "results": rows, "stats": {}}, "config": CONFIG}


def test_results_of_promptfoo_have_no_score_where_the_provider_failed(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, results=promptfoo_results())
    (imported,) = read_files([path])
    assert (imported.model, imported.identity.benchmark) == ("openai:gpt-4o-mini", "Tickets")
    assert [item.score for item in imported.items] == [1.0, None]


def test_a_configuration_of_promptfoo_becomes_a_suite_and_says_what_it_cannot_convert(tmp_path: Path) -> None:
    (tmp_path / "promptfooconfig.yaml").write_text(yaml.safe_dump(CONFIG))
    suite = read_suite_definition([tmp_path / "promptfooconfig.yaml"])
    (benchmark,) = suite.tree["benchmarks"]
    assert (benchmark["name"], benchmark["grader"]["reference"]) == ("match", "{{ item.label }}")
    assert suite.items[1]["messages"][1] == {"role": "user", "content": "Sort: b"}
    assert suite.left_out == ["assertion 2, of type 'llm-rubric', has no counterpart: write it as a grader"]


def test_assertions_that_differ_in_their_values_become_fields_of_the_items(tmp_path: Path) -> None:
    tests = [{"vars": {"text": text}, "assert": [{"type": "icontains", "value": text}]} for text in ("a", "b")]
    path = saved(tmp_path, config={**CONFIG, "defaultTest": {}, "tests": tests})[0]
    suite = read_suite_definition([path])
    assert [item["expected_0"] for item in suite.items] == ["a", "b"]
    assert suite.tree["benchmarks"][0]["grader"]["reference"] == "{{ item.expected_0 }}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tests": "file://tests.csv"}, "its tests are in another file"),
        ({"prompts": ["file://prompt.txt"]}, "its prompt is not in the configuration"),
        ({"defaultTest": {}}, "none of its assertions has a counterpart"),
    ],
)
def test_what_no_suite_can_be_made_of_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_suite_definition(saved(tmp_path, config={**CONFIG, **change}))
