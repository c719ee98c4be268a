"""The recipe that is written for rows of a language model passes its own check, and trains."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.base.config import read_config_file
from assay.reporting.views.warnings import warning_text
from assay.workflows.data_warnings import data_warnings
from assay.workflows.run import check_recipe
from in_process import assay as run
from one_rank import train_one_rank
from preference_rows import preference_dataset

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


def rows_of(format: str) -> list[dict[str, Any]]:
    output = [" ".join(WORDS[(start + location) % 10] for location in range(8)) for start in range(10)]
    rows: list[dict[str, Any]] = []
    for number in range(200):
        text = output[number % 10]
        other = " ".join(reversed(text.split()))
        request = {"role": "user", "content": f"count {number}"}
        rows.append(
            {
                "text": {"text": f"{number} {text}"},
                "chat": {"messages": [request, {"role": "assistant", "content": text}]},
                "pairs": {"prompt": f"count {number}: ", "chosen": text, "rejected": other},
                "prompts": {"prompt": f"count {number}", "answer": text},
            }[format]
        )
    return rows


def dataset_of(format: str, folder: Path) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(format)))
    template = ["--chat-template", "chatml"] if format == "chat" else []
    build = ["data", "build", folder / "rows.jsonl", "--format", format, "--tokenizer", "new:400", *template]
    assert run(*build, *(["--text", "text"] if format == "text" else []), "--out", folder / format) == 0
    return folder / format


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "method"),
    [
        ("chat", "sft"),
        *(pytest.param(*entry, marks=pytest.mark.slow) for entry in (("text", "sft"), ("pairs", "reward"))),
    ],
)
def test_rows_of_a_language_model_have_a_recipe_that_learns(format: str, method: str, tmp_path: Path) -> None:
    file = tmp_path / "folder" / "recipe.yaml"
    assert run("train", "new", dataset_of(format, tmp_path), "--out", file) == 0
    lines = file.read_text().splitlines()
    assert all("#" in line or line.endswith(":") for line in lines), "each line says why"
    tree = yaml.safe_load(file.read_text())
    assert tree["method"]["type"] == method
    assert tree["method"].get("train_on") == {"text": "all", "chat": "spans"}.get(format)
    steps = train_one_rank(
        {**tree, "trainer": {**tree["trainer"], "max_steps": 30, "evaluate_every": None}}, tmp_path / "run"
    ).steps
    assert steps[-1]["loss"] < 0.95 * steps[0]["loss"]


def test_rows_that_lie_sorted_have_windows_that_mix_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (
        {"text": f"{WORDS[row % 10]} {WORDS[row % 7]}", "label": row % 2, "language": f"of {row // 15_000}"}
        for row in range(60_000)
    )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build = ["data", "build", tmp_path / "rows.jsonl", "--text", "text", "--label", "label"]
    assert run(*build, "--metadata", "language", "--tokenizer", "new:300", "--out", tmp_path / "rows") == 0
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", tmp_path / "rows", "--out", file) == 0

    def noted(*changes: str) -> str:
        capsys.readouterr()
        assert run("train", file, "--check", "--measure", "0", *changes) == 0
        return capsys.readouterr().out

    assert "mixes these rows badly" in noted("loader.window_rows=4096"), "the most that is usual"
    assert "mixes these rows badly" not in noted()
    monkeypatch.setattr("assay.workflows.new_recipe._MOST_WINDOW_BYTES", 1_000_000)
    assert run("train", "new", tmp_path / "rows", "--out", tmp_path / "small.yaml") == 0
    assert yaml.safe_load((tmp_path / "small.yaml").read_text())["loader"]["window_rows"] == 4096


def copied_texts(folder: Path) -> Path:
    """1,200 labelled texts in 120 files; of four texts one is in two files."""
    rows = [
        {
            "text": f"{WORDS[row % 10]} number {row if row % 4 else row % 400}",
            "kind": row % 2,
            "file": row // 10,
        }
        for row in range(1200)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build = ["data", "build", folder / "rows.jsonl", "--text", "text", "--label", "kind", "--group-by", "file"]
    assert run(*build, "--tokenizer", "new:400", "--out", folder / "texts") == 0
    return folder / "texts"


def test_copies_of_training_rows_are_left_out_by_a_new_recipe_and_named_by_a_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", copied_texts(tmp_path), "--out", file) == 0
    assert "are in the training rows" not in capfd.readouterr().err
    assert yaml.safe_load(file.read_text())["data"]["split"]["drop_leaks"] is True
    assert "copies of training rows left out" in file.read_text()
    check = ["train", file, "--check", "--measure", 0]
    assert run(*check) == 0
    assert "are in the training rows" not in capfd.readouterr().out
    assert run(*check, "data.split.drop_leaks=false") == 0
    assert "validation rows" in (output := capfd.readouterr().out)
    assert "are in the training rows, too. Split by a key" in output


def test_a_column_that_tells_the_label_is_named_before_anything_is_trained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {
            "text": f"{WORDS[row % 10]} number {row}",
            "late": row % 3 > 0,
            "outcome": "bad" if row % 3 else "good",
        }
        for row in range(300)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build = [
        "data",
        "build",
        tmp_path / "rows.jsonl",
        "--text",
        "text",
        "--label",
        "outcome",
        "--metadata",
        "late",
    ]
    assert run(*build, "--tokenizer", "new:400", "--out", tmp_path / "rows") == 0
    capfd.readouterr()
    assert run("train", "new", tmp_path / "rows", "--out", tmp_path / "recipe.yaml") == 0
    output = "column 'late' alone predicts the label of 100% of the rows"
    assert output in capfd.readouterr().err
    check = ["train", tmp_path / "recipe.yaml", "--check", "--measure", 0]
    assert run(*check) == 0
    assert output in capfd.readouterr().out
    assert run(*check, "method.categorical_columns=[]") == 0
    assert output not in capfd.readouterr().out


def test_whether_copies_are_left_out_changes_no_word_of_how_even_a_split_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", copied_texts(tmp_path), "--out", file) == 0

    def is_uneven(seed: int, *, drop_leaks: bool) -> bool:
        split = {
            "data.split.seed": seed,
            "data.split.drop_leaks": drop_leaks,
            "data.split.validation_fraction": 0.05,
        }
        recipe, dataset = check_recipe(read_config_file(file, [f"{key}={value}" for key, value in split.items()]))
        by_recipe = [
            warning_text(warning) for warning in data_warnings(recipe, dataset) if warning.rule == "uneven split"
        ]
        drop = ["--drop-leaks"] if drop_leaks else []
        by = ["--by", recipe.data.split.column, "--fraction", 0.05, "--seed", seed]
        capfd.readouterr()
        assert run("data", "split", recipe.data.dataset, *by, *drop) == 0
        by_command = capfd.readouterr().out
        assert ("left out" in by_command) is drop_leaks
        assert all(text in by_command for text in by_recipe)
        assert ("of the groups were requested" in by_command) is bool(by_recipe)
        return bool(by_recipe)

    found = [is_uneven(seed, drop_leaks=True) for seed in range(8)]
    assert found == [is_uneven(seed, drop_leaks=False) for seed in range(8)]
    assert {*found} == {True, False}


@pytest.mark.slow
def test_a_run_that_was_judged_on_rows_it_learned_is_warned_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", copied_texts(tmp_path), "--epochs", 1, "--out", file) == 0
    for drop, output in (("false", ["leaking rows"]), ("true", [])):
        assert run("train", file, "--run-id", f"drop-{drop}", f"data.split.drop_leaks={drop}") == 0
        capfd.readouterr()
        assert run("runs", "show", f"drop-{drop}", "--json") == 0
        shown = json.loads(capfd.readouterr().out)
        assert [item["rule"] for item in shown["warnings"] if item["rule"] == "leaking rows"] == output
        assert (shown["evaluation"]["num_leaking"] > 0) is (drop == "false")
        assert shown["commits"][-1]["is_evaluated"]


@pytest.mark.slow
def test_pairs_have_a_recipe_of_dpo_that_begins_with_the_model_that_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = preference_dataset(tmp_path / "pairs", num_rows=96)
    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    assert run("train", "new", pairs, "--method", "dpo", "--out", tmp_path / "no.yaml") == 2
    assert "--model FOLDER" in capfd.readouterr().err
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", pairs, "--method", "dpo", "--model", base, "--out", file) == 0
    assert run("train", file, "--check", "--measure", 0) == 0
    tree = yaml.safe_load(file.read_text())
    short = {**tree["trainer"], "max_steps": 30, "evaluate_every": None}
    losses = [step["loss"] for step in train_one_rank({**tree, "trainer": short}, tmp_path / "run").steps]
    assert losses[-1] < 0.98 * losses[0], "with the rate of a large model, it is 1.0"
    assert run("data", "score", pairs, "--reference", base, "--out", tmp_path / "scored") == 0
    scored = tmp_path / "scored.yaml"
    assert run("train", "new", tmp_path / "scored", "--method", "dpo", "--out", scored) == 0
    tree = yaml.safe_load(scored.read_text())["method"]
    assert (tree["reference"]["type"], tree["model"]["path"]) == ("columns", str(base))
    assert run("train", scored, "--check", "--measure", 0) == 0


@pytest.mark.slow
def test_from_chats_to_preferences_there_is_room_for_longer_rows_and_for_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """README's way; the answers that are preferred are longer than any chat, and a suite says no sampling."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    model, recipe = tmp_path / "model", tmp_path / "sft.yaml"
    short = ("trainer.max_steps=12", "trainer.evaluate_every=null")
    assert run("train", "new", dataset_of("chat", tmp_path), "--out", recipe) == 0
    assert run("train", recipe, *short, "--run-id", "sft") == 0
    assert run("runs", "export", "sft", "--out", model) == 0
    long = " ".join(WORDS * 30)
    (tmp_path / "items.jsonl").write_text(
        "".join(json.dumps({"prompt": text, "answer": "1"}) + "\n" for text in ("one", "two", long))
    )
    grader = {"type": "string_check", "name": "g", "operation": "eq", "input": "{{ sample.output_text }}",
              "reference": "{{ item.answer }}"}  # fmt: skip
    counts = {"type": "generation", "name": "counts", "items": "items.jsonl", "grader": grader}
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"name": "s", "benchmarks": [counts]}))
    capfd.readouterr()
    assert run("eval", "run", model, "--suite", suite) == 0
    assert "counts: of 1 prompt the model read the end only" in capfd.readouterr().out
    counts["sampling"] = {"max_tokens": 512}
    suite.write_text(yaml.safe_dump({"name": "s", "benchmarks": [counts]}))
    assert run("eval", "run", model, "--suite", suite) == 2
    assert run("train", recipe, f"evaluation={{suite: {suite}}}", "--run-id", "refused") == 2
    output = capfd.readouterr().err
    no_room = (
        "may have 512 tokens (sampling.max_tokens), but the model's context of 512 tokens must also hold the prompt"
    )
    assert output.count(no_room) == 2
    assert not (tmp_path / "home" / "refused").exists()

    pairs = [{"prompt": f"count {n}: ", "chosen": " ".join(WORDS * 3), "rejected": "no"} for n in range(200)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    build = ["data", "build", tmp_path / "rows.jsonl", "--format", "pairs", "--tokenizer", model]
    assert run(*build, "--out", tmp_path / "pairs") == 0
    dpo = tmp_path / "dpo.yaml"
    assert run("train", "new", tmp_path / "pairs", "--method", "dpo", "--model", model, "--out", dpo) == 0
    assert run("train", dpo, *short) == 0


def widened(base: Path, hidden_size: int, intermediate_size: int) -> None:
    """Give a folder the header of a wider model, before weights that take no room on the disk."""
    config = LlamaConfig.from_pretrained(base, hidden_size=hidden_size, intermediate_size=intermediate_size)
    config.head_dim = hidden_size // config.num_attention_heads
    config.save_pretrained(base)
    with torch.device("meta"):
        weights = LlamaForCausalLM(config).state_dict()
    header, end = {}, 0
    for name, weight in weights.items():
        begin, end = end, end + 4 * weight.numel()
        header[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [begin, end]}
    data = json.dumps(header).encode()
    with (base / "model.safetensors").open("wb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        file.truncate(8 + len(data) + end)


@pytest.mark.parametrize(
    ("sizes", "rate"),
    [((8192, 273_900), 1e-6), ((512, 44_890), 1e-5), ((8, 16), 1e-3)],
    ids=["7B", "70M", "1k"],
)
def test_the_rate_of_a_pretrained_model_goes_with_its_size(sizes: tuple[int, int], rate: float, tmp_path: Path) -> None:
    pairs = preference_dataset(tmp_path / "pairs", num_rows=96)
    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    widened(base, *sizes)
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", pairs, "--method", "dpo", "--model", base, "--out", file) == 0
    found = yaml.safe_load(file.read_text())["trainer"]["optimizer"]["learning_rate"]
    assert found == pytest.approx(rate, rel=0.01)


def test_prompts_have_a_recipe_of_grpo_that_grades_by_the_answer_beside_them(tmp_path: Path) -> None:
    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    rows = [{"prompt": f"t{number % 30 + 2}", "n": number, "answer": "t3"} for number in range(200)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build = ["data", "build", tmp_path / "rows.jsonl", "--format", "prompts", "--tokenizer", base]
    build += ["--control-tokens", "keep"]  # two words of the tiny tokenizer are special
    assert run(*build, "--group-by", "n", "--out", tmp_path / "prompts") == 0
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", tmp_path / "prompts", "--model", base, "--out", file) == 0
    method = yaml.safe_load(file.read_text())["method"]
    assert method["rewards"][0]["grader"]["reference"] == "{{ item.answer }}"
    assert method["sampling"]["max_tokens"] == 62, "beside the prompt, the model takes no more"
    assert run("train", file, "--check", "--measure", 0) == 0


def model_of(dataset: Path, folder: Path) -> Path:
    """A small model with the dataset's tokenizer."""
    tokenizer = Tokenizer.from_file(str(dataset / "tokenizer.json"))
    settings = json.loads((dataset / "tokenizer_config.json").read_text())
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=8, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=512, bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(settings["eos_token"]),
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(dataset / name, folder)
    return folder


PROPOSED = [
    *("trainer.epochs=1", "trainer.epochs=3", "seed=1", "loader.lanes=4", "loader.lanes=16"),
    *("loader.global_batch_size=128", "loader.window_rows=4096", "loader.layout.jitter=0"),
    *("trainer.commit_every=1", "trainer.commit_every=auto", "trainer.optimizer.learning_rate=1e-4"),
    *("trainer.optimizer.schedule.warmup_steps=0", "trainer.optimizer.schedule.type=linear"),
    *("retention.keep_last=10", "retention.keep_best=0", "trainer.max_steps=25"),
]
"""What the comments of every written recipe propose, and what is changed beside."""
NEW_MODEL = ["method.model.num_layers=4", "method.model.hidden_size=128", "method.model.tie_embeddings=false"]


@pytest.mark.parametrize(
    ("format", "method", "changes"),
    [
        ("labelled", None, ["method.encoder.num_layers=4", "method.numeric_columns=[]"]),
        ("chat", "sft", ["method.train_on=all", *NEW_MODEL]),
        ("text", "sft", NEW_MODEL),
        ("pairs", "reward", ["method.centring=0", *NEW_MODEL]),
        ("pairs", "dpo", ["method.loss.beta=0.01"]),
        ("prompts", "grpo", ["method.group_size=4", "method.sampling.max_tokens=8"]),
    ],
)
def test_a_written_recipe_takes_every_change_that_its_comments_propose(
    format: str, method: str | None, changes: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = copied_texts(tmp_path) if format == "labelled" else dataset_of(format, tmp_path)
    file = tmp_path / "recipe.yaml"
    words = ["train", "new", dataset, "--out", file, *(["--method", method] if method else [])]
    if method in ("dpo", "grpo"):
        words += ["--model", model_of(dataset, tmp_path / "base")]
    assert run(*words) == 0
    text = file.read_text()
    assert "keeps all" in text
    tree = yaml.safe_load(text)["trainer"]
    steps = int(re.findall(r"([\d,]+) steps in all", text)[0].replace(",", ""))
    is_late = tree["evaluate_every"] * tree["epochs"] > steps
    for change in [*PROPOSED, *changes]:
        capfd.readouterr()
        assert run("train", file, "--check", "--measure", 0, change) == 0, change
        if change == "trainer.epochs=1":
            output = capfd.readouterr().out
            assert ("it is evaluated at the end only" in output) is is_late
            assert ("evaluations  at the end: 1" in output) is is_late
            assert ("the learning rate rises for most of the" in output) is (tree["epochs"] > 10)


def test_a_budget_of_tokens_that_one_long_row_sets_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": f"so {index} it is", "label": index % 2} for index in range(200)]
    (tmp_path / "rows.jsonl").write_text(
        "\n".join(json.dumps(row) for row in [*rows, {"text": "on and on " * 400, "label": 1}])
    )
    build = ("--tokenizer", "new:300", "--out", tmp_path / "texts")
    assert run("data", "build", tmp_path / "rows.jsonl", *build) == 0
    assert run("train", "new", tmp_path / "texts", "--out", tmp_path / "recipe.yaml") == 0
    (line,) = (
        splitline for splitline in (tmp_path / "recipe.yaml").read_text().splitlines() if "max_micro" in splitline
    )
    longest = json.loads((tmp_path / "texts" / "manifest.json").read_text())["lengths"]["max"]
    assert f"the longest row has a sequence of {longest:,}" in line


def test_an_interval_that_a_shorter_run_never_reaches_is_noted_but_refused_where_it_is_typed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    assert run("train", "new", copied_texts(tmp_path), "--out", file) == 0
    short = ["train", file, "trainer.max_steps=3", "trainer.optimizer.schedule.warmup_steps=1"]
    assert run(*short, "--on", "slurm", "--dry-run") == 0
    assert "note: trainer.evaluate_every=" in (output := capfd.readouterr()).err
    assert "but the run has 3 steps: it is evaluated at the end only" in output.err
    assert run(*short, "trainer.evaluate_every=4", "--run-id", "typed") == 2
    assert "trainer.evaluate_every=4, but the run has 3 steps" in capfd.readouterr().err
    assert run(*short, "trainer={evaluate_every: 4, max_steps: 3}", "--check") == 2


def test_what_nothing_learns_from_has_no_recipe(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prompts = dataset_of("prompts", tmp_path)
    pairs = preference_dataset(tmp_path / "pairs", num_rows=32)
    for words, output in (
        ((prompts,), "--model FOLDER"),
        (
            (prompts, "--method", "sft"),
            "are for grpo. Leave --method out, or build rows of format text or chat",
        ),
        ((pairs, "--method", "sft"), "are for reward and dpo"),
    ):
        capfd.readouterr()
        assert run("train", "new", *words, "--out", tmp_path / "no.yaml") == 2
        assert output in capfd.readouterr().err
    assert not (tmp_path / "no.yaml").exists()
