"""The page of an error."""

from assay.dashboard.page import Page
from assay.reporting.document import Document, Verdict

MAX_CHARACTERS = 1_000
"""A message that names a longer value is cut in the middle."""


def message_page(message: str, *, status: int, retry_s: float | None = None) -> Page:
    """Return a page that says why there is no other one."""
    words = {
        400: "not understood",
        403: "not allowed",
        404: "not found",
        405: "not possible",
        429: "not yet",
        503: "not now",
    }
    first_word = message.partition(" ")[0]
    # A key with its value stays as it was written.
    sentence = message if "=" in first_word else f"{message[:1].upper()}{message[1:]}"
    if len(sentence) > MAX_CHARACTERS:
        sentence = f"{sentence[: MAX_CHARACTERS // 2]} ... {sentence[-MAX_CHARACTERS // 2 :]}"
    if retry_s is not None:
        sentence += f" This page tries again every {retry_s:.0f} s."
    word = words.get(status, "failed")
    return Page(
        document=Document(title=word.capitalize(), kind=f"error {status}", verdict=Verdict("bad", word, sentence)),
        area="",
        status=status,
        retry_s=retry_s,
    )
