"""Projects, accounts, keys, limits, costs and the audit log, by the SDK's own `client.admin.organization`."""

import openai
import pytest
from click.testing import CliRunner

from assay.cli.main import cli
from assay.records.fine_tuning_job import JobCharged
from assay.serving.admin.spend import by_day, mark_charged
from assay.serving.openai.app_state import AppState
from served import http_of

DAY_S = 86_400
START_S = 1_800_000_000


@pytest.fixture
def sdk(app) -> openai.OpenAI:
    """With an admin key, and a key of project `ours`."""
    app.projects.ensure("ours", by="user me")
    admin = app.keys.make(project="default", name="ops", scopes=("admin",), lives_s=None, by="user me")
    ours = app.keys.make(project="ours", name="ci", scopes=("read", "write"), lives_s=None, by="user me")
    return sdk_with(app, ours.secret, admin.secret)


def sdk_with(app: AppState, secret: str, admin: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(
        base_url="http://server/v1",
        api_key=secret,
        admin_api_key=admin,
        http_client=http_of(app),
        max_retries=0,
    )


def test_projects_are_made_renamed_listed_and_archived_with_their_keys(app, sdk) -> None:
    projects = sdk.admin.organization.projects
    created = projects.create(name="Vision team")
    assert (created.object, created.name, created.status) == ("organization.project", "Vision team", "active")
    assert projects.retrieve(created.id) == created
    assert projects.update(created.id, name="Vision").name == projects.retrieve(created.id).name == "Vision"
    assert [project.id for project in projects.list(limit=1)] == [created.id, "ours"]
    account = projects.service_accounts.create(created.id, name="ci")
    others = sdk_with(app, account.api_key.value)
    assert [*others.files.list()] == []
    assert projects.archive(created.id).status == "archived"
    with pytest.raises(openai.AuthenticationError):
        others.files.list()
    assert [project.id for project in projects.list()] == ["ours"]
    assert [project.id for project in projects.list(include_archived=True)] == [created.id, "ours"]
    for refused in (
        lambda: projects.update(created.id, name="again"),
        lambda: projects.service_accounts.create(created.id, name="again"),
        lambda: limit(sdk, created.id, 100),
    ):
        with pytest.raises(openai.BadRequestError, match="Archiving is final"):
            refused()


def test_an_accounts_key_opens_its_project_until_the_account_is_deleted(app, sdk) -> None:
    projects = sdk.admin.organization.projects
    account = projects.service_accounts.create("ours", name="ci", expires_in_seconds=100)
    assert account.role == "member"
    assert account.api_key.expires_at == account.api_key.created_at + 100
    assert projects.service_accounts.retrieve(account.id, project_id="ours").name == "ci"
    assert [account_.id for account_ in projects.service_accounts.list("ours")] == [account.id]
    shown = projects.api_keys.retrieve(account.api_key.id, project_id="ours")
    assert (shown.owner.type, shown.owner.service_account.id) == ("service_account", account.id)
    assert shown.redacted_value.endswith(account.api_key.value[-4:]) and account.api_key.value not in str(shown)
    assert account.api_key.id in [key.id for key in projects.api_keys.list("ours")]
    others = sdk_with(app, account.api_key.value)
    others.files.create(file=("f", b"1"), purpose="fine-tune")
    assert projects.service_accounts.delete(account.id, project_id="ours").deleted
    with pytest.raises(openai.AuthenticationError):
        others.files.list()
    for gone in (
        lambda: projects.service_accounts.retrieve(account.id, project_id="ours"),
        lambda: projects.api_keys.retrieve(account.api_key.id, project_id="ours"),
        lambda: projects.retrieve("nowhere"),
        lambda: projects.retrieve("../ours"),
        lambda: projects.api_keys.list("nowhere"),
    ):
        with pytest.raises(openai.NotFoundError):
            gone()
    assert projects.service_accounts.create("ours", name="x", create_service_account_only=True).api_key is None


def test_keys_are_deleted_and_admin_keys_are_made_and_deleted(app, sdk) -> None:
    organization = sdk.admin.organization
    (first,) = organization.admin_api_keys.list()
    created = organization.admin_api_keys.create(name="second")
    other = sdk_with(app, "any", created.value)
    assert {key_.id for key_ in other.admin.organization.admin_api_keys.list()} == {first.id, created.id}
    assert other.admin.organization.admin_api_keys.delete(first.id).deleted
    with pytest.raises(openai.AuthenticationError):
        organization.projects.list()
    (key,) = other.admin.organization.projects.api_keys.list("ours")
    assert other.admin.organization.projects.api_keys.delete(key.id, project_id="ours").deleted
    with pytest.raises(openai.AuthenticationError):
        sdk.files.list()


def test_an_admin_key_opens_no_project_and_a_projects_key_no_administration(app, sdk) -> None:
    admin = sdk_with(app, sdk.admin_api_key)
    with pytest.raises(openai.PermissionDeniedError):
        admin.files.list()
    swapped = sdk_with(app, "any", sdk.api_key)
    with pytest.raises(openai.PermissionDeniedError, match="the request requires admin"):
        swapped.admin.organization.projects.list()


def test_every_operation_turns_away_whoever_has_not_its_kind_of_key(app, sdk) -> None:
    http = http_of(app)
    paths = http.get("/v1/openapi.json", headers={"authorization": f"Bearer {sdk.api_key}"}).json()["paths"]
    operations = [(method, path) for path, methods in paths.items() for method in methods]
    assert len(operations) > 40
    before = sorted(item.key for item in app.jobs.store.list(""))
    for method, path in operations:
        is_admins = path.startswith("/v1/organization/")
        other = sdk.api_key if is_admins else sdk.admin_api_key
        for secret, status in ((None, 401), ("sk-assay-" + "0" * 64, 401), (other, 403)):
            headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
            response = http.request(method, path.replace("{", "").replace("}", ""), headers=headers, json={})
            assert response.status_code == status, (method, path, secret)
    assert sorted(item.key for item in app.jobs.store.list("")) == before


def test_without_keys_nobody_may_make_any(app) -> None:
    response = http_of(app).post("/v1/organization/admin_api_keys", json={"name": "mine"})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "admin_key_required")
    assert not app.keys.any_exist()


