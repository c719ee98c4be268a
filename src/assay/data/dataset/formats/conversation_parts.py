"""Locates each part of a conversation in its rendered text.

    messages --marks around every part--> template --> text with marks --> part -> [begin, end) of characters

Marks are Unicode noncharacters that encode the number of a part. So a part is found even if the template escapes
it, and is not confused with another part of equal text.
"""

import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import eq
from typing import Any, NamedTuple

Message = Mapping[str, Any]
Span = tuple[int, int]
"""[begin, end) of characters."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message's reasoning that transformers knows."""
OPEN, CLOSE, _BEGIN, _END = "\ufdd0\ufdd1\ufdd2\ufdd3"
"""Marks around generated text, and around a part, whose number follows in `_DIGITS`."""
GUARD = "\ufdd4"
"""Inserted into a control token, so that it is encoded as text."""
_DIGITS = "".join(map(chr, range(0xFDE0, 0xFDF0)))
RESERVED = re.compile("[\ufdd0-\ufdef]")
"""The noncharacters that marks use; input texts must not contain them."""
_MARK = re.compile(f"([{OPEN}{CLOSE}])|([{_BEGIN}{_END}])([{_DIGITS}]{{4}})")
_ESCAPED = re.compile(r"\\ufdd[23](?:\\ufde[0-9a-f]){4}")
"""A mark as ASCII JSON and Python's repr escape it."""
_NO_SCHEMA = ("properties", "required", "type")


