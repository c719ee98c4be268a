"""What could be read in two ways, or names what it does not say, is refused."""

import pytest
from starlette.testclient import TestClient

from served import app_in, http_of

EVAL = '{"name": "a", "data_source_config": {}, "testing_criteria": [], "metadata": {"k": "1", "k": "2"}}'


@pytest.fixture
def http(tmp_path) -> TestClient:
    return http_of(app_in(tmp_path))


def error(response) -> dict:
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("name", ["Authorization", "content-type", "OpenAI-Project", "Range", "Idempotency-Key"])
def test_a_header_that_decides_something_stands_once(http, name) -> None:
    found = error(http.get("/v1/files", headers=[(name, "a"), (name.upper(), "b")]))
    assert found["code"] == "duplicate_header" and name.lower() in found["message"]
    assert http.get("/v1/files", headers=[("Accept", "a"), ("Accept", "b")]).status_code == 200


def test_a_body_has_one_length(http) -> None:
    pair = {"Transfer-Encoding": "chunked", "Content-Length": "5"}
    response = http.post("/v1/evals", headers=pair, content=b"{}")
    assert error(response)["code"] == "ambiguous_length" and response.headers["connection"] == "close"


def test_more_headers_than_anybody_sends_are_refused(http) -> None:
    response = http.get("/v1/files", headers=[(f"x-{number}", "a") for number in range(200)])
    assert (response.status_code, response.json()["error"]["code"]) == (431, "too_many_headers")
    assert http.get("/v1/files", headers={"x": "a" * 20_000}).status_code == 431


def test_a_parameter_of_the_query_is_given_once(http) -> None:
    assert error(http.get("/v1/files?limit=1&limit=2"))["param"] == "limit"
    assert error(http.get("/v1/fine_tuning/jobs?metadata[a]=1&metadata[a]=2"))["param"] == "metadata[a]"


@pytest.mark.parametrize("body", [EVAL, '{"name": "a", "name": "b"}'])
def test_a_key_of_json_stands_once_however_deep(http, body) -> None:
    found = error(http.post("/v1/evals", content=body))
    assert found["code"] == "invalid_json" and "occurs twice in one object" in found["message"]


def test_a_slash_too_many_is_no_redirect_to_whatever_host_was_named(http) -> None:
    response = http.get("/v1/files/", headers={"host": "localhost:1"}, follow_redirects=False)
    assert response.status_code == 404 and "location" not in response.headers
    assert "GET /v1/files is" in response.json()["error"]["message"]


def test_a_nul_is_refused_and_the_text_of_its_escape_is_not(http) -> None:
    grader = {"type": "string_check", "name": "x", "input": "a", "reference": "a", "operation": "eq"}
    for text, status in ((r"a\\u0000", 200), (r"\\\\u0000", 200), (r"a\u0000", 400), (r"\\\u0000", 400)):
        body = '{{"grader": {}, "model_sample": "{}"}}'.format(str(grader).replace("'", '"'), text)
        assert http.post("/v1/fine_tuning/alpha/graders/run", content=body).status_code == status, text


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        (
            {"role": "assistant", "content": None, "tool_calls": []},
            "messages.0.tool_calls",
            "Unknown parameter",
        ),
        ({"role": "assistant", "content": None}, "messages.0.content", "Invalid value"),
        ({"role": "user", "content": None}, "messages.0.content", "Invalid value"),
        ({"role": "user"}, "messages.0.content", "Missing required parameter"),
        ({"role": "user", "contents": "a"}, "messages.0.contents", "Unknown parameter"),
    ],
)
def test_what_is_wrong_with_a_message_is_named(http, message, param, words) -> None:
    found = error(http.post("/v1/chat/completions", json={"model": "tiny", "messages": [message]}))
    assert found["param"] == param and found["message"].startswith(words)


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_null_in_the_place_of_what_must_be_there_is_not_missing(http, missing) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], missing: None}
    found = error(http.post("/v1/chat/completions", json=body))
    assert found["param"] == missing and found["message"].startswith("Invalid value")
