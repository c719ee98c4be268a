"""Who reads a page, and whether a form may change something.

Without API keys the server listens on this machine only, and pages are read-only. Once a key exists, a reader logs in
with a key; a cookie names the key until it is revoked or `LOGIN_S` have passed. Each form carries a token that only
this server can make, so another site's form changes nothing.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from assay.base.clock import Clock
from assay.dashboard.page import PageError
from assay.serving.ids import IdKind, new_id
from assay.serving.keys import KeyRepository
from assay.serving.openai.app_state import DEFAULT_PROJECT, AppState
from assay.serving.openai.auth_middleware import check_loopback
from assay.store.ledger.visible_runs import VisibleRuns
from assay.store.objects import ObjectStore

COOKIE = "assay_login"
LOGIN_S = 12 * 3600.0
MAX_REFUSED, REFUSED_WINDOW_S = 10, 60.0
"""So many wrong keys may come from one address in this time."""
_SECRET, _ENDED = "dashboard/secret", "dashboard/ended/"
"""Keys of the secret and of logins that readers have ended, in the API's store: they outlive a restart."""


class Reader(NamedTuple):
    """Who reads a page."""

    login: str = ""
    """Value of the cookie; empty without API keys."""
    key_id: str = ""
    project: str = DEFAULT_PROJECT
    sees_all: bool = True
    """Whether all projects are shown: without keys, and with an admin key."""
    may_change: bool = False

    @property
    def scope(self) -> str:
        """The project whose facts alone are shown; empty for all."""
        return "" if self.sees_all else self.project

    def topic(self, topic: str) -> str:
        """Return the topic under which the reader's share of what a page shows is watched."""
        return f"{topic}:{self.scope}" if self.scope and topic in ("runs", "jobs") else topic


API_RUNS: tuple[IdKind, ...] = ("ftjob", "evalrun", "batch", "session")
"""Kinds of resources under whose ids the ledger has runs or device time."""


def visible_runs(reader: Reader, api: AppState) -> VisibleRuns | None:
    """Return the rule of what a project sees: all runs but those of other projects' jobs, evals, batches and sessions;
    None for a reader who sees all.

    What is not known to belong to the reader's project is hidden.
    """
    if reader.sees_all:
        return None
    forms = [(f"{kind}-", len(new_id(kind, 0.0))) for kind in API_RUNS]
    own = (repository.newest(reader.project) for repository in (api.jobs, api.eval_runs, api.batches, api.sessions))
    return VisibleRuns(forms, tuple(chain.from_iterable(own)))


ROWS_PER_PAGE = 100
MAX_DIGITS = 15
"""Digits of a number in an address."""


class Visit(NamedTuple):
    """One request of a reader."""

    reader: Reader
    address: str
    """Path and query."""
    path: Mapping[str, str]
    """Parts of the path by the names in the route."""
    query: QueryParams
    form: Mapping[str, str] = {}
    """Fields of an action's form."""

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return a whole number of the address; None if it has none. Raises `PageError` that names a wrong one."""
        text = self.path.get(name) or self.query.get(name, "")
        if text and not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS and int(text) >= least):
            raise PageError(400, f"{name}={text}: expected a whole number from {least}, up to {MAX_DIGITS} digits.")
        return int(text) if text else None

    def page_number(self) -> int:
        """Return `page`, from 1."""
        return self.number("page", least=1) or 1

    def choice(self, name: str, known: Sequence[str], default: str = "") -> Any:
        """Return a filter's value, one of `known`. Raises `PageError` that names another one."""
        value = self.query.get(name) or default
        if value and value not in known:
            raise PageError(400, f"{name}={value}: expected one of {', '.join(known)}.")
        return value

    def rows_of_page(self, num_rows: int, per_page: int = ROWS_PER_PAGE) -> tuple[range, list[tuple[str, str]]]:
        """Return the rows of the requested page, and links to the page before and the one after."""
        number = self.page_number()
        shown = range(num_rows)[(number - 1) * per_page : number * per_page]
        links = [(self.with_query(page=number - 1), "previous rows")] if number > 1 else []
        if number * per_page < num_rows:
            links.append((self.with_query(page=number + 1), f"next rows, of {num_rows:,}"))
        return shown, links

    def with_query(self, **changes: object) -> str:
        """Return the address with other values in its query."""
        unchanged = [(key, value) for key, value in self.query.multi_items() if key not in changes]
        return f"{self.address.partition('?')[0]}?{urlencode([*unchanged, *changes.items()])}"


