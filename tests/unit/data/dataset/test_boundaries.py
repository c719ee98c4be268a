"""A manifest names the tokens that begin and end its texts, from the rows as they are encoded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.records.dataset import BoundaryTokens, Format
from special_tokenizer import BOS, CLOSE, END, write_tokenizer

UNTRAINED_END = """\
{{- bos_token }}
{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' -%}{%- generation -%}{{ m.content }}{%- endgeneration -%}
{%- else -%}{{ m.content }}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
QUESTION, REPLY = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}


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
    rows = [{"messages": [QUESTION, REPLY, QUESTION, REPLY]}, {"messages": [QUESTION, REPLY]}]
    assert boundaries(tmp_path, "chat", rows, tokenizer, chat_template=template) == expected


def test_blanks_may_follow_the_end_of_a_turn(tmp_path: Path) -> None:
    unmarked = UNTRAINED_END.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
    tokenizer = write_tokenizer(tmp_path / "tokenizer", unmarked, bos_token="<s>")
    found = boundaries(tmp_path, "chat", [{"messages": [QUESTION, REPLY, QUESTION, REPLY]}], tokenizer)
    assert found == BoundaryTokens(begin_ids=(BOS,), end_ids=(CLOSE,), num_ends=2, num_trained_ends=2)


def test_a_text_ends_once_however_many_rows_it_becomes(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", bos_token="<s>")
    found = boundaries(tmp_path, "text", [{"text": "a" * 30}, {"text": "b"}], tokenizer, max_tokens=8)
    assert found == BoundaryTokens(begin_ids=(BOS,), end_ids=(END,), num_ends=2, num_trained_ends=2)


def test_texts_without_an_end_have_none(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", eos_token=None)
    assert boundaries(tmp_path, "text", [{"text": "a"}], tokenizer) == BoundaryTokens(num_ends=1)


def test_prompts_name_what_would_end_their_completions(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    rows = [{"prompt": [QUESTION]}, {"prompt": [QUESTION]}, {"prompt": "2 + 2 ="}]
    found = boundaries(tmp_path, "prompts", rows, tokenizer, chat_template="chatml")
    assert found == BoundaryTokens(end_ids=(CLOSE, END))


def test_labelled_rows_have_no_boundaries(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    rows = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    assert boundaries(tmp_path, "labelled", rows, tokenizer) is None
