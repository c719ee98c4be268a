import time

import pytest

from assay.scoring.template import MAX_RENDERED, UnknownVariableError, check_template, render


def test_a_template_of_many_braces_is_read_in_the_time_of_its_length() -> None:
    began_s = time.monotonic()
    for template in ("{{" * 200_000, "{{" * 200_000 + "}"):
        assert render(template, {}) == check_template(template) == template
    assert render("{{ item.a }}" * 50_000, {"item": {"a": "x"}}) == "x" * 50_000
    assert time.monotonic() - began_s < 5.0


def test_tags_are_the_nearest_braces_and_what_is_none_stays_text() -> None:
    values = {"item": {"a": "x", "b": [1, "é"]}, "sample": {}}
    assert render("{{ item.a }}{{item.b}}, {{ item.b[1] }} }} {{ open", values) == 'x[1, "é"], é }} {{ open'


def test_a_template_that_multiplies_a_long_text_is_no_text() -> None:
    values = {"sample": {"output_text": "x" * 100_000}}
    with pytest.raises(UnknownVariableError, match=f"more than {MAX_RENDERED:,} characters"):
        render("{{ sample.output_text }}" * 1000, values)