class Access:
    """Logins and tokens of one server."""

    def __init__(self, store: ObjectStore, keys: KeyRepository, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._refused_s: dict[str, list[float]] = {}
        """When each address tried keys that open nothing."""
        store.put_if_absent(_SECRET, secrets.token_bytes(32))
        self._secret = store.get(_SECRET)

    def reader(self, request: Request) -> Reader | None:
        """Return who asks; None if a login is needed. Raises `ApiError` for a foreign host name without keys."""
        if not self._keys.any_exist():
            check_loopback(dict(request.scope["headers"]))
            return Reader()
        login = request.cookies.get(COOKIE, "")
        body, _, signature = login.rpartition(".")
        if not body or not self.is_signed(f"login {body}", signature):
            return None
        key_id, expires_s, *_ = body.split(".")
        key = self._keys.state(key_id)
        if key is None or not key.opens(self._clock.now_s()) or self._clock.now_s() > float(expires_s):
            return None
        if self._store.exists(f"{_ENDED}{body}"):
            return None
        scopes = key.created.scopes
        is_admin = "admin" in scopes
        return Reader(login, key_id, key.created.project, is_admin, is_admin or "write" in scopes)

    def login(self, secret: str, *, client: str = "") -> str | None:
        """Return the cookie's value for an API key; None if the key opens nothing. Raises `PageError` if the address
        `client` has tried too many of those."""
        now_s = self._clock.monotonic_s()
        recent = [at_s for at_s in self._refused_s.get(client, ()) if now_s - at_s < REFUSED_WINDOW_S]
        if len(recent) >= MAX_REFUSED:
            raise PageError(429, f"too many wrong keys. Wait {REFUSED_WINDOW_S:.0f} s and try again.")
        key = self._keys.opening(secret.strip())
        if key is None or "metrics" in key.scopes:
            self._refused_s = {client: [*recent, now_s], **{
                other: times for other, times in self._refused_s.items()
                if other != client and now_s - times[-1] < REFUSED_WINDOW_S
            }}  # fmt: skip
            return None
        body = f"{key.key_id}.{self._clock.now_s() + LOGIN_S:.0f}.{secrets.token_hex(8)}"
        return f"{body}.{self.signed(f'login {body}')}"

    def end(self, login: str) -> None:
        """End a login, also for who has copied its cookie; forget those that would have ended by now."""
        body, _, signature = login.rpartition(".")
        if not body or not self.is_signed(f"login {body}", signature):
            return
        self._store.put(f"{_ENDED}{body}", b"")
        for item in list(self._store.list(_ENDED)):
            if float(item.key.split(".")[1]) < self._clock.now_s():
                self._store.delete(item.key)

    def token(self, reader: Reader) -> str:
        """Return the token of the reader's forms; empty if the reader may change nothing."""
        return self.signed(f"form {reader.login}") if reader.may_change else ""

    def check_form(self, request: Request, reader: Reader, form: Mapping[str, str]) -> None:
        """Raise `PageError` unless the form comes from a page of this server for this reader."""
        check_origin(request)
        if not reader.may_change:
            raise PageError(403, "this login may read only. Log in with a key that has the scope write.")
        if not self.is_signed(f"form {reader.login}", form.get("token", "")):
            raise PageError(403, "the form is out of date. Open the page again and repeat.")

    def signed(self, text: str) -> str:
        """Return the signature of a text, which only this home's servers can make."""
        return hmac.new(self._secret, text.encode(), sha256).hexdigest()

    def is_signed(self, text: str, signature: str) -> bool:
        """Return whether a signature, which may be any text, is that of `text`."""
        return hmac.compare_digest(signature.encode(), self.signed(text).encode())


def check_origin(request: Request) -> None:
    """Raise `PageError` if another site sends the form."""
    host = request.headers.get("host", "")
    if request.headers.get("origin") not in (f"http://{host}", f"https://{host}"):
        raise PageError(403, "the form was sent by another site, so nothing was changed.")


def set_login(response: Response, request: Request, value: str) -> None:
    """Set the login cookie; an empty value ends the login."""
    response.set_cookie(
        COOKIE, value, max_age=int(LOGIN_S) if value else 0, httponly=True, samesite="strict",
        secure=request.url.scheme == "https", path="/",
    )  # fmt: skip