def repeated(app: AppState, sdk: openai.OpenAI, path: str, count: int) -> dict:
    headers = {"authorization": f"Bearer {sdk.admin_api_key}", "x-stainless-retry-count": str(count)}
    return http_of(app).post(f"/v1/organization/{path}", json={"name": "ci"}, headers=headers).json()


def test_a_secret_whose_answer_was_lost_is_revoked_and_the_repeat_gets_a_new_one(app, sdk) -> None:
    first, second = (repeated(app, sdk, "projects/ours/service_accounts", count) for count in (0, 1))
    assert first["id"] == second["id"] and first["api_key"]["id"] != second["api_key"]["id"]
    with pytest.raises(openai.AuthenticationError):
        sdk_with(app, first["api_key"]["value"]).files.list()
    assert [*sdk_with(app, second["api_key"]["value"]).files.list()] == []
    assert repeated(app, sdk, "projects/ours/service_accounts", 0)["id"] != first["id"]
    first, second = (repeated(app, sdk, "admin_api_keys", count) for count in (0, 1))
    with pytest.raises(openai.AuthenticationError):
        sdk_with(app, "any", first["value"]).admin.organization.projects.list()
    assert [*sdk_with(app, "any", second["value"]).admin.organization.projects.list()]


def limit(sdk: openai.OpenAI, project: str, hundredths: int):
    return sdk.admin.organization.projects.spend_limit.update(
        project, currency="device_hours", interval="month", threshold_amount=hundredths
    )


def charge(app: AppState, sdk: openai.OpenAI, *times: tuple[float, float, float]) -> str:
    """A job of `ours` whose attempts held (from, to, devices), in days since the start."""
    file = sdk.files.create(file=("f", b'{"text": "a", "label": 1}'), purpose="fine-tune")
    job_id = sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id).id
    for number, (begins, ends, devices) in enumerate(times, start=1):
        began_s, ended_s = START_S + begins * DAY_S, START_S + ends * DAY_S
        charged = JobCharged(
            at_s=ended_s, lease=1, attempt=number, began_s=began_s, ended_s=ended_s,
            device_s=(ended_s - began_s) * devices,
        )  # fmt: skip
        mark_charged(app.jobs.store, "ours", job_id, charged)
        app.jobs.log(job_id).append(lambda _, charged=charged: charged)
        assert sum(by_day(charged).values()) == pytest.approx(charged.device_s, rel=1e-12)
    app.clock.sleep_s(1.0)
    return job_id


