"""Who may ask, and what he sees: each operation of `docs/openapi.json` x each kind of key."""

import json
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from assay.base.clock import SystemClock
from assay.cli.main import cli
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.objects import open_store
from served import app_in, http_of

ROOT = Path(__file__).parents[3]
OPERATIONS = [
    (method.upper(), path)
    for path, operations in json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"].items()
    for method in operations
]
"""Every one that there is."""
REQUESTS = [*OPERATIONS, ("GET", "/v1/nowhere")]


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> AppState:
    return app_in(tmp_path_factory.mktemp("keys"))


def key_of(app: AppState, project: str, *, scopes=("read", "write"), lives_s: float | None = None):
    return app.keys.make(project=project, name="n", scopes=scopes, lives_s=lives_s)


@pytest.fixture(scope="module")
def http(app) -> TestClient:
    """One for all that is asked: an application has some eighty routes."""
    return http_of(app)


@pytest.fixture(scope="module")
def ours(app) -> dict[str, str]:
    """A project's key, file and paused job."""
    secret = key_of(app, "ours").secret
    sdk = openai.OpenAI(base_url="http://server/v1", api_key=secret, http_client=http_of(app))
    file = sdk.files.create(file=("f", b'{"text": "a", "label": 1}'), purpose="fine-tune")
    job = sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    sdk.fine_tuning.jobs.pause(job.id)
    webhook = sdk.webhooks.create(name="w", url="https://8.8.8.8/", event_types=["fine_tuning.job.failed"])
    digits = job.id.removeprefix("ftjob-")
    ids = {"file_id": file.id, "job_id": job.id, "webhook_id": webhook.id, "name": f"ft:tiny:ours::{digits}"}
    return {"secret": secret, **ids}


class Ids(dict):
    """What stands in a path's braces; ids of kinds that nobody made are of nothing."""

    def __missing__(self, name: str) -> str:
        return "x"


def requested(http: TestClient, ours: dict[str, str], send, secret: str | None) -> tuple[int, str | None]:
    method, path = send
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    response = http.request(method, path.format_map(Ids(ours)), headers=headers)
    return response.status_code, response.json()["error"]["code"] if response.status_code >= 400 else None


def everything(app: AppState) -> list[str]:
    return sorted(item.key for item in app.files.store.list(""))


def test_without_a_key_that_opens_nothing_is_answered_and_nothing_changes(app, http, ours) -> None:
    revoked, expired = key_of(app, "ours"), key_of(app, "ours", lives_s=10)
    app.keys.revoke(revoked.created.key_id)
    app.clock.sleep_s(10)
    before = everything(app)
    for send in REQUESTS:
        for secret in (None, "", "wrong", ours["secret"][:-1], revoked.secret, expired.secret):
            assert requested(http, ours, send, secret) == (401, "invalid_api_key"), (send, secret)
    assert everything(app) == before


def test_a_key_that_may_only_read_changes_nothing(app, http, ours) -> None:
    secret = key_of(app, "ours", scopes=("read",)).secret
    before = everything(app)
    for send in REQUESTS:
        status, code = requested(http, ours, send, secret)
        if send[0] == "GET":
            assert status in (200, 403, 404), send
        else:
            assert (status, code) == (403, "insufficient_permissions"), send
    assert everything(app) == before


def test_what_is_another_projects_is_not_there(app, http, ours) -> None:
    secret = key_of(app, "other").secret
    before = everything(app)
    for send in REQUESTS:
        if "{" in send[1]:
            status, code = requested(http, ours, send, secret)
            gone = ((404, "not_found"), (404, "model_not_found"), (403, "insufficient_permissions"))
            assert (status, code) in gone, send
    other = openai.OpenAI(base_url="http://server/v1", api_key=secret, http_client=http, max_retries=0)
    with pytest.raises(openai.BadRequestError, match="no file"):
        other.fine_tuning.jobs.create(model="tiny", training_file=ours["file_id"])
    headers = {"authorization": f"Bearer {secret}"}
    for path in ("/v1/files", "/v1/fine_tuning/jobs"):
        assert http.get(path, headers=headers).json()["data"] == []
    assert everything(app) == before


def test_a_secret_is_kept_nowhere(tmp_path) -> None:
    app = app_in(tmp_path, open_store(str(tmp_path / "api")))
    secret = key_of(app, "p").secret
    assert len(bytes.fromhex(secret.removeprefix("sk-assay-"))) == 32
    retained = b"".join(
        path.read_bytes() + str(path).encode() for path in (tmp_path / "api").rglob("*") if path.is_file()
    )
    assert secret.encode() not in retained and secret.removeprefix("sk-assay-")[:32].encode() not in retained


def test_keys_are_made_listed_and_revoked_by_command(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))

    def assay(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["serve", "key", *arguments], catch_exceptions=False).output

    secret, messages = assay("create", "--project", "p", "--name", "ci", "--days", "2", "--read-only").splitlines()
    key_id = messages.split()[0]
    app = app_in(tmp_path, open_store(str(Home.at(tmp_path / "home").api)))
    app.clock.sleep_s(SystemClock().now_s() - app.clock.now_s())
    assert (app.keys.opening(secret).project, app.keys.opening(secret).scopes) == ("p", ("read",))
    assert f"{key_id}  …{secret[-4:]}  active until" in assay("list")
    assert f"{key_id} is revoked" in assay("revoke", key_id)
    assert app.keys.opening(secret) is None
    assert "revoked" in assay("list")
