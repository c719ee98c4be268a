"""Classifies a line that names a failure by the standard vocabularies of the systems that write logs.

    decisive texts (out of memory, disk full, stopped from outside, not finite)
    -> names: exceptions, error enums, reasons
    -> messages of components: CUDA, NCCL, package managers, loaders, file formats, resolvers
    -> numbers: errno, HTTP and exit statuses, signals
    -> their standard texts: strerror, strsignal, reason phrases
    -> general words

The first step that knows a word decides, so what is specific precedes what is general: `ImportError` says more than
`No such file`. `vocabularies.toml` has the words, with their sources.
"""

import errno
import os
import re
import signal
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files

from assay.records.symptoms import SymptomClass

Texts = Sequence[tuple[SymptomClass, re.Pattern[str]]]
Numbers = Mapping[int, SymptomClass]

VOCABULARIES = tomllib.loads(files("assay.triage.symptoms").joinpath("vocabularies.toml").read_text("utf-8"))
CLASS_OF_NAME: Mapping[str, SymptomClass] = {
    name: symptom_class for symptom_class, names in VOCABULARIES["names"].items() for name in names.split()
}
NAME = re.compile(r"[A-Za-z_]\w{2,}")
FIRST_WORD = re.compile(r"^(?:_+|[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+)")
ERRNO_NUMBER = re.compile(r"\b(?:errno|os error)\D{0,3}(\d+)\b", re.IGNORECASE)
HTTP_NUMBER = re.compile(
    r"\b(?:https?(?:/[\d.]+)?|status|code|error|e|returned|response)\D{0,12}([45]\d\d)\b"
    r"|(?<![\d.:])\b([45]\d\d)(?= (?:client|server) error|:? [a-z]+ ?[a-z]*$)",
    re.IGNORECASE,
)
SIGNAL_NUMBER = re.compile(r"\bsignal\W{0,3}(\d+)\b", re.IGNORECASE)
EXIT_STATUS = re.compile(
    r"\b(?:exit(?:ed)?|returned)[ _-]?(?:with )?(?:code|status|value)?(?: of)?\s*[:=]?\s?(-?\d+)\b"
    r"|\bsystemexit: (\d+)", re.IGNORECASE,
)  # fmt: skip
NOT_EXECUTED: Numbers = {126: "environment", 127: "environment"}
"""Exit statuses of a shell that could not start the program."""


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    patterns = list[str]()
    for text in (" ".join(text.split()) for text in texts):
        pattern = (
            re.escape(text).replace(r"\ \~\ ", r"(?!\w).*(?<!\w)").replace(r"\ \~", r"(?!\w).*").replace(r"\~", ".*")
        )
        pattern = pattern.replace(r"\*", r"[\w-]*").replace(r"\#", r"-?\d+").replace(r"\ ", r"\s+")
        before = r"(?<!\w)" if text[0].isalnum() else ""
        patterns.append(before + pattern + (r"(?!\w)" if text[-1].isalnum() else ""))
    return re.compile("|".join(patterns), re.IGNORECASE)


def _texts(table: str) -> Texts:
    return [(row["class"], _alternatives(row["texts"].strip().split("|"))) for row in VOCABULARIES[table]]


def _numbers(table: str, module: object) -> Numbers:
    words = VOCABULARIES[table].items()
    return {int(getattr(module, name)): symptom_class for symptom_class, names in words for name in names.split()}


DECISIVE, MESSAGES, WORDS = _texts("decisive"), _texts("messages"), _texts("words")
ERRNO, SIGNALS = _numbers("errno", errno), _numbers("signals", signal)
HTTP: Numbers = {number: symptom_class for symptom_class, found in VOCABULARIES["http"].items() for number in found}
EXIT: Numbers = {
    **NOT_EXECUTED,
    **{sign + factor * number: which for number, which in SIGNALS.items() for sign, factor in ((128, 1), (0, -1))},
}
"""A shell's status after a signal is 128 + n, Python's is -n."""


def _standard_texts(numbers: Numbers, text_of: Callable[[int], str | None]) -> Texts:
    return [(which, _alternatives([text])) for number, which in numbers.items() if (text := text_of(number))]


STANDARD_TEXTS = (
    *_standard_texts(ERRNO, os.strerror),
    *_standard_texts({number: which for number, which in SIGNALS.items() if which == "crash"}, signal.strsignal),
    *_standard_texts(
        {number: which for number, which in HTTP.items() if number not in (404, 410)}, lambda n: HTTPStatus(n).phrase
    ),
)


def class_of(text: str) -> SymptomClass | None:
    """Return the class that the vocabularies give to a line, or None."""
    return (
        _by_texts(text, DECISIVE) or _by_name(text) or _by_texts(text, MESSAGES) or _by_number(text)
        or _by_texts(text, STANDARD_TEXTS) or _by_texts(text, WORDS)
    )  # fmt: skip


def _by_texts(text: str, table: Texts) -> SymptomClass | None:
    return next((symptom_class for symptom_class, pattern in table if pattern.search(text)), None)


def _by_name(text: str) -> SymptomClass | None:
    """Look up names, of Java's exceptions as of Python's; an exception also without its first words."""
    for found in NAME.finditer(text):
        name = found.group()
        if name.endswith("Exception"):
            name = name.removesuffix("Exception") + "Error"
        while name.endswith("Error") and name not in CLASS_OF_NAME:
            name = FIRST_WORD.sub("", name) if FIRST_WORD.match(name) else ""
        if name in CLASS_OF_NAME:
            return CLASS_OF_NAME[name]
    return None


def _by_number(text: str) -> SymptomClass | None:
    kinds = (ERRNO_NUMBER, ERRNO), (HTTP_NUMBER, HTTP), (SIGNAL_NUMBER, SIGNALS), (EXIT_STATUS, EXIT)
    numbers = ((int(found[found.lastindex or 1]), classes) for kind, classes in kinds for found in kind.finditer(text))
    return next((classes[number] for number, classes in numbers if number in classes), None)
