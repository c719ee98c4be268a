import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import assay.workflows
from assay.base.config import LoadedConfig
from assay.cli.main import main
from assay.data.dataset.tokens import train_tokenizer
from assay.records.dataset import DatasetManifest
from assay.reporting.terminal.data import print_manifest
from assay.store.home import Home
from assay.workflows.run import create_run

TEXTS = [f"row number {n} said hello {'again ' * (n % 9)}" for n in range(60)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    lines = [
        {
            "text": text,
            "label": int(n % 5 == 0),
            "language": None if n % 4 == 0 else "en",
            "key": f"doc-{n // 3}",
        }
        for n, text in enumerate(TEXTS)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    train_tokenizer(TEXTS, vocab_size=300).save("tokenizer.json")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


BUILD = ("data", "build", "rows.jsonl", "--tokenizer", "tokenizer.json", "--group-by", "key", "--jobs", "1")


def test_what_a_label_is_cannot_be_said_where_there_is_none(corpus: Path, capsys) -> None:
    code, _, output = run(capsys, *BUILD, "--no-label", "--label-kind", "binary", "--out", "one")
    assert code == 2 and "--label-kind binary needs a label, and there is none: name its field with --label" in output
    assert not (corpus / "one").exists()


def test_rows_that_were_cut_are_told_once_with_the_cure(corpus: Path, capsys) -> None:
    code, output, _ = run(capsys, *BUILD, "--max-tokens", "8", "--out", "one")
    words = " ".join(output.split())
    assert code == 0 and words.count("--max-tokens") == 1
    assert " were cut at 8 tokens. Build the dataset with a larger '--max-tokens'." in words
    assert " tokens of the rows that were cut" in words


def test_a_person_builds_looks_splits_and_compares(corpus: Path, capsys) -> None:
    code, built, _ = run(capsys, *BUILD, "--metadata", "language", "--out", "one")
    assert code == 0
    code, shown, _ = run(capsys, "data", "show", "one")
    assert shown.startswith(built.partition("\nread ")[0])
    assert "read 60 rows, kept 60" in built and "doubled" not in built
    assert "two rows of a step meet again in the next epoch" in shown
    assert "60 rows" in shown
    assert "20.0% (12 of 60 rows)" in shown
    assert "25.0%  en 75.0%" in " ".join(shown.split()).replace("25.0% en", "25.0%  en")
    code, sides, _ = run(capsys, "data", "split", "one", "--fraction", "0.3", "--check-leaks")
    assert code == 0
    assert "0 of" in sides
    assert "split: {type: hash, column: shard_id, validation_fraction: 0.3, seed: 0}" in sides
    output = [run(capsys, "data", "split", "one", "--fraction", "0.3", "--seed", str(seed))[1] for seed in range(8)]
    shares = [int(item.split("validation")[1].split()[0]) / 60 for item in output]
    warned = ["of the rows are held out, 30% of the groups were requested" in item for item in output]
    assert warned == [abs(share / 0.3 - 1) > 0.2 for share in shares] and {*warned} == {True, False}
    run(capsys, *BUILD, "--out", "two", "--max-tokens", "4")
    code, changed, _ = run(capsys, "data", "diff", "one", "two")
    assert code == 0
    assert "- column language" in changed
    assert "tokens a row: max" in changed
    code, same, _ = run(capsys, "data", "diff", "one", "one")
    assert same.startswith("equal: 60 rows")


@pytest.mark.slow
def test_rows_that_a_window_mixes_badly_are_said_with_what_mends_it(corpus: Path, capsys) -> None:
    lines = [{"text": f"row {n % 9}", "label": 0, "language": f"l{n // 400}"} for n in range(4000)]
    (corpus / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    build = (*BUILD[:-4], "--metadata", "language")
    run(capsys, *build, "--rows-per-group", "100", "--out", "one")
    as_they_lie = "loader.shuffle_radius_windows=0"
    _, shown, _ = run(capsys, "data", "show", "one", "loader.window_rows=128", as_they_lie)
    assert re.search(r"'language' varies [1-5]\.\d times as much; neighbouring steps correlate 0\.[5-9]", shown)
    fix = re.search(r"fix it by loader\.window_rows=(\d+) .* --rows-per-group (\d+)'", shown)
    assert fix is not None
    _, fixed, _ = run(capsys, "data", "show", "one", f"loader.window_rows={fix[1]}", as_they_lie)
    assert "'language' varies" in fixed and "fix it" not in fixed
    run(capsys, *build, "--rows-per-group", fix[2], "--out", "two")
    _, fixed, _ = run(capsys, "data", "show", "two", "loader.window_rows=128", as_they_lie)
    assert "'language' varies" in fixed and "fix it" not in fixed
    next((corpus / "one" / "shards").iterdir()).unlink()
    code, unread, _ = run(capsys, "data", "show", "one")
    assert code == 0
    assert "4,000 rows" in unread and "order of the rows: not measured" in unread


def test_only_keys_of_the_loader_change_the_order_that_is_shown(corpus: Path, capsys) -> None:
    run(capsys, *BUILD, "--out", "one")
    code, _, words = run(capsys, "data", "show", "one", "trainer.epochs=2")
    assert code == 2 and "trainer.epochs: only keys of the loader change the order" in words


def test_checking_a_recipe_says_how_its_own_order_mixes(corpus: Path, capsys) -> None:
    lines = [{"text": f"row {n % 9}", "label": n % 2, "key": n % 10, "language": f"l{n // 400}"} for n in range(4000)]
    (corpus / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run(capsys, *BUILD, "--metadata", "language", "--out", "one")
    overrides = (
        "data.dataset=one", "data.split.drop_leaks=false", "loader.lanes=4", "loader.global_batch_size=32",
        "loader.layout={type: padded}",
        "method.categorical_columns=[language]", "method.numeric_columns=[]",
    )  # fmt: skip
    recipe = str(Path(assay.workflows.__file__).with_name("demo") / "classifier.yaml")
    code, checked, _ = run(
        capsys,
        "train",
        recipe,
        *overrides,
        "loader.window_rows=64",
        "--check",
        "--measure",
        "0",
        "--verbose",
    )
    assert code == 0
    assert re.search(
        r"^# note: loader.window_rows=64 mixes these rows badly; use loader.window_rows=\d+$", checked, re.M
    )
    assert "# order of the rows (window_rows=64, shuffle_radius_windows=3, lanes=4, " in checked
    assert "global_batch_size=32, padded) compared with a uniform shuffle:" in checked
    assert re.search(r"#   fix it by loader\.window_rows=\d+", checked)
    assert yaml.safe_load(checked)["loader"]["window_rows"] == 64


def test_programs_read_json(corpus: Path, capsys) -> None:
    _, built, _ = run(capsys, *BUILD, "--out", "one", "--json")
    manifest = json.loads(built)
    assert (manifest["kind"], manifest["num_rows"], manifest["label_counts"]) == (
        "dataset",
        60,
        {"0": 48, "1": 12},
    )
    shown = json.loads(run(capsys, "data", "show", "one", "--json")[1])
    assert set(shown.pop("order")) == {"position_correlation", "traits", "pair_recurrence", "fix"}
    assert shown == manifest
    _, indexed, _ = run(capsys, "data", "index", "one/shards", "--out", "adopted", "--json")
    assert json.loads(indexed)["fingerprint"] == manifest["fingerprint"]
    _, sides, _ = run(capsys, "data", "split", "one", "--json", "--check-leaks")
    tree = json.loads(sides)
    assert tree["train"]["num_rows"] + tree["validation"]["num_rows"] == 60
    assert tree["train"]["num_positive"] + tree["validation"]["num_positive"] == 12
    assert tree["leak"]["num_rows"] == 0
    _, changed, _ = run(capsys, "data", "diff", "one", "adopted", "--json")
    assert json.loads(changed)["is_equal"]


def test_a_dataset_whose_store_is_away_is_shown_with_its_order_unmeasured(
    corpus: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, *BUILD, "--out", "one")
    path = corpus / "one" / "manifest.json"
    manifest = DatasetManifest.from_json(path.read_bytes(), source=path)
    path.write_text(manifest.model_copy(update={"source_url": "s3://bucket/shards"}).to_sealed_json())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("assay.cli.data.STORE_TIMEOUT_S", 0.5)
    code, shown, err = run(capsys, "data", "show", "one")
    assert code == 0, err
    assert "60 rows" in shown and "order of the rows: not measured. s3://bucket/shards" in shown


def test_a_column_of_numbers_taken_for_the_text_is_remarked_on(corpus: Path, capsys) -> None:
    rows = [{"size": str(10 * row) if row % 3 else "many", "label": row % 2} for row in range(60)]
    (corpus / "sizes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build = ("data", "build", "sizes.jsonl", "--text", "size", "--tokenizer", "tokenizer.json")
    assert "text: 40 rows hold just a number" in run(capsys, *build, "--out", "sizes")[1]
    words = [{**row, "size": f"{row['size']} bytes"} for row in rows]
    (corpus / "sizes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in words))
    assert "a number and nothing else" not in run(capsys, *build, "--out", "words")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("data", "show", "nowhere"), 2, "nowhere: no dataset there"),
        (("data", "index", "nowhere", "--out", "x"), 2, "nowhere: no such file or folder"),
        ((*BUILD, "--out", "x", "--text", "body"), 2, "field 'body' is missing"),
        ((*BUILD, "--out", "x", "--label", "language"), 2, "field 'language' is 'en' in all rows"),
        ((*BUILD, "--out", "x", "--max-tokens", "0"), 2, "max_tokens: expected more than 0"),
        ((*BUILD, "--out", "x", "--metadata", "label"), 2, "has a column 'label' of its own"),
        (
            ("data", "build", "rows.jsonl", "--label", "language", "--metadata", "language", "--out", "x"),
            2,
            "^error: the build is not valid:\n.*'language' is among the metadata",
        ),
        (
            ("data", "build", "gone.jsonl", "--tokenizer", "tokenizer.json", "--out", "x"),
            2,
            "gone.jsonl: no such file or folder",
        ),
        (("data", "build", "rows.jsonl", "--tokenizer", "rows.jsonl", "--out", "x"), 2, "not a tokenizer"),
        (("data", "build", "rows.jsonl", "--tokenizer", "gone", "--out", "x"), 2, "no tokenizer there"),
    ],
)
def test_what_was_asked_wrongly_is_one_line_and_exit_code_2(
    corpus: Path, capsys, arguments: tuple[str, ...], code: int, message: str
) -> None:
    seen, out, err = run(capsys, *arguments)
    assert seen == code
    assert out == ""
    assert "Traceback" not in err
    assert re.search(message, err)


def test_a_store_that_does_not_answer_is_exit_code_75(corpus: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_STORE_RETRY_S", "0")
    for name, value in {
        "ENDPOINT_URL": "http://127.0.0.1:9",
        "ACCESS_KEY_ID": "x",
        "SECRET_ACCESS_KEY": "x",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    code, _, err = run(capsys, "data", "index", "s3://bucket/rows", "--out", "x")
    assert code == 75
    assert "s3://bucket/rows" in err
    assert "AWS_ENDPOINT_URL" in err


def test_markup_in_values_is_shown_as_it_is(corpus: Path, capsys) -> None:
    table = {
        "input_ids": pa.array([[1]] * 4, pa.list_(pa.int32())),
        "label": np.array([0, 1, 0, 1]),
        "[bold]": ["[red]", "[/]", None, "x"],
    }
    Path("odd").mkdir()
    pq.write_table(pa.table(table), "odd/a.parquet")
    code, out, _ = run(capsys, "data", "index", "odd", "--out", "x")
    assert code == 0
    assert "[bold]" in out
    assert "[red] 25.0%" in out


def test_what_was_dropped_is_not_offered_and_leaks_behind_the_cut_have_a_cure_of_their_own(
    corpus: Path, capsys
) -> None:
    texts = [f"say {n % 15} and so on {'again ' * 20} {n if n > 20 else n % 15}" for n in range(40)]
    Path("own.csv").write_text("text,doc\n" + "".join(f"{text},{n % 8}\n" for n, text in enumerate(texts)))
    command = ("data", "build", "own.csv", "--text", "text", "--no-label", "--group-by", "doc",
               "--tokenizer", "tokenizer.json", "--max-tokens", "12", "--jobs", "1", "--out")  # fmt: skip
    split = ("--by", "shard_id", "--fraction", "0.4", "--check-leaks")
    _, built, _ = run(capsys, *command, "kept")
    assert "an earlier row has (--drop doubled)" in built
    code, _, err = run(capsys, "data", "split", "kept", "--by", "doc")
    assert code == 2 and "'shard_id' holds what 'doc' held." in err
    _, sides, _ = run(capsys, "data", "split", "kept", *split)
    assert "'assay data build --drop doubled' keeps one copy of each text" in sides
    _, built, _ = run(capsys, *command, "dropped", "--drop", "doubled")
    assert "doubled: 6 rows whose text an earlier row has\n" in built and "(--drop doubled" not in built
    _, sides, _ = run(capsys, "data", "split", "dropped", *split)
    assert "leaves them out of validation" in sides and "--drop doubled" not in sides
    assert "the texts differ after the cut: a larger 'assay data build --max-tokens'" in sides


def test_a_class_that_reads_as_if_the_label_were_not_known_is_named(corpus: Path, capsys) -> None:
    labels = ["good", "bad", "N/A", ""]
    Path("own.csv").write_text("text,label\n" + "".join(f"say {n},{labels[n % 4]}\n" for n in range(40)))
    command = ("data", "build", "own.csv", "--tokenizer", "tokenizer.json", "--out", "own", "--jobs", "1")
    code, built, _ = run(capsys, *command)
    assert code == 0
    assert "left out 10 rows without a label" in built
    assert "label 'N/A' (10 rows) is trained as a class" in built and "label 'good' (" not in built


@pytest.mark.parametrize("kind", [(), ("--label-kind", "classes")])
def test_only_an_empty_cell_of_csv_is_a_missing_class(corpus: Path, capsys, kind: tuple[str, ...]) -> None:
    labels = ["eng", "nan", "inf", "-Infinity", "null", "None", "NA", "true", "007", "1e5", "9" * 20, ""]
    Path("own.csv").write_text("text,label\n" + "".join(f"say {n},{labels[n % 12]}\n" for n in range(48)))
    command = ("data", "build", "own.csv", "--tokenizer", "tokenizer.json", "--out", "own", "--jobs", "1")
    code, built, _ = run(capsys, *command, *kind)
    assert code == 0 and "left out 4 rows without a label" in built
    assert "label 'nan' (4 rows) is trained as a class" in built
    manifest = json.loads(Path("own/manifest.json").read_text())
    assert manifest["label_counts"] == dict.fromkeys(labels[:-1], 4)
    code, _, output = run(capsys, *command, "--label-kind", "number")
    assert code == 2 and "field 'label' is text, not a number" in output


def test_a_build_ends_with_what_is_trained_and_whether_a_model_learns_to_stop(corpus: Path, capsys) -> None:
    rows = [{"prompt": f"say {n}", "completion": f"it is {n}"} for n in range(5)]
    Path("chat.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"prompt": "say 9", "completion": ""}])))
    command = (
        "data",
        "build",
        "chat.jsonl",
        "--format",
        "chat",
        "--out",
        "two",
        "--tokenizer",
        "tokenizer.json",
    )
    code, built, _ = run(capsys, *command, "--drop", "unusable", "--end-token", "[CLS]")
    lines = [" ".join(line.split()) for line in built.splitlines()]
    assert code == 0 and "warning" not in built
    assert {"rows read 6", "kept 5", "left out: unusable 1", "trained 5 of 5"} <= set(lines)
    assert "a completion ends with [CLS]" in lines and built.count("⟦it is") == 3
    code, built, _ = run(capsys, *command, "--drop", "unusable", "--end-token", "", "--force")
    assert code == 0 and "does not learn to stop from 5 of 5 completions" in built and "--end-token" in built
    code, printed, _ = run(capsys, *command, "--drop", "unusable", "--end-token", "[CLS]", "--json", "--force")
    assert json.loads(printed)["boundaries"]["num_trained_ends"] == 5


@pytest.mark.parametrize(
    ("texts", "is_reported"), [(["a b"] * 40, True), ([f"word{n} {n}" for n in range(400)], False)]
)
def test_a_new_tokenizer_that_has_fewer_tokens_than_asked_is_told(
    tmp_path: Path, monkeypatch, capsys, texts: list[str], is_reported: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("text,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(texts)))
    code, built, _ = run(capsys, "data", "build", "own.csv", "--tokenizer", "new:300", "--out", "own", "--jobs", "1")
    assert code == 0
    assert ("tokens, not 300: these texts have no more" in built) == is_reported


def test_classes_that_are_spelled_in_two_ways_and_rare_ones_are_named(corpus: Path, capsys) -> None:
    labels = ["tensor"] * 12 + ["Tensor "] * 11 + ["1", "1.0"] * 11 + ["odd"]
    Path("own.csv").write_text("text,label\n" + "".join(f"say {n},{item}\n" for n, item in enumerate(labels)))
    command = ("data", "build", "own.csv", "--tokenizer", "tokenizer.json", "--out", "own", "--jobs", "1")
    code, built, _ = run(capsys, *command)
    assert code == 0
    assert "labels 'tensor' (12 rows) and 'Tensor' (11 rows) differ only in case, blanks or how a number" in built
    assert "labels '1' (11 rows) and '1.0' (11 rows) differ" in built
    assert "1 class has fewer than 10 rows, e.g. 'odd' with 1: validation may have none or all of them" in built


def test_rows_for_a_language_model_are_built_by_their_format(corpus: Path, capsys) -> None:
    rows = [{"prompt": f"say {n}", "completion": f"it is {n}"} for n in range(9)]
    Path("chat.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"prompt": "say 9", "completion": ""}])))
    command = ("data", "build", "chat.jsonl", "--format", "chat", "--out", "two", "--jobs", "1")
    code, _, output = run(capsys, *command)
    assert code == 2 and "--tokenizer is missing" in output
    code, _, output = run(capsys, *command, "--tokenizer", "tokenizer.json", "--label", "y")
    assert code == 2 and "--label" in output
    code, _, output = run(capsys, *command, "--tokenizer", "tokenizer.json")
    assert code == 2 and "chat.jsonl: line 10: 'completion' is empty" in output and not Path("two").exists()
    code, built, _ = run(capsys, *command, "--tokenizer", "tokenizer.json", "--drop", "unusable")
    assert code == 0
    assert "left out 1 row that cannot be read or learned from. The first: chat.jsonl: line 10" in built
    code, _, output = run(capsys, "train", "new", "two", "--method", "reward", "--out", "recipe.yaml")
    assert code == 2 and "rows of format chat, as two has them, are for sft" in output
    assert "of the format 'chat'; " in built and "% of the tokens are trained" in built
    code, shown, _ = run(capsys, "data", "show", "two", "--examples", "2")
    assert code == 0
    assert "row 0 (" in shown and "say 0⟦it is 0⟧" in shown and "say 1⟦it is 1⟧" in shown and "say 2" not in shown
    Path("two/tokenizer.json").write_text("{}")
    code, shown, _ = run(capsys, "data", "show", "two")
    assert code == 0 and "examples: none. two/tokenizer.json: not the tokenizer" in shown


def test_a_recipe_for_rows_of_tokens_and_labels_alone_splits_by_the_text(corpus: Path, capsys) -> None:
    Path("bare").mkdir()
    rows = {"input_ids": [[n % 7, n, 3] for n in range(200)], "label": [n % 2 for n in range(200)]}
    pq.write_table(pa.table(rows), "bare/rows.parquet", row_group_size=20)
    assert run(capsys, "data", "index", "bare", "--out", "indexed")[0] == 0
    code, _, output = run(capsys, "train", "new", "indexed", "--out", "recipe.yaml")
    assert code == 0, output
    written = yaml.safe_load(Path("recipe.yaml").read_text())
    assert written["data"]["split"]["column"] == "input_ids"
    assert not {"categorical_columns", "numeric_columns"} & written["method"].keys()
    assert "equal values stay together" in Path("recipe.yaml").read_text()
    code, _, output = run(capsys, "train", "recipe.yaml", "--check", "--measure", "0")
    assert code == 0, output


def test_the_column_by_which_rows_stay_together_is_shown_with_the_fields_own_name(corpus: Path, capsys) -> None:
    code, built, output = run(capsys, *BUILD, "--metadata", "language", "--out", "one")
    assert code == 0, output
    assert "shard_id (key)" in built and "shard_id (key)" in run(capsys, "data", "show", "one")[1]
    assert run(capsys, "train", "new", "one", "--out", "recipe.yaml")[0] == 0
    assert "rows of one 'key' stay together" in Path("recipe.yaml").read_text()


def test_rows_that_a_run_learned_are_not_indexed_over(corpus: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", "home")
    Path("bare").mkdir()
    rows = {"input_ids": [[n % 7, n, 3] for n in range(200)], "label": [n % 2 for n in range(200)]}
    pq.write_table(pa.table(rows), "bare/rows.parquet", row_group_size=20)
    index = ("data", "index", "bare", "--out", "indexed")
    assert run(capsys, *index)[0] == 0
    assert run(capsys, "train", "new", "indexed", "--out", "recipe.yaml")[0] == 0
    recipe = yaml.safe_load(Path("recipe.yaml").read_text())
    create_run(Home.from_environment(), LoadedConfig(recipe, {}), run_id="learned")
    before = Path("indexed/manifest.json").read_bytes()
    assert run(capsys, *index)[0] == 0  # the same again
    pq.write_table(pa.table(rows), "bare/more.parquet")
    code, _, output = run(capsys, *index)
    assert code == 2 and "indexed: run 'learned' was trained on the rows in this folder" in output
    assert Path("indexed/manifest.json").read_bytes() == before


def test_a_model_that_is_not_there_has_no_recipe(corpus: Path, capsys, monkeypatch) -> None:
    """Of a classifier the recipe was written, and the run died of it."""
    monkeypatch.setenv("ASSAY_HOME", "home")
    Path("bare").mkdir()
    rows = {"input_ids": [[n % 7, n, 3] for n in range(200)], "label": [n % 2 for n in range(200)]}
    pq.write_table(pa.table(rows), "bare/rows.parquet", row_group_size=20)
    assert run(capsys, "data", "index", "bare", "--out", "indexed")[0] == 0
    code, _, output = run(capsys, "train", "new", "indexed", "--model", "org/name", "--out", "recipe.yaml")
    assert code == 2 and "org/name: it has no config.json" in output and not Path("recipe.yaml").exists()
    assert run(capsys, "train", "new", "indexed", "--out", "recipe.yaml")[0] == 0
    code, _, output = run(
        capsys, "train", "recipe.yaml", "method.encoder={type: pretrained, path: org/name}", "--run-id", "x"
    )
    assert code == 2 and "org/name: it has no config.json" in output and not Path("home/x").exists()


def test_what_are_no_two_versions_of_one_thing_is_one_line(corpus: Path, capsys) -> None:
    """Each column was listed twice, as one that is gone and a new one."""
    run(capsys, *BUILD, "--metadata", "language", "--out", "one")
    for pair in (("one", "rows.jsonl"), ("rows.jsonl", "one")):
        code, out, output = run(capsys, "triage", "data", *pair)
        assert (code, out) == (2, "")
        assert f"{pair[0]} and {pair[1]} are not two versions of one thing: one is a dataset, of tokens, and " in output
    Path("other.csv").write_text("a,b\n" + "1,2\n" * 40)
    code, out, output = run(capsys, "triage", "data", "rows.jsonl", "other.csv")
    assert (code, out) == (2, "")
    assert "no column is in both (rows.jsonl has text, label, language, key; other.csv has a, b)" in output
    code, out, _ = run(capsys, "triage", "data", "one", "one")
    assert (code, "both are the same rows" in out) == (0, True)


def test_shares_that_are_listed_together_are_rounded_as_decimals(corpus: Path, capsys) -> None:
    """493 of 2,000 are 24.65%, and a float a hair less."""
    run(capsys, *BUILD, "--out", "one")
    manifest = DatasetManifest.from_json(Path("one/manifest.json").read_text(), source="one")
    classes = {"class": 1_216, "function": 493, "method": 291}
    print_manifest(manifest.model_copy(update={"label_counts": classes}), Path("one"))
    shown = capsys.readouterr().out
    for share in ("60.8% (1,216 rows)", "24.7% (493 rows)", "14.6% (291 rows)"):
        assert share in shown


def test_beside_a_proposed_label_stands_what_else_it_may_be(corpus: Path, capsys) -> None:
    rows = [{"code": f"def f{n}(): pass", "is_async": n % 2, "area": "abc"[n % 3]} for n in range(60)]
    (corpus / "two.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, _, output = run(capsys, "data", "build", "two.jsonl", "--out", "one")
    words = " ".join(output.split())
    assert code == 2 and "--text code --label is_async --metadata area" in words
    assert (
        "The label is a guess: is_async has 2 values in the first rows. It could also be area (3): choose with" in words
    )
    _, _, output = run(capsys, "data", "build", "rows.jsonl", "--out", "one")
    assert "is a guess" not in output, "a field that is called label is none"