def test_a_limit_is_set_in_hundredths_of_device_hours_and_says_when_it_is_spent(app, sdk) -> None:
    limits = sdk.admin.organization.projects.spend_limit
    with pytest.raises(openai.NotFoundError):
        limits.retrieve("ours")
    created = limit(sdk, "ours", 250)
    assert (created.currency, created.threshold_amount, created.enforcement.status) == ("device_hours", 250, "inactive")
    job_id = charge(app, sdk, (0.0, 0.05, 2.0))
    found = limits.retrieve("ours")
    assert (found.enforcement.status, found.x_assay["charged_device_hours"]) == ("inactive", pytest.approx(2.4))
    assert sdk.fine_tuning.jobs.retrieve(job_id).x_assay["charged_device_hours"] == pytest.approx(2.4)
    charge(app, sdk, (0.05, 0.06, 1.0))
    assert limits.retrieve("ours").enforcement.status == "enforcing"
    app.clock.sleep_s(32 * DAY_S)
    assert limits.retrieve("ours").enforcement.status == "inactive"
    assert limits.delete("ours").deleted
    with pytest.raises(openai.NotFoundError):
        limits.delete("ours")
    for wrong in ({"currency": "USD"}, {"interval": "day"}, {"threshold_amount": 0}):
        kwargs = {"currency": "device_hours", "interval": "month", "threshold_amount": 5, **wrong}
        with pytest.raises(openai.BadRequestError) as refused:
            limits.update("ours", **kwargs)
        assert refused.value.param == next(iter(wrong))


def test_costs_of_a_job_s_training_and_of_its_evaluation_are_two_numbers(app, sdk) -> None:
    job_id = charge(app, sdk, (0.0, 0.5, 2.0))
    evaluated = JobCharged(at_s=START_S, lease=1, attempt=0, began_s=START_S, ended_s=START_S + 3600.0, device_s=3600.0)
    app.jobs.log(job_id).append(lambda _: evaluated)
    app.clock.sleep_s(DAY_S)
    (cost,) = sdk.admin.organization.usage.costs(start_time=START_S, limit=1).data[0].results
    assert cost.quantity == pytest.approx(24.0 + 1.0)
    parts = {"training_device_hours": 24.0, "other_device_hours": 1.0}
    assert cost.x_assay == pytest.approx(parts)
    assert sdk.fine_tuning.jobs.retrieve(job_id).x_assay["evaluation_device_hours"] == pytest.approx(1.0)


