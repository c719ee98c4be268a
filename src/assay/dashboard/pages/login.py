"""The page on which a reader logs in with an API key."""

from assay.dashboard.page import Action, Filter, Page
from assay.reporting.document import Document, Verdict


def login_page(target: str, *, is_refused: bool = False, is_expired: bool = False) -> Page:
    """Return the form that leads on to `target`."""
    refused = Verdict("bad", "refused", "This key opens nothing: it is mistyped, revoked or expired.")
    expired = Verdict("open", "nothing was changed", "Your login has ended. Log in, and repeat what you did.")
    return Page(
        document=Document(
            title="Log in",
            kind="login",
            subtitle="with an API key ('assay serve key create')",
            verdict=refused if is_refused else expired if is_expired else None,
        ),
        area="",
        login=Action("Log in", "/login", {"to": target}, fields=[Filter("key", "API key", kind="password")]),
        status=401,
    )
