"""What a model's folder says of the tokens that begin and end texts."""

import json
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.data.dataset.checkpoint_tokens import (
    begin_ids,
    check_embeddings,
    embedding_counts,
    folder_end_ids,
    turn_end_ids,
)
from assay.data.dataset.formats.template import SHIPPED, ChatTemplate
from chat_base import END, TURN_END, save_tokenizer

USER_END = (
    "{% for m in messages %}<|im_start|>{{ m.content }}{% if m.role == 'user' %}<|im_end|>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("post", "begin"),
    [(None, ()), ("$A </s>", ()), ("<s> $A", (1,)), ("<s> $A </s>", (1,)), ("<s> </s> $A", (1, 2))],
)
def test_texts_begin_with_what_the_tokenizer_puts_before_them(post, begin, tmp_path):
    assert begin_ids(save_tokenizer(tmp_path, post=post)) == begin


@pytest.mark.parametrize(
    ("source", "ends"),
    [
        (SHIPPED["chatml"], (TURN_END,)),
        ("{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}", (END,)),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", ()),
        (USER_END, ()),
        ("{{ raise_exception('never') }}", ()),
    ],
)
def test_a_turn_ends_with_the_control_token_behind_what_the_assistant_says(source, ends, tmp_path):
    template = ChatTemplate(source, {"eos_token": "</s>"}, where="t")
    assert turn_end_ids(template, save_tokenizer(tmp_path)) == ends


def test_a_folder_ends_completions_with_all_that_its_files_name(tmp_path: Path):
    save_tokenizer(tmp_path)
    assert folder_end_ids(tmp_path) == (END,)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7]}))
    (tmp_path / "chat_template.jinja").write_text(SHIPPED["chatml"])
    assert folder_end_ids(tmp_path) == (7, 9, END, TURN_END)
    (tmp_path / "generation_config.json").write_text("no JSON")
    with pytest.raises(ConfigError, match=r"generation_config.json: cannot be read"):
        folder_end_ids(tmp_path)


def test_a_tokenizer_of_more_tokens_than_a_model_has_embeddings_for_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 64}))
    method = {"model": {"type": "pretrained", "path": str(tmp_path)}, "encoder": {"vocab_size": 300}}
    counts = embedding_counts(method)
    assert counts == {"model": 64, "encoder": 300}
    tokenizer = save_tokenizer(tmp_path, vocab_size=300)
    size = tokenizer.get_vocab_size()
    check_embeddings(tokenizer, size, where="m")
    with pytest.raises(ConfigError, match=rf"m: its tokenizer has tokens up to number {size - 1} .* for 64"):
        check_embeddings(tokenizer, 64, where="m")
