"""The table of `docs/compatibility.md`: each call that has to work, and the SDK releases in which it is served.

    python tests/compatibility/page.py        writes it; the test beside this file compares

Whether a call is served is asked of the server itself: what it does not serve is a 404 `endpoint_not_served`.
"""

import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
CALLS = Path(__file__).parent / "calls"
BEGIN, END = "<!-- calls: tests/compatibility/page.py writes from here -->", "<!-- to here -->"
RELEASES = ("3.54.0", "2.54.0", "1.109.1")
NOT_SERVED = "endpoint_not_served"


def calls_of(release: str) -> dict[str, str]:
    """What `walk.py` found in a release."""
    calls: dict[str, str] = json.loads((CALLS / f"openai-{release}.json").read_text())["calls"]
    return calls


def served(requests: Iterable[str]) -> dict[str, bool]:
    """Whether each request is served; any answer but those two ways is a mistake of the server's."""
    from served import app_in, http_of, opening

    found = {}
    with tempfile.TemporaryDirectory() as folder, http_of(app := app_in(Path(folder))) as http:
        header_of = opening(app)
        for request in sorted(set(requests)):
            method, path = request.split(" ", 1)
            body: dict[str, str] | None = {} if method in ("POST", "PUT", "PATCH") else None
            path = "/v1" + re.sub(r"\{\w+\}", "x", path)
            response = http.request(method, path, json=body, headers=header_of(path))
            code = response.json()["error"]["code"] if response.status_code >= 400 else None
            assert response.status_code in (200, 400, 401, 403, 404), (request, response.status_code)
            assert (code == NOT_SERVED) <= (response.status_code == 404), request
            found[request] = code != NOT_SERVED
    return found


def section() -> str:
    """Return the text between the two marks."""
    from compatibility.goals import GOALS

    present = {release: calls_of(release) for release in RELEASES}
    is_served = served(request for calls in present.values() for request in calls.values())
    names = [name for goal in GOALS for name in GOALS[goal]]
    rows = defaultdict[tuple[str, str], list[str]](list)
    for name in names:
        found = [item for item in RELEASES if name in present[item]]
        responses = {is_served[present[item][name]] for item in found}
        assert len(responses) == 1, name
        releases = "all" if len(found) == len(RELEASES) else ", ".join(item.rpartition(".")[0] for item in found)
        resource, _, method = name.rpartition(".")
        rows[resource, releases if responses == {True} else "not yet"].append(f"`{method}`")
    lines = ["| resource | calls | served in |", "|---|---|---|"]
    lines += [f"| `{resource}` | {', '.join(methods)} | {releases} |" for (resource, releases), methods in rows.items()]
    return "\n".join([*lines, "", _the_rest(present, is_served, names)]) + "\n"


def _the_rest(requests: dict[str, dict[str, str]], is_served: dict[str, bool], names: list[str]) -> str:
    """Say how many calls have no goal and are refused."""
    expected = {_nameless(requests[item][name]) for item in RELEASES for name in names if name in requests[item]}
    counts = []
    for release in RELEASES:
        others = [name for name, request in requests[release].items() if _nameless(request) not in expected]
        assert not [name for name in others if is_served[requests[release][name]]], "it has no goal"
        counts.append(f"{len(others)} of {len(requests[release])} in {release}")
    return f'Every other call is a 404 with `code: "{NOT_SERVED}"`: {", ".join(counts)}.'


def _nameless(request: str) -> str:
    """Two calls that say `{id}` and `{file_id}` ask for the same."""
    return re.sub(r"\{\w+\}", "{}", request)


def with_section(page: str) -> str:
    """The page with what the marks enclose written anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{section()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    PAGE.write_text(with_section(PAGE.read_text()))
