"""What is served is what `docs/compatibility.md` says, call by call of the SDK's own classes."""

import json

import openai
import pytest

from compatibility.goals import GOALS
from compatibility.page import CALLS, PAGE, RELEASES, calls_of, with_section
from compatibility.walk import calls


@pytest.mark.slow
def test_the_calls_of_the_sdk_are_those_that_are_kept() -> None:
    """Rewrite with: python tests/compatibility/walk.py > tests/compatibility/calls/openai-VERSION.json."""
    if openai.__version__ not in RELEASES:
        pytest.skip(f"openai {openai.__version__} is none of {', '.join(RELEASES)}")
    retained = json.loads((CALLS / f"openai-{openai.__version__}.json").read_text())
    assert retained == {"version": openai.__version__, "calls": calls()}


def test_each_call_that_has_to_work_is_one_of_some_release() -> None:
    present = {name for release in RELEASES for name in calls_of(release)}
    assert [name for goal in GOALS for name in GOALS[goal] if name not in present] == []
    assert set(GOALS["A"]) <= set(calls_of("1.109.1"))


def test_the_page_says_what_the_server_serves() -> None:
    """Rewrite with: python tests/compatibility/page.py."""
    page = PAGE.read_text()
    assert page == with_section(page)
