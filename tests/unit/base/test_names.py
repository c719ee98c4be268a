"""Whatever somebody names a run: it is the name of one folder, and never a second line of a script."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.base.names import checked_name, shell_line


@pytest.mark.parametrize(
    "wrong", ["", ".", "..", "../x", "/etc/x", "a/b", "a\nrm -rf x", "a\rb", "a\0b", "a\x1b[2J", "a\u202eb"]
)
def test_what_is_no_folders_name_is_refused_with_what_it_was_meant_for(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"the run's id: .* is not a valid name"):
        checked_name(wrong, of="the run's id")


@pytest.mark.parametrize("name", ["preferences-0312-1a2b", "größer", "lr=1e-4 (second)", ".hidden", "a..b"])
def test_any_other_name_stays_as_it_is(name: str) -> None:
    assert checked_name(name, of="x") == name


@given(st.lists(st.text(), min_size=1))
def test_a_shell_reads_the_words_that_were_written_or_nothing_is(words: list[str]) -> None:
    try:
        line = shell_line(*words)
    except ConfigError:
        assert not all(map(str.isprintable, words))
        return
    assert len(line.splitlines()) <= 1
    assert shlex.split(line) == words


def test_bash_runs_nothing_of_a_word() -> None:
    words = ["$(touch /x)", "`id`", "a b", "'\"", "&& exit 7", "#", "%j", "~", "*"]
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {shell_line(*words)}"], capture_output=True, text=True, check=True
    )
    assert printed.stdout.splitlines() == words
