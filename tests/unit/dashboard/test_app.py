"""Addresses, errors, logins and headers of the dashboard."""

import hashlib
import json
import re
from html import escape
from importlib.resources import files

import pytest

from assay.dashboard.app import PAGES
from assay.dashboard.page import AREAS
from unit.dashboard.conftest import Site, site_of
from unit.dashboard.test_benchmarks import put, scored


@pytest.mark.parametrize("address", [link for _, link in AREAS])
def test_a_page_of_an_empty_home_says_what_to_do(site: Site, address: str) -> None:
    assert address in PAGES
    response = site.browser.get(address)
    assert response.status_code == 200, response.text
    assert "<h1>" in response.text


def test_a_page_allows_no_foreign_script_style_frame_or_form(site: Site) -> None:
    for address in ("/", "/runs", "/login", "/nothing", "/static/page.css"):
        headers = site.browser.get(address).headers
        assert "default-src 'self'" in headers["content-security-policy"], address
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
    text = site.browser.get("/runs").text
    assert not re.search(r"""<script(?![^>]*src=)|\sstyle=|\son\w+=|(src|href)="(https?:)?//""", text)


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/runs?status=lost", 400, "status=lost: expected one of"),
        ("/runs?sort=luck", 400, "sort=luck: expected one of"),
        ("/runs?page=0", 400, "page=0: expected a whole number from 1"),
        ("/runs/nobody", 404, "No run &#39;nobody&#39;"),
        ("/nothing", 404, "There is no page /nothing"),
        ("/events?topic=moon&at=1", 400, "expected the address of a stream"),
    ],
)
def test_a_wrong_address_is_a_page_that_names_what_is_wrong(site: Site, address: str, status: int, words: str) -> None:
    response = site.browser.get(address)
    assert response.status_code == status and words in response.text


def test_other_host_names_are_refused_without_keys(site: Site) -> None:
    response = site.browser.get("/runs", headers={"host": "evil.example:8017"})
    assert response.status_code == 403 and "only accepts loopback host names" in response.text


@pytest.mark.parametrize(
    "host", ["127.0.0.1@evil.example", "evil.example#127.0.0.1", "127.0.0.1/evil.example", "127.0.0.1.", "[", ""]
)
def test_a_host_that_is_no_name_of_this_machine_is_refused_as_the_api_does(site: Site, host: str) -> None:
    for address in ("/runs", "/v1/models"):
        assert site.browser.get(address, headers={"host": host}).status_code == 403, address


def test_headers_that_the_api_refuses_are_refused(site: Site) -> None:
    many = {f"x-{number}": "1" for number in range(200)}
    assert site.browser.get("/runs", headers=many).status_code == 431
    form = {"content-type": "application/x-www-form-urlencoded", "transfer-encoding": "chunked", "content-length": "5"}
    response = site.browser.post("/login", content=b"key=a", headers=form)
    assert response.status_code == 400 and "ambiguous" in response.text


def test_a_name_with_slashes_and_question_marks_has_a_page_of_its_own(site: Site) -> None:
    benchmark = "org/sums?a=b#c%2F.."
    put(site.dashboard.home, [scored("r", 5, benchmark, 0.5)])
    link = re.findall(r'href="(/benchmarks/org[^"?/]*)', site.browser.get("/benchmarks").text)[0]
    text = site.browser.get(link).text
    assert f"<h1>{escape(benchmark)}</h1>" in text and f'hx-get="{link}"' in text


def test_settings_that_cannot_be_read_are_named_until_they_are_corrected(site: Site) -> None:
    file = site.dashboard.home.folder / "settings.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("prices: [::")
    response = site.browser.get("/cost")
    assert response.status_code == 503 and "settings.yaml" in response.text and response.headers["retry-after"] == "5"
    file.unlink()
    assert site.browser.get("/cost").status_code == 200


def test_a_ledger_that_vanishes_before_the_first_page_is_not_replaced(site: Site) -> None:
    home = site.dashboard.home
    home.open_ledger().close()
    browser, file = site_of(home).browser, home.ledger_file()
    assert file is not None
    file.rename(file.with_suffix(".away"))
    response = browser.get("/runs")
    assert response.status_code == 503 and "the file is gone" in response.text and not file.exists()


def test_the_head_of_a_stream_ends(site: Site) -> None:
    found = re.search(r'data-address="([^"]+)"', site.browser.get("/runs").text)
    assert found is not None
    response = site.browser.head(found[1].replace("&amp;", "&"))
    assert response.status_code == 200 and response.content == b""


def test_a_message_that_names_a_long_value_is_short(site: Site) -> None:
    response = site.browser.get("/runs", params={"status": "x" * 50_000})
    assert response.status_code == 400 and "status=xxx" in response.text and "expected one of" in response.text
    assert len(response.text) < 10_000


def test_addresses_of_the_api_answer_as_before(site: Site) -> None:
    assert site.browser.get("/v1/models").json() == {"object": "list", "data": [], "has_more": False} or (
        site.browser.get("/v1/models").json()["data"] == []
    )
    missing = site.browser.get("/models", headers={"accept": "application/json"})
    assert missing.status_code == 404 and "/v1/models" in missing.json()["error"]["message"]


def test_with_a_key_a_reader_logs_in_and_out(site: Site) -> None:
    key = site.dashboard.api.keys.make(project="default", name="me", scopes=("read", "write"), lives_s=None)
    browser = site.browser
    refused = browser.get("/runs")
    assert refused.status_code == 401 and "API key" in refused.text and "Runs</h1>" not in refused.text
    same_site = {"origin": "http://127.0.0.1:8017"}
    assert "opens nothing" in browser.post("/login", data={"key": "sk-assay-wrong"}, headers=same_site).text
    response = browser.post("/login", data={"key": key.secret, "to": "/runs"}, follow_redirects=False)
    assert response.status_code == 303 and response.headers["location"] == "/runs"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and key.secret not in cookie
    assert "Runs</h1>" in browser.get("/runs").text
    site.dashboard.api.keys.revoke(key.created.key_id)
    assert browser.get("/runs").status_code == 401, "a revoked key ends the login"


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_a_login_leads_to_this_server_only(site: Site, target: str) -> None:
    key = site.dashboard.api.keys.make(project="default", name="me", scopes=("read",), lives_s=None)
    response = site.browser.post("/login", data={"key": key.secret, "to": target}, follow_redirects=False)
    assert response.headers["location"] == "/"


def test_vendored_files_are_those_of_the_list() -> None:
    folder = files("assay.dashboard").joinpath("static/vendor")
    listed = json.loads(folder.joinpath("vendored.json").read_text())
    for entry in listed:
        data = folder.joinpath(entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry["file"]
        assert folder.joinpath(entry["licence_file"]).is_file() and entry["version"] and entry["licence"]
    known = {"vendored.json", *(entry[name] for entry in listed for name in ("file", "licence_file"))}
    assert {path.name for path in folder.iterdir()} == known
