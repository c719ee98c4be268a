"""A hosted fine-tuning job becomes a recipe that trains here and a suite that knows the old model's answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from assay.evals.config import Generation, read_suite
from assay.evals.items import checked_items
from assay.scoring.grader_runner import GraderRunner, sample_values
from assay.statistics.benchmark_items import ItemScore, items_table, summarise
from chat_base import END, chat_lines, save_base, save_tokenizer
from in_process import AssayAt

JOB: dict[str, Any] = {
    "object": "fine_tuning.job", "id": "ftjob-1", "model": "gpt-4o-mini", "seed": 7, "user_provided_suffix": "tickets",
    "method": {
        "type": "supervised",
        "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 3, "learning_rate_multiplier": 0.5}},
    },
}  # fmt: skip


@pytest.fixture
def assay(tmp_path: Path) -> AssayAt:
    save_tokenizer(tmp_path / "base")
    save_base(tmp_path / "base", END)
    rows = [{"messages": row["messages"]} for row in chat_lines(60)]
    write(tmp_path / "train.jsonl", rows[:40])
    write(tmp_path / "valid.jsonl", rows[40:])
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    return AssayAt(tmp_path / "home")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def import_job(assay: AssayAt, *options: object, code: int = 0) -> Any:
    files = ("--training", "train.jsonl", "--validation", "valid.jsonl", "--model", "base")
    return assay(
        "train", "import", "job.json", *files, "--chat-template", "chatml", "--out", "new", *options, code=code
    )


def write_outputs(folder: Path, change: str, *, num: int = 20) -> None:
    """The old model's answers to the first validation rows: the reference, changed."""
    rows = rows_of(folder / "valid.jsonl")[:num]
    for row in rows:
        row["messages"][-1]["content"] += change
    write(folder / "answers.jsonl", rows)


def test_the_recipe_has_the_jobs_numbers_and_trains(assay: AssayAt, tmp_path: Path) -> None:
    done = import_job(assay)
    recipe = yaml.safe_load((tmp_path / "new" / "recipe.yaml").read_text())
    assert (recipe["name"], recipe["seed"], recipe["trainer"]["epochs"]) == ("tickets", 7, 2)
    assert recipe["loader"]["global_batch_size"] == 8
    assert "batch_size 3 became 8" in done.err
    assert recipe["data"]["split"] == {"type": "column", "column": "held_out", "validation": ["true"]}
    shown = assay.json("data", "show", "new/dataset")
    assert shown["num_rows"] == 60
    assert "steps" in assay("train", "new/recipe.yaml", "--check", "--measure", 0).out


def score_of_references(folder: Path) -> Any:
    """Return the suite's score of a new model that gives the references."""
    against_old, _ = read_suite(folder / "suite.yaml").benchmarks
    assert isinstance(against_old, Generation)
    items = checked_items(against_old, folder)
    grades = GraderRunner(against_old.grader).grade(
        [sample_values(item.fields["reference"], item.fields) for item in items]
    )
    scores = [ItemScore(item.item_id, item.cluster, grade.score) for item, grade in zip(items, grades, strict=True)]
    return summarise(items_table(scores)).score


@pytest.mark.parametrize(("change", "sign"), [(" and much else that nobody asked for", 1), ("", 0)])
def test_the_suite_says_with_an_interval_how_new_answers_compare_with_recorded_ones(
    assay: AssayAt, tmp_path: Path, change: str, sign: int
) -> None:
    write_outputs(tmp_path, change)
    import_job(assay, "--answers", "answers.jsonl")
    score = score_of_references(tmp_path / "new")
    assert len(rows_of(tmp_path / "new" / "items.jsonl")) == 20
    assert np.sign(score.value - 0.5) == np.sign(score.low - 0.5) == sign


def test_one_better_answer_among_ties_proves_nothing(assay: AssayAt, tmp_path: Path) -> None:
    write_outputs(tmp_path, "")
    rows = rows_of(tmp_path / "answers.jsonl")
    rows[0]["messages"][-1]["content"] = "?"
    write(tmp_path / "answers.jsonl", rows)
    assert "19 of 20 recorded answers equal their reference" in import_job(assay, "--answers", "answers.jsonl").err
    score = score_of_references(tmp_path / "new")
    assert score.low < 0.5 < score.value


def test_rows_without_a_recorded_answer_are_no_items_and_counted(assay: AssayAt, tmp_path: Path) -> None:
    write_outputs(tmp_path, "x", num=15)
    assert "5 of 20 validation rows have no recorded answer" in import_job(assay, "--answers", "answers.jsonl").err
    assert len(rows_of(tmp_path / "new" / "items.jsonl")) == 15


