"""Who may ask, and what he sees: each operation of `docs/openapi.json` x each kind of key."""

import json
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from assay.base.clock import SystemClock
from assay.cli.main import cli
from assay.serving.openai.place import Place
from assay.store.home import Home
from assay.store.objects import open_store
from served import http_of, place_in

ROOT = Path(__file__).parents[3]
OPERATIONS = [
    (method.upper(), path)
    for path, operations in json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"].items()
    for method in operations
]
"""Every one that there is."""
ASKS = [*OPERATIONS, ("GET", "/v1/nowhere")]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return place_in(tmp_path_factory.mktemp("keys"))


def key_of(place: Place, project: str, *, scopes=("read", "write"), lives_s: float | None = None):
    return place.keys.make(project=project, name="n", scopes=scopes, lives_s=lives_s)


@pytest.fixture(scope="module")
def http(place) -> TestClient:
    """One for all that is asked: an application has some eighty routes."""
    return http_of(place)


@pytest.fixture(scope="module")
def ours(place) -> dict[str, str]:
    """A project's key, file and paused job."""
    secret = key_of(place, "ours").secret
    sdk = openai.OpenAI(base_url="http://server/v1", api_key=secret, http_client=http_of(place))
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


def asked(http: TestClient, ours: dict[str, str], ask, secret: str | None) -> tuple[int, str | None]:
    method, path = ask
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    answer = http.request(method, path.format_map(Ids(ours)), headers=headers)
    return answer.status_code, answer.json()["error"]["code"] if answer.status_code >= 400 else None


def everything(place: Place) -> list[str]:
    return sorted(item.key for item in place.files.shelf.store.list(""))


def test_without_a_key_that_opens_nothing_is_answered_and_nothing_changes(place, http, ours) -> None:
    revoked, expired = key_of(place, "ours"), key_of(place, "ours", lives_s=10)
    place.keys.revoke(revoked.created.key_id)
    place.clock.sleep_s(10)
    before = everything(place)
    for ask in ASKS:
        for secret in (None, "", "wrong", ours["secret"][:-1], revoked.secret, expired.secret):
            assert asked(http, ours, ask, secret) == (401, "invalid_api_key"), (ask, secret)
    assert everything(place) == before


def test_a_key_that_may_only_read_changes_nothing(place, http, ours) -> None:
    secret = key_of(place, "ours", scopes=("read",)).secret
    before = everything(place)
    for ask in ASKS:
        status, code = asked(http, ours, ask, secret)
        if ask[0] == "GET":
            assert status in (200, 403, 404), ask
        else:
            assert (status, code) == (403, "insufficient_permissions"), ask
    assert everything(place) == before


def test_what_is_another_projects_is_not_there(place, http, ours) -> None:
    secret = key_of(place, "theirs").secret
    before = everything(place)
    for ask in ASKS:
        if "{" in ask[1]:
            status, code = asked(http, ours, ask, secret)
            gone = ((404, "not_found"), (404, "model_not_found"), (403, "insufficient_permissions"))
            assert (status, code) in gone, ask
    theirs = openai.OpenAI(base_url="http://server/v1", api_key=secret, http_client=http, max_retries=0)
    with pytest.raises(openai.BadRequestError, match="no file"):
        theirs.fine_tuning.jobs.create(model="tiny", training_file=ours["file_id"])
    headers = {"authorization": f"Bearer {secret}"}
    for path in ("/v1/files", "/v1/fine_tuning/jobs"):
        assert http.get(path, headers=headers).json()["data"] == []
    assert everything(place) == before


def test_a_secret_is_kept_nowhere(tmp_path) -> None:
    place = place_in(tmp_path, open_store(str(tmp_path / "api")))
    secret = key_of(place, "p").secret
    assert len(bytes.fromhex(secret.removeprefix("sk-assay-"))) == 32
    kept = b"".join(
        path.read_bytes() + str(path).encode() for path in (tmp_path / "api").rglob("*") if path.is_file()
    )
    assert secret.encode() not in kept and secret.removeprefix("sk-assay-")[:32].encode() not in kept


def test_keys_are_made_listed_and_revoked_by_command(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))

    def assay(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["key", *arguments], catch_exceptions=False).output

    secret, said = assay("create", "--project", "p", "--name", "ci", "--days", "2", "--read-only").splitlines()
    key_id = said.split()[0]
    place = place_in(tmp_path, open_store(str(Home.at(tmp_path / "home").api)))
    place.clock.sleep_s(SystemClock().now_s() - place.clock.now_s())
    assert (place.keys.opening(secret).project, place.keys.opening(secret).scopes) == ("p", ("read",))
    assert f"{key_id}  …{secret[-4:]}  opens until" in assay("list")
    assert f"{key_id} opens nothing any more" in assay("revoke", key_id)
    assert place.keys.opening(secret) is None
    assert "revoked" in assay("list")
