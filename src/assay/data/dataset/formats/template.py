"""A conversation as one text, and where in it the model speaks.

    messages --template--> text, [begin, end) of each turn that an assistant has

A template is what strangers wrote: it runs in Jinja's sandbox, and reads nothing but the messages, the tools
and the tokenizer's special tokens. No clock either: the same rows render alike on every day.

Where an assistant's turn is follows from the template's own marks ({% generation %}); without marks, from what
it makes of the turns before it: their text, with the words that ask for an answer, must begin the whole. A
template that rewrites earlier turns (thoughts that it drops, say) has no such beginnings, and is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from assay.base.errors import ConfigError, DataError

TEMPLATE_FILE = "chat_template.jinja"
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
_SPECIAL = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>")
_PROBE = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


class Rendered(NamedTuple):
    """A text, and the turns in it that were asked for."""

    text: str
    spans: tuple[Span, ...]


class ChatTemplate:
    """A Jinja template with the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, where: str) -> None:
        self.source = source
        self._where = where
        self._special = dict(special_tokens)
        self._marks = re.search(r"\{%-?\s*generation\b", source) is not None
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(f"{where}: not a Jinja template: {error}. Mend it, or name another.") from error

    def render(self, messages: Sequence[Message], tools: Any, where: str, *, asks: bool = False) -> str:
        """The conversation as one text; `asks`: with the words after which an assistant would speak."""
        return self._marked(messages, tools, where, asks=asks).replace(_OPEN, "").replace(_CLOSE, "")

    def render_turns(
        self, messages: Sequence[Message], wanted: Sequence[bool], tools: Any, where: str
    ) -> Rendered:
        """The whole conversation with the spans of the `wanted` turns, each an assistant's."""
        whole = self._marked(messages, tools, where, asks=False)
        if self._marks:
            return _unmarked(whole, messages, wanted, where)
        spans = []
        for index in (index for index, is_wanted in enumerate(wanted) if is_wanted):
            before = self._marked(messages[:index], tools, where, asks=True)
            until = self._marked(messages[: index + 1], tools, where, asks=False)
            if not (until.startswith(before) and whole.startswith(until)):
                self._refuse_rewritten(index, where)
            spans.append((len(before), len(until)))
        return Rendered(whole, tuple(spans))

    def special_tokens(self) -> tuple[str, ...]:
        """Those that it writes around a message, like `<|im_start|>`."""
        written = self.render(_PROBE, None, self._where, asks=True)
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

    def _marked(self, messages: Sequence[Message], tools: Any, where: str, *, asks: bool) -> str:
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=asks, **self._special
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise DataError(
                f"{where}: the chat template ({self._where}) cannot render it: {error}. Mend or drop the row, "
                "or name another template (--chat-template)."
            ) from error

    def _refuse_rewritten(self, index: int, where: str) -> NoReturn:
        raise DataError(
            f"{where}: the chat template ({self._where}) writes the first {index} messages otherwise once "
            f"message {index + 1} follows, so what the assistant says cannot be told from the rest. Name a "
            "template that marks it with {% generation %} (--chat-template)."
        )


def load_template(name: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """One that is shipped, by its name, or a file."""
    if name in SHIPPED:
        return ChatTemplate(SHIPPED[name], special_tokens, where=name)
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"--chat-template {name}: no file there, and no template has that name. Name a .jinja file, or one "
            f"of those that come with assay: {', '.join(SHIPPED)}."
        )
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), special_tokens, where=name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8. Save the template as UTF-8.") from error


def _unmarked(marked: str, messages: Sequence[Message], wanted: Sequence[bool], where: str) -> Rendered:
    """The marked stretches of the wanted turns: the assistant's turns are marked one after the other."""
    text, spans, place = [], [], 0
    begin: int | None = None
    for part in re.split(f"([{_OPEN}{_CLOSE}])", marked):
        if part == _OPEN:
            begin = place
        elif part == _CLOSE:
            assert begin is not None
            spans.append((begin, place))
            begin = None
        else:
            text.append(part)
            place += len(part)
    turns = [is_wanted for message, is_wanted in zip(messages, wanted, strict=True) if _speaks(message)]
    if len(spans) != len(turns):
        raise DataError(
            f"{where}: the chat template marks {len(spans)} stretches with {{% generation %}}, and the "
            f"assistant has {len(turns)} turns. Mend the template, or drop the row."
        )
    chosen = [span for span, is_wanted in zip(spans, turns, strict=True) if is_wanted and span[0] < span[1]]
    return Rendered("".join(text), tuple(chosen))


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
