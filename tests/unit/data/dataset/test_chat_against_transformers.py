"""Spans are those of `apply_chat_template(..., return_assistant_tokens_mask=True)`, token for token."""

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from assay.data.dataset.formats.encode import Encoder, UsableRow
from assay.data.dataset.formats.rows import RowReader
from assay.data.dataset.formats.template import SHIPPED, ChatTemplate
from assay.data.dataset.tokens import load_tokenizer, train_tokenizer

LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start|>' + message['role'] + '\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] | trim + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n\\n' }}{% endif %}
"""
CHATS = [
    [("user", "what is two and two?"), ("assistant", "  four, of course ")],
    [
        ("system", "be brief"),
        ("user", "ein Gruß"),
        ("assistant", "grüß dich"),
        ("user", "🙂?"),
        ("assistant", "🙂!"),
    ],
    [("user", "a\n\nb"), ("assistant", "c\n"), ("assistant", "d")],
]


@pytest.mark.parametrize(("source", "end"), [(LLAMA, "<|endoftext|>"), (SHIPPED["chatml"], "<|im_end|>")])
def test_ids_and_trained_tokens_are_those_of_transformers(tmp_path: Path, source: str, end: str) -> None:
    special = ["<|endoftext|>", "<|start|>", "<|im_start|>", "<|im_end|>"]
    texts = [content for chat in CHATS for _, content in chat]
    train_tokenizer(texts, vocab_size=330, special=special).save(str(tmp_path / "tokenizer.json"))
    hf_tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token=end, bos_token="[CLS]", chat_template=source
    )
    tokenizer = load_tokenizer(tmp_path)
    template = ChatTemplate(source, {"eos_token": end, "bos_token": "[CLS]"}, where="test")
    reader = RowReader("chat", "text", template, end)
    for chat in CHATS:
        messages = [{"role": role, "content": content} for role, content in chat]
        rendered = reader.read({"messages": messages}, "here")
        assert rendered is not None
        encoder = Encoder(tokenizer, "chat", "text", 999, drops_unusable=False)
        (row,) = encoder.rows(iter([UsableRow("here", {}, rendered)]), 1)
        mask = np.zeros(len(row.columns["input_ids"]), int)
        for begin, stop in row.columns["trained_spans"].reshape(-1, 2):
            mask[begin:stop] = 1
        want = hf_tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert row.columns["input_ids"].tolist() == want["input_ids"]
        assert mask.tolist() == want["assistant_masks"]
        prompt = template.render(messages[:-1], {}, "here", add_generation_prompt=True)
        assert prompt == hf_tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
