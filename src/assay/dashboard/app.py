"""The ASGI application of all pages: finds the page of an address, who reads it, and answers errors as pages."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from importlib import import_module
from types import MappingProxyType
from urllib.parse import unquote, urlencode

import anyio
import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.base.errors import AssayError, ConfigError, StoreError
from assay.base.names import meant
from assay.dashboard.access import COOKIE, Reader, Visit, check_origin, set_login
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Page, PageError, render_page, static_file
from assay.dashboard.pages.login import login_page
from assay.dashboard.pages.message import message_page
from assay.dashboard.rendered import READER, TOKEN, RenderedPage, RenderedPages, refresh_s
from assay.serving.api_error import ApiError
from assay.serving.openai.auth_middleware import checked_headers

Handler = Callable[[Dashboard, Visit], Page | Response]
"""Makes a page, or another answer such as the points of a curve; called in a thread."""


def _page(module: str, name: str, query: str = "", **options: str) -> Handler:
    """Return a handler that imports its page when a reader first opens it: to import all pages takes a second.

    `query`: the names that may stand in the address behind the question mark; for others it raises `PageError`.
    """
    known = query.split()

    def handle(dashboard: Dashboard, visit: Visit) -> Page | Response:
        if unknown := [key for key in visit.query if key not in known]:
            expected = f"expected one of {', '.join(known)}" if known else "this page has no filters"
            raise PageError(400, f"{unknown[0]}={visit.query[unknown[0]]}: {expected}{meant(unknown[0], known)}.")
        handler: Callable[..., Page | Response] = getattr(import_module(module), name)
        return handler(dashboard, visit, **options)

    return handle


PAGES: Mapping[str, Handler] = {
    "/": _page("assay.dashboard.pages.now", "now_page"),
    "/runs": _page(
        "assay.dashboard.pages.runs", "runs_page", "search status tags where sort group columns baseline page"
    ),
    "/runs/{run_id}/rollouts": _page("assay.dashboard.pages.rollouts", "rollouts_page", "step against page"),
    "/runs/{run_id}/checkpoints": _page("assay.dashboard.pages.checkpoints", "checkpoints_page"),
    "/compare": _page(
        "assay.dashboard.pages.compare",
        "compare_page",
        "run group metric baseline search status tags where sort page zoom",
    ),
    "/benchmarks": _page("assay.dashboard.pages.benchmarks", "benchmarks_page", "run candidate campaign page"),
    "/benchmarks/{benchmark}": _page(
        "assay.dashboard.pages.benchmarks", "benchmark_page", "run candidate campaign version incomplete page"
    ),
    "/benchmarks/{benchmark}/{run_id}/{step}": _page(
        "assay.dashboard.pages.benchmarks", "result_page", "version item show page"
    ),
    "/cost": _page("assay.dashboard.pages.cost", "cost_page", "by from to"),
    "/coverage": _page("assay.dashboard.pages.coverage", "coverage_page"),
    "/cost.csv": _page("assay.dashboard.pages.cost", "cost_csv", "by from to"),
    "/decisions": _page("assay.dashboard.pages.decisions", "decisions_page", "search decision page"),
    "/decisions/{campaign}": _page("assay.dashboard.pages.decisions", "decision_page"),
    "/decisions/{campaign}/record": _page("assay.dashboard.pages.decisions", "decision_record", "path"),
    "/jobs": _page("assay.dashboard.pages.jobs", "jobs_page", "kind status project page"),
    "/jobs/{job_id}": _page("assay.dashboard.pages.jobs", "job_page", "after"),
    "/programs": _page("assay.dashboard.pages.programs", "programs_page"),
    "/programs/{name}": _page("assay.dashboard.pages.programs", "program_page"),
    "/runs/{run_id}": _page("assay.dashboard.pages.run", "run_page_of", "zoom"),
    "/runs/{run_id}/curve": _page("assay.dashboard.pages.curve", "curve_of_run", "name since first last columns"),
    "/runs/{run_id}/curve.csv": _page("assay.dashboard.pages.curve", "curve_csv", "name since first last columns"),
    "/runs/{run_id}/metrics": _page("assay.dashboard.pages.curve", "metrics_page", "prefix show page zoom"),
}
ACTIONS: Mapping[str, Handler] = {
    "/runs/tag": _page("assay.dashboard.pages.run_notes", "tag_run"),
    "/runs/{run_id}/evaluate": _page("assay.dashboard.pages.checkpoints", "request_evaluation"),
    "/runs/note": _page("assay.dashboard.pages.run_notes", "note_run"),
    "/jobs/{job_id}/pause": _page("assay.dashboard.pages.jobs", "act_on_job", verb="pause"),
    "/jobs/{job_id}/resume": _page("assay.dashboard.pages.jobs", "act_on_job", verb="resume"),
    "/jobs/{job_id}/cancel": _page("assay.dashboard.pages.jobs", "act_on_job", verb="cancel"),
}
"""Forms, which a POST sends; each returns where the reader goes then, as a `RedirectResponse`."""

THREADS = 4
"""Pages that are made at the same time."""
RETRY_S = 5.0
"""After this time, a page that could not be read is loaded again."""
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_log = logging.getLogger("assay.dashboard")


def with_pages(api: ASGIApp, dashboard: Dashboard) -> ASGIApp:
    """Return an application that answers the pages' addresses itself and leaves all others to the API."""
    pages = _Pages(dashboard)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        await (pages if scope["type"] == "http" and pages.is_page(scope) else api)(scope, receive, send)

    return dispatch


