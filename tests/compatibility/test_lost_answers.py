"""Answers that get lost on a real wire, between the official SDK as it is and a real server: what was asked for
is made once, and everybody is answered with his own.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from email.message import Message
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from compatibility.environment import python_with
from compatibility.page import RELEASES
from compatibility.test_releases import ALONE, HERE, MANNERS
from faulty_wire import CUTS, HttpWire, Strike, Trouble
from integration.test_serving import Here
from variants import soaked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Requires = Callable[[str, bool, str], None]
Cuts = tuple[Trouble, ...]
ONCE: list[Cuts] = [(cut,) for cut in reversed(CUTS)]
"""What is closed first: a client that has not noticed yet has one try less for what it asks next."""
TWICE: list[Cuts] = [*product(CUTS[:-1], CUTS[:-1])]
"""The first request and its first repeat; the SDK asks a third time."""


class Served(Here):
    """A server that has a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server, self.sdk = self.serve()
        self.url = str(self.sdk.base_url).removesuffix("/v1/")
        self.file = self.sdk.files.create(file=("rows.jsonl", b"1"), purpose="fine-tune").id

    def create_over(self, python: str, wire: HttpWire, manner: str, *arguments: str) -> list[list[Any]]:
        """What the script was answered with, over the wire."""
        script = [python, "-m", "compatibility.creates", manner, f"{wire.url}/v1", self.file, *arguments]
        done = subprocess.run(script, capture_output=True, text=True, env=ALONE, cwd=HERE.parent)
        assert done.returncode == 0, done.stderr[-3000:]
        found: list[list[Any]] = json.loads(done.stdout)
        return found

    def complains(self) -> str:
        """What the server had to say, until now: its end."""
        self.kill(self.server)
        assert self.server.stderr is not None
        return self.server.stderr.read()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize(
    ("release", "cuts"),
    [(RELEASES[0], ONCE), *(pytest.param(text, ONCE + TWICE, marks=pytest.mark.soak) for text in RELEASES)],
)
def test_what_is_asked_for_again_is_made_once(
    served: Served, manner: str, release: str, cuts: list[Cuts], requires: Requires
) -> None:
    """Every cut of a create, of an upload's end, and of the one request of a file."""
    uploads = chain.from_iterable((entry, (), entry) for entry in cuts)  # create, its part, complete
    with HttpWire(served.url, strikes_of([*cuts, *cuts, *uploads])) as wire:
        created = served.create_over(python_with(f"openai-{release}", requires), wire, manner, str(len(cuts)))
        assert wire.num_requests == num_requests([*cuts] * 4) + len(cuts)
    ids = {
        kind: [resource_id for a_kind, _, resource_id, _ in created if a_kind == kind]
        for kind in ("job", "file", "upload")
    }
    assert [len(set(ids[kind])) for kind in ids] == [len(cuts)] * 3
    assert {job.id for job in served.sdk.fine_tuning.jobs.list()} == {*ids["job"]}
    assert {item.id for item in served.sdk.files.list()} == {served.file, *ids["file"], *ids["upload"]}
    assert len([*(served.home.api / "bytes").iterdir()]) == 1 + 2 * len(cuts)
    assert served.complains() == ""


def strikes_of(arguments: list[Cuts]) -> Iterator[Strike]:
    """The strikes by which each of these is cut as often, one after the other."""
    at = 0
    for cuts in arguments:
        for location, cut in enumerate(cuts):
            yield Strike(at + location, cut)
        at += num_requests([cuts])


def num_requests(arguments: list[Cuts]) -> int:
    """So many are sent till all are answered: what is cut behind its answer is not sent again."""
    return sum(1 + len([cut for cut in cuts if cut != "closed"]) for cuts in arguments)


class FirstsCut(HttpWire):
    """Cuts of all first requests every third."""

    def trouble_of(self, headers: "Message[str, str]") -> Trouble | None:
        is_first = headers["x-stainless-retry-count"] == "0"
        return self.next_trouble() if is_first else None


@pytest.mark.parametrize("key", ["", "mine-"])
@pytest.mark.parametrize("number", [12, *soaked(200)])
def test_of_many_who_ask_at_once_each_has_its_own_though_a_third_is_cut(
    served: Served, number: int, key: str, requires: Requires
) -> None:
    strikes = [Strike(at, CUTS[location % len(CUTS)]) for location, at in enumerate(range(0, number, 3))]
    with FirstsCut(served.url, strikes) as wire:
        python = python_with(f"openai-{RELEASES[0]}", requires)
        created = served.create_over(python, wire, "crowd", str(number), *filter(None, [key]))
        assert wire.num_requests == number
    ids = {resource_id for _, _, resource_id, _ in created}
    assert len(ids) == number
    assert {job.id for job in served.sdk.fine_tuning.jobs.list(limit=100)} == ids
    if not key:
        assert [seed for *_, seed in created] == [*range(number)]
    assert served.complains() == ""
