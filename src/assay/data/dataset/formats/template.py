"""A conversation as one text, and where in it the model speaks.

    messages --template--> text, [begin, end) of each turn that an assistant has

A template is what strangers wrote: it runs in Jinja's sandbox, within bounds of time and memory, and reads
nothing but the messages, the tools and the tokenizer's special tokens. No clock either: the same rows render
alike on every day, and a template that asks for the day is told one.

Where an assistant's turn is follows from the template's own marks ({% generation %}); without marks, from what
it makes of the turns before it: their text, with the words that ask for an answer, must begin the whole. A
template that rewrites earlier turns (thoughts that it drops, say) has no such beginnings, and is refused.
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
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.tokens import SETTINGS_FILE, tokenizer_file, tokenizer_settings

TEMPLATE_FILE = "chat_template.jinja"
MAX_SECONDS = 5.0
"""Processor time for one conversation, which takes about a millisecond."""
MAX_BYTES = 1 << 30
"""Memory, likewise."""
Message = Mapping[str, Any]
Span = tuple[int, int]
"""[begin, end) of characters."""
SHIPPED = {
    "chatml": """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' -%}
{%- generation -%}{{ (message.content or '') + '<|im_end|>' }}{%- endgeneration -%}
{%- else -%}
{{ message.content + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
""",
}
"""Name -> template. `chatml` marks what the assistant says with the token that ends its turn."""
ENDS = {"chatml": "<|im_end|>"}
"""The token that ends a turn, for tokenizers that are trained for a shipped template."""
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Around what a template marks; noncharacters, which no text may hold."""
_SPECIAL = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|<(?:start|end)_of_\w+>")
PROBE = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


class Rendered(NamedTuple):
    """A text, and the turns in it that were asked for."""

    text: str
    spans: tuple[Span, ...]


class ChatTemplate:
    """A Jinja template with the special tokens that it may name."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, where: str, day: date | None = None
    ) -> None:
        """`day` is what a template that asks for it takes for today."""
        self.source = source
        self._where = where
        self._special: dict[str, Any] = {"tools": None, **special_tokens}
        if day is not None:
            self._special["strftime_now"] = day.strftime
        self._marks = re.search(r"\{%-?\s*generation\b", source) is not None
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(f"{where}: not a Jinja template: {error}. Mend it, or name another.") from error

    def render(
        self, messages: Sequence[Message], context: Mapping[str, Any], where: str, *, asks: bool = False
    ) -> str:
        """The conversation as one text; `asks`: with the words after which an assistant would speak."""
        return _unmarked(self._marked(messages, context, where, asks=asks)).text

    def render_turns(
        self, messages: Sequence[Message], wanted: Sequence[bool], context: Mapping[str, Any], where: str
    ) -> Rendered:
        """The whole conversation with the spans of the `wanted` turns, each an assistant's.

        `context`: what a template may read beside the messages, e.g. `tools`.
        """
        whole = self._marked(messages, context, where, asks=False)
        rendered = _unmarked(whole)
        if self._marks:
            rendered = Rendered(rendered.text, self._spans_of(rendered.spans, messages, wanted, where))
        else:
            rendered = Rendered(
                whole, tuple(self._spans_by_beginnings(whole, messages, wanted, context, where))
            )
        trained = "".join(rendered.text[begin:end] for begin, end in rendered.spans)
        for index, (message, is_wanted) in enumerate(zip(messages, wanted, strict=True), start=1):
            words = str(message.get("content") or "").split() if is_wanted else []
            if words and words[-1] not in trained:
                raise DataError(
                    f"{where}: the chat template ({self._where}) leaves out what the assistant says in "
                    f"message {index}: it may be for content in parts, of images too. Name another "
                    "(--chat-template)."
                )
        return rendered

    def _spans_of(
        self, marked: tuple[Span, ...], messages: Sequence[Message], wanted: Sequence[bool], where: str
    ) -> tuple[Span, ...]:
        """The marked stretches of the wanted turns."""
        turns = [is_wanted for message, is_wanted in zip(messages, wanted, strict=True) if _speaks(message)]
        if all(turns):
            return marked
        if len(marked) != len(turns):
            raise DataError(
                f"{where}: the chat template ({self._where}) marks {len(marked)} stretches in {len(turns)} "
                "turns of the assistant, so which are of those that are trained cannot be told. Train all "
                "turns of the row, or drop it."
            )
        return tuple(span for span, is_wanted in zip(marked, turns, strict=True) if is_wanted)

    def _spans_by_beginnings(
        self,
        whole: str,
        messages: Sequence[Message],
        wanted: Sequence[bool],
        context: Mapping[str, Any],
        where: str,
    ) -> Iterator[Span]:
        for index in (index for index, is_wanted in enumerate(wanted) if is_wanted):
            before = self._marked(messages[:index], context, where, asks=True)
            until = self._marked(messages[: index + 1], context, where, asks=False)
            if not (until.startswith(before) and whole.startswith(until)):
                raise DataError(
                    f"{where}: the chat template ({self._where}) writes messages otherwise once more follow: "
                    f"up to message {index + 1} its text is not the beginning of the whole, so what the "
                    "assistant says cannot be told from the rest. Name a template that marks it with "
                    "{% generation %} (--chat-template)."
                )
            yield len(before), len(until)

    @cached_property
    def probe(self) -> str:
        """Two turns of plain words, rendered; empty where the template refuses them."""
        with suppress(DataError):
            return self.render([*PROBE, *PROBE], {}, self._where)
        return ""

    def special_tokens(self) -> tuple[str, ...]:
        """Those that it writes around a message, like `<|im_start|>`."""
        written = self.render(PROBE, {}, self._where, asks=True)
        return tuple(dict.fromkeys(_SPECIAL.findall(written)))

    def check_tokenizer(self, tokenizer: Tokenizer, name: str) -> None:
        """Refuse a tokenizer that does not have the template's special tokens."""
        for token in self.special_tokens():
            if tokenizer.token_to_id(token) is None:
                raise ConfigError(
                    f"{self._where}: writes {token}, which is no token of {name}: the template is another "
                    "tokenizer's. Name the tokenizer's own (--chat-template FILE), or the tokenizer that it is "
                    "for (--tokenizer)."
                )

    def _marked(
        self, messages: Sequence[Message], context: Mapping[str, Any], where: str, *, asks: bool
    ) -> str:
        given = {**self._special, **context, "messages": messages, "add_generation_prompt": asks}
        try:
            with _bounded():
                return self._template.render(given)
        except MemoryError as error:
            raise DataError(
                f"{where}: the chat template ({self._where}) takes more than {MAX_BYTES >> 20} MiB of memory "
                "for one conversation. Name another template (--chat-template)."
            ) from error
        except (
            _TooLongError,
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RecursionError,
        ) as error:
            raise DataError(
                f"{where}: the chat template ({self._where}) cannot render it: {error}. {_cure(error)}"
            ) from error


def load_template(name: str, special_tokens: Mapping[str, str], day: date | None = None) -> ChatTemplate:
    """One that is shipped, by its name, or a file."""
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


def template_beside(
    tokenizer: str | Path, special_tokens: Mapping[str, str], day: date | None = None
) -> ChatTemplate | None:
    """The one that comes with a tokenizer, in a file or in its settings; None where there is none."""
    beside = tokenizer_file(tokenizer).parent / TEMPLATE_FILE
    if beside.is_file():
        return load_template(str(beside), special_tokens, day)
    found = tokenizer_settings(tokenizer).get("chat_template")
    if isinstance(found, list):  # several by name, of which one is the default
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    where = str(beside.parent / SETTINGS_FILE)
    return ChatTemplate(found, special_tokens, where=where, day=day) if isinstance(found, str) else None


def _unmarked(marked: str) -> Rendered:
    """The text without the marks, and what was between them."""
    text, spans, place = [], [], 0
    for part in re.split(f"({_OPEN}[^{_OPEN}{_CLOSE}]*{_CLOSE})", marked):
        plain = part.strip(_OPEN + _CLOSE)
        if part.startswith(_OPEN) and plain:
            spans.append((place, place + len(plain)))
        text.append(plain)
        place += len(plain)
    return Rendered("".join(text), tuple(spans))


def _cure(error: Exception) -> str:
    if "strftime_now" in str(error):
        return "Say which day it shall take for today (--chat-date 2026-11-22): it is part of the dataset."
    return "Another template may do (--chat-template)."


def _speaks(message: Message) -> bool:
    return bool(message["role"] == "assistant")


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what is inside, between the two marks."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    @staticmethod
    def marked(caller: Any) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


@contextmanager
def _bounded() -> Iterator[None]:
    """At most `MAX_BYTES` more than there are, and `MAX_SECONDS` of processor time; the latter where signals
    arrive, in a main thread: all that renders rows are processes of their own."""
    limits, is_main = (
        resource.getrlimit(resource.RLIMIT_AS),
        threading.current_thread() is threading.main_thread(),
    )
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
    """Addresses that this process has taken; so many that nothing is bounded where its system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 1 << 60


class _TooLongError(Exception):
    """A template does not come to an end."""


def _stop(*_: object) -> NoReturn:
    raise _TooLongError(f"it takes longer than {MAX_SECONDS:g} s of processor time")


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    # What templates of Hugging Face tokenizers count on: blocks leave no lines behind, loops may `break`,
    # `tojson` writes text as it is, and `raise_exception` refuses a conversation.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _json
    return environment