class _Pages:
    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._threads = anyio.CapacityLimiter(THREADS)
        self._rendered = RenderedPages()
        self._routes = [
            *(Route(address, partial(self._get, handler), methods=["GET"]) for address, handler in PAGES.items()),
            *(Route(address, partial(self._post, handler), methods=["POST"]) for address, handler in ACTIONS.items()),
            Route("/events", self._events, methods=["GET"]),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/static/{name}", self._static, methods=["GET"]),
        ]

    def is_page(self, scope: Scope) -> bool:
        """Return whether an address is a page's, or a browser asks for one that does not exist."""
        if self._match(scope)[1] is not Match.NONE:
            return True
        accepted = dict(scope["headers"]).get(b"accept", b"")
        return not scope["path"].startswith("/v1") and b"text/html" in accepted

    def _match(self, scope: Scope) -> tuple[Route, Match, Mapping[str, str]]:
        """Return the best route of an address, and the parts of its path by name, still percent-encoded: a name may
        contain a slash."""
        sent = {**scope, "path": scope["raw_path"].decode("latin-1")}
        found = ((route, *route.matches(sent)) for route in self._routes)
        route, match, child = max(found, key=lambda matched: matched[1].value)
        return route, match, child.get("path_params", {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send_with_headers)

    async def _respond(self, request: Request) -> Response:
        try:
            checked_headers(request.scope)
            route, match, parts = self._match(request.scope)
            if match is Match.NONE:
                raise PageError(404, f"there is no page {request.url.path}.")
            if match is Match.PARTIAL:
                raise PageError(405, f"{request.method} is not possible at {request.url.path}.")
            request.scope["route"] = route
            request.scope["path_params"] = {name: unquote(part) for name, part in parts.items()}
            respond: Response = await route.endpoint(request)
            return respond
        except AssayError as error:
            return self._refused(request, error)
        except ApiError as error:
            response = self._refused(request, PageError(error.status, error.message))
            response.headers.update(error.headers)
            return response
        except OSError as error:
            _log.warning("%s %s: %s", request.method, request.url.path, error)
            return self._refused(request, StoreError(f"the home cannot be read or written: {error.strerror or error}."))
        except Exception as error:
            _log.error("%s %s", request.method, request.url.path, exc_info=error)
            return self._refused(request, PageError(500, "this page failed; the server's log says why."))

    def _refused(self, request: Request, error: AssayError) -> Response:
        """Return an error as a page. What may recover by itself is loaded again."""
        status = error.status if isinstance(error, PageError) else 404 if isinstance(error, ConfigError) else 503
        retry_s = RETRY_S if status == 503 else None
        response = _plain(request, message_page(str(error), status=status, retry_s=retry_s))
        if retry_s is not None:
            response.headers["retry-after"] = f"{retry_s:.0f}"
        return response

    async def _in_thread(self, call: Callable[[], Response]) -> Response:
        return await anyio.to_thread.run_sync(call, limiter=self._threads)

    async def _get(self, handler: Handler, request: Request) -> Response:
        def respond() -> Response:
            reader = self._dashboard.access.reader(request)
            if reader is None:
                return _plain(request, login_page(_address_of(request)))
            dashboard = self._dashboard._replace(reader=reader)
            key = (_address_of(request), reader.scope, reader.may_change, bool(reader.key_id))
            is_live = request.headers.get("hx-request") == "true"
            others: list[Response] = []

            def make() -> RenderedPage | None:
                worked_s = time.thread_time()
                if not is_live:  # seen before the facts are read: the first look at a topic is no change of the page
                    dashboard.watch.versions(map(reader.topic, _expected_topics(request)))
                began_s = time.monotonic()
                handled = handler(dashboard, _visit(reader, request))
                if isinstance(handled, Response):
                    dashboard.watch.note_cost(time.thread_time() - worked_s)
                    others.append(handled)
                    return None
                versions = dashboard.watch.versions(map(reader.topic, handled.topics), read_s=began_s)
                text = self._shared_text(request, reader, handled, versions, cost_s=self._rendered.cost_s(key))
                return RenderedPage(handled.status, text, versions, time.monotonic(), time.thread_time() - worked_s)

            rendered = self._rendered.get(key, dashboard.watch.versions, make, is_live=is_live)
            return _if_new(request, others[0]) if rendered is None else self._own(reader, rendered)

        return await self._in_thread(respond)

    def _shared_text(
        self, request: Request, reader: Reader, page: Page, versions: Mapping[str, int], *, cost_s: float
    ) -> str:
        """Return the text of a page for all readers who may see and do the same."""
        waits_s = refresh_s(page.refresh_s, cost_s, self._dashboard.watch.num_streams)
        return render_page(
            replace(page, refresh_s=round(waits_s, 1)),
            address=_address_of(request),
            stream=self._stream_address(reader, versions) if versions else "",
            reader_name=READER if reader.key_id else "",
            token=TOKEN if reader.may_change else "",
        )

    def _stream_address(self, reader: Reader, versions: Mapping[str, int]) -> str:
        """Return the address of a page's event stream. It is signed, so a reader follows topics of shown pages only."""
        signature = self._dashboard.access.signed(_topics_text(reader, [*versions]))
        pairs = [
            (name, value) for topic, version in versions.items() for name, value in (("topic", topic), ("at", version))
        ]
        return f"/events?{urlencode([*pairs, ('signature', signature)])}"

    def _own(self, reader: Reader, rendered: RenderedPage) -> Response:
        """Return a page with the name and the token of its reader."""
        text = rendered.text.replace(READER, escape(f"{reader.project} · {reader.key_id}"))
        return HTMLResponse(text.replace(TOKEN, self._dashboard.access.token(reader)), rendered.status)

    async def _post(self, handler: Handler, request: Request) -> Response:
        form = await _form(request)

        def respond() -> Response:
            reader = self._dashboard.access.reader(request)
            if reader is None:
                check_origin(request)
                return _plain(request, login_page(_page_before(request), is_expired=True))
            self._dashboard.access.check_form(request, reader, form)
            try:
                handled = handler(self._dashboard._replace(reader=reader), _visit(reader, request, form))
            finally:
                self._dashboard.watch.forget()
                self._rendered.forget()
            assert isinstance(handled, Response), "an action ends with a redirect"
            return handled

        return await self._in_thread(respond)

    async def _events(self, request: Request) -> Response:
        watch, access = self._dashboard.watch, self._dashboard.access
        reader = await anyio.to_thread.run_sync(access.reader, request, limiter=self._threads)
        if reader is None:
            raise PageError(403, "you are not logged in.")
        topics, versions = request.query_params.getlist("topic"), request.query_params.getlist("at")
        if not access.is_signed(_topics_text(reader, topics), request.query_params.get("signature", "")):
            raise PageError(400, "signature=...: expected the address of a stream as a page of this server has it.")
        heard = dict(pair.rpartition("=")[::2] for pair in request.headers.get("last-event-id", "").split("&"))
        since = {topic: heard.get(topic, at) for topic, at in zip(topics, versions, strict=False)}
        events = watch.events(since) if request.method == "GET" else ()
        return StreamingResponse(events, media_type="text/event-stream")

    async def _log_in(self, request: Request) -> Response:
        if request.method == "GET":
            return _plain(request, login_page("/"))
        if "origin" in request.headers:
            check_origin(request)
        form = await _form(request)

        def respond() -> Response:
            target = form.get("to", "/")
            target = target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"
            client = "" if request.client is None else request.client.host
            value = self._dashboard.access.login(form.get("key", ""), client=client)
            if value is None:
                return _plain(request, login_page(target, is_refused=True))
            response = RedirectResponse(target, 303)
            set_login(response, request, value)
            return response

        return await self._in_thread(respond)

    async def _log_out(self, request: Request) -> Response:
        check_origin(request)
        end = partial(self._dashboard.access.end, request.cookies.get(COOKIE, ""))
        await anyio.to_thread.run_sync(end, limiter=self._threads)
        response = RedirectResponse("/login", 303)
        set_login(response, request, "")
        return response

    async def _static(self, request: Request) -> Response:
        if (found := static_file(request.path_params["name"])) is None:
            raise PageError(404, f"there is no file {request.url.path}.")
        cached = "public, max-age=31536000, immutable" if request.url.query else "no-cache"
        return Response(found[0], media_type=found[1], headers={"cache-control": cached})


def _plain(request: Request, page: Page) -> Response:
    """Return a page that needs no login."""
    return HTMLResponse(
        render_page(page, address=_address_of(request), stream="", reader_name="", token=""), page.status
    )


def _if_new(request: Request, response: Response) -> Response:
    """Return a response, or that the browser has it already."""
    etag = response.headers.get("etag", "")
    is_known = etag and request.headers.get("if-none-match") == etag
    return Response(status_code=304, headers={"etag": etag}) if is_known else response


def _page_before(request: Request) -> str:
    """Return the address of the page with the form; `check_origin` has shown that it is of this server."""
    return f"/{request.headers.get('referer', '').partition('://')[2].partition('/')[2]}"


def _visit(reader: Reader, request: Request, form: Mapping[str, str] = MappingProxyType({})) -> Visit:
    for name, value in (*request.path_params.items(), *request.query_params.multi_items(), *form.items()):
        if "\0" in value:  # no name has one, and databases differ in what they do with it
            raise PageError(400, f"{name}={value}: expected text without NUL characters.")
    return Visit(reader, _address_of(request), request.path_params, request.query_params, form)


def _expected_topics(request: Request) -> tuple[str, ...]:
    """Return the topics that the page of an address probably has."""
    kinds = {"run": "run_id", "job": "job_id"}
    of_path = tuple(f"{kind}:{request.path_params[key]}" for kind, key in kinds.items() if key in request.path_params)
    return of_path or ("runs", "jobs", "campaigns", "followed", "minute")


def _topics_text(reader: Reader, topics: Sequence[str]) -> str:
    """Return the text that is signed for a stream."""
    return json.dumps(["stream", reader.scope, *topics])


def _address_of(request: Request) -> str:
    """Return path and query as they were sent: a name in the path may contain a question mark."""
    path, query = (request.scope[part].decode("latin-1") for part in ("raw_path", "query_string"))
    return f"{path}?{query}" if query else path


MAX_FORM_BYTES = 1 << 16


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises `PageError` if it is too large or of another kind."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    length = request.headers.get("content-length", "")
    if kind != "application/x-www-form-urlencoded" or not length.isdecimal() or int(length[:20]) > MAX_FORM_BYTES:
        raise PageError(
            400, f"a form must be sent as application/x-www-form-urlencoded, of at most {MAX_FORM_BYTES:,} bytes."
        )
    form = await request.form()
    return {name: value for name, value in form.items() if isinstance(value, str)}
