"""`docs/openapi.json` is what the server says of itself, and what it says is so."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.serving.openai.app import openapi_text
from assay.serving.openai.bodies import JobBody
from served import http_of, opening, place_in

PAGE = Path(__file__).parents[3] / "docs" / "openapi.json"
DOCUMENT = json.loads(PAGE.read_text())
OPERATIONS = [
    (method.upper(), path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


@pytest.fixture(scope="module")
def ask(tmp_path_factory) -> Callable[..., Any]:
    """Asks with a key that opens the path."""
    place = place_in(tmp_path_factory.mktemp("openapi"))
    header_of, http = opening(place), http_of(place)

    def asked(method: str, path: str, params: dict[str, str]) -> Any:
        headers = header_of(path)
        return http.request(method, re.sub(r"[{}]", "", path), params=params, headers=headers)

    return asked


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


@pytest.mark.parametrize(("method", "path"), [each[:2] for each in OPERATIONS])
def test_a_query_that_is_not_declared_is_refused(ask, method, path) -> None:
    answer = ask(method, path, {"nonsense": "1"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "nonsense")


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        (*each[:2], query["name"])
        for each in OPERATIONS
        for query in each[2].get("parameters", ())
        if query["in"] == "query"
    ],
)
def test_a_query_that_is_declared_is_read(ask, method, path, name) -> None:
    asked = {"limit": "1", "order": "asc", "metadata": "null"}.get(name, "x")
    answer = ask(method, path, {name: asked})
    refused = answer.json().get("error") or {}
    assert refused.get("code") != "unknown_parameter"
