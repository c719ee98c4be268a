"""What reading a grader's source shows of what it reads, and where it is left to the run."""

import pytest

from assay.scoring.graders import subscripted_fields


def test_what_it_subscripts_is_found_by_place_whatever_the_argument_is_called():
    source = """
def other(sample, item):
    return sample["unseen"]
def grade(answer, row, /):
    def inner():
        return row["gold"] + row.get("maybe", 0)
    return float(answer["output_text"] == row["prompt"][0]["role"]) if answer["tokens"] else inner()
"""
    assert subscripted_fields(source, "sample") == {"output_text", "tokens"}
    assert subscripted_fields(source, "item") == {"gold", "prompt"}


@pytest.mark.parametrize(
    "body",
    [
        "return item['gold'] if 'gold' in item else 0.0",
        "try:\n        return item['gold']\n    except KeyError:\n        return 0.0",
        "item = {'gold': 1.0}\n    return item['gold']",
        "item['gold'] = 1.0\n    return 0.0",
        "return item.get('gold', 0.0)",
    ],
)
def test_what_may_well_be_lacking_is_left_to_the_run(body: str):
    assert subscripted_fields(f"def grade(sample, item):\n    {body}", "item") == set()


def test_what_stands_beside_what_is_tried_is_found():
    source = """
def grade(sample, item):
    try:
        return item["gold"]
    except KeyError:
        return item["silver"]
"""
    assert subscripted_fields(source, "item") == {"silver"}
    assert subscripted_fields("def grade(*both):\n    return 0.0", "item") == set()
    assert subscripted_fields("def grade(sample):\n    return sample['x']", "sample") == {"x"}
