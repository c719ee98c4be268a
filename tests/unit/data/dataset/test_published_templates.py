"""Published chat templates are rendered as transformers renders them; what the assistant writes is trained."""

import json
import random
from datetime import date
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from assay.base.errors import DataError
from assay.data.dataset.formats.rows import RowReader
from assay.data.dataset.formats.template import SHIPPED, ChatTemplate, Rendered

FOLDER = Path(__file__).parent / "published_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Which city"}},
                "required": ["city"],
            },
        },
    }
]
WITHOUT_TOOLS = {"gemma_3", "phi_3_5", "smollm3", "deepseek_v3"}
"""Their templates leave out `tools`, or the calls."""
PLAIN_ENDS = {
    "deepseek_v3": "<｜end▁of▁sentence｜>", "gemma_3": "<end_of_turn>\n", "glm_4_6": "",
    "kimi_k2": "<|im_end|>",
    "llama_3_1": "<|eot_id|>", "minimax_m2": "[e~[\n", "mistral_small_3_2": "</s>", "phi_3_5": "<|end|>\n",
    "qwen_2_5": "<|im_end|>\n", "qwen_3": "<|im_end|>\n", "smollm3": "<|im_end|>\n", "chatml": "<|im_end|>",
}  # fmt: skip
BEGINS = {"glm_4_6": ("\n<think></think>\n",) * 2, "qwen_3": ("", "<think>\n\n</think>\n\n")}
"""What the assistant writes before its words, in an earlier turn and in the last."""
JSON_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lo\\"ndon é", "days": 2}}\n</tool_call>'
XML_CALL = '<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Lo"ndon é</arg_value>\n'
CALLS = {
    "chatml": JSON_CALL,
    "qwen_2_5": JSON_CALL,
    "qwen_3": JSON_CALL,
    "llama_3_1": '{"name": "get_weather", "parameters": {"city": "Lo\\"ndon é", "days": 2}}',
    "mistral_small_3_2": '[TOOL_CALLS]get_weather[CALL_ID]abcdefgh0[ARGS]{"city": "Lo\\"ndon é", "days": 2}',
    "glm_4_6": f"\n<think></think>\n{XML_CALL}<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Lo\\"ndon é", "days": 2}<|tool_call_end|><|tool_calls_section_end|>',
    "minimax_m2": '\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Lo"ndon é'
    '</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Lo\\"ndon é", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}


def message_of(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str = "kimi_k2", **arguments: Any) -> dict[str, Any]:
    number = "abcdefgh0" if name.startswith("mistral") else "functions.get_weather:0"
    function = {"name": "get_weather", "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": number, "type": "function", "function": function}


def with_call(name: str) -> list[dict[str, Any]]:
    tool_call = call(name, city='Lo"ndon é', days=2)
    return [
        message_of("user", "Is it sunny?"),
        message_of("assistant", None, tool_calls=[tool_call]),
        message_of("tool", "rainy", tool_call_id=tool_call["id"]),
        message_of("assistant", "No."),
    ]


PLAIN = [
    message_of("user", "yes"),
    message_of("assistant", "yes"),
    message_of("user", "yes\n no"),
    message_of("assistant", "no\n\nyes"),
]


@cache
def template(name: str) -> ChatTemplate:
    source = SHIPPED[name] if name in SHIPPED else (FOLDER / f"{name}.jinja").read_text()
    return ChatTemplate(source, SPECIAL, where=name, day=date.today())


def rendered(name: str, row: dict[str, Any]) -> Rendered:
    rendered_row = RowReader("chat", "", template(name), "").read(row, "here")
    assert rendered_row is not None
    return rendered_row.sequences[0]


def trained(found: Rendered) -> list[str]:
    return [found.text[begin:end] for begin, end in found.spans]


def by_transformers(name: str, messages: list[dict[str, Any]], tools: Any = None) -> str:
    """With arguments as the template reads them, and content that no template writes as `None`."""
    plain = []
    for message in messages:
        calls = json.loads(json.dumps(message.get("tool_calls", [])))
        for tool_call in calls:
            if name != "deepseek_v3":  # which joins the arguments to text
                tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])
        plain.append({**message, "content": message["content"] or "", **({"tool_calls": calls} if calls else {})})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    written: str = tokenizer.apply_chat_template(
        plain, tools=tools, chat_template=template(name).source, tokenize=False
    )
    return written


@pytest.mark.parametrize("name", [*NAMES, "chatml"])
def test_a_plain_conversation_is_rendered_as_transformers_does_and_trained_where_the_assistant_writes(
    name: str,
) -> None:
    found = rendered(name, {"messages": PLAIN})
    assert found.text == by_transformers(name, PLAIN)
    first, last = BEGINS.get(name, ("", ""))
    end = PLAIN_ENDS[name]
    assert trained(found) == [f"{first}yes{end}", f"{last}no\n\nyes{end}"]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_calls_are_rendered_as_transformers_does_and_trained_with_their_end(name: str) -> None:
    tools = None if name in WITHOUT_TOOLS else TOOLS
    found = rendered(name, {"messages": with_call(name), "tools": tools})
    assert found.text == by_transformers(name, with_call(name), tools)
    last, end = BEGINS.get(name, ("", ""))[1], PLAIN_ENDS[name]
    assert trained(found) == [f"{CALLS[name]}{end}", f"{last}No.{end}"]


