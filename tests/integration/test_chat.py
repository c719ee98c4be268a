"""`assay eval chat`: a run's commit and a folder answer, as plain transformers does with the same words."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.inference.protocol import SamplingParams
from assay.workflows.export.chat import Conversation, run_to_talk_with
from assay.workflows.run import create_run
from integration.test_language_export import (
    MODEL,
    conversations,
    exported,
    home,
    preferences,
    recipe,
    trained_model,
)

__all__ = ["conversations", "home", "preferences"]
SFT = {"type": "sft", "train_on": "spans", "model": {**MODEL, "max_tokens": 128}}
GREEDY = ("--temperature", "0", "--max-tokens", "20")


@pytest.fixture
def chat() -> Callable[..., Result]:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, ["eval", "chat", *arguments], input=stdin)

    return run


def reply_by_transformers(folder: Path, messages: list[dict[str, str]]) -> str:
    """The likeliest answer of 20 tokens at most."""
    tokenizer, network = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder).eval(),
    )
    ids = torch.tensor([tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)])
    found = network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
    return str(tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True))


def test_a_commit_and_its_exported_folder_answer_as_transformers_does(conversations, home, tmp_path, chat):
    trained_model(home, recipe(conversations, SFT))
    folder = exported(home, "sft", tmp_path / "model").folder
    question = {"role": "user", "content": "3 plus 4"}
    expected = reply_by_transformers(folder, [question])
    assert expected
    for model in ("sft", "sft@2", str(folder)):
        found = chat(model, "--prompt", "3 plus 4", *GREEDY)
        assert (found.stdout, found.exit_code) == (expected + "\n", 0)
    assert f"loading {folder} ..." in found.stderr
    assert chat("sft", *GREEDY, stdin="3 plus 4").stdout == expected + "\n"
    pieces: list[str] = []
    stopped = SamplingParams(max_tokens=20, stop=(expected[-2:],))
    for sampling in (SamplingParams(max_tokens=20), SamplingParams(temperature=1.0, seed=3, max_tokens=40), stopped):
        pieces.clear()
        streaming = Conversation(run_to_talk_with(home, "sft", step=None, tokenizer=None), sampling)
        output = streaming.reply("3 plus 4", pieces.append)
        assert "".join(pieces) == output.text and len(pieces) > 1
    refused(chat("sft", stdin=""), "there is no prompt: stdin is empty and not a terminal")
    assert "exceeds the context window" not in found.stderr
    assert (
        "the prompt exceeds the context window: its first "
        in chat("sft", "--prompt", "3 plus 4 " * 200, *GREEDY).stderr
    )
    system = {"role": "system", "content": "Add."}
    found = chat("sft", "--prompt", "3 plus 4", "--system", "Add.", *GREEDY)
    assert found.stdout == reply_by_transformers(folder, [system, question]) + "\n"

    conversation = Conversation(run_to_talk_with(home, "sft", step=None, tokenizer=None), SamplingParams(max_tokens=20))
    conversation.reply("3 plus 4")
    turns = [question, {"role": "assistant", "content": expected}, {"role": "user", "content": "5 plus 1"}]
    assert conversation.reply("5 plus 1").text == reply_by_transformers(folder, turns)
    conversation.begin_again()
    assert conversation.reply("3 plus 4").text == expected


def test_a_suite_asks_by_the_template_that_the_model_was_taught(conversations, home, tmp_path):
    trained_model(home, recipe(conversations, SFT))
    folder = exported(home, "sft", tmp_path / "model").folder
    request = ["3 plus 4", "5 plus 1", "2 plus 2"]
    right = [reply_by_transformers(folder, [{"role": "user", "content": text}]) for text in request]
    items = [
        {"messages": [{"role": "user", "content": text}], "answer": response}
        for text, response in zip(request, right, strict=True)
    ]
    items += [{"prompt": text, "answer": response} for text, response in zip(request, right, strict=True)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    same = {"type": "string_check", "operation": "eq", "reference": "{{ item.answer }}"}
    benchmark = {
        "type": "generation", "name": "same", "items": "items.jsonl", "sampling": {"max_tokens": 20},
        "grader": {**same, "input": "{{ sample.output_text }}"},
    }  # fmt: skip
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"name": "sums", "benchmarks": [benchmark]}))
    suite = str(tmp_path / "suite.yaml")
    for command in (
        ["run", str(folder), "--suite", suite, "--run-id", "other"],
        ["work", "sft", "--suite", suite],
    ):
        found = CliRunner().invoke(cli, ["eval", *command, "--json"])
        assert found.exit_code == 0, found.output
        results = [json.loads(line) for line in found.stdout.splitlines()]
        assert results and all(result["score"]["value"] == 1.0 for result in results), results


def refused(found: Result, words: str) -> None:
    assert isinstance(found.exception, ConfigError), found.output
    assert words in str(found.exception)
    assert found.stdout == ""


def test_who_cannot_be_talked_with_is_told_why(conversations, preferences, home, tmp_path, chat):
    create_run(home, LoadedConfig(recipe(preferences, {"type": "reward", "model": MODEL}), {}), run_id="reward")
    refused(chat("reward", "--prompt", "x"), "whose model generates no text")
    create_run(home, LoadedConfig(recipe(conversations, SFT), {}), run_id="young")
    refused(chat("young", "--prompt", "x"), "has no commit. It has commits at steps: none yet")
    refused(chat("young", stdin=""), "has no commit")
    refused(chat("nosuch", stdin=""), "nosuch")
    (tmp_path / "empty").mkdir()
    refused(chat(str(tmp_path / "empty"), "--prompt", "x"), "it has no config.json")
    refused(chat(str(tmp_path / "empty"), "--prompt", "x", "--step", "3"), "--step: ")


@pytest.mark.slow
def test_in_a_terminal_lines_are_answered_until_ctrl_d(conversations, home):
    trained_model(home, recipe(conversations, SFT))
    terminal, stdin = pty.openpty()
    command = [sys.executable, "-m", "assay", "eval", "chat", "sft", *GREEDY]
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(terminal, b"3 plus 4\n\n/new\n3 plus 4\n\x04")
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert "a conversation. /new starts over, Ctrl-D ends." in stderr
    responses = [response for line in stdout.splitlines() if (response := line.replace("> ", ""))]
    assert len(responses) == 2
    assert responses[0] == responses[1]
