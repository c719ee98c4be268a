"""Renders a conversation with a chat template, and finds the spans of the assistant's turns.

    messages --template--> text, [begin, end) of each assistant turn

Templates are untrusted: they run in Jinja's sandbox with limits on time and memory, and read only the messages,
the tools and the special tokens. They have no clock, so that rows render the same on every day; a template that
needs today's date gets a configured one.

The spans of assistant turns come from the template's own marks ({% generation %}). Without marks, a turn begins
where the text rendered for the preceding turns, with the generation prompt, ends. A template that rewrites
earlier turns (e.g. drops their reasoning) has no such prefix, and is rejected.
"""

import json
import re
import resource
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.formats.conversation_parts import (
    CLOSE,
    GUARD,
    OPEN,
    REASONING,
    ConversationPart,
    MarkedText,
    Marker,
    Message,
    Span,
    read_marks,
)
from assay.data.dataset.tokens import SETTINGS_FILE, tokenizer_file, tokenizer_settings

TEMPLATE_FILE = "chat_template.jinja"
MAX_SECONDS = 5.0
"""CPU time limit for one conversation, which usually takes a millisecond."""
MAX_BYTES = 1 << 30
"""Memory limit for one conversation."""
SHIPPED = {
    "chatml": """\
{%- if tools -%}
{{ '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if messages[0].role == 'system' else '') }}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are ' }}
{{- 'provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
{{ '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": ' }}
{{- '<args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
{%- elif not (tools and loop.first and message.role == 'system') -%}
{{ '<|im_start|>' + message.role + (' name=' + message.name if message.name else '') + '\\n' }}
{%- if message.role == 'assistant' -%}
{%- generation -%}
{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' if message.reasoning_content }}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>' }}
{%- endgeneration -%}
{%- else -%}
{{ message.content + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
""",
}
"""Built-in templates by name. `chatml` writes tools, calls and results as Hermes and Qwen2.5 do, and reasoning as
Qwen3 does, in every turn; its generation marks include the token that ends the turn."""
ENDS = {"chatml": "<|im_end|>"}
"""End-of-turn token of each built-in template, for newly trained tokenizers."""
MAX_SHOWN = 60
_TAG = re.compile(r"</?[\w:.-]+>|\[/?[A-Z_]+\]")
_THOUGHT = re.compile("think|thought|reason", re.IGNORECASE)
"""Matches generation prompts that open a reasoning block, which templates leave out of earlier turns."""
_UNIT = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,40}\]|.", re.DOTALL)
_SPECIAL = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|<(?:start|end)_of_\w+>")
PROBE = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


class Rendered(NamedTuple):
    """A rendered text, and the spans of the requested turns."""

    text: str
    spans: tuple[Span, ...]
    turns: tuple[int, ...] = ()
    """Message index of each span, if a template rendered messages."""
    num_dropped: int = 0
    """Reasoning parts that the template dropped from turns that are not trained."""


