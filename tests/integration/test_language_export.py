"""Language and reward models leave as folders of transformers' own classes, with tokenizer and template."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.evals.commit_model import load_committed
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.export.export import Exported, export_run
from assay.workflows.run import create_run
from in_process import AssayAt
from in_process import assay as run_command
from one_rank import train_here
from preference_rows import END, VOCABULARY, preference_dataset
from variants import soaked

PROMPTS = [f"{first} plus {second}" for first in range(8) for second in range(8)]
KEYS = [{"topic": f"of {index // 2}", "first": index // 8} for index in range(len(PROMPTS))]
MODEL = {
    "type": "new", "vocab_size": 320, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
    "intermediate_size": 32, "max_tokens": 96,
}  # fmt: skip


def chat(index: int, completion: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": PROMPTS[index]}, {"role": "assistant", "content": completion}]


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [{"messages": chat(index, f"that is {index}"), **KEYS[index]} for index in range(len(PROMPTS))]
    return built(tmp_path_factory.mktemp("chats"), "chat", lines)


@pytest.fixture(scope="session")
def preferences(conversations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the tokenizer and the template of the conversations, whose model DPO may begin with."""
    lines = [
        {"chosen": chat(index, f"that is {index}"), "rejected": chat(index, "who knows"), **KEYS[index]}
        for index in range(len(PROMPTS))
    ]
    return built(tmp_path_factory.mktemp("pairs"), "pairs", lines, tokenizer=str(conversations))


def built(folder: Path, format: str, lines: list[dict[str, Any]], tokenizer: str = "new:320") -> Path:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings: dict[str, Any] = {"tokenizer": tokenizer, "format": format}
    settings |= {"chat_template": "chatml"} if tokenizer == "new:320" else {}
    settings |= {"key_field": "topic", "metadata_fields": ("first",)}
    build_dataset([folder / "rows.jsonl"], folder / "dataset", BuildConfig(**settings))
    return folder / "dataset"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return Home.from_environment()


def recipe(dataset: Path, method: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": method["type"],
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.2}},
        "loader": {"lanes": 2, "global_batch_size": 8, "window_rows": 16, "threads": 1},
        "method": method,
        "trainer": {"max_steps": 2, "commit_every": 2, "optimizer": {"learning_rate": 1e-2}},
    }


def trained_model(home: Home, tree: dict[str, Any]) -> torch.nn.Module:
    """Of the run with the recipe's name, which is trained here."""
    run = create_run(home, LoadedConfig(tree, {}), run_id=tree["name"])
    train_here(run)
    log = CommitLog(open_store(run.store_url))
    return load_committed(run, log.commits()[-1], log.store)


