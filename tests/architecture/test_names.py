"""A public name means one thing, wherever it is read."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "assay"

MEANS_TWO_THINGS = {"Clause", "Judgement"}
"""Until the campaign's stages have their own words."""


def test_no_public_class_has_the_name_of_another() -> None:
    homes = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(SRC).as_posix())
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in MEANS_TWO_THINGS} == {}
    assert set(shared) == MEANS_TWO_THINGS, "strike from the list what has a name of its own by now"
