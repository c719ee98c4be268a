"""The table of `docs/compatibility.md`: each call that has to work, which SDKs have it, whether it is served.

    python tests/compatibility/page.py        writes it; the test beside this file compares

Whether a call is served is asked of the server itself: what it does not serve is a 404 `endpoint_not_served`.
"""

import json
import re
import sys
import tempfile
from collections import Counter
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
    from served import http_of, opening, place_in

    found = {}
    with tempfile.TemporaryDirectory() as folder, http_of(place := place_in(Path(folder))) as http:
        header_of = opening(place)
        for request in sorted(set(requests)):
            method, path = request.split(" ", 1)
            body: dict[str, str] | None = {} if method in ("POST", "PUT", "PATCH") else None
            path = "/v1" + re.sub(r"\{\w+\}", "x", path)
            answer = http.request(method, path, json=body, headers=header_of(path))
            code = answer.json()["error"]["code"] if answer.status_code >= 400 else None
            assert answer.status_code in (200, 400, 401, 403, 404), (request, answer.status_code)
            assert (code == NOT_SERVED) <= (answer.status_code == 404), request
            found[request] = code != NOT_SERVED
    return found


def section() -> str:
    """What stands between the two marks."""
    from compatibility.goals import GOALS

    there = {release: calls_of(release) for release in RELEASES}
    is_served = served(request for calls in there.values() for request in calls.values())
    names = [name for goal in GOALS for name in GOALS[goal]]
    lines = ["| call | request | " + " | ".join(each.rpartition(".")[0] for each in RELEASES) + " |"]
    lines.append("|---|---|" + "---|" * len(RELEASES))
    for name in names:
        requests = [there[release].get(name) for release in RELEASES]
        shown = dict.fromkeys(each for each in requests if each is not None)
        marks = ["" if each is None else "yes" if is_served[each] else "not yet" for each in requests]
        lines.append(f"| `{name}` | {', '.join(f'`{each}`' for each in shown)} | {' | '.join(marks)} |")
    lines += ["", *_the_rest(there, is_served, names)]
    return "\n".join(lines) + "\n"


def _the_rest(there: dict[str, dict[str, str]], is_served: dict[str, bool], names: list[str]) -> list[str]:
    """Calls that nobody has to serve: how many there are, and of what."""
    wanted = {_nameless(there[each][name]) for each in RELEASES for name in names if name in there[each]}
    lines = [f'Every other call answers 404 with `code: "{NOT_SERVED}"`:', ""]
    for release in RELEASES:
        others = [name for name, request in there[release].items() if _nameless(request) not in wanted]
        assert not [name for name in others if is_served[there[release][name]]], "it has no goal"
        groups = Counter(name.partition(".")[0] for name in others)
        said = ", ".join(f"`{group}` ({count})" for group, count in sorted(groups.items()))
        lines.append(f"- {release}: {len(others)} of {len(there[release])}: {said}")
    return lines


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