def exported(home: Home, run_id: str, to: Path, **options: Any) -> Exported:
    how = {"step": None, "tokenizer": None, "adapters": "merged", **options}
    return export_run(home, run_id, to=to, progress=lambda *_: None, **how)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_fine_tuned_model_leaves_with_the_runs_logits_its_tokenizer_and_its_template(
    architecture: str, conversations: Path, home: Home, tmp_path: Path
) -> None:
    model = {**MODEL, "architecture": architecture, "tie_embeddings": architecture == "gpt2"}
    tree = recipe(conversations, {"type": "sft", "train_on": "spans", "model": model})
    own = trained_model(home, tree)
    found = exported(home, "sft", tmp_path / "model")
    assert (found.record.form, found.record.columns) == ("language_model", {})
    tokenizer = AutoTokenizer.from_pretrained(found.folder)
    plain = AutoModelForCausalLM.from_pretrained(found.folder).eval()
    messages = chat(9, "that is 9")
    ids = torch.tensor([tokenizer.apply_chat_template(messages, return_dict=False)])
    rendered = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    assert tokenizer.decode(ids[0]) == rendered
    with torch.no_grad():
        expected = own(ids).logprobs
        seen = plain(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
    assert torch.allclose(seen, expected, atol=1e-5)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id == plain.generation_config.eos_token_id == end
    assert plain.generation_config.use_cache  # else each token costs a pass over all before it
    assert len({path.stat().st_mode for path in found.folder.iterdir()}) == 1  # whoever reads one, reads all
    texts = "".join(path.read_text("latin-1") for path in found.folder.iterdir())
    assert str(tmp_path) not in texts and str(conversations.parent) not in texts
    card = (found.folder / "README.md").read_text()
    assert "AutoModelForCausalLM" in card and "trust_remote_code" not in card


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_reward_model_leaves_as_a_sequence_classification_of_transformers(
    architecture: str, preferences: Path, home: Home, tmp_path: Path
) -> None:
    tree = recipe(preferences, {"type": "reward", "model": {**MODEL, "architecture": architecture}})
    own = trained_model(home, tree)
    found = exported(home, "reward", tmp_path / "model")
    assert found.record.form == "reward_model"
    tokenizer = AutoTokenizer.from_pretrained(found.folder)
    plain = AutoModelForSequenceClassification.from_pretrained(found.folder).eval()
    request = [chat(index, "that is it, " * (index % 3)) for index in range(6)]
    tokens = tokenizer.apply_chat_template(request, padding=True, return_dict=True, return_tensors="pt")
    lengths = tokens["attention_mask"].sum(dim=1)
    assert len(set(lengths.tolist())) > 1
    with torch.no_grad():
        expected = own(tokens["input_ids"], lengths)
        logits = plain(**tokens).logits
    assert logits.shape == (6, 1) and torch.allclose(logits[:, 0], expected, atol=1e-6)
    assert plain.config.id2label == {0: "reward"}


def test_a_token_that_ends_rows_is_no_padding_of_a_reward_model(home: Home, tmp_path: Path) -> None:
    """transformers would look for the reward one token too early; sequences are asked about one by one."""
    words = {f"t{number}": number for number in range(VOCABULARY) if number != END} | {"<|endoftext|>": END}
    tokenizer = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel(words, unk_token="t0")).save(str(tokenizer))
    dataset = preference_dataset(tmp_path / "rows", num_rows=60)
    own = trained_model(home, recipe(dataset, {"type": "reward", "model": {**MODEL, "vocab_size": VOCABULARY}}))
    found = exported(home, "reward", tmp_path / "model", tokenizer=tokenizer)
    assert not found.record.is_tokenizer_proved
    assert AutoTokenizer.from_pretrained(found.folder).pad_token is None
    plain = AutoModelForSequenceClassification.from_pretrained(found.folder).eval()
    ids = torch.tensor([[5, 4, 1, 4, 5, END]])
    with torch.no_grad():
        assert torch.allclose(plain(ids).logits[:, 0], own(ids, torch.tensor([6])), atol=1e-6)