def common_length(one: Iterable[Any], other: Iterable[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    return sum(takewhile(bool, map(eq, one, other)))


class ConversationPart(NamedTuple):
    """A piece of text that a conversation contains."""

    message: int
    """Message index; -1 for the tools."""
    name: str
    text: str
    is_reasoning: bool = False
    is_header: bool = False
    """Written before the assistant's text, e.g. the message's name."""
    id_of_call: str = ""
    """The id of the tool call; some templates write only an id, which contains the function's name."""


class MarkedText(NamedTuple):
    """A rendered text without marks, and the spans that they enclosed."""

    text: str
    generated: tuple[Span, ...]
    spans: Mapping[int, Sequence[Span]]
    """Part number -> its spans; only ends are marked for names of arguments."""


@dataclass
class Marker:
    """Puts marks around the parts of one conversation, except tags that the template searches for."""

    tags: re.Pattern[str]
    parts: list[ConversationPart] = field(default_factory=list)
    numbers: list[tuple[ConversationPart, float]] = field(default_factory=list)
    """Numeric arguments, which cannot be marked."""

    def message(self, index: int, message: Message) -> Message:
        marked = dict(message)
        if isinstance(content := message.get("content"), str):
            pieces = self.tags.split(content)
            for at in range(0, len(pieces), 2):
                closing = "".join(pieces[at + 1 : at + 2]).casefold()
                is_thought = closing[1:2] == "/" and "think" in closing
                pieces[at] = self._text(pieces[at], ConversationPart(index, "'content'", "", is_thought))
            marked["content"] = "".join(pieces)
        thoughts: dict[str, str] = {}
        for key in REASONING:
            if isinstance(text := message.get(key), str):
                if text not in thoughts:
                    thoughts[text] = self._text(text, ConversationPart(index, f"'{key}'", "", is_reasoning=True))
                marked[key] = thoughts[text]
        if message["role"] != "tool" and isinstance(name := message.get("name"), str):
            marked["name"] = self._text(name, ConversationPart(index, "'name'", "", is_header=True))
        if calls := message.get("tool_calls"):
            marked["tool_calls"] = [self._call(index, call) for call in calls]
        return marked

    def _call(self, index: int, call: Message) -> Message:
        function = call["function"]
        name = ConversationPart(index, "the name of a tool call", "", id_of_call=str(call.get("id") or ""))
        of = f"of the tool call '{function['name']}'"
        marked = {
            **function,
            "name": self._text(function["name"], name),
            "arguments": self._value(function["arguments"], ConversationPart(index, f"an argument {of}", "")),
        }
        return {**call, "function": marked}

    def tool(self, tool: Any, at: str = "the tools") -> Any:
        """Return a tool definition with marks around its name, descriptions and parameter names."""
        if isinstance(tool, list):
            return [self.tool(item, at) for item in tool]
        if not isinstance(tool, Mapping):
            return tool
        marked = {key: self.tool(value, at) if key not in _NO_SCHEMA else value for key, value in tool.items()}
        for key in ("name", "description"):
            if isinstance(tool.get(key), str):
                marked[key] = self._text(tool[key], ConversationPart(-1, f"'{key}' in {at}", ""))
        if isinstance(properties := tool.get("properties"), Mapping):
            names = {name: self._key(name, ConversationPart(-1, f"a parameter in {at}", "")) for name in properties}
            marked["properties"] = {names[name]: self.tool(schema, at) for name, schema in properties.items()}
            if isinstance(required := tool.get("required"), list):
                marked["required"] = [names.get(name, name) for name in required]
        return marked

    def _value(self, value: Any, part: ConversationPart) -> Any:
        if isinstance(value, str):
            return self._text(value, part)
        if isinstance(value, Mapping):
            return {self._key(key, part): self._value(item, part) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item, part) for item in value]
        self.numbers += [(part, value)] if type(value) in (int, float) else []
        return value

    def _text(self, text: str, part: ConversationPart) -> str:
        """Mark text; surrounding white space stays outside, because templates strip it."""
        if not (core := text.strip()):
            return text
        begin = text.index(core)
        number = self._number(part._replace(text=core))
        return f"{text[:begin]}{_BEGIN}{number}{core}{_END}{number}{text[begin + len(core) :]}"

    def _key(self, text: str, part: ConversationPart) -> str:
        """Mark a key at its end only, because a template may sort keys."""
        return f"{text}{_END}{self._number(part._replace(text=text))}"

    def _number(self, part: ConversationPart) -> str:
        self.parts.append(part)
        return "".join(_DIGITS[int(digit, 16)] for digit in f"{len(self.parts) - 1:04x}")


def read_marks(rendered: str, parts: Sequence[ConversationPart]) -> MarkedText:
    """Remove and interpret marks; a part that the template altered has no span."""
    rendered = _ESCAPED.sub(lambda found: found[0].encode().decode("unicode_escape"), rendered)
    text, position, consumed = [], 0, 0
    generated: list[Span] = []
    ends: dict[int, list[Span]] = defaultdict(list)
    open_at, begins = 0, {}
    for mark in _MARK.finditer(rendered):
        text.append(rendered[consumed : mark.start()])
        position, consumed = position + len(text[-1]), mark.end()
        if mark[1] == OPEN:
            open_at = position
        elif mark[1]:
            generated += [(open_at, position)] if open_at < position else []
        elif mark[2] == _BEGIN:
            begins[mark[3]] = position
        else:
            number = int("".join(f"{_DIGITS.index(digit):x}" for digit in mark[3]), 16)
            ends[number].append((begins.get(mark[3], -1), position))
    text.append(rendered[consumed:])
    whole = "".join(text)
    found = {number: [*_spans_of(whole, parts[number].text, spans)] for number, spans in ends.items()}
    return MarkedText(whole, tuple(generated), {number: spans for number, spans in found.items() if spans})


def _spans_of(whole: str, text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans that hold a part's text, plain or escaped, between its marks or before its only mark."""
    for begin, end in spans:
        first = begin if begin >= 0 else end - len(text)
        if whole[first:end] == text:
            yield first, end
            continue
        forms = (html.escape(text), *(json.dumps(text, ensure_ascii=ascii)[1:-1] for ascii in (True, False)))
        if begin < 0:
            yield from ((end - len(form), end) for form in forms if whole.endswith(form, 0, end))
        elif whole[begin:end] in forms:
            yield begin, end
