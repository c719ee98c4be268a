"""Facts that a notebook shows."""

from contextlib import redirect_stdout
from html import escape
from io import StringIO
from pathlib import Path
from typing import Generic, TypeVar

from assay.reporting.document import Document

FRAME_PIXELS = 640
"""Height of a page in a notebook."""
FactsT = TypeVar("FactsT")


class Report(Generic[FactsT]):
    """Facts, and how they read: `print` shows what the command prints, a notebook its page."""

    def __init__(self, facts: FactsT, document: Document) -> None:
        """`document`: the same facts in words."""
        self.facts = facts
        """What the report says, with the fields of `--json`."""
        self._document = document

    def __repr__(self) -> str:
        return str(self).strip()

    def __str__(self) -> str:
        from assay.reporting.terminal.document import print_document

        with redirect_stdout(StringIO()) as text:
            print_document(self._document)
        return text.getvalue()

    def _repr_html_(self) -> str:
        from assay.reporting.documents.render import render_document

        page = escape(render_document(self._document))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: {FRAME_PIXELS}px; border: 0"></iframe>'

    def save(self, file: str | Path) -> Path:
        """Write the report to `file`, an HTML page that needs nothing beside it, and return its path."""
        from assay.reporting.documents.render import render_document, write_file

        write_file(Path(file), render_document(self._document))
        return Path(file)
