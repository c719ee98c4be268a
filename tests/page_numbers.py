"""The numbers on a page of the dashboard, and whether the JSON of the commands that its footer names has them."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from typing import Any, NamedTuple

import numpy as np

COMMAND = re.compile(r"(?:assay (?:[^\s;,]|\s(?!and\b))+ --json|GET /v1/[^\s,;]+)")
CONSTANT = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\dZ?)?)?|\b\d+ (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
    r"|\b[Dd]ay \d+|\b80% of simulations|\[?95%:?|P[1589]0"
)
"""Times, and numbers of a phrase that is always the same."""
DURATION = re.compile(r"(\d+) (h|min) (\d\d) (min|s)\b")
NUMBER = re.compile(
    r"(?<![\w.:/@=<>-])[-+±]?(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)"
    r"(?: ?(%|kB|MB|GB|TB|[kMGT]|ms|pt)(?![\w/]))?(?![\w@/-]|[.:]\d)"
)
UNIT_SCALES = {"%": 100.0, "pt": 100.0, "ms": 1000.0, "k": 1e-3, "M": 1e-6, "G": 1e-9, "T": 1e-12,
               "kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "TB": 1e-12}  # fmt: skip
SCALES = (1.0, 3600.0, 1 / 3600.0)
"""Device time is in hours or seconds."""

MIN_CHARACTERS = 8
"""A text of so many characters that is a part of a JSON string is no number of its own."""


class Shown(NamedTuple):
    """A number on a page."""

    heading: str
    """Of its column, tile or fact."""
    text: str
    """The whole cell."""
    value: float
    tolerance: float
    scales: tuple[float, ...]


class PageFacts(HTMLParser):
    """The cells of a page's tables, its tiles and facts, its links and the commands in its footer."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[tuple[str, str]] = []
        """Heading and text."""
        self.links: list[str] = []
        self.footer = ""
        self._open: list[str] = []
        self._headings: list[str] = []
        self._column = 0
        self._is_ratio, self._ratios = False, set[str | None]()
        """Tables of curves that show one metric divided by another one have no points of their own."""
        self._name = self._text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if tag == "a" and (facts.get("href") or "").startswith("/"):
            self.links.append(facts["href"] or "")
        if any(line["divisor"] for line in json.loads(facts.get("data-figure") or "{}").get("lines", ())):
            self._ratios.add((facts["id"] or "").replace("plot-", "numbers-", 1))
        if tag == "details":
            self._is_ratio = facts.get("id") in self._ratios
        if tag == "thead":
            self._headings = []
        if tag == "tr":
            self._column = 0
        if tag in ("thead", "tbody", "th", "td", "dt", "dd", "footer", "code"):
            self._open.append(tag)
            self._text = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self._is_ratio = False
        if not self._open or self._open[-1] != tag:
            return
        self._open.pop()
        text = " ".join(self._text.split())
        if tag in ("th", "td"):
            if "thead" in self._open:
                self._headings.append(text)
            else:
                if not self._is_ratio:
                    self.cells.append((self._headings[self._column], text))
                self._column += 1
        elif tag == "dt":
            self._name = text
        elif tag == "dd":
            self.cells.append((self._name, text))
        elif tag == "footer":
            self.footer = text
        self._text = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self._text += data

    def commands(self) -> list[list[str]]:
        """Return the arguments of each command that prints the same facts; `GET` and an address for the API's."""
        return [shlex.split(found)[found.startswith("assay") :] for found in COMMAND.findall(self.footer)]


def numbers_of(heading: str, text: str) -> Iterator[Shown]:
    """Yield the numbers in a cell, without the digits of times and names."""
    for hours, unit, rest, _ in DURATION.findall(text):
        seconds = int(hours) * 3600 + int(rest) * 60 if unit == "h" else int(hours) * 60 + int(rest)
        yield Shown(heading, text, float(seconds), 60.0 if unit == "h" else 0.5, (1.0, 3600.0))
    for digits, unit in NUMBER.findall(DURATION.sub("", CONSTANT.sub("", text))):
        plain = digits.replace(",", "")
        mantissa, _, exponent = plain.partition("e")
        decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
        scales: tuple[float, ...] = (UNIT_SCALES[unit],) if unit else SCALES
        if "points" in text:
            scales = (100.0, 1.0) if " nats " in text else (100.0,)
        yield Shown(heading, text, float(plain), 0.500001 * 10.0**-decimals, scales)


class KnownNumbers:
    """The numbers of some JSON values, and those that follow from one object or list by counting or summing."""

    def __init__(self, trees: Iterable[Any]) -> None:
        self._texts: list[str] = []
        self._shares: list[float] = []
        values = [value for tree in trees for value in self._values_of(tree)]
        # A share of wrong answers is what right ones leave.
        self._values = np.abs([0.0, *values, *(1.0 - value for value in values if 0.0 < value < 1.0)])
        self._shares_and_values = np.concatenate([self._values, np.abs(self._shares)])

    def has(self, shown: Shown) -> bool:
        """Return whether a number is one of them, in some unit, as it was rounded."""
        known = self._shares_and_values if shown.scales == (UNIT_SCALES["%"],) else self._values
        return any(
            bool(np.any(np.abs(known * scale - shown.value) <= shown.tolerance)) for scale in shown.scales
        ) or any(shown.text in text for text in self._texts)

    def _values_of(self, tree: Any) -> Iterator[float]:
        if isinstance(tree, bool) or tree is None:
            return
        if isinstance(tree, (int, float)):
            yield float(tree)
        elif isinstance(tree, str):
            self._texts.append(" ".join(tree.split()))
            yield from (shown.value for shown in numbers_of("", tree))
        elif isinstance(tree, Mapping):
            yield from self._of_mapping(tree)
        else:
            yield from self._of_list(tree)

    def _of_mapping(self, tree: Mapping[str, Any]) -> Iterator[float]:
        """Yield its numbers and their sum, the half width of an interval, and numbers per element of its lists."""
        yield float(len(tree))
        for value in tree.values():
            yield from self._values_of(value)
        numbers = [value for value in tree.values() if type(value) in (int, float)]
        estimates = [value["value"] for value in tree.values() if isinstance(value, Mapping) and "value" in value]
        parts = [value for value in (*numbers[:20], *estimates) if type(value) in (int, float)]
        self._shares += [part / whole for part in parts for whole in parts if whole]
        if type(tree.get("low")) is type(tree.get("high")) is float:
            yield (tree["high"] - tree["low"]) / 2
        if numbers and len(numbers) == len(tree):
            yield float(sum(numbers))
        for count in {len(value) for value in tree.values() if isinstance(value, list) and value}:
            yield from (value / count for value in numbers)

    def _of_list(self, tree: list[Any]) -> Iterator[float]:
        """Yield its numbers, and the sum, the counts of equal values and the number of different ones of each key."""
        yield float(len(tree))
        for value in tree:
            yield from self._values_of(value)
        rows = [value for value in tree if isinstance(value, Mapping)]
        for key in {key for row in rows for key in row}:
            column = [row.get(key) for row in rows]
            numbers = [value for value in column if isinstance(value, int | float) and not isinstance(value, bool)]
            yield float(sum(numbers))
            counts = Counter(map(str, column))
            yield from map(float, (len(counts), *counts.values()))
