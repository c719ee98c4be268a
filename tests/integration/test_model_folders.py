"""Model folders that do not go with a dataset's tokens are refused or named before anything is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from assay.base.errors import ConfigError
from assay.data.dataset.columns import SPANS, TOKENS
from assay.data.dataset.dataset import Dataset
from assay.inference.protocol import GenerateRequest, Message, PromptInput, PromptsRead, SamplingParams
from assay.models.causal import load_causal
from assay.serving.base_models import read_base_models
from assay.serving.engines.sources import _base
from assay.store.home import Home
from assay.workers.engine.loading import load
from chat_base import END, TURN_END, chat_lines, save_base, save_tokenizer
from in_process import assay as run
from served import TALKING


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home.from_environment()


def build(format: str, *, out: str | None = None) -> str:
    lines: list[Any] = chat_lines(40)
    if format == "prompts":
        lines = [{"prompt": row["messages"][:1], "answer": "fox", "n": row["n"]} for row in lines]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ["data", "build", "rows.jsonl", "--format", format, "--tokenizer", "base", "--group-by", "n"]
    assert run(*command, "--chat-template", "chatml", "--out", out or format) == 0
    return out or format


def test_a_policy_that_cannot_stop_gets_the_stop_of_its_rows_and_is_refused_without(capsys) -> None:
    save_tokenizer(Path("base"))
    save_base(Path("base"), END)
    prompts = build("prompts")
    assert run("train", "new", prompts, "--model", "base", "--out", "r.yaml") == 0
    assert yaml.safe_load(Path("r.yaml").read_text())["method"]["sampling"]["stop"] == ["<|im_end|>"]
    assert run("train", "r.yaml", "--check", "--measure", "0") == 0
    capsys.readouterr()
    assert run("train", "r.yaml", "--check", "method.sampling.stop=[]") == 2
    found = capsys.readouterr().err
    assert f"ends completions with token {END}" in found and f"end with token {TURN_END}" in found
    # The template beside a policy says how its turns end.
    Path("base/chat_template.jinja").write_text(Path(prompts, "chat_template.jinja").read_text())
    assert run("train", "r.yaml", "--check", "--measure", "0", "method.sampling.stop=[]") == 0


def test_a_base_whose_autotokenizer_reads_otherwise_is_named_at_build_and_refused_at_recipe_new(capsys) -> None:
    save_tokenizer(Path("base"))
    save_base(Path("base"), END, architecture="qwen2")
    chats = build("chat")
    assert "AutoTokenizer (Qwen2Tokenizer) encodes" in capsys.readouterr().err
    assert run("train", "new", chats, "--model", "base", "--out", "r.yaml") == 2
    assert "save_pretrained(FOLDER)" in capsys.readouterr().err
    AutoTokenizer.from_pretrained("base").save_pretrained("base")
    chats = build("chat", out="again")
    assert "AutoTokenizer" not in capsys.readouterr().err
    assert run("train", "new", chats, "--model", "base", "--out", "r.yaml") == 0


def test_a_model_that_ends_texts_at_a_word_of_the_rows_is_refused(capsys) -> None:
    tokenizer = save_tokenizer(Path("base"))
    save_base(Path("base"), tokenizer.token_to_id("a"))
    chats = build("chat")
    assert run("train", "new", chats, "--model", "base", "--out", "r.yaml") == 2
    assert "(eos_token_id): 'a', a word of dataset" in capsys.readouterr().err


def test_a_tokenizer_larger_than_the_embedding_is_refused_wherever_they_meet(capsys) -> None:
    tokenizer = save_tokenizer(Path("base"))
    tokenizer.add_tokens(["unused"])  # the last token is in no row, whichever merges were learned
    tokenizer.save("base/tokenizer.json")
    size = tokenizer.get_vocab_size()
    save_base(Path("base"), END, vocab_size=size - 1)
    chats = build("chat")
    capsys.readouterr()
    assert run("train", "new", chats, "--model", "base", "--out", "r.yaml") == 2
    assert f"tokens up to number {size - 1}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="base: its tokenizer has tokens up to number"):
        load_causal("base")
    assert run("train", "new", chats, "--out", "new.yaml") == 0
    assert run("train", "new.yaml", "--check", f"method.model.vocab_size={size - 1}") == 2
    with pytest.raises(ConfigError, match=r"tiny.yaml: tokenizer .*supervised.recipe.method.model: its tokenizer"):
        served_base("base", "base")


def served_base(tokenizer: str, path: str) -> Any:
    Path("models").mkdir(exist_ok=True)
    method = {"type": "sft", "train_on": "spans", "model": {"type": "pretrained", "path": f"../{path}"}}
    supervised = {"recipe": {**TALKING, "method": method}}
    tree = {"tokenizer": f"../{tokenizer}", "chat_template": "chatml", "methods": {"supervised": supervised}}
    Path("models/tiny.yaml").write_text(yaml.safe_dump(tree))
    return read_base_models(Path("models"))["tiny"]


def test_a_base_model_is_asked_with_the_template_of_its_fine_tunes(home: Home) -> None:
    save_tokenizer(Path("base"), post="<s> $A")
    save_base(Path("base"), END)
    model = load(home, _base(served_base("base", "base")).source)
    dataset = Dataset.open(Path(build("chat")))
    row = dataset.read_row_group(0, [TOKENS, SPANS]).to_pylist()[0]
    output: list[Any] = []
    messages = (Message(role="user", content="say 0"),)
    request = GenerateRequest(prompts=(PromptInput(messages=messages),), params=SamplingParams(max_tokens=1))
    model.handle(request, output.append, lambda: False)
    read = next(item for item in output if isinstance(item, PromptsRead))
    assert read.prompt_tokens == (row[SPANS][0],)
