"""Logins, tokens, origins, and what a project sees on every page."""

import re

import pytest
from starlette.testclient import TestClient

from assay.base.clock import SystemClock
from assay.dashboard import access
from assay.dashboard.app import ACTIONS
from clocks import ManualClock
from unit.dashboard.accepted import accept_job
from unit.dashboard.conftest import Site
from unit.dashboard.test_cost import trained
from unit.dashboard.test_jobs import ORIGIN, logged_in, token_of

HOST = "127.0.0.1:8017"
FOREIGN = [{"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "https://127.0.0.1:9"}, {}]


def test_a_writer_of_another_project_changes_nothing_of_ours(site: Site) -> None:
    job_id = accept_job(site.dashboard.api, "blue-whales")
    trained(site, job_id)
    stranger = logged_in(site, "strangers")
    own = accept_job(site.dashboard.api, "strangers")
    form = {"token": token_of(stranger.get(f"/jobs/{own}").text), "run": job_id, "tags": "x", "text": "x", "step": "1"}
    for address in ACTIONS:
        path = re.sub(r"\{\w+\}", job_id, address)
        assert stranger.post(path, data=form, headers=ORIGIN).status_code == 404, path
    state = site.dashboard.api.jobs.state(job_id)
    assert state is not None and state.desired_state == "run"
    with site.dashboard.home.open_ledger() as ledger:
        assert ledger.run_notes(job_id) == []


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_form_of_another_site_changes_nothing(site: Site, headers: dict[str, str]) -> None:
    job_id = accept_job(site.dashboard.api)
    browser = logged_in(site)
    form = {"token": token_of(browser.get(f"/jobs/{job_id}").text)}
    for address in ACTIONS:
        path = re.sub(r"\{\w+\}", job_id, address)
        assert browser.post(path, data=form, headers=headers).status_code == 403, path
    state = site.dashboard.api.jobs.state(job_id)
    assert state is not None and state.desired_state == "run"
    assert browser.post("/logout", headers=headers, follow_redirects=False).status_code == 403
    assert browser.get("/jobs").status_code == 200, "another site cannot end a login"


def test_another_site_cannot_log_a_reader_in(site: Site) -> None:
    key = site.dashboard.api.keys.make(project="theirs", name="", scopes=("read",), lives_s=None)
    response = site.browser.post("/login", data={"key": key.secret}, headers={"origin": "http://evil.example"})
    assert response.status_code == 403 and "set-cookie" not in response.headers


def test_a_token_is_of_one_login(site: Site) -> None:
    job_id = accept_job(site.dashboard.api)
    first, second = logged_in(site), logged_in(site)
    token = token_of(second.get(f"/jobs/{job_id}").text)
    assert token != token_of(first.get(f"/jobs/{job_id}").text)
    for wrong in (token, "", "x"):
        response = first.post(f"/jobs/{job_id}/cancel", data={"token": wrong}, headers=ORIGIN)
        assert response.status_code == 403 and "out of date" in response.text


def test_pages_that_readers_share_have_the_token_and_name_of_each(site: Site) -> None:
    job_id = accept_job(site.dashboard.api)
    live = {"hx-request": "true"}
    first, second = logged_in(site), logged_in(site)
    tokens = {token_of(browser.get(f"/jobs/{job_id}", headers=live).text) for browser in (first, second)}
    readers = {
        re.findall(r'class="reader">(.*?)<', browser.get("/jobs", headers=live).text)[0] for browser in (first, second)
    }
    assert len(tokens) == len(readers) == 2
    assert "Cancel</button>" not in logged_in(site, scopes=("read",)).get(f"/jobs/{job_id}", headers=live).text


def test_logins_from_one_address_are_throttled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_800_000_000.0)
    monkeypatch.setattr(site.dashboard.access, "_clock", clock)
    key = site.dashboard.api.keys.make(project="default", name="", scopes=("read",), lives_s=None)
    for _ in range(access.MAX_REFUSED):
        assert site.browser.post("/login", data={"key": "sk-assay-wrong"}, headers=ORIGIN).status_code == 401
    right = {"data": {"key": key.secret}, "headers": ORIGIN, "follow_redirects": False}
    assert site.browser.post("/login", **right).status_code == 429
    clock.sleep_s(access.REFUSED_WINDOW_S + 1)
    assert site.browser.post("/login", **right).status_code == 303


def test_a_login_that_ends_before_a_form_is_sent_leads_to_the_login_and_back(site: Site) -> None:
    api = site.dashboard.api
    job_id = accept_job(api)
    browser = logged_in(site)
    form = {"token": token_of(browser.get(f"/jobs/{job_id}").text)}
    for key in api.keys.all():
        api.keys.revoke(key.created.key_id)
    headers = {**ORIGIN, "referer": f"http://{HOST}/jobs/{job_id}?page=1"}
    response = browser.post(f"/jobs/{job_id}/cancel", data=form, headers=headers)
    assert response.status_code == 401 and "nothing was changed" in response.text
    assert f'value="/jobs/{job_id}?page=1"' in response.text
    state = api.jobs.state(job_id)
    assert state is not None and state.desired_state == "run"


@pytest.mark.parametrize("change", ["body", "signature", "expiry"])
def test_a_changed_cookie_is_no_login(site: Site, change: str) -> None:
    browser = logged_in(site)
    value = browser.cookies["assay_login"]
    key_id, expires_s, nonce, signature = value.split(".")
    other_id = key_id[:-1] + ("1" if key_id.endswith("0") else "0")
    wrong = {
        "body": f"{other_id}.{expires_s}.{nonce}.{signature}",
        "signature": f"{key_id}.{expires_s}.{nonce}.{signature[:-1]}!",
        "expiry": f"{key_id}.{int(expires_s) + 1}.{nonce}.{signature}",
    }[change]
    other = TestClient(site.browser.app, base_url=f"http://{HOST}", cookies={"assay_login": wrong})
    assert other.get("/jobs").status_code == 401


def test_a_login_ends_after_its_time_and_survives_a_restart(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = logged_in(site)
    api = site.dashboard.api
    later = access.Access(api.files.store, api.keys, SystemClock())
    monkeypatch.setattr(site.dashboard.access, "_secret", later._secret)
    assert browser.get("/jobs").status_code == 200
    monkeypatch.setattr(site.dashboard.access, "_clock", ManualClock(api.clock.now_s() + access.LOGIN_S + 60))
    assert browser.get("/jobs").status_code == 401


def test_a_copied_cookie_and_a_stored_form_end_with_the_login(site: Site) -> None:
    api = site.dashboard.api
    job_id = accept_job(api)
    browser, other = logged_in(site), logged_in(site)
    form, cookie = {"token": token_of(browser.get(f"/jobs/{job_id}").text)}, browser.cookies["assay_login"]
    assert browser.post("/logout", headers=ORIGIN, follow_redirects=False).status_code == 303
    copied = TestClient(site.browser.app, base_url=f"http://{HOST}", cookies={"assay_login": cookie})
    assert copied.get("/jobs").status_code == 401
    assert copied.post(f"/jobs/{job_id}/cancel", data=form, headers=ORIGIN).status_code == 401
    state = api.jobs.state(job_id)
    assert state is not None and state.desired_state == "run"
    assert other.get("/jobs").status_code == 200, "another login goes on"


def test_ended_logins_are_forgotten_once_they_would_have_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = site.dashboard.api.files.store
    logged_in(site).post("/logout", headers=ORIGIN)
    assert len([*store.list("dashboard/ended/")]) == 1
    monkeypatch.setattr(site.dashboard.access, "_clock", ManualClock(SystemClock().now_s() + access.LOGIN_S + 60))
    logged_in(site).post("/logout", headers=ORIGIN)
    assert len([*store.list("dashboard/ended/")]) == 1


@pytest.mark.parametrize("text", ["\u00e9", "[", "http://[", "a.b.\u00e9", "9" * 5000, ".", "..", "a.b.c.d"], ids=repr)
def test_no_cookie_token_origin_or_address_before_makes_the_server_fail(site: Site, text: str) -> None:
    browser = logged_in(site)
    raw = text.encode("latin-1")
    for name in (b"cookie", b"origin", b"referer", b"last-event-id", b"if-none-match", b"host"):
        value = b"assay_login=" + raw if name == b"cookie" else raw
        headers = [(name, value), (b"content-type", b"application/x-www-form-urlencoded")]
        for path in ("/jobs", "/events?topic=runs&at=1"):
            assert browser.get(path, headers=headers).status_code < 500, (name, path)
        for path in ("/login", "/runs/tag", "/logout"):
            assert browser.post(path, headers=headers, content=b"token=x").status_code < 500, (name, path)
    response = browser.post("/runs/tag", data={"token": text}, headers=ORIGIN)
    assert response.status_code == 403 and "out of date" in response.text