class ChatTemplate:
    """A Jinja chat template with the special tokens that it may use."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, where: str, day: date | None = None) -> None:
        """`day` is today's date for a template that calls `strftime_now`."""
        self.source = source
        self._where = where
        self.named = frozenset(special_tokens.values())
        self._special: dict[str, Any] = {"tools": None, "documents": None, **special_tokens}
        tags = sorted(set(_TAG.findall(source)), key=len, reverse=True)
        self._tags = re.compile(f"({'|'.join(map(re.escape, tags)) or '(?!)'})")
        if day is not None:
            self._special["strftime_now"] = day.strftime
        self._marks = re.search(r"\{%-?\s*generation\b", source) is not None
        try:
            with _bounded():  # Jinja evaluates constant expressions at compile time
                self._template = _compiled(source)
        except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError, _TooLongError) as error:
            raise ConfigError(f"{where}: not a Jinja template: {error}. Fix it, or name another.") from error

    def render(
        self,
        messages: Sequence[Message],
        context: Mapping[str, Any],
        where: str,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        return read_marks(
            self._rendered(messages, context, where, add_generation_prompt=add_generation_prompt), ()
        ).text

    def render_prompt(self, messages: Sequence[Message], context: Mapping[str, Any], where: str) -> Rendered:
        """Render a prompt for the assistant's next turn. Raises `DataError` if the template drops a part of it."""
        marked = self._marked(messages, context, where, add_generation_prompt=True)
        num_dropped = self._dropped(marked, [False] * len(messages), where)
        return Rendered(marked.found.text, (), num_dropped=num_dropped)

    def render_conversation(
        self, messages: Sequence[Message], is_trained_turn: Sequence[bool], context: Mapping[str, Any], where: str
    ) -> Rendered:
        """Render a whole conversation with the spans of the assistant turns selected by `is_trained_turn`.

        `context` holds further variables of the template, e.g. `tools`. Raises `DataError` if the text lacks a part
        of the conversation; reasoning dropped from turns that are not trained is counted instead.
        """
        marked = self._marked(messages, context, where, add_generation_prompt=False)
        num_dropped = self._dropped(marked, is_trained_turn, where)
        written = {marked.parts[number].message for number in marked.found.spans}
        for index, is_trained in enumerate(is_trained_turn):
            if is_trained and index not in written:
                raise DataError(
                    f"{where}: message {index + 1}: the chat template ({self._where}) writes nothing that it "
                    "says, so what is to be trained cannot be told. Give it weight 0, or name another template."
                )
        if self._marks:
            turn_spans = [*self._marked_spans(marked, is_trained_turn)]
        else:
            turns = [index for index, is_trained in enumerate(is_trained_turn) if is_trained]
            turn_spans = [(self._span(marked, index, where), index) for index in turns]
        spans = [span for span, _ in turn_spans]
        for number, part in enumerate(marked.parts):
            is_trained = part.message >= 0 and is_trained_turn[part.message] and not part.is_header
            if is_trained and not any(
                begin <= first and last <= end
                for begin, end in spans
                for first, last in marked.found.spans.get(number, ())
            ):
                raise DataError(
                    f"{where}: message {part.message + 1}: {part.name} ({_short(part.text)}) is outside of "
                    f"what the chat template ({self._where}) marks with {{% generation %}}, so it would not be "
                    "trained. Give the message weight 0, or name another template (--chat-template)."
                )
        return Rendered(marked.found.text, tuple(spans), tuple(turn for _, turn in turn_spans), num_dropped)

    def _marked(
        self, messages: Sequence[Message], context: Mapping[str, Any], where: str, *, add_generation_prompt: bool
    ) -> "_Marked":
        messages = [self._with_arguments(message) for message in messages]
        text = self.render(messages, context, where, add_generation_prompt=add_generation_prompt)
        marker = Marker(self._tags)
        marked = [marker.message(index, message) for index, message in enumerate(messages)]
        marked_context = {**context, "tools": marker.tool(context.get("tools"))}
        found = read_marks(
            self._rendered(marked, marked_context, where, add_generation_prompt=add_generation_prompt), marker.parts
        )
        if found.text != text:
            for part in marker.parts:
                if part.text not in text:
                    self._reject(part, where)
            raise DataError(
                f"{where}: the chat template ({self._where}) cuts, compares or sorts what is said, so it "
                "cannot be told whether all of it is in the text. Name another (--chat-template)."
            )
        for part, value in marker.numbers:
            if str(value) not in text:
                self._reject(part._replace(text=str(value)), where)
        return _Marked(found, marker.parts, marked, marked_context)

    def _dropped(self, marked: "_Marked", is_trained_turn: Sequence[bool], where: str) -> int:
        """Count reasoning parts dropped from turns that are not trained; any other missing part is an error."""
        num_dropped, last_end = 0, 0
        for index in range(-1, len(is_trained_turn)):
            numbers = [number for number, part in enumerate(marked.parts) if part.message == index]
            is_free = index < 0 or marked.messages[index]["role"] in ("system", "developer")
            if index < 0 and numbers and not any(number in marked.found.spans for number in numbers):
                raise DataError(
                    f"{where}: the chat template ({self._where}) leaves out 'tools'. Name one that writes "
                    "them, like chatml (--chat-template), or remove the field from the rows."
                )
            ends = [last_end]
            for number in numbers:
                part = marked.parts[number]
                spans = marked.found.spans.get(number, ())
                match = next((span for span in spans if is_free or span[0] >= last_end), None)
                if match is not None:
                    ends += [match[1]] if not is_free else []
                elif part.is_reasoning and not is_trained_turn[index]:
                    num_dropped += 1
                elif part.text not in part.id_of_call or part.id_of_call not in marked.found.text:
                    self._reject(part, where, is_elsewhere=bool(spans))
            last_end = max(ends)
        return num_dropped

    def _reject(self, part: ConversationPart, where: str, *, is_elsewhere: bool = False) -> NoReturn:
        at = f"message {part.message + 1}: " if part.message >= 0 else ""
        how = "writes before the messages in front of it" if is_elsewhere else "leaves out, or alters"
        why = " Templates drop the reasoning of earlier turns: give these weight 0." if part.is_reasoning else ""
        raise DataError(
            f"{where}: {at}the chat template ({self._where}) {how} {part.name}: {_short(part.text)}.{why} Name "
            "another template (--chat-template), or leave it out."
        )

    def _marked_spans(self, marked: "_Marked", is_trained_turn: Sequence[bool]) -> Iterator[tuple[Span, int]]:
        """Yield the template's generation marks in the selected turns. A mark belongs to the last message that begins
        in or before it."""
        begins = sorted(
            (spans[0][0], marked.parts[number].message)
            for number, spans in marked.found.spans.items()
            if marked.parts[number].message >= 0
        )
        for begin, end in marked.found.generated:
            turn = next((message for first, message in reversed(begins) if first < end), None)
            if turn is not None and is_trained_turn[turn]:
                yield (begin, end), turn

    def _span(self, marked: "_Marked", index: int, where: str) -> Span:
        """Return the span of a turn for a template without marks: from the generation prompt to the end token.

        The text before the turn is compared with the rendered prompt of the turn, and the text after it with the
        conversation that ends there. Templates may render earlier turns differently, but not these two parts.
        """
        messages, found, parts = marked.messages, marked.found, marked.parts
        own = [n for n in found.spans if parts[n].message == index and not parts[n].is_header]
        begin, last = min(found.spans[n][0][0] for n in own), _last(found, own)
        prompt = self._found(marked, messages[:index], where, add_generation_prompt=True)
        before = [n for n in prompt.spans if n in found.spans and found.spans[n][0][0] < begin]
        anchor = _end(found, _last(prompt, before))
        words, between = prompt.text[_end(prompt, _last(prompt, before)) :], found.text[anchor:begin]
        start = _common(words, between)
        if (rest := words[start:].strip()) and not (start and _THOUGHT.search(rest)):
            # The preceding message is rendered differently when it is last; the generation prompt is not.
            silent = self._found(marked, messages[:index], where, add_generation_prompt=False)
            header = prompt.text[_common(prompt.text, silent.text) :]
            if not header.strip() or between.count(header) != 1:
                raise DataError(
                    f"{where}: the chat template ({self._where}) asks for message {index + 1} in other words "
                    "than it writes it with, so what the assistant says cannot be told from the rest. Name one "
                    "that marks it with {% generation %} (--chat-template)."
                )
            start = between.index(header) + len(header)
        stop = _end(found, last)
        remainder, is_last = found.text[stop:], index + 1 == len(messages)
        with suppress(DataError):  # a template may reject a turn after a tool call
            other = [*messages, PROBE[0]] if is_last else messages[: index + 1]
            then = self._found(marked, other, where, add_generation_prompt=False)
            return anchor + start, stop + _common(remainder, then.text[_end(then, last) :])
        return anchor + start, stop + (len(remainder) if is_last else 0)

    def _found(
        self, marked: "_Marked", messages: Sequence[Message], where: str, *, add_generation_prompt: bool
    ) -> MarkedText:
        return read_marks(
            self._rendered(messages, marked.context, where, add_generation_prompt=add_generation_prompt), marked.parts
        )

    def _with_arguments(self, message: Message) -> Message:
        """Convert arguments of tool calls to the form that the template expects: an object, or JSON text."""
        if not message.get("tool_calls") or self._reads_objects:
            return message
        calls = []
        for call in message["tool_calls"]:
            arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            calls.append({**call, "function": {**call["function"], "arguments": arguments}})
        return {**message, "tool_calls": calls}

    @cached_property
    def _reads_objects(self) -> bool:
        """Whether the template expects arguments of tool calls as objects: it does not print them as Python does."""
        with suppress(DataError):
            written = self.render([PROBE[0], _CALL], {}, self._where)
            return "value" in written and "{'key'" not in written
        return False

    @cached_property
    def probe(self) -> str:
        with suppress(DataError):
            return self.render([*PROBE, *PROBE], {}, self._where)
        return ""

    def special_tokens(self) -> tuple[str, ...]:
        """Return the special tokens that the template writes around messages, like `<|im_start|>`."""
        written = self.render(PROBE, {}, self._where, add_generation_prompt=True)
        return tuple(dict.fromkeys(_SPECIAL.findall(written)))

    def check_tokenizer(self, tokenizer: Tokenizer, name: str) -> None:
        for token in self.special_tokens():
            if tokenizer.token_to_id(token) is None:
                raise ConfigError(
                    f"{self._where}: writes {token}, which is no token of {name}: the template is another "
                    "tokenizer's. Name the tokenizer's own (--chat-template FILE), or the tokenizer that it is "
                    "for (--tokenizer)."
                )

    def _rendered(
        self, messages: Sequence[Message], context: Mapping[str, Any], where: str, *, add_generation_prompt: bool
    ) -> str:
        variables = {
            **self._special,
            **context,
            "messages": [_with_reasoning(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with _bounded():
                return self._template.render(variables)
        except MemoryError as error:
            raise DataError(
                f"{where}: the chat template ({self._where}) takes more than {MAX_BYTES >> 20} MiB of memory "
                "for one conversation. Name another template (--chat-template)."
            ) from error
        except _ERRORS as error:
            is_own = type(error) is not TemplateError and str(error) in self._own_errors
            raise (ChatTemplateError if is_own else DataError)(
                f"{where}: the chat template ({self._where}) cannot render it: {error}. {_hint(error)}"
            ) from error

    @cached_property
    def _own_errors(self) -> set[str]:
        """The template's errors on a minimal conversation, with and without tools: they are no fault of a row."""
        found = set()
        for messages in ([*PROBE], [*PROBE, PROBE[0], _CALL, {"role": "tool", "content": "c"}, PROBE[1]]):
            tools = [_TOOL] if len(messages) > len(PROBE) else None
            try:
                with _bounded():
                    self._template.render({**self._special, "messages": messages, "tools": tools})
            except (*_ERRORS, MemoryError) as error:
                found.add(str(error))
        return found


def load_template(name: str, special_tokens: Mapping[str, str], day: date | None = None) -> ChatTemplate:
    """Load a built-in template by name, or a template file."""
    if name in SHIPPED:
        return ChatTemplate(SHIPPED[name], special_tokens, where=name, day=day)
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"--chat-template {name}: no file there, and no template has that name. Name a .jinja file, or one "
            f"of those that come with assay: {', '.join(SHIPPED)}."
        )
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), special_tokens, where=name, day=day)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8. Save the template as UTF-8.") from error


def tokenizer_template(
    tokenizer: str | Path, special_tokens: Mapping[str, str], day: date | None = None
) -> ChatTemplate | None:
    """Return the template that comes with a tokenizer, in a file or in its settings; None if there is none."""
    file = tokenizer_file(tokenizer).parent / TEMPLATE_FILE
    if file.is_file():
        return load_template(str(file), special_tokens, day)
    found = tokenizer_settings(tokenizer).get("chat_template")
    where = str(file.parent / SETTINGS_FILE)
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
    if isinstance(found, dict):  # several by name, of which one is the default
        if found and "default" not in found:
            raise ConfigError(
                f"{where}: has chat templates ({', '.join(map(str, found))}), and none is 'default'. Save one "
                "as a .jinja file and name it (--chat-template)."
            )
        found = found.get("default")
    return ChatTemplate(found, special_tokens, where=where, day=day) if isinstance(found, str) else None


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    return environment().from_string(source)


class _Marked(NamedTuple):
    found: MarkedText
    parts: Sequence[ConversationPart]
    messages: Sequence[Message]
    """The messages with marks; likewise `context`."""
    context: Mapping[str, Any]


def _last(found: MarkedText, numbers: Sequence[int]) -> int | None:
    return max(numbers, key=lambda number: found.spans[number][0][1], default=None)


def _end(found: MarkedText, number: int | None) -> int:
    return 0 if number is None else found.spans[number][0][1]


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts, not cut inside a bracketed token."""
    pairs = zip(_UNIT.finditer(one), _UNIT.finditer(other), strict=False)
    return sum(len(unit[0]) for unit, _ in takewhile(lambda pair: pair[0][0] == pair[1][0], pairs))


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")


class ChatTemplateError(DataError):
    """A template that fails for every row."""


class _TooLongError(Exception):
    """A template that exceeds its time limit."""


_ERRORS = (
    _TooLongError,
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
_CALL: Message = json.loads(
    '{"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "type": "function", '
    '"function": {"name": "f", "arguments": {"key": "value"}}}]}'
)
_TOOL = json.loads(
    '{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", '
    '"properties": {"key": {"type": "string", "description": "e"}}}}}'
)


def _hint(error: Exception) -> str:
    if "strftime_now" in str(error):
        return "Set the date that it uses as today (--chat-date 2026-11-22); it becomes part of the dataset."
    return "Try another template (--chat-template)."


def _with_reasoning(message: Message) -> Message:
    """Provide a message's reasoning under the keys that templates read, as transformers does."""
    reasoning = next((message[key] for key in REASONING if message.get(key) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


@contextmanager
def _bounded() -> Iterator[None]:
    """Limit memory to `MAX_BYTES` more than is in use, and CPU time to `MAX_SECONDS`.

    The time limit needs signals, which only the main thread receives; rows are rendered in processes of their own.
    """
    limits, is_main = (resource.getrlimit(resource.RLIMIT_AS), threading.current_thread() is threading.main_thread())
    most = min([_held_bytes() + MAX_BYTES, *(limit for limit in limits if limit >= 0)])
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    was = signal.signal(signal.SIGVTALRM, _stop) if is_main else None
    if is_main:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        yield
    finally:
        if is_main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, was)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _held_bytes() -> int:
    """Return the process's address space in bytes; if unknown, a number so large that no limit applies."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 1 << 60


def _stop(*_: object) -> NoReturn:
    raise _TooLongError(f"it takes longer than {MAX_SECONDS:g} s of processor time")


_ESCAPED_GUARD = re.compile(r"(?<!\\)((?:\\\\)*)\\ufdd4")


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: puts marks around its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    @staticmethod
    def marked(caller: Any) -> str:
        return f"{OPEN}{caller()}{CLOSE}"


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPED_GUARD.sub(rf"\1{GUARD}", text)


class _Dict:
    """`dict` restricted to construction and `fromkeys`."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


@lru_cache(maxsize=1)
def environment() -> ImmutableSandboxedEnvironment:
    """Return the environment that templates of Hugging Face tokenizers expect: trimmed blocks, loop controls,
    `tojson` without escapes, and `raise_exception`."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    found.globals["raise_exception"] = _raise_exception
    found.globals["dict"] = _Dict()
    found.filters["tojson"] = _json
    return found