@pytest.mark.parametrize("name", sorted(WITHOUT_TOOLS))
def test_a_template_that_leaves_out_tools_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"leaves out 'tools'|cannot render it"):
        rendered(name, {"messages": with_call(name), "tools": TOOLS})


@pytest.mark.parametrize("name", ["qwen_3", "glm_4_6", "minimax_m2"])
def test_reasoning_that_a_template_drops_refuses_a_trained_turn_and_is_counted_in_others(name: str) -> None:
    messages = [
        message_of("user", "yes"),
        message_of("assistant", "no", reasoning_content="because"),
        message_of("user", "yes"),
        message_of("assistant", "yes", reasoning_content="so it is"),
    ]
    with pytest.raises(DataError, match=r"message 2: .* 'reasoning_content': 'because'.* weight 0"):
        rendered(name, {"messages": messages})
    messages[1]["weight"] = 0
    found = rendered(name, {"messages": messages})
    assert found.num_dropped == 1 and "because" not in found.text
    assert len(found.spans) == 1 and "so it is" in trained(found)[0]


def conversation(rng: random.Random) -> tuple[dict[str, Any], list[list[str]]]:
    """A random conversation, and the words of each message that are in no other."""
    words: list[list[str]] = []
    numbers = count()

    def text(*, may_be_empty: bool = False) -> str:
        if may_be_empty and rng.random() < 0.3:
            return ""
        number = f"w{next(numbers)}z"
        words[-1].append(number)
        around = [
            "yes",
            "  ",
            "\n\n",
            '{"a": [1]}',
            "é",
            "日本",
            "`x`",
            "<b>",
            "\\n",
            "'",
            "assistant",
            "user\n",
        ]
        return "".join([*rng.choices(around, k=rng.randrange(4)), number, *rng.choices(around, k=rng.randrange(4))])

    messages: list[dict[str, Any]] = []
    for role in ("system", "user") if rng.random() < 0.4 else ("user",):
        words.append([])
        messages.append(message_of(role, text()))
    for turn in range(rng.randrange(1, 4)):
        if turn:
            words.append([])
            messages.append(message_of("user", text()))
        words.append([])
        message = message_of("assistant", text(), weight=rng.randrange(2))
        if rng.random() < 0.3:
            message["reasoning_content"] = text()
        if rng.random() < 0.4:
            message["content"] = rng.choice([None, text(may_be_empty=True)])
            calls = [call(city=text(), more={"deep": [text(), 1, None]}) for _ in range(rng.randrange(1, 3))]
            if rng.random() < 0.5:
                calls[0]["id"] = "abcdefgh0"
            message["tool_calls"] = calls
            words[-1] = [word for word in words[-1] if word in json.dumps(message)]
            messages.append(message)
            for tool_call in calls:
                words.append([])
                messages.append(message_of("tool", text(), tool_call_id=tool_call["id"]))
            words.append([])
            message = message_of("assistant", text())
        messages.append(message)
    messages[-1]["weight"] = 1
    return {"messages": messages, **({"tools": TOOLS} if rng.random() < 0.4 else {})}, words


@pytest.mark.parametrize("name", [*NAMES, "chatml"])
def test_everything_that_is_said_is_rendered_in_order_and_trained_where_it_belongs_or_the_row_is_refused(
    name: str,
) -> None:
    num_rendered = 0
    for seed in range(40):
        row, words = conversation(random.Random(seed))
        try:
            found = rendered(name, row)
        except DataError as error:
            assert name != "chatml", (seed, error)
            continue
        num_rendered += 1
        is_trained = [message["role"] == "assistant" and message.get("weight") != 0 for message in row["messages"]]
        assert len(found.spans) == sum(is_trained), seed
        for own, is_turn_trained, message in zip(words, is_trained, row["messages"], strict=True):
            for word in own:
                is_present = word in found.text or (
                    not is_turn_trained and word in message.get("reasoning_content", "")
                )
                assert is_present, (seed, word)
                assert any(word in text for text in trained(found)) == (is_turn_trained and is_present), (
                    seed,
                    word,
                )
        users = [
            word
            for own, message in zip(words, row["messages"], strict=True)
            if message["role"] != "system"
            for word in own
        ]
        present = [word for word in users if word in found.text]
        order = sorted(present, key=found.text.index)
        owner = {word: index for index, own in enumerate(words) for word in own}
        assert [owner[word] for word in order] == sorted(owner[word] for word in present), seed
    assert num_rendered >= 4
