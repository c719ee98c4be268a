"""The Jinja sandbox for chat templates, with the functions that transformers provides to them."""

import json
import re
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from assay.data.dataset.formats.conversation_parts import CLOSE, GUARD, OPEN

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
