"""`assay mcp` by the official client: the tools return what commands print, write nothing, and keep projects apart."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from assay.agents import server
from assay.base.clock import SystemClock
from assay.base.errors import NotInstalledError
from assay.serving.keys import KeyRepository
from assay.store.home import Home
from assay.store.objects import open_store
from full_home import fill
from in_process import AssayAt
from sample_project import SampleProjects

ASSAY = [sys.executable, "-m", "assay"]


@pytest.fixture(autouse=True)
def sdk(requires: Callable[..., None]) -> None:
    requires("sdks", find_spec("mcp") is not None, "the MCP SDK is not installed")


def calls(target: Any, *requests: tuple[str, dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """Return the names of a server's tools, and what the calls return: facts, or the text of an error."""
    from mcp import Client

    async def run() -> tuple[list[str], list[Any]]:
        async with Client(target) as client:
            tools = (await client.list_tools()).tools
            assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
            found = [await client.call_tool(name, arguments) for name, arguments in requests]
            return [tool.name for tool in tools], [
                item.content[0].text if item.is_error else item.structured_content for item in found
            ]

    return anyio.run(run)


def by_stdio(home: Path) -> Any:
    from mcp.client.stdio import StdioServerParameters

    environment = {**os.environ, "ASSAY_HOME": str(home)}
    return StdioServerParameters(command=ASSAY[0], args=[*ASSAY[1:], "mcp"], env=environment)


@contextmanager
def over_http(home: Path) -> Iterator[str]:
    command = [*ASSAY, "mcp", "--http", "--port", "0"]
    environment = {**os.environ, "ASSAY_HOME": str(home)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[-1]
        process.terminate()


@asynccontextmanager
async def with_key(address: str, secret: str) -> AsyncIterator[Any]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    headers = {"authorization": f"Bearer {secret}"}
    async with (
        httpx2.AsyncClient(headers=headers) as client,
        streamable_http_client(address, http_client=client) as streams,
    ):
        yield streams


def printed(home: Path, *arguments: str) -> Any:
    return AssayAt(home).json(*arguments)


def files_of(home: Path) -> dict[str, bytes]:
    """Everything but the ledger, which is an index of the rest."""
    files = (path for path in home.rglob("*") if path.is_file() and "ledger" not in path.name)
    return {str(path.relative_to(home)): path.read_bytes() for path in files}


def test_an_agent_reads_what_commands_print_and_changes_nothing(
    sample_projects: SampleProjects, tmp_path: Path
) -> None:
    home = sample_projects.copy_to(tmp_path / "project")
    before = files_of(home)
    names, found = calls(
        by_stdio(home),
        ("list_runs", {"status": ["succeeded"]}),
        ("show_run", {"run_id": "finis"}),
        ("compare_runs", {"baseline": "finished", "candidate": "candidate"}),
        ("audit_run", {"run_id": "finished"}),
        ("triage_overview", {}),
        ("list_campaigns", {}),
        ("show_run", {"run_id": "nothing"}),
        ("show_run", {"run_id": "session-" + "0" * 24}),
        ("plan_status", {"program": "none"}),
        ("show_decisions", {"campaign": "none"}),
    )
    assert names == [
        *("list_runs", "show_run", "compare_runs", "audit_run", "triage_overview", "list_campaigns"),
        *("show_decisions", "plan_status"),
    ]
    assert files_of(home) == before
    runs, shown, compared, audit, overview, campaigns, *errors = found
    assert [line["run_id"] for line in runs["runs"]] == [
        line["run_id"] for line in printed(home, "runs", "list", "--status", "succeeded")
    ]
    assert shown["run_id"] == "finished" and shown["step"] == printed(home, "runs", "show", "finished")["step"]
    (comparison,) = printed(home, "decide", "compare", "finished", "candidate")
    assert compared["comparison"]["difference"] == comparison["difference"]
    assert compared["diff"] == printed(home, "runs", "diff", "finished", "candidate")
    assert audit == printed(home, "runs", "audit", "finished")
    assert overview == printed(home, "triage")
    assert campaigns == {"campaigns": []}
    for error, text in zip(errors, ("nothing", "session-0", "no program none", "none"), strict=True):
        assert text in error, errors


@pytest.mark.slow
def test_projects_see_their_own_runs_by_their_keys(sample_projects: SampleProjects, tmp_path: Path) -> None:
    filled = fill(Home.at(sample_projects.copy_to(tmp_path / "project", campaign=True)))
    with filled.home.open_ledger() as ledger:
        ledger.record_run(ledger.run("finished").model_copy(update={"run_id": filled.job_id}))
    keys = KeyRepository(open_store(str(filled.home.api)), SystemClock())

    def key(scope: str, project: str) -> str:
        return keys.make(project=project, name="", scopes=(scope,), lives_s=None).secret

    other, own = key("read", "x"), key("read", "default")
    requests = (("list_runs", {"limit": 100}), ("show_run", {"run_id": filled.job_id}))
    with over_http(filled.home.folder) as address:
        of_secret = {secret: calls(with_key(address, secret), *requests)[1] for secret in (other, own)}
        _, (decisions, programs, status) = calls(
            with_key(address, other),
            ("show_decisions", {"campaign": "small"}),
            ("plan_status", {}),
            ("plan_status", {"program": "program"}),
        )
        for headers in ({}, {"authorization": "Bearer sk-assay-wrong"}):
            refused = httpx.post(address, json={}, headers=headers)
            assert refused.status_code == 401 and "assay serve key create" in refused.text
        for scope in ("write", "admin", "metrics"):
            headers = {"authorization": f"Bearer {key(scope, 'x')}"}
            assert httpx.post(address, json={}, headers=headers).status_code == 403, scope
    runs = {secret: {line["run_id"] for line in found[0]["runs"]} for secret, found in of_secret.items()}
    assert "finished" in runs[other] and runs[own] == runs[other] | {filled.job_id}
    assert f"no run '{filled.job_id}'" in of_secret[other][1]
    assert of_secret[own][1]["run_id"] == filled.job_id
    assert [item["kind"] for item in decisions["decisions"]] == ["decision"]
    assert programs["programs"] and (isinstance(status, str) or status["program"])


def test_a_server_without_keys_stays_on_this_machine(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    done = subprocess.run(
        [*ASSAY, "mcp", "--http"], env={**os.environ, "ASSAY_HOME": str(home)}, capture_output=True, text=True
    )
    assert done.returncode == 2 and "no such folder. Set $ASSAY_HOME" in done.stderr
    home.mkdir()
    done = subprocess.run(
        [*ASSAY, "mcp", "--http", "--host", "0.0.0.0"],
        env={**os.environ, "ASSAY_HOME": str(home)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "--host 0.0.0.0: a server without API keys" in done.stderr
    with over_http(home) as address:
        refused = httpx.post(address, json={}, headers={"host": "evil.example"})
        assert refused.status_code == 403
        assert "no runs" in calls(address, ("list_runs", {}))[1][0]


def test_a_missing_sdk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(NotInstalledError, match=r"pip install 'assay\[mcp\]'"):
        server.make_server(Home.at(tmp_path))
