"""The pages of what the API accepted: one list, the queue with its reasons, events and actions."""

import re

import pytest
from starlette.testclient import TestClient

from assay.serving.queue.worker_registry import WorkerRegistration
from unit.dashboard.accepted import accept_batch, accept_eval_run, accept_job, launch, validate
from unit.dashboard.conftest import Site

ORIGIN = {"origin": "http://127.0.0.1:8017"}


def logged_in(site: Site, project: str = "default", *, scopes: tuple[str, ...] = ("read", "write")) -> TestClient:
    key = site.dashboard.api.keys.make(project=project, name="me", scopes=scopes, lives_s=None)
    browser = TestClient(site.browser.app, base_url="http://127.0.0.1:8017")
    browser.headers["accept"] = "text/html"
    browser.post("/login", data={"key": key.secret}, headers=ORIGIN)
    return browser


def token_of(text: str) -> str:
    found = re.search(r'name="token" value="(\w+)"', text)
    assert found is not None, text
    return found[1]


def test_one_list_holds_all_that_was_accepted_newest_first(site: Site) -> None:
    api = site.dashboard.api
    ids = [accept_job(api), accept_batch(api), accept_eval_run(api)]
    text = site.browser.get("/jobs").text
    table = text[text.index("All jobs") :]
    positions = [table.index(resource_id) for resource_id in ids]
    assert positions == sorted(positions, reverse=True)
    assert ids[1] not in site.browser.get("/jobs?kind=eval").text
    assert "Nothing matches" in site.browser.get("/jobs?status=failed").text


def test_the_queue_names_place_and_reason_as_the_api_does(site: Site) -> None:
    api = site.dashboard.api
    first, second = accept_job(api), accept_job(api, at_s=1_800_000_009.0)
    for job_id in (first, second):
        validate(api, job_id)
    text = site.browser.get("/jobs").text
    state = api.jobs.state(second)
    assert state is not None
    status = api.queue.status(state)
    assert status is not None and status.position == 2
    queue = text[text.index("Queue") : text.index("All jobs")]
    assert queue.index(first) < queue.index(second) and "no worker is running" in queue


def test_a_queue_names_no_job_of_another_project(site: Site) -> None:
    api, projects = site.dashboard.api, ("blue-whales", "strangers")
    WorkerRegistration(api.jobs.store, api.clock, name="w", slots=1).renew()
    running = accept_job(api, "blue-whales")
    waiting = [accept_job(api, project, at_s=1_800_000_009.0) for project in projects]
    for job_id in (running, *waiting):
        validate(api, job_id)
    launch(api, running)
    texts = [logged_in(site, project).get(f"/jobs/{own}").text for project, own in zip(projects, waiting, strict=True)]
    assert any("job of another project is launched before it" in text.lower() for text in texts)
    assert any("of a job of the same model and method" in text for text in texts)
    for text, project, other in zip(texts, projects[::-1], waiting[::-1], strict=True):
        assert other not in text and project not in text
    assert running not in texts[1]


def test_the_page_of_a_job_shows_events_checkpoints_and_the_run(site: Site) -> None:
    api = site.dashboard.api
    job_id = accept_job(api, metadata={"team": "<b>blue</b>"})
    validate(api, job_id)
    launch(api, job_id)
    text = site.browser.get(f"/jobs/{job_id}").text
    assert "Step 5/10: training loss=0.5" in text and f'href="/runs/{job_id}"' in text
    assert "train_loss=0.5" in text and "step 5/10" in text.lower()
    assert "&lt;b&gt;blue&lt;/b&gt;" in text and "<b>blue" not in text


@pytest.mark.parametrize("accept", [accept_batch, accept_eval_run])
def test_batches_and_eval_runs_have_pages_that_can_cancel_only(site: Site, accept) -> None:
    resource_id = accept(site.dashboard.api)
    browser = logged_in(site)
    text = browser.get(f"/jobs/{resource_id}").text
    assert "Cancel</button>" in text and "Pause</button>" not in text
    form = {"token": token_of(text)}
    assert browser.post(f"/jobs/{resource_id}/pause", data=form, headers=ORIGIN).status_code == 404
    assert browser.post(f"/jobs/{resource_id}/cancel", data=form, headers=ORIGIN).status_code == 200
    assert re.search(r"cancel(l?ed|ling)", browser.get(f"/jobs/{resource_id}").text)


