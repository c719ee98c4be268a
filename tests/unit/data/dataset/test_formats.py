"""Rows for language models, from files to columns; where things lie in them, for any text."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from assay.base.errors import AssayError, ConfigError, DataError
from assay.data.dataset import build as build_module
from assay.data.dataset.build import build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.formats.encode import Encoder, UsableRow
from assay.data.dataset.formats.examples import examples_of
from assay.data.dataset.formats.rows import RowReader
from assay.data.dataset.formats.template import SHIPPED, ChatTemplate, tokenizer_template
from assay.data.dataset.index import index_dataset
from assay.data.dataset.row_digests import token_digests
from assay.data.dataset.split import whole_view
from assay.data.dataset.tokens import train_tokenizer
from assay.data.loader.config import LoaderConfig, PackedLayout
from assay.data.loader.loader import Loader
from assay.data.loader.receipts import receipt
from assay.data.pools.pool import ThreadPool
from assay.records.cursor import Cursor
from assay.records.dataset import Format

START, STOP = "<|im_start|>", "<|im_end|>"
TOKENIZER = train_tokenizer(
    ["what is the sum of two and two", "the sum is four, naturally", "a haiku: an old pond…"],
    vocab_size=330,
    special=["<|endoftext|>", START, STOP],
)
CHATML = ChatTemplate(SHIPPED["chatml"], {}, where="chatml")
PLAIN = ChatTemplate(
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
    {},
    where="plain",
)
"""Marks nothing: a turn is found by what comes before it."""
CHAT = [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]


def message_of(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def encoded(
    format: Format, row: dict[str, Any], *, template: ChatTemplate = CHATML, max_tokens: int = 2048
) -> list[dict[str, Any]]:
    """The columns that one row becomes."""
    rendered_row = RowReader(format, "text", template, "<|endoftext|>").read(row, "here")
    assert rendered_row is not None
    encoder = Encoder(TOKENIZER, format, "text", max_tokens, drops_unusable=False)
    return [encoded.columns for encoded in encoder.rows(iter([UsableRow("here", row, rendered_row)]), 10)]


def decoded(ids: Any) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=False)


CHARACTERS = st.characters(codec="utf-8", exclude_characters=["\0", *map(chr, range(0xFDD0, 0xFDF0))])
"""All but those that no text may hold."""
contents = st.text(
    CHARACTERS,
    min_size=1,
    max_size=12,
).filter(lambda text: text.strip())
turns = st.lists(st.tuples(contents, contents, st.booleans()), min_size=1, max_size=4)


@pytest.mark.parametrize("template", [CHATML, PLAIN], ids=["marked", "unmarked"])
@settings(max_examples=60, deadline=None)
@given(turns=turns)
def test_what_is_trained_is_what_the_assistant_said_and_nothing_else(template, turns) -> None:
    messages, trained = [], []
    for question, reply, is_trained in turns:
        messages += [message_of("user", question), message_of("assistant", reply, weight=int(is_trained))]
        trained += [reply] if is_trained else []
    assume(trained)
    (row,) = encoded("chat", {"messages": messages}, template=template)
    spans = row["trained_spans"].reshape(-1, 2)
    ids = row["input_ids"]
    assert decoded(ids) == template.render(messages, {}, "here")
    assert ids.tolist() == TOKENIZER.encode(decoded(ids), add_special_tokens=False).ids
    assert (np.diff(row["trained_spans"])[::2] > 0).all() and (np.diff(row["trained_spans"]) >= 0).all()
    if template is CHATML:  # special tokens part the turns, so no token holds two of them
        assert [decoded(ids[begin:end]) for begin, end in spans] == [f"{reply}{STOP}" for reply in trained]
    else:
        offsets = TOKENIZER.encode(decoded(ids), add_special_tokens=False).offsets
        position, is_expected = 0, np.zeros(len(ids), bool)
        for question, reply, is_trained in turns:
            first = position + len(f"user: {question}\nassistant: ")
            position = first + len(f"{reply}\n")
            is_expected |= np.array([is_trained and stop > first and start < position for start, stop in offsets])
        assert is_expected.tolist() == [any(b <= index < e for b, e in spans) for index in range(len(ids))]


@settings(max_examples=100, deadline=None)
@given(prompt=st.text(CHARACTERS, max_size=12) | st.sampled_from(["sum: ", "a b ", "…"]),
       chosen=contents, rejected=contents)  # fmt: skip
def test_the_prompt_of_a_pair_is_as_long_as_can_be(prompt: str, chosen: str, rejected: str) -> None:
    assume(chosen != rejected)
    (row,) = encoded("pairs", {"prompt": prompt, "chosen": chosen, "rejected": rejected, "margin": 1.5})
    good, bad, shared = row["input_ids"], row["rejected_ids"], row["prompt_tokens"]
    assert (decoded(good), decoded(bad)) == tuple(f"{prompt}{text}<|endoftext|>" for text in (chosen, rejected))
    assert good[:shared].tolist() == bad[:shared].tolist()
    assert row["margin"] == 1.5
    wholly = [sum(end <= len(prompt) for _, end in TOKENIZER.encode(decoded(ids)).offsets) for ids in (good, bad)]
    assert shared == min(*wholly) or good[shared] != bad[shared]


@settings(max_examples=50, deadline=None)
@given(text=contents, max_tokens=st.integers(1, 9))
def test_a_long_text_becomes_even_rows_that_are_together_the_text(text: str, max_tokens: int) -> None:
    rows = [row["input_ids"].tolist() for row in encoded("text", {"text": text}, max_tokens=max_tokens)]
    assert [token for row in rows for token in row] == TOKENIZER.encode(f"{text}<|endoftext|>").ids
    lengths = {len(row) for row in rows}
    assert max(lengths) <= max_tokens and max(lengths) - min(lengths) <= 1


def test_a_token_over_the_border_is_of_the_completion_and_the_closing_token_too() -> None:
    closing = Tokenizer.from_str(TOKENIZER.to_str())
    closing.post_processor = TemplateProcessing(single="[CLS] $A [PAD]", special_tokens=[("[CLS]", 1), ("[PAD]", 0)])
    row = {"prompt": "the su", "completion": "m is four"}
    rendered_row = RowReader("chat", "text", None, "").read(row, "here")
    assert rendered_row is not None
    encoder = Encoder(closing, "chat", "text", 99, drops_unusable=False)
    (found,) = encoder.rows(iter([UsableRow("here", row, rendered_row)]), 1)
    ids, (begin, end) = found.columns["input_ids"], found.columns["trained_spans"]
    assert closing.id_to_token(int(ids[begin])).strip("Ġ") == "sum"
    assert end == len(ids) and ids[0] == 1 and ids[-1] == 0


def test_a_template_may_mark_a_turn_in_pieces() -> None:
    marked = "{% generation %}{{ m.content }}{% endgeneration %}|{% generation %};{% endgeneration %}"
    turns = "{% for m in messages %}{% if m.role == 'assistant' %}" + marked
    pieces = ChatTemplate(turns + "{% else %}{{ m.content }}{% endif %}{% endfor %}", {}, where="pieces")
    for is_expected, trained in (([0, 1, 0, 1], ["four", ";"] * 2), ([0, 1, 0, 0], ["four", ";"])):
        rendered = pieces.render_conversation([*CHAT, *CHAT], [*map(bool, is_expected)], {}, "here")
        assert [rendered.text[begin:end] for begin, end in rendered.spans] == trained


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{{ m.role }}: {% for c in m.content %}{{ c.text }}{% endfor %}", "message 1: .* 'content': 'two and"),
        ("{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}", "message 2: .* leaves out"),
        ("{{ m.content if m.role == 'user' else m.content[:2] }}", "message 2: .* alters 'content': 'four'"),
        ("{{ m.content | replace(' ', '  ') }}", "message 1: .* leaves out, or alters 'content': 'two and"),
        ("{{ (messages | reverse | list)[loop.index0].content }}", "message 2: .* before the messages"),
        ("{{ m.content if m.role == 'user' else 'four' }}", "message 2: .* leaves out, or alters 'content'"),
        (
            "{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation %}four{% endgeneration %}|"
            "{{ m.content }}{% endif %}",
            "message 2: 'content' .* is outside of what .* marks",
        ),
    ],
)
def test_a_template_that_loses_what_is_said_is_refused(line: str, message: str) -> None:
    template = ChatTemplate(f"{{% for m in messages %}}{line}{{% endfor %}}", {}, where="mine")
    with pytest.raises(DataError, match=f"^here: {message}"):
        encoded("chat", {"messages": [*CHAT, *CHAT]}, template=template)


def test_an_empty_turn_that_is_not_trained_leaves_nothing_trained() -> None:
    (found,) = encoded("chat", {"messages": [*CHAT, CHAT[0], message_of("assistant", "", weight=0)]})
    (begin, end) = found["trained_spans"]
    assert decoded(found["input_ids"][begin:end]) == f"four{STOP}"


@pytest.mark.parametrize("template", ["marked", "plain"])
def test_a_turn_of_which_a_template_writes_nothing_is_refused(template: str) -> None:
    line = "{{ m.content }}{% for c in m.tool_calls %}{{ c.id }}{% endfor %}"
    line += "{% for c in m.tool_calls if c.function.arguments %}{{ c.function.arguments | tojson }}{% endfor %}"
    source = f"{{% generation %}}{line}{{% endgeneration %}}" if template == "marked" else line
    custom = ChatTemplate(f"{{% for m in messages %}}{source}{{% endfor %}}", {}, where="mine")
    call = {"id": "f:0", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(DataError, match=r"message 2: .* writes nothing that it says"):
        encoded("chat", {"messages": [CHAT[0], message_of("assistant", None, tool_calls=[call])]}, template=custom)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{city"}}]}, "'arguments' is not JSON"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "[" * 5000}}]}, "are nested more than 100 deep"),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1, "a": 2}'}}]},
            "occurs twice in one object",
        ),
        ({"tool_calls": [{"function": {"name": "f", "arguments": '{"a": NaN}'}}]}, "NaN is no number"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, "is a list; expected an object"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, "the function has no 'name'"),
        ({"refusal": "I cannot."}, "'refusal' is .* which no template reads"),
        ({"reasoning": ["so"]}, "'reasoning' is a list, which no template reads"),
        ({"train": False}, "'train' is not read: .* its 'weight'"),
        ({"loss": 0}, "'loss' is not read: .* its 'weight'"),
    ],
)
def test_what_a_message_says_in_a_way_that_nobody_reads_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^here: messages\[1\].*{message}"):
        encoded("chat", {"messages": [CHAT[0], message_of("assistant", "four", **fields)]})


def test_a_template_that_leaves_out_a_number_of_a_call_is_refused() -> None:
    line = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v if v is string }} {% endfor %}"
    source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}" + line
    custom = ChatTemplate(source + "{% endfor %}{% endfor %}", {}, where="mine")
    call = {"function": {"name": "add", "arguments": '{"text": "x", "number": [1234.5]}'}}
    with pytest.raises(DataError, match=r"message 2: .* an argument of the tool call 'add': '1234.5'"):
        encoded("chat", {"messages": [CHAT[0], message_of("assistant", None, tool_calls=[call])]}, template=custom)


def test_a_turn_begins_behind_the_words_that_ask_though_the_message_before_ends_otherwise() -> None:
    line = "{{ '<' + m.role + '>' + m.content }}{% if not loop.last %}|{% endif %}"
    suffix = "{% if add_generation_prompt %}<assistant>{% endif %}"
    custom = ChatTemplate(f"{{% for m in messages %}}{line}{{% endfor %}}{suffix}", {}, where="mine")
    found = custom.render_conversation([*CHAT, *CHAT], [False, True] * 2, {}, "here")
    assert [found.text[begin:end] for begin, end in found.spans] == ["four", "four"]


def test_older_words_for_calls_and_tools_are_read() -> None:
    call, tool = {"name": "add", "arguments": '{"a": 2}'}, {"name": "add", "description": "Sums."}
    older = [
        CHAT[0],
        message_of("assistant", None, function_call=call),
        message_of("function", "4", name="add"),
        CHAT[1],
    ]
    newer = [
        CHAT[0],
        message_of("assistant", None, tool_calls=[{"function": call}]),
        message_of("tool", "4"),
        CHAT[1],
    ]
    (one,) = encoded("chat", {"messages": older, "functions": [tool]})
    (other,) = encoded("chat", {"messages": newer, "tools": [{"type": "function", "function": tool}]})
    assert decoded(one["input_ids"]) == decoded(other["input_ids"])
    assert '"arguments": {"a": 2}' in decoded(one["input_ids"]) and "Sums." in decoded(one["input_ids"])


@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_a_system_message_beside_the_messages_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"'{name}' is not read"):
        encoded("chat", {"messages": CHAT, name: "Be brief."})


def test_a_template_that_always_fails_is_named_and_no_row_is_left_out_for_it(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": CHAT, "tools": [{"name": "f"}]}) + "\n")
    line = "{{ tools | tojson(nothing=1) if tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "t.jinja").write_text(line)
    config = BuildConfig(
        tokenizer=str(tokenizer), format="chat", chat_template=str(tmp_path / "t.jinja"), drop=("unusable",)
    )
    with pytest.raises(DataError, match=r"the chat template \(.*t.jinja\) cannot render it: .*'nothing'"):
        build_dataset([tmp_path / "rows.jsonl"], tmp_path / "out", config, workers=1)


def test_what_a_row_hands_to_the_template_and_the_day_are_in_the_text() -> None:
    source = (
        "{{ strftime_now('%d %b') }} {{ tools[0].name }} {{ style }}{% for m in messages %}|{{ m.content }}{% endfor %}"
    )
    template = ChatTemplate(source, {}, where="mine", day=date(2026, 11, 22))
    row = {"messages": CHAT, "tools": '[{"name": "add"}]', "chat_template_kwargs": {"style": "terse"}}
    (found,) = encoded("chat", row, template=template)
    assert decoded(found["input_ids"]) == "22 Nov add terse|two and two?|four"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages.__class__.__mro__ }}", "is unsafe"),
        ("{% for m in messages %}{{ m.content.nothing.at_all }}{% endfor %}", "no attribute"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ strftime_now('%d %b %Y') }}", "'strftime_now' is undefined.*--chat-date"),
        ("{% for m in messages %}{{ m }}{% endfor %}{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_template_that_cannot_render_a_row_is_named_with_it(template: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"here: the chat template \(mine\) cannot render it: .*{message}"):
        encoded("chat", {"messages": CHAT}, template=ChatTemplate(template, {}, where="mine"))


@pytest.mark.parametrize(
    ("format", "row", "message"),
    [
        ("chat", {"messages": CHAT[:1]}, "no message is the assistant's"),
        (
            "chat",
            {"messages": [CHAT[0], message_of("assistant", "four", weight=0)]},
            "every assistant .* weight 0",
        ),
        (
            "chat",
            {"messages": [CHAT[0], message_of("assistant", " ")]},
            "message 2: the assistant says nothing",
        ),
        (
            "chat",
            {"messages": [message_of("human", "hi"), CHAT[1]]},
            r"messages\[0\]: the role is 'human'.*'user'",
        ),
        ("chat", {"messages": [message_of("asistant", "hi")]}, "meant 'assistant'"),
        ("chat", {"messages": [{"from": "human", "value": "hi"}]}, "'from' and 'value'"),
        ("chat", {"messages": [message_of("user", None), CHAT[1]]}, "has no 'content'"),
        (
            "chat",
            {"messages": [message_of("user", [{"type": "image_url"}]), CHAT[1]]},
            "parts that are not text",
        ),
        ("chat", {"messages": [CHAT[0], message_of("assistant", "x", weight=0.5)]}, "'weight' is 0.5"),
        ("chat", {"messages": CHAT, "tools": "[{"}, "'tools' is not JSON"),
        ("chat", {"messages": CHAT, "tools": {"name": "f"}}, "'tools' is not a list of objects"),
        ("chat", {"messages": CHAT, "tools": ["f"]}, "'tools' is not a list of objects"),
        ("chat", {"messages": CHAT, "functions": [3]}, "'functions' is not a list of objects"),
        ("chat", {"messages": CHAT, "prompt": "five?"}, "'prompt' .'five.'. is in none of the messages"),
        ("chat", {"messages": CHAT, "system": ["Be brief."]}, "'system' is not read"),
        ("chat", {"messages": CHAT, "chat_template_kwargs": 3}, "is a number; expected an object"),
        ("chat", {"messages": "hi"}, "'messages' is text where messages are expected"),
        ("chat", {"messages": 3}, "is a number; expected a list of messages"),
        ("chat", {"prompt": "hi", "completion": " "}, "'completion' is empty"),
        ("chat", {"prompt": "hi"}, "has 'prompt' and no 'completion'"),
        ("chat", {"prompt": "hi", "completion": "a \ud83d"}, "a lone surrogate"),
        ("chat", {"prompt": CHAT[:1], "completion": "four"}, "'completion' is text where messages"),
        ("pairs", {"prompt": "hi", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
        ("pairs", {"prompt": "hi", "chosen": "a", "rejected": ""}, "'rejected' is empty"),
        ("pairs", {"prompt": "hi", "chosen": "a"}, "has 'chosen' and no 'rejected'"),
        ("pairs", {"prompt": "hi", "chosen": "a", "rejected": "b", "margin": "much"}, "'margin' is 'much'"),
        ("pairs", {"prompt": "hi", "chosen": "a", "rejected": CHAT[1:]}, "one of chosen and rejected is text"),
        (
            "pairs",
            {"prompt": "five?", "chosen": CHAT, "rejected": [CHAT[0], message_of("assistant", "no")]},
            "'prompt' .'five.'. is in none of the messages",
        ),
        ("pairs", {"chosen": CHAT, "rejected": CHAT}, "chosen and rejected are the same"),
        ("pairs", {"chosen": CHAT, "rejected": [message_of("user", "?"), CHAT[1]]}, "different prompts"),
        ("prompts", {"messages": CHAT}, "a prompt ends before the completion"),
        ("prompts", {"prompt": "hi", "score": float("nan")}, "is not JSON"),
    ],
)
def test_a_bad_row_is_one_clear_error(format: Format, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^here: .*{message}.*"):
        encoded(format, row)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds in threads: what processes are like is another test's."""
    monkeypatch.setattr(build_module, "ProcessPool", ThreadPool)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder as Hugging Face has it."""
    folder = tmp_path / "model"
    folder.mkdir()
    TOKENIZER.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    return folder


def build(tmp_path: Path, rows: Path, tokenizer: Path, format: Format, **config: Any) -> Dataset:
    if format not in ("text", "labelled"):
        config = {"chat_template": "chatml", **config}
    settings = BuildConfig(tokenizer=str(tokenizer), format=format, **config)
    build_dataset([rows], tmp_path / f"{rows.stem}-{format}", settings, workers=1)
    return Dataset.open(tmp_path / f"{rows.stem}-{format}")


def rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    columns = list(dataset.manifest.columns)
    groups = range(len(dataset.groups))
    return [row for group in groups for row in dataset.read_row_group(group, columns).to_pylist()]


PROMPT, GOOD, BAD = [CHAT[0]], [CHAT[1]], [message_of("assistant", "five")]


def test_the_words_of_trl_and_of_openai_for_a_pair_make_one_dataset(tmp_path: Path, tokenizer: Path) -> None:
    explicit = {"prompt": PROMPT, "chosen": GOOD, "rejected": BAD, "margin": 2.0}
    openai = {
        "input": {"messages": PROMPT, "tools": None},
        "preferred_output": GOOD,
        "non_preferred_output": BAD,
    }
    rows_by_form = {
        "explicit.jsonl": explicit,
        "whole.jsonl": {"chosen": [*PROMPT, *GOOD], "rejected": [*PROMPT, *BAD], "margin": 2},
        "said-twice.jsonl": {
            "prompt": "?",
            "chosen": [*PROMPT, *GOOD],
            "rejected": [*PROMPT, *BAD],
            "margin": 2,
        },
        "of-text.jsonl": {"prompt": PROMPT[0]["content"], "chosen": GOOD, "rejected": BAD, "margin": 2},
        "openai.jsonl": {**openai, "margin": "2"},
        "openai.parquet": {**openai, "margin": 2.0},
    }
    found = []
    for name, row in rows_by_form.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        found.append(rows_of(build(folder, write(folder / name, [row]), tokenizer, "pairs")))
    assert all(rows == found[0] for rows in found)
    ((row,), *_) = found
    assert decoded(row["input_ids"][row["prompt_tokens"] :]) == f"four{STOP}\n"
    assert decoded(row["rejected_ids"][row["prompt_tokens"] :]) == f"five{STOP}\n"
    assert row["margin"] == 2.0


def test_a_prompt_that_completions_repeat_is_in_a_row_once() -> None:
    (once,) = encoded("pairs", {"prompt": PROMPT, "chosen": GOOD, "rejected": BAD})
    (twice,) = encoded("pairs", {"prompt": PROMPT, "chosen": [*PROMPT, *GOOD], "rejected": [*PROMPT, *BAD]})
    assert {name: list(once[name]) for name in ("input_ids", "rejected_ids")} == {
        name: list(twice[name]) for name in ("input_ids", "rejected_ids")
    }


def without_accents(folder: Path) -> Path:
    folder.mkdir()
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "<|endoftext|>": 1, "the": 2, "fox": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens(["<|endoftext|>"])
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


def lower_case(folder: Path) -> Path:
    folder.mkdir()
    lower = Tokenizer.from_str(TOKENIZER.to_str())
    lower.normalizer = normalizers.Lowercase()
    lower.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("words", "second"), [(without_accents, "the café"), (lower_case, "the Fox")])
def test_rows_that_a_tokenizer_cannot_write_as_they_are_are_counted(tmp_path: Path, words, second: str) -> None:
    rows = write(tmp_path / "rows.jsonl", [{"text": "the  fox"}, {"text": second}, {"text": f"{second} fox"}])
    found = build(tmp_path, rows, words(tmp_path / "words"), "text", end_token="").manifest.build
    assert found is not None and found.num_altered == 2
    assert "line 2: " in found.first_altered and " became " in found.first_altered


def test_labelled_rows_with_unknown_words_are_counted(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", [{"text": "the fox", "label": 0}, {"text": "a fox", "label": 1}])
    found = build(tmp_path, rows, without_accents(tmp_path / "words"), "labelled").manifest.build
    assert found is not None and found.num_altered == 1 and "line 2: " in found.first_altered


def test_fields_that_no_part_of_a_dataset_is_made_of_are_named(tmp_path: Path, tokenizer: Path) -> None:
    others = {"history": [["a", "b"]], "input": "c", "tools": None}
    rows = write(tmp_path / "rows.jsonl", [{"prompt": "hi", "completion": "ho", **others}])
    found = build(tmp_path, rows, tokenizer, "chat", metadata_fields=("input",)).manifest.build
    assert found is not None and found.unread_fields == ("history",)


@pytest.mark.parametrize("names", [("default", "tool_use"), ("tool_use",)])
@pytest.mark.parametrize("as_list", [True, False])
def test_of_several_templates_the_default_is_used(tmp_path: Path, tokenizer: Path, names, as_list) -> None:
    named = {name: f"{name}:{{{{ messages[0].content }}}}" for name in names}
    listed = [{"name": name, "template": source} for name, source in named.items()]
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed if as_list else named}))
    if "default" in names:
        found = tokenizer_template(tokenizer, {})
        assert found is not None and found.source.startswith("default:")
    else:
        with pytest.raises(ConfigError, match=r"has chat templates \(tool_use\), and none is 'default'"):
            tokenizer_template(tokenizer, {})


def test_a_prompt_keeps_what_graders_read(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"prompt": PROMPT, "answer": "4", "meta": {"level": 1}}]
    lines = rows_of(build(tmp_path, write(tmp_path / "a.jsonl", rows), tokenizer, "prompts"))
    table = rows_of(build(tmp_path, write(tmp_path / "b.parquet", rows), tokenizer, "prompts"))
    assert json.loads(lines[0]["item"]) == json.loads(table[0]["item"]) == rows[0]
    assert decoded(lines[0]["input_ids"]).endswith(f"{START}assistant\n")
    named = [{"messages": PROMPT, "item": {"answer": "4"}}]
    (row,) = rows_of(build(tmp_path, write(tmp_path / "c.jsonl", named), tokenizer, "prompts"))
    assert json.loads(row["item"]) == {"answer": "4"}


def test_a_manifest_counts_the_fields_that_graders_find(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"prompt": "a?", "answer": "4"}, {"prompt": "b?", "answer": None}, {"prompt": "c?", "level": 1}]
    prompts = build(tmp_path, write(tmp_path / "a.jsonl", rows), tokenizer, "prompts")
    assert prompts.manifest.item_fields == {"prompt": 3, "answer": 1, "level": 1}
    chats = build(tmp_path, write(tmp_path / "b.jsonl", [{"messages": CHAT}]), tokenizer, "chat")
    assert chats.manifest.item_fields is None


def test_a_dataset_holds_its_tokenizer_special_tokens_and_template(tmp_path: Path, tokenizer: Path) -> None:
    dataset = build(tmp_path, write(tmp_path / "a.jsonl", [{"messages": CHAT}]), tokenizer, "chat")
    manifest = dataset.manifest
    assert manifest.format == "chat" and set(manifest.columns) == {"input_ids", "trained_spans"}
    assert (dataset.folder / "chat_template.jinja").read_text() == SHIPPED["chatml"]
    copied = (tokenizer / "tokenizer_config.json").read_bytes()
    assert (dataset.folder / "tokenizer_config.json").read_bytes() == copied
    assert manifest.chat_template_sha256 and manifest.tokenizer_config_sha256 and manifest.tokenizer_sha256
    again = BuildConfig(tokenizer=str(dataset.folder), format="chat")
    assert build_dataset([tmp_path / "a.jsonl"], tmp_path / "again", again).fingerprint == manifest.fingerprint


def test_a_new_tokenizer_has_the_special_tokens_that_will_be_written(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.jsonl", [{"messages": CHAT}] * 3)
    dataset = build(tmp_path, rows, Path("new:300"), "chat")
    tokenizer = Tokenizer.from_file(str(dataset.folder / "tokenizer.json"))
    assert tokenizer.token_to_id(START) is not None
    assert json.loads((dataset.folder / "tokenizer_config.json").read_text())["eos_token"] == STOP
    (row, *_) = rows_of(dataset)
    assert tokenizer.token_to_id(STOP) in row["input_ids"]


def test_rows_that_are_too_long_are_left_out_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    long = [CHAT[0], message_of("assistant", "four " * 50)]
    rows = write(tmp_path / "a.jsonl", [{"messages": CHAT}, {"messages": long}, {"messages": long}])
    dataset = build(tmp_path, rows, tokenizer, "chat", max_tokens=40, rows_per_shard=2)
    summary = dataset.manifest.build
    assert summary is not None
    assert (dataset.manifest.num_rows, summary.num_long, summary.num_read) == (1, 2, 3)
    assert "line 2" in summary.first_long
    again = build(tmp_path, rows, tokenizer, "chat", max_tokens=40, rows_per_shard=2)
    assert again.manifest == dataset.manifest
    other = tmp_path / "other.jinja"
    other.write_text(SHIPPED["chatml"].replace("assistant\\n", "assistant: "))
    another = build(tmp_path, rows, tokenizer, "chat", max_tokens=40, chat_template=str(other))
    assert another.fingerprint != dataset.fingerprint and another.manifest.num_rows == 1
    with pytest.raises(DataError, match="no row is left: 3 are longer than 8 tokens"):
        build(tmp_path, rows, tokenizer, "chat", max_tokens=8)


def test_rows_that_teach_nothing_stop_the_build_or_are_left_out(tmp_path: Path, tokenizer: Path) -> None:
    rows = write(tmp_path / "a.jsonl", [{"messages": CHAT}, {"messages": CHAT[:1]}, {"messages": None}])
    with pytest.raises(DataError, match=r"line 2: no message is the assistant's.*Fix the row, .* '--drop unusable'"):
        build(tmp_path, rows, tokenizer, "chat")
    assert not (tmp_path / "a-chat").exists()
    summary = build(tmp_path, rows, tokenizer, "chat", drop=("unusable",)).manifest.build
    assert summary is not None
    assert (summary.num_unusable, summary.num_empty, summary.num_read) == (1, 1, 3)
    assert summary.first_unusable.endswith("line 2: no message is the assistant's: there is nothing to learn.")


@pytest.mark.parametrize(
    ("format", "row", "config", "message"),
    [
        ("chat", {"input": CHAT, "chosen": "a", "rejected": "b"}, {}, "no row has 'messages'.*--format pairs"),
        ("chat", {"conversations": CHAT}, {}, "no row has 'messages'.*meant 'conversations' to be 'messages'"),
        ("pairs", {"prompt": "a", "chosen": "b", "reject": "c"}, {}, "'rejected'.*meant 'reject'"),
        ("chat", {"messages": CHAT}, {"chat_template": None}, "comes with no chat template.*chatml"),
        ("chat", {"messages": CHAT}, {"chat_template": "chatl"}, "no template has that name.*chatml"),
        ("text", {"text": "a"}, {"end_token": "</s>"}, "has no token </s>.*--end-token"),
    ],
)
def test_what_is_asked_wrongly_is_said_before_anything_is_written(
    tmp_path: Path, tokenizer: Path, format: Format, row: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssayError, match=message):
        build(tmp_path, write(tmp_path / "a.jsonl", [row]), tokenizer, format, **config)
    assert not (tmp_path / f"a-{format}").exists()


def test_a_template_of_another_tokenizer_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    train_tokenizer(["two and two"], vocab_size=300).save(str(tokenizer / "tokenizer.json"))
    (tokenizer / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"writes <\|im_start\|>, which is no token of .*another tokenizer's"):
        build(tmp_path, write(tmp_path / "a.jsonl", [{"messages": CHAT}]), tokenizer, "chat")


@pytest.mark.parametrize(
    "config",
    [
        {"format": "chat", "label_field": "label"},
        {"format": "pairs", "metadata_fields": ("margin",)},
        {"format": "text", "chat_template": "chatml"},
        {"end_token": "</s>"},
    ],
)
def test_what_a_format_has_no_use_for_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BuildConfig(tokenizer="new:300", **config)


def test_copies_of_a_prompt_are_in_one_group(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"prompt": "two?", "completion": text} for text in ("four", "five")]
    rows += [{"prompt": "", "completion": text} for text in ("six", "seven")]
    dataset = build(tmp_path, write(tmp_path / "a.jsonl", rows), tokenizer, "chat", key_is_text=True)
    keys = [row["shard_id"] for row in rows_of(dataset)]
    assert keys[0] == keys[1] and len(set(keys)) == 3


PAIRS = [
    {"prompt": "q" * (n % 5), "chosen": "yes " * (1 + n % 7), "rejected": "no " * (1 + n % 4) + str(n)}
    for n in range(60)
]


@pytest.mark.parametrize("budget", [None, 64])
def test_the_loader_serves_every_pair_once_with_its_columns(tmp_path: Path, tokenizer: Path, budget) -> None:
    dataset = build(tmp_path, write(tmp_path / "a.jsonl", PAIRS), tokenizer, "pairs", rows_per_group=7)
    retained = rows_of(dataset)
    lengths = [(len(row["input_ids"]), len(row["rejected_ids"])) for row in retained]
    assert dataset.manifest.num_tokens == sum(map(sum, lengths))
    assert dataset.manifest.lengths.max == max(map(max, lengths))
    trained = dataset.manifest.num_trained_tokens
    assert trained == sum(map(sum, lengths)) - 2 * sum(row["prompt_tokens"] for row in retained)
    config = LoaderConfig(lanes=2, global_batch_size=8, window_rows=16, max_micro_batch_tokens=budget)
    loader = Loader(whole_view(dataset), config, ("rejected_ids", "prompt_tokens", "margin"))
    seen = []
    for share in loader.shares(Cursor(epoch=0, step_in_epoch=0), range(2), loader.steps_per_epoch):
        for batch in (batch for lane in share.lanes for batch in lane.micro_batches):
            chosen, rejected = batch.tokens, batch.ragged["rejected_ids"]
            assert batch.num_tokens == chosen.lengths.sum() + rejected.lengths.sum()
            padded = 2 * len(batch.row_ids) * max(chosen.lengths.max(), rejected.lengths.max())
            assert budget is None or len(batch.row_ids) == 1 or padded <= budget
            for line, row in enumerate(batch.row_ids.tolist()):
                whole = retained[row]
                assert chosen.values[line, : chosen.lengths[line]].tolist() == whole["input_ids"]
                assert rejected.values[line, : rejected.lengths[line]].tolist() == whole["rejected_ids"]
                assert batch.columns["prompt_tokens"][line].as_py() == whole["prompt_tokens"]
                seen.append(row)
    assert sorted(seen) == list(range(len(retained)))
    windows = range(loader.geometry.num_windows)
    expected = [loader.rows_of_window(0, lane, window) for lane in range(2) for window in windows]
    assert receipt(np.array(seen, np.uint64)) == receipt(np.concatenate(expected))
    with pytest.raises(ConfigError, match="pairs cannot be packed"):
        packed = config.model_copy(update={"layout": PackedLayout(type="packed", sequence_tokens=64)})
        Loader(whole_view(dataset), packed, ("rejected_ids",))


def test_spans_of_a_chat_come_ragged_packed_or_not(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"messages": CHAT * (1 + n % 3)} for n in range(12)]
    dataset = build(tmp_path, write(tmp_path / "a.jsonl", rows), tokenizer, "chat")
    retained = rows_of(dataset)
    for layout in ({}, {"layout": PackedLayout(type="packed", sequence_tokens=96)}):
        loader = Loader(whole_view(dataset), LoaderConfig(lanes=1, global_batch_size=4, **layout), ("trained_spans",))
        served = {}
        for share in loader.shares(Cursor(epoch=0, step_in_epoch=0), range(1), loader.steps_per_epoch):
            for batch in share.lanes[0].micro_batches:
                spans = batch.ragged["trained_spans"]
                for line, row in enumerate(batch.row_ids.tolist()):
                    served[row] = spans.values[line, : spans.lengths[line]].tolist()
        assert served == {row: retained[row]["trained_spans"] for row in range(12)}
    pieces = [np.array(row["trained_spans"]).reshape(-1, 2) for row in retained]
    assert dataset.manifest.num_trained_tokens == sum(int(np.diff(piece).sum()) for piece in pieces)


WRONG_SPANS = [[0], [0, 0], [2, 1], [0, 2, 1, 3], [0, 9], [], [-1, 1]]


@pytest.mark.parametrize("spans", WRONG_SPANS)
def test_adopted_spans_that_are_none_are_named(tmp_path: Path, spans: list[int]) -> None:
    table = {"input_ids": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int32()))}
    table["trained_spans"] = pa.array([[0, 1, 1, 3], spans], pa.list_(pa.int32()))
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: row group 0: row 1: trained_spans is not pairs"):
        index_dataset(str(tmp_path), tmp_path / "out", needs_label=False)


@pytest.mark.parametrize(
    ("rejected", "shared", "message"),
    [
        ([[1, 9], [4, 5]], [1, 2], "row 1: .* so that a completion is empty"),
        ([[1, 9], [4, 5, 6, 7]], [1, 3], "row 1: .* so that a completion is empty"),
        ([[1, 9], [4, 5, 7]], [1, -1], "row 1: .* so that a completion is empty"),
        ([[1, 9], [5, 5]], [1, 1], "row 1: .* do not begin with the same prompt_tokens"),
        ([[1, 9], [4, 5, 6]], [1, 1], "row 1: what was chosen is what was rejected"),
        ([[1, 9], []], [1, 0], "row 1 has no tokens in rejected_ids"),
        ([[1, 9], [4, None]], [1, 1], "1 token in rejected_ids is null"),
        ([[1, 9], [4]], None, "column 'prompt_tokens' is missing"),
    ],
)
def test_adopted_pairs_that_are_none_are_named(tmp_path: Path, rejected, shared, message: str) -> None:
    table = {"input_ids": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int32()))}
    table["rejected_ids"] = pa.array(rejected, pa.list_(pa.int32()))
    if shared is not None:
        table["prompt_tokens"] = pa.array(shared, pa.int32())
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(AssayError, match=message):
        index_dataset(str(tmp_path), tmp_path / "out", needs_label=False)


def test_examples_show_what_a_model_reads_and_what_of_it_is_trained(tmp_path: Path, tokenizer: Path) -> None:
    chats = [{"messages": CHAT}, {"messages": [message_of("user", "🙂?"), message_of("assistant", "🙂!")]}] * 3
    dataset = build(tmp_path, write(tmp_path / "a.jsonl", chats), tokenizer, "chat", rows_per_group=4)
    found = examples_of(dataset, 5)
    assert [example.name for example in found] == [f"row {row}" for row in range(5)]
    assert "".join(text for text, _ in found[4].parts) == CHATML.render(CHAT, {}, "")
    assert [text for text, is_trained in found[3].parts if is_trained] == [f"🙂!{STOP}"]
    pairs = build(tmp_path, write(tmp_path / "b.jsonl", PAIRS), tokenizer, "pairs")
    (chosen, rejected) = examples_of(pairs, 3)[4:]
    assert (chosen.name, chosen.parts[0]) == ("row 2, chosen", ("qq", False))
    assert rejected.parts[1] == ("no no no 2<|endoftext|>", True)
    prompts = build(tmp_path, write(tmp_path / "c.jsonl", [{"prompt": "a?", "y": 1}]), tokenizer, "prompts")
    (prompt,) = examples_of(prompts, 9)
    assert prompt.parts == (("a?", False),) and json.loads(prompt.item)["y"] == 1


def test_another_rejected_answer_is_another_row(tmp_path: Path, tokenizer: Path) -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    rows = write(tmp_path / "a.jsonl", [pair, {**pair, "rejected": "d"}, pair])
    digests = token_digests(build(tmp_path, rows, tokenizer, "pairs"))
    assert digests[0] == digests[2] != digests[1]
