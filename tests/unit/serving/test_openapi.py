"""`docs/openapi.json` is what the server says of itself, and what it says is so."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.serving.openai.app import openapi_text
from assay.serving.openai.bodies import JobBody
from served import app_in, http_of, opening

PAGE = Path(__file__).parents[3] / "docs" / "openapi.json"
DOCUMENT = json.loads(PAGE.read_text())
OPERATIONS = [
    (method.upper(), path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


@pytest.fixture(scope="module")
def send(tmp_path_factory) -> Callable[..., Any]:
    """Asks with a key that opens the path."""
    app = app_in(tmp_path_factory.mktemp("openapi"))
    header_of, http = opening(app), http_of(app)

    def requested(method: str, path: str, params: dict[str, str]) -> Any:
        headers = header_of(path)
        return http.request(method, re.sub(r"[{}]", "", path), params=params, headers=headers)

    return requested


def test_the_document_is_what_is_served() -> None:
    """Rewrite with: assay serve --openapi > docs/openapi.json."""
    assert PAGE.read_text() == openapi_text()


def test_an_operation_is_named_once_and_says_which_errors_it_answers_with() -> None:
    names = [operation["operationId"] for *_, operation in OPERATIONS]
    assert len(set(names)) == len(names) and "POST /v1/files" in names
    for *_, operation in OPERATIONS:
        assert {"400", "401", "403", "404", "503"} <= set(operation["responses"])
        assert not {"422", "501"} & set(operation["responses"])


def test_a_body_is_described_by_the_class_that_reads_it() -> None:
    create = DOCUMENT["paths"]["/v1/fine_tuning/jobs"]["post"]["requestBody"]["content"]
    assert set(create["application/json"]["schema"]["properties"]) == set(JobBody.model_fields)
    assert "MethodBody" in DOCUMENT["components"]["schemas"]


@pytest.mark.parametrize(("method", "path"), [item[:2] for item in OPERATIONS])
def test_a_query_that_is_not_declared_is_refused(send, method, path) -> None:
    response = send(method, path, {"nonsense": "1"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "nonsense")


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        (*item[:2], query["name"])
        for item in OPERATIONS
        for query in item[2].get("parameters", ())
        if query["in"] == "query"
    ],
)
def test_a_query_that_is_declared_is_read(send, method, path, name) -> None:
    requested = {"limit": "1", "order": "asc", "metadata": "null"}.get(name, "x")
    response = send(method, path, {name: requested})
    refused = response.json().get("error") or {}
    assert refused.get("code") != "unknown_parameter"