def test_a_writer_pauses_resumes_and_cancels(site: Site) -> None:
    api = site.dashboard.api
    job_id = accept_job(api)
    validate(api, job_id)
    browser = logged_in(site)
    form = {"token": token_of(browser.get(f"/jobs/{job_id}").text)}
    for verb, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        response = browser.post(f"/jobs/{job_id}/{verb}", data=form, headers=ORIGIN)
        assert response.status_code == 200 and status in response.text, verb
        state = api.jobs.state(job_id)
        assert state is not None and state.status == status
    refused = browser.post(f"/jobs/{job_id}/pause", data=form, headers=ORIGIN)
    assert refused.status_code == 400 and "cannot pause" in refused.text


def test_a_wrong_budget_is_refused_and_changes_nothing(site: Site) -> None:
    api = site.dashboard.api
    job_id = accept_job(api)
    browser = logged_in(site)
    form = {"token": token_of(browser.get(f"/jobs/{job_id}").text)}
    browser.post(f"/jobs/{job_id}/pause", data=form, headers=ORIGIN)
    wrong = browser.post(f"/jobs/{job_id}/resume", data={**form, "budget_device_hours": "-3"}, headers=ORIGIN)
    assert wrong.status_code == 400 and "budget_device_hours=-3" in wrong.text
    browser.post(f"/jobs/{job_id}/resume", data={**form, "budget_device_hours": "2.5"}, headers=ORIGIN)
    state = api.jobs.state(job_id)
    assert state is not None and state.budget_device_hours == 2.5 and state.desired_state == "run"


def test_a_reader_without_the_scope_write_sees_no_action_and_can_do_none(site: Site) -> None:
    api = site.dashboard.api
    job_id = accept_job(api)
    browser = logged_in(site, scopes=("read",))
    assert "Cancel</button>" not in browser.get(f"/jobs/{job_id}").text
    response = browser.post(f"/jobs/{job_id}/cancel", data={"token": ""}, headers=ORIGIN)
    state = api.jobs.state(job_id)
    assert response.status_code == 403 and state is not None and state.desired_state == "run"


def test_jobs_of_another_project_are_neither_shown_nor_changed(site: Site) -> None:
    api = site.dashboard.api
    job_id = accept_job(api, "theirs")
    own = accept_job(api, at_s=1_800_000_009.0)
    validate(api, job_id)
    validate(api, own)
    browser = logged_in(site)
    text = browser.get("/jobs").text
    assert job_id not in text and "theirs" not in text and own in text
    assert browser.get(f"/jobs/{job_id}").status_code == 404
    form = {"token": token_of(browser.get(f"/jobs/{own}").text)}
    assert browser.post(f"/jobs/{job_id}/cancel", data=form, headers=ORIGIN).status_code == 404
    state = api.jobs.state(job_id)
    assert state is not None and state.desired_state == "run"
    api.projects.ensure("theirs", by="me")
    assert job_id in logged_in(site, scopes=("admin",)).get("/jobs?project=theirs").text


@pytest.mark.parametrize(
    ("query", "words"),
    [("kind=job", "kind=job: expected one of"), ("status=lost", "status=lost: expected"), ("page=x", "page=x")],
)
def test_a_wrong_filter_is_named(site: Site, query: str, words: str) -> None:
    response = site.browser.get(f"/jobs?{query}")
    assert response.status_code == 400 and words in response.text


def test_open_jobs_change_the_topic_of_their_pages(site: Site) -> None:
    watch, api = site.dashboard.watch, site.dashboard.api
    job_id = accept_job(api)
    looks = watch._looks
    before = looks["jobs"](""), looks["job"](job_id)
    assert before == (looks["jobs"](""), looks["job"](job_id))
    api.jobs.pause(job_id)
    assert before[0] != looks["jobs"]("") and before[1] != looks["job"](job_id)
