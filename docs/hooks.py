"""What the site of the documentation does with links that leave it: files of the repository are named, not linked."""

import re
from typing import Any

OUTSIDE = re.compile(
    r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?:src|tests|benchmarks|recipes|examples)/[^)]*\)|\[(?P<json>[^\]]+)\]\(openapi\.json\)"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose links into the sources are plain text."""
    return OUTSIDE.sub(lambda match: match["text"] or match["json"], markdown)
