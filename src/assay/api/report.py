"""Facts that a notebook shows."""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from html import escape
from io import StringIO
from pathlib import Path
from typing import Generic, TypeVar

from assay.cli.wording import in_python
from assay.reporting.document import Code, Document, Section

FRAME_PIXELS = 640
"""Height of a page in a notebook."""
FactsT = TypeVar("FactsT")


class Report(Generic[FactsT]):
    """Facts, and how they read: `print` shows what the command prints, a notebook its page."""

    def __init__(self, facts: FactsT, shown: Document | Callable[[], object], *, of: Sequence[str] = ()) -> None:
        """`shown`: the same facts as a document, or a function that prints them. `of`: the command that does so."""
        self.facts = facts
        """What the report says, with the fields of `--json`."""
        self._shown, self._of = shown, of

    def __repr__(self) -> str:
        return str(self).strip()

    def __str__(self) -> str:
        with redirect_stdout(_Copy(sys.stdout.isatty())) as text:
            if isinstance(self._shown, Document):
                from assay.reporting.terminal.document import print_document

                print_document(self._shown)
            else:
                self._shown()
        return in_python(text.getvalue(), self._of)

    def _repr_html_(self) -> str:
        if isinstance(self._shown, Document):
            from assay.reporting.documents.render import render_document

            page = escape(render_document(self._shown))
            return f'<iframe srcdoc="{page}" style="width: 100%; height: {FRAME_PIXELS}px; border: 0"></iframe>'
        from rich.console import Console
        from rich.text import Text

        # A console of its own: the kernel may want no colours.
        screen = Console(file=StringIO(), record=True, force_jupyter=False, width=FRAME_PIXELS)
        screen.print(Text.from_ansi(str(self)), soft_wrap=True)
        return screen.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def save(self, file: str | Path) -> Path:
        """Write the report to `file`, an HTML page that needs nothing beside it, and return its path."""
        from rich.text import Text

        from assay.reporting.documents.render import render_document, write_file

        document = self._shown
        if not isinstance(document, Document):
            text = Text.from_ansi(str(self)).plain
            document = Document(title=text.partition("\n")[0], kind="report", sections=[Section("", [Code(text)])])
        write_file(Path(file), render_document(document))
        return Path(file)


class _Copy(StringIO):
    """A text that may be printed on a terminal, so with its width and colours."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal
