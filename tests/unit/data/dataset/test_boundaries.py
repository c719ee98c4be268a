"""A manifest names the tokens that begin and end its texts, from the rows as they are encoded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.records.dataset import BoundaryTokens, Format

END, START, CLOSE, BOS, EOS = range(5)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>")
UNTRAINED_END = """\
{{- bos_token }}
{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' -%}{%- generation -%}{{ m.content }}{%- endgeneration -%}
{%- else -%}{{ m.content }}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
ASK, SAY = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}


def write_tokenizer(folder: Path, template: str | None = None, **named: str | None) -> Path:
    """Bytes and special tokens; puts `bos_token` and `eos_token` around each text where they are named."""
    vocabulary = {text: number for number, text in enumerate(SPECIAL)}
    vocabulary |= {text: number for number, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 5)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    around = [named.get("bos_token"), "$A", named.get("eos_token")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(filter(None, around)), special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[END], **named}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def boundaries(
    folder: Path, format: Format, rows: Sequence[dict[str, Any]], tokenizer: Path, **settings: Any
) -> BoundaryTokens | None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = BuildConfig(tokenizer=str(tokenizer), format=format, **settings)
    return build_dataset([folder / "rows.jsonl"], folder / "out", config, workers=1).boundaries


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("chatml", BoundaryTokens(end_ids=(CLOSE,), num_ends=3, num_trained_ends=3)),
        (None, BoundaryTokens(begin_ids=(BOS,), end_ids=(CLOSE,), num_ends=3, num_trained_ends=0)),
    ],
)
def test_the_end_of_a_turn_is_counted_whether_it_is_trained_or_not(
    tmp_path: Path, template: str | None, expected: BoundaryTokens
) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", UNTRAINED_END, bos_token="<s>")
    rows = [{"messages": [ASK, SAY, ASK, SAY]}, {"messages": [ASK, SAY]}]
    assert boundaries(tmp_path, "chat", rows, tokenizer, chat_template=template) == expected


def test_a_text_ends_once_however_many_rows_it_becomes(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", bos_token="<s>")
    found = boundaries(tmp_path, "text", [{"text": "a" * 30}, {"text": "b"}], tokenizer, max_tokens=8)
    assert found == BoundaryTokens(begin_ids=(BOS,), end_ids=(END,), num_ends=2, num_trained_ends=2)


def test_texts_without_an_end_have_none(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", eos_token=None)
    assert boundaries(tmp_path, "text", [{"text": "a"}], tokenizer) == BoundaryTokens(num_ends=1)


def test_prompts_name_what_would_end_their_completions(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    rows = [{"prompt": [ASK]}, {"prompt": [ASK]}, {"prompt": "2 + 2 ="}]
    found = boundaries(tmp_path, "prompts", rows, tokenizer, chat_template="chatml")
    assert found == BoundaryTokens(end_ids=(CLOSE, END))


def test_labelled_rows_have_no_boundaries(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    rows = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    assert boundaries(tmp_path, "labelled", rows, tokenizer) is None
