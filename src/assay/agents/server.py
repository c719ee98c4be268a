"""`assay mcp`: the tools by stdio for the agent of this machine's user, or over HTTP for whoever has an API key.

Over HTTP, the rules are those of `assay serve`: without keys it listens on this machine only; once a key exists, every
request needs one with the scope read, and sees all runs but those of other projects.
"""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from assay.agents.tools import HomeTools, visible
from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.errors import AssayError, NotInstalledError
from assay.store.home import Home
from assay.store.objects import open_store

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

    from assay.serving.openai.app_state import AppState

METHOD = "assay.method"
"""Scope key: the method of the request."""
INSTRUCTIONS = (
    "Facts about training runs, campaigns and programs of one assay home. All tools only read. Begin with list_runs, "
    "or with triage_overview if something went wrong. Times are UTC; keys are explained in docs/json.md."
)


def make_server(home: Home) -> "MCPServer":
    """Return a server with the tools."""
    if find_spec("mcp") is None:
        raise NotInstalledError("'assay mcp' needs the MCP SDK: pip install 'assay[mcp]'.")
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("assay", instructions=INSTRUCTIONS, version=code_version(), log_level="WARNING")
    for tool in HomeTools(home).all():
        server.tool(annotations=ToolAnnotations(read_only_hint=True))(_with_known_errors(tool))
    return server


def _with_known_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return the tool with errors that the client is shown."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except AssayError as error:
            raise ToolError(str(error)) from error

    return call


def serve_http(home: Home, host: str, port: int, notify: Callable[[str], None]) -> None:
    """Serve at /mcp until stopped. Raises `ConfigError` for an address that others reach while there are no keys."""
    server = make_server(home)
    import uvicorn

    from assay.serving.openai.app_state import AppState
    from assay.serving.openai.auth_middleware import check_address
    from assay.serving.server import listening

    api = AppState.of(open_store(str(home.api)), {}, SystemClock())
    check_address(host, api.keys, of="--host")
    app = server.streamable_http_app(stateless_http=True, json_response=True, host=host)
    with listening(host, port) as listener:
        notify(f"http://{host}:{listener.getsockname()[1]}/mcp")
        uvicorn.Server(uvicorn.Config(_authenticated(app, api), log_level="warning")).run(sockets=[listener])


def _authenticated(app: "ASGIApp", api: "AppState") -> "ASGIApp":
    from assay.dashboard.access import Reader, visible_runs
    from assay.serving.openai.app_state import KEY_ID, PROJECT
    from assay.serving.openai.auth_middleware import AuthMiddleware

    async def respond(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http":
            reader = Reader(project=scope[PROJECT], sees_all=not scope[KEY_ID])
            visible.set(await anyio.to_thread.run_sync(visible_runs, reader, api))
            scope = {**scope, "method": scope[METHOD]}
        await app(scope, receive, send)

    authenticated = AuthMiddleware(respond, api.keys)

    async def respond_as_read(scope: "Scope", receive: "Receive", send: "Send") -> None:
        # The protocol sends all requests by POST, for which the middleware would require the scope write.
        named = {"method": "GET", METHOD: scope["method"]} if scope["type"] == "http" else {}
        await authenticated({**scope, **named}, receive, send)

    return respond_as_read