def test_costs_by_day_job_and_project_sum_to_what_was_held(app, sdk) -> None:
    first = charge(app, sdk, (0.1, 0.4, 2.0), (0.5, 3.25, 1.0))
    second = charge(app, sdk, (1.0, 1.5, 4.0))
    app.clock.sleep_s(9 * DAY_S)
    usage = sdk.admin.organization.usage
    held_h = (0.3 * 2 + 2.75 + 0.5 * 4) * 24

    def total(**kwargs) -> float:
        page = usage.costs(start_time=START_S - DAY_S, limit=30, **kwargs)
        return sum(result.quantity for bucket in page.data for result in bucket.results)

    assert total() == pytest.approx(held_h, rel=1e-9)
    assert total(project_ids=["ours"]) == total(group_by=["project_id", "line_item"]) == pytest.approx(held_h)
    assert total(project_ids=["others"]) == 0
    assert total(line_items=[second]) == pytest.approx(48)
    by_job = usage.costs(start_time=START_S, limit=9, group_by=["line_item", "project_id"])
    results = [result for bucket in by_job.data for result in bucket.results]
    assert {result.line_item for result in results} == {first, second}
    assert {(result.project_id, result.quantity_unit) for result in results} == {("ours", "duration_hours")}
    seen, page = [], usage.costs(start_time=START_S, limit=2)
    while True:
        seen += page.data
        if not page.has_more:
            break
        page = usage.costs(start_time=START_S, limit=2, page=page.next_page)
    starts = [bucket.start_time for bucket in seen]
    assert starts == [starts[0] + n * DAY_S for n in range(len(starts))] and starts[0] % DAY_S == 0
    assert sum(result.quantity for bucket in seen for result in bucket.results) == pytest.approx(held_h)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "start_time"),
        ("start_time=x", "start_time"),
        ("start_time=1&limit=181", "limit"),
        ("start_time=1&group_by[]=user_id", "group_by"),
        ("start_time=1&bucket_width=1h", "bucket_width"),
        ("start_time=1&page=soon", "page"),
        ("start_time=1&start_time=2", "start_time"),
        ("start_time=1&user_ids[]=me", "user_ids[]"),
    ],
)
def test_costs_that_cannot_be_are_refused(app, sdk, query, param) -> None:
    headers = {"authorization": f"Bearer {sdk.admin_api_key}"}
    response = http_of(app).get(f"/v1/organization/costs?{query}", headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_the_audit_log_says_who_changed_what(app, sdk) -> None:
    organization = sdk.admin.organization
    (admin,) = organization.admin_api_keys.list()
    project = organization.projects.create(name="new")
    app.clock.sleep_s(10)
    organization.projects.update(project.id, name="newer")
    limit(sdk, project.id, 100)
    app.clock.sleep_s(10)
    account = organization.projects.service_accounts.create(project.id, name="ci")
    app.clock.sleep_s(10)
    organization.projects.service_accounts.delete(account.id, project_id=project.id)
    app.clock.sleep_s(10)
    organization.projects.archive(project.id)
    lines = [*organization.audit_logs.list(limit=2, project_ids=[project.id])]
    assert lines[0].type == "project.archived"
    assert sorted(line.type for line in lines) == [
        "api_key.created", "api_key.deleted", "project.archived", "project.created", "project.updated",
        "project.updated", "service_account.created", "service_account.deleted",
    ]  # fmt: skip
    assert [line.effective_at for line in lines] == sorted((line.effective_at for line in lines), reverse=True)
    assert {line.actor.api_key.id for line in lines} == {admin.id}
    assert {(line.project.id, line.project.name) for line in lines} == {(project.id, "newer")}
    assert lines[-1].project_created.data.name == "new"
    renamed = organization.audit_logs.list(event_types=["project.updated"], effective_at={"gte": START_S}).data
    assert "newer" in [line.project_updated.changes_requested.title for line in renamed]
    created = organization.audit_logs.list(resource_ids=[admin.id]).data
    assert [(line.type, line.actor.session.user.id) for line in created] == [("api_key.created", "user me")]
    assert organization.audit_logs.list(actor_ids=["nobody"]).data == []
    with pytest.raises(openai.BadRequestError):
        organization.audit_logs.list(tenant_only=True)


def test_lines_of_the_audit_log_keep_their_place_while_others_come(app, sdk) -> None:
    organization = sdk.admin.organization
    for number in range(5):
        app.clock.sleep_s(1)
        organization.projects.create(name=f"p{number}")
    before = [line.id for line in organization.audit_logs.list()]
    page = organization.audit_logs.list(limit=2)
    app.clock.sleep_s(1)
    organization.projects.create(name="later")
    seen = [line.id for line in page.data]
    while page.has_next_page():
        page = page.get_next_page()
        seen += [line.id for line in page.data]
    assert seen == before


def test_an_admin_key_is_made_by_command_and_a_project_with_its_first_key(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))

    def assay(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["serve", "key", *arguments])
        return done.exit_code, done.output

    code, messages = assay("create", "--admin", "--name", "ops")
    assert code == 0 and "of admins" in messages
    assert assay("create", "--project", "p")[0] == 0
    assert [line.split()[3] for line in assay("list")[1].splitlines()] == ["admin", "read+write"]
    for wrong in ((), ("--admin", "--project", "p"), ("--admin", "--read-only")):
        assert assay("create", *wrong)[0] == 2
