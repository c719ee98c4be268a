"""A page: a document with an address, filters, actions, and the topics whose changes it shows by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Literal, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader

from assay.base.errors import AssayError
from assay.reporting.document import Document
from assay.reporting.documents.render import contents_of, page_templates, stylesheet

AREAS = (
    ("Now", "/"),
    ("Programs", "/programs"),
    ("Runs", "/runs"),
    ("Benchmarks", "/benchmarks"),
    ("Decisions", "/decisions"),
    ("Coverage", "/coverage"),
    ("Jobs", "/jobs"),
    ("Cost", "/cost"),
)
"""The navigation: title and address."""

STATIC_TYPES = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}


class PageError(AssayError):
    """A request that cannot be answered; shown as a page with its status code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Filter(NamedTuple):
    """A field of the form above a page; its value stands in the page's address."""

    name: str
    label: str
    value: str = ""
    choices: Sequence[tuple[str, str]] = ()
    """Value and label; empty for a field to type in."""
    kind: Literal["text", "password", "number"] = "text"


class Action(NamedTuple):
    """A button that changes something; shown only to readers who may."""

    label: str
    address: str
    values: Mapping[str, str] = {}
    """Hidden fields of the form."""
    explanation: str = ""
    fields: Sequence[Filter] = ()
    """Fields that the reader fills in."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is shown at an address.

    Times in it may be relative: a page with ages listens to the topic `minute`.
    """

    document: Document
    area: str
    """Title in `AREAS`; empty for none."""
    topics: tuple[str, ...] = ()
    """Topics of `Watch`: after a change, the page fetches itself again."""
    filters: Sequence[Filter] = ()
    actions: Sequence[Action] = ()
    login: Action | None = None
    """The form with which a reader logs in."""
    has_curves: bool = False
    """Whether figures have a `source` from which a script draws them live."""
    status: int = 200
    retry_s: float | None = None
    """The browser loads the page again after this time, also without scripts."""


def static_file(name: str) -> tuple[bytes, str] | None:
    """Return content and media type of a script or stylesheet; None if there is none of this name."""
    suffix = f".{name.rpartition('.')[2]}"
    if name == "page.css":
        return stylesheet().encode(), STATIC_TYPES[suffix]
    folder = files("assay.dashboard").joinpath("static")
    vendored = folder.joinpath("vendor")
    known = {entry.name: entry for entry in (*folder.iterdir(), *vendored.iterdir()) if entry.is_file()}
    if name not in known or suffix not in STATIC_TYPES:
        return None
    return known[name].read_bytes(), STATIC_TYPES[suffix]


@cache
def static_address(name: str) -> str:
    """Return the address of a static file; it changes with the content, so browsers may keep the file."""
    found = static_file(name)
    assert found is not None, name
    return f"/static/{name}?{sha256(found[0]).hexdigest()[:12]}"


def render_page(page: Page, *, address: str, versions: Mapping[str, int], reader_name: str, token: str) -> str:
    """Return the HTML of a page. `versions`: of its topics when it was read. `token`: for its actions; without one,
    actions are left out."""
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            document=page.document,
            contents=contents_of(page.document.sections),
            areas=AREAS,
            address=address,
            versions=versions,
            reader_name=reader_name,
            token=token,
            static=static_address,
        )
    )


@cache
def _templates() -> Environment:
    shared = page_templates()
    assert shared.loader is not None
    return shared.overlay(loader=ChoiceLoader([PackageLoader("assay.dashboard"), shared.loader]))
