"""What begins and ends a text is the same from the dataset's rows to transformers, which loads the export."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.base.config import LoadedConfig
from assay.data.dataset.build import build_dataset
from assay.data.dataset.columns import TOKENS
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.evals.commit_model import load_committed
from assay.inference.local.local_model import LocalModel
from assay.inference.protocol import Completion, Message, SamplingParams
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.evaluation.evaluate import language_model, local_model
from assay.workflows.export.export import export_run
from assay.workflows.run import create_run
from chat_base import chat_lines, save_base, save_tokenizer
from one_rank import train_here

POST = {"none": None, "begin": "<s> $A", "end": "$A </s>", "both": "<s> $A </s>"}
TEMPLATES = {
    "chatml": "chatml",
    "begin, and an end of its own": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}: "
    "{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}",
    "the tokenizer's end": "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[{{ m.content }}]"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
}
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2")
PRE_TOKENIZERS = {
    "words": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "digits": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d{1,3}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def trained_and_exported(folder: Path, home: Home, model: dict[str, Any], template: str) -> tuple[LocalModel, Path]:
    """A run's model, which knows its few conversations by heart, and the folder that it left as."""
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, chat_lines())))
    source = TEMPLATES[template]
    if source != "chatml":
        (folder / "own.jinja").write_text(source)
        source = str(folder / "own.jinja")
    config = BuildConfig(tokenizer=str(folder / "base"), format="chat", chat_template=source, key_field="n")
    build_dataset([folder / "rows.jsonl"], folder / "dataset", config)
    tree = {
        "name": "r",
        "data": {"dataset": str(folder / "dataset"), "split": {"type": "hash", "validation_fraction": 0.4}},
        "loader": {"lanes": 1, "global_batch_size": 4, "window_rows": 16, "threads": 1},
        "method": {"type": "sft", "train_on": "spans", "model": model},
        "trainer": {"epochs": 200, "max_steps": 60, "commit_every": 60, "optimizer": {"learning_rate": 2e-2}},
    }
    run = create_run(home, LoadedConfig(tree, {}), run_id="r")
    train_here(run)
    commit = CommitLog(open_store(run.store_url)).commits()[-1]
    network = load_committed(run, commit, open_store(run.store_url))
    options: dict[str, Any] = {"step": None, "tokenizer": None, "adapters": "merged"}
    found = export_run(home, "r", to=folder / "left", progress=lambda *_: None, **options)
    return language_model(run, network, commit), found.folder


def check(folder: Path, home: Home, *, post: str, template: str, architecture: str, pre: str, norm: Any, eos: Any):
    token, base_eos = eos
    save_tokenizer(folder / "base", post=POST[post], pre=PRE_TOKENIZERS[pre], normalizer=norm, eos=token)
    model = {
        "type": "new", "architecture": architecture, "vocab_size": 400, "hidden_size": 32, "num_layers": 1,
        "num_heads": 2, "intermediate_size": 64, "max_tokens": 128,
    }  # fmt: skip
    if base_eos != "new":
        save_base(folder / "base", base_eos)
        model = {"type": "pretrained", "path": str(folder / "base")}
    own, left = trained_and_exported(folder, home, model, template)
    again, _ = local_model(str(left))
    tokenizer = AutoTokenizer.from_pretrained(left)
    plain = AutoModelForCausalLM.from_pretrained(left).eval()
    dataset = Dataset.open(folder / "dataset")
    rows = dataset.read_row_group(0, [TOKENS]).to_pylist()
    ends = dataset.manifest.boundaries.end_ids
    for n in range(4):
        messages = [{"role": "user", "content": f"say {n}"}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        request = [Message(role="user", content=f"say {n}")]
        assert prompt == own.conversation(request)[1] == again.conversation(request)[1]
        # What was trained begins behind these very tokens.
        assert any(row[TOKENS][: len(prompt)] == prompt for row in rows)
        drawn = plain.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40)[0].tolist()
        assert drawn[-1] in ends and not set(drawn[len(prompt) : -1]) & set(ends)
        sampling = SamplingParams(temperature=0.0, max_tokens=40)
        for model_of_ours in (own, again):
            (output,) = model_of_ours.generate([request], sampling)
            assert isinstance(output, Completion) and output.finish_reason == "stop"
            assert output.text == tokenizer.decode(drawn[len(prompt) :], skip_special_tokens=True)
            assert output.completion_tokens == len(drawn) - len(prompt)
    text = "say 100 dogs  in 2024"
    assert own.tokens_of(text) == again.tokens_of(text) == tokenizer(text).input_ids


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return Home.from_environment()


QUICK = [
    # The model ends texts otherwise than the rows do.
    {"post": "begin", "template": "chatml", "architecture": "llama", "pre": "words", "norm": None,
     "eos": ("</s>", 2)},
    # transformers would rebuild the tokenizer.
    {"post": "both", "template": "the tokenizer's end", "architecture": "qwen2", "pre": "digits",
     "norm": normalizers.Lowercase(), "eos": ("</s>", "new")},
]  # fmt: skip


@pytest.mark.parametrize("case", QUICK, ids=["another end", "another tokenizer"])
def test_an_export_begins_and_stops_where_it_was_trained(case: dict[str, Any], tmp_path: Path, home: Home) -> None:
    check(tmp_path, home, **case)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_tokenizer_template_architecture_and_end_leave_together(seed: int, tmp_path: Path, home: Home) -> None:
    lot = random.Random(seed)
    ends = [("</s>", "new"), ("<|im_end|>", "new"), ("</s>", 2), ("</s>", None), ("<|im_end|>", [2, 0])]
    check(
        tmp_path,
        home,
        post=lot.choice(list(POST)),
        template=list(TEMPLATES)[seed % 3],
        architecture=ARCHITECTURES[seed % 6],
        pre=lot.choice(list(PRE_TOKENIZERS)),
        norm=lot.choice([None, normalizers.NFC(), normalizers.Lowercase(), normalizers.NFD()]),
        eos=lot.choice(ends),
    )
