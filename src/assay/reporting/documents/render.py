"""Rendering of pages as self-contained HTML files that need no network and no script."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from assay.base.errors import ConfigError, StoreError, unwritten
from assay.base.visible import written_out
from assay.reporting.document import FULL, HALF, NARROW, SIGNS, Cell, Document, Section
from assay.store.objects import open_store


def render_document(document: Document) -> str:
    """Return a document as a page."""
    page = page_templates().get_template("document.html")
    return page.render(document=document, contents=contents_of(document.sections))


def contents_of(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Return an anchor and the name of each section."""
    anchors: list[str] = []
    for section in sections:
        anchor = section.anchor or re.sub(r"[^a-z0-9]+", "-", section.name.lower()).strip("-") or "section"
        anchors.append(anchor if anchor not in anchors else f"{anchor}-{len(anchors)}")
    return [(anchor, section.name) for anchor, section in zip(anchors, sections, strict=True)]


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file and its parent folders atomically. Raises `StoreError` on failure."""
    is_plain = not path.is_symlink() and (path.is_file() or not path.exists())  # /dev/stdout is not
    target = path.with_name(f".unfinished-{os.getpid()}-{path.name}") if is_plain else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        if is_plain:
            target.replace(path)
    except OSError as error:
        if is_plain:
            with suppress(OSError):
                target.unlink(missing_ok=True)
        raise unwritten(path, error) from error


def write_page(text: str, out: Path | None, *, default: Path) -> Path:
    """Write a page to `out`, else to `default`; return the path. Other users may write to the default folder,
    so a symbolic link of that name is replaced, not followed."""
    if out is not None:
        write_file(out, text)
        return out
    if not default.parent.is_dir():
        raise ConfigError(f"{default.parent}: no such folder. Name a file with --out.")
    try:
        open_store(str(default.parent)).put(default.name, text.encode())
    except StoreError as error:
        raise type(error)(f"{error} Or name another file with --out.") from error
    return default


def stylesheet() -> str:
    """Return the style of all pages."""
    return files("assay.reporting").joinpath("templates/page.css").read_text(encoding="utf-8")


@cache
def page_templates() -> Environment:
    """Return the templates with the stylesheet; undefined names are errors."""
    environment = Environment(
        loader=PackageLoader("assay.reporting"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        finalize=lambda value: written_out(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = Markup(stylesheet())
    environment.globals["signs"] = SIGNS
    environment.globals["widths"] = {"full": FULL, "half": HALF, "third": HALF, "narrow": NARROW}
    environment.globals["as_cell"] = lambda value: value if isinstance(value, Cell) else Cell(value)
    environment.globals["is_live"] = False
    environment.filters["drawn"] = Markup
    environment.filters["chart_of"] = lambda figure: figure.chart
    environment.filters["with_times"] = lambda text, heading="": text
    return environment