def test_a_dpo_job_gives_a_recipe_of_pairs(assay: AssayAt, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        rows = rows_of(tmp_path / f"{name}.jsonl")
        pairs = [
            {
                "input": {"messages": row["messages"][:-1]},
                "preferred_output": [{"role": "assistant", "content": "fox"}],
                "non_preferred_output": [{"role": "assistant", "content": "100 dogs"}],
            }
            for row in rows
        ]
        write(tmp_path / f"{name}.jsonl", pairs)
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.3, "n_epochs": "auto"}}}
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "method": method}))
    assert "no suite" in import_job(assay).err
    recipe = yaml.safe_load((tmp_path / "new" / "recipe.yaml").read_text())
    assert (recipe["method"]["type"], recipe["method"]["loss"]["beta"]) == ("dpo", 0.3)


REINFORCEMENT: dict[str, Any] = {
    "grader": {
        "type": "string_check", "name": "same", "operation": "eq",
        "input": "{{ sample.output_text }}", "reference": "{{ item.right }}",
    },
    "hyperparameters": {"n_epochs": 1, "batch_size": 16, "eval_interval": 3, "compute_multiplier": 1.5},
    "response_format": None,
}  # fmt: skip


def write_reinforcement_job(folder: Path, **change: Any) -> None:
    for name in ("train", "valid"):
        rows = rows_of(folder / f"{name}.jsonl")
        prompts = [{"messages": row["messages"][:-1], "right": row["messages"][-1]["content"]} for row in rows]
        write(folder / f"{name}.jsonl", prompts)
    method = {"type": "reinforcement", "reinforcement": {**REINFORCEMENT, **change}, "supervised": None}
    (folder / "job.json").write_text(json.dumps({**JOB, "method": method}))


def test_a_reinforcement_job_gives_a_recipe_and_a_suite_with_its_grader(assay: AssayAt, tmp_path: Path) -> None:
    write_outputs(tmp_path, "", num=15)
    rows = rows_of(tmp_path / "answers.jsonl")
    for row in rows[:10]:
        row["messages"][-1]["content"] = "?"
    write(tmp_path / "answers.jsonl", rows)
    write_reinforcement_job(tmp_path)
    done = import_job(assay, "--answers", "answers.jsonl")
    assert "compute_multiplier 1.5 has no counterpart here" in done.err
    assert "5 of 20 validation rows have no recorded answer" in done.err
    recipe = yaml.safe_load((tmp_path / "new" / "recipe.yaml").read_text())
    assert (recipe["method"]["type"], recipe["trainer"]["epochs"], recipe["trainer"]["evaluate_every"]) == (
        "grpo",
        1,
        3,
    )
    (reward,) = recipe["method"]["rewards"]
    assert reward["grader"] == REINFORCEMENT["grader"]
    assert assay.json("data", "show", "new/dataset")["num_rows"] == 60
    assert "steps" in assay("train", "new/recipe.yaml", "--check", "--measure", 0).out
    against_old, reward_of_new = read_suite(tmp_path / "new" / "suite.yaml").benchmarks
    items = checked_items(against_old, tmp_path / "new")
    grades = GraderRunner(against_old.grader).grade(
        [sample_values(item.fields["right"], item.fields) for item in items]
    )
    assert [grade.score for grade in grades] == [1.0] * 10 + [0.5] * 5
    assert reward_of_new.grader.type == "string_check"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grader": None}, "method.reinforcement.grader"),
        ({"grader": {"type": "endpoint", "url": "http://x"}}, "method.reinforcement.grader"),
        ({"response_format": {"type": "json_schema"}}, "method.reinforcement.response_format"),
        ({"hyperparameters": {"n_epochs": 0}}, "method.reinforcement.hyperparameters.n_epochs"),
    ],
)
def test_what_a_reinforcement_job_has_and_we_have_not_is_refused_by_name(
    assay: AssayAt, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_reinforcement_job(tmp_path, **change)
    assert message in import_job(assay, code=2).err
    assert not (tmp_path / "new" / "recipe.yaml").exists()


def test_recorded_answers_that_the_jobs_grader_cannot_read_are_said(assay: AssayAt, tmp_path: Path) -> None:
    write_outputs(tmp_path, "")
    graders = {"a": {**REINFORCEMENT["grader"], "name": "a"}, "b": {**REINFORCEMENT["grader"], "name": "b"}}
    write_reinforcement_job(
        tmp_path, grader={"type": "multi", "name": "m", "graders": graders, "calculate_output": "(a + b) / 2"}
    )
    assert "recorded answers are not compared" in import_job(assay, "--answers", "answers.jsonl").err
    assert [benchmark.name for benchmark in read_suite(tmp_path / "new" / "suite.yaml").benchmarks] == ["reward"]


def test_what_is_no_job_or_has_no_answers_is_one_error(assay: AssayAt, tmp_path: Path) -> None:
    write(tmp_path / "answers.jsonl", [{"text": "x"}])
    assert "no answers in it" in import_job(assay, "--answers", "answers.jsonl", code=2).err
    write(tmp_path / "answers.jsonl", [{"messages": []}])
    assert "no list of 'messages'" in import_job(assay, "--answers", "answers.jsonl", code=2).err
    for change in ({"object": "eval"}, {"method": {"type": "classification"}}, {"method": [1]}):
        (tmp_path / "job.json").write_text(json.dumps({**JOB, **change}))
        assert "job.json: " in import_job(assay, code=2).err