def test_predict_gives_rewards_of_pairs_conversations_and_texts_from_a_run_and_from_its_folder(
    preferences: Path, home: Home, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = trained_model(home, recipe(preferences, {"type": "reward", "model": MODEL}))
    folder = exported(home, "reward", tmp_path / "model").folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    good, bad = chat(9, "that is 9"), chat(9, "who knows")

    def expected(ids: list[int]) -> float:
        with torch.no_grad():
            return float(own(torch.tensor([ids]), torch.tensor([len(ids)])))

    rewards = [expected(tokenizer.apply_chat_template(item, return_dict=False)) for item in (good, bad)]
    plain = expected([*tokenizer("that is 9", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
    rows: list[dict[str, Any]] = [
        {"messages": bad},
        {"chosen": good, "rejected": bad},
        {"text": "that is 9"},
        {"text": ""},
    ]
    target: list[dict[str, float]] = [
        {"reward": rewards[1]},
        {"chosen_reward": rewards[0], "rejected_reward": rewards[1]},
        {"reward": plain},
        {},
    ]
    request = tmp_path / "rows.jsonl"
    request.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for model in ("reward", folder):
        assert run_command("eval", "predict", model, request, "--out", tmp_path / "out.jsonl", "--force") == 0
        assert "1 row without text: kept, without a prediction" in capfd.readouterr().err
        found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        for row, responses, output in zip(rows, target, found, strict=True):
            assert {name: output[name] for name in row} == row
            completed = {name: output[name] for name in output if name.endswith("reward") and output[name] is not None}
            assert completed == pytest.approx(responses, abs=1e-6)
    request.write_text(json.dumps({"body": "that is 9"}) + "\n")
    assert run_command("eval", "predict", "reward", request) == 2
    assert "no column 'text', and no pair" in capfd.readouterr().err
    assert run_command("eval", "predict", "reward", request, "--text", "body") == 0
    longer = "that is " * 20  # than any row that was trained on; no longer than the model takes
    wide = [*tokenizer(longer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert Dataset.open(preferences).manifest.lengths.max < len(wide) <= MODEL["max_tokens"]
    for model in ("reward", folder):
        request.write_text(json.dumps({"text": longer}) + "\n")
        assert run_command("eval", "predict", model, request, "--out", tmp_path / "out.jsonl", "--force") == 0
        output = json.loads((tmp_path / "out.jsonl").read_text())
        assert output["reward"] == pytest.approx(expected(wide), abs=1e-6)
        request.write_text(json.dumps({"text": "that is " * 99}) + "\n")
        assert run_command("eval", "predict", model, request) == 2
        assert "tokens, and the model's limit is 96. Shorten or drop the row" in capfd.readouterr().err


def test_predict_of_a_language_model_names_the_command_that_serves(
    conversations: Path, home: Home, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained_model(home, recipe(conversations, {"type": "sft", "train_on": "all", "model": MODEL}))
    (tmp_path / "rows.jsonl").write_text('{"text": "that is 9"}\n')
    assert run_command("eval", "predict", "sft", tmp_path / "rows.jsonl") == 2
    output = capfd.readouterr().err
    assert (
        "a model of method 'sft' makes no predictions for rows of a file" in output
        and "'assay eval chat RUN'" in output
        and "assay runs export RUN" in output
    )


def test_what_cannot_leave_so_is_refused_before_anything_is_written(
    conversations: Path, home: Home, tmp_path: Path
) -> None:
    trained_model(home, recipe(conversations, {"type": "sft", "train_on": "all", "model": MODEL}))
    with pytest.raises(ConfigError, match="--adapters apart: the run has no adapters"):
        exported(home, "sft", tmp_path / "model", adapters="apart")
    (tmp_path / "alone").mkdir()
    alone = tmp_path / "alone" / "tokenizer.json"
    alone.write_bytes((conversations / "tokenizer.json").read_bytes())
    with pytest.raises(ConfigError, match=r"chat_template.jinja: missing; the dataset was built with one"):
        exported(home, "sft", tmp_path / "model", tokenizer=alone)
    assert not (tmp_path / "model").exists() and not list(tmp_path.glob(".unfinished*"))


WITHOUT_ASSAY = """
import importlib.util, json, sys
sys.path.append(sys.argv[1])
assert importlib.util.find_spec("assay") is None
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
folder, asked = sys.argv[2], json.load(open(sys.argv[3]))
kind = AutoModelForSequenceClassification if sys.argv[5] == "reward" else AutoModelForCausalLM
model, tokenizer = kind.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
found = []
for messages in asked:
    tokens = tokenizer.apply_chat_template(messages, return_dict=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**tokens).logits
    found.append([tokens["input_ids"][0].tolist(), logits[0].tolist()])
json.dump(found, open(sys.argv[4], "w"))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", [*soaked("sft"), "reward", *soaked("dpo")])
def test_plain_transformers_finds_the_runs_logits_where_there_is_no_assay(
    method: str, conversations: Path, preferences: Path, home: Home, tmp_path: Path
) -> None:
    """By the commands; DPO begins with what SFT left."""
    assay, sft = AssayAt(tmp_path / "home"), recipe(conversations, {"type": "sft", "train_on": "all", "model": MODEL})
    assay("train", written(tmp_path, sft), "--run-id", "sft")
    if method != "sft":
        assay("runs", "export", "sft", "--out", tmp_path / "base")
        base = {"type": "pretrained", "path": str(tmp_path / "base")}
        tree = recipe(preferences, {"type": method, "model": base})
        assay("train", written(tmp_path, tree), "--run-id", method)
    assay("runs", "export", method, "--out", tmp_path / "model")
    texts = "".join(path.read_text("latin-1") for path in (tmp_path / "model").iterdir())
    assert str(tmp_path) not in texts
    request = [chat(index, "that is it, " * (index % 3)) for index in range(4)]
    (tmp_path / "asked.json").write_text(json.dumps(request))
    out = tmp_path / "logits.json"
    subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_ASSAY, sysconfig.get_path("purelib"), tmp_path / "model",
         tmp_path / "asked.json", out, method],
        env={**os.environ, "PYTHONPATH": "", "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path, check=True, timeout=300,
    )  # fmt: skip
    run = home.run(method)
    log = CommitLog(open_store(run.store_url))
    own = load_committed(run, log.commits()[-1], log.store)
    for tokens, logits in json.loads(out.read_text()):
        ids, seen = torch.tensor([tokens]), torch.tensor(logits)
        with torch.no_grad():
            if method == "reward":
                assert torch.allclose(seen, own(ids, torch.tensor([len(tokens)])), atol=1e-6)
                continue
            expected = own(ids).logprobs[0]
        seen = seen[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert torch.allclose(seen, expected, atol=1e-5)


def written(folder: Path, tree: dict[str, Any]) -> Path:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder / "recipe.yaml"
