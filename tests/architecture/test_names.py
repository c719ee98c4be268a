"""A public name means one thing, wherever it is read."""

import ast
from collections import defaultdict
from pathlib import Path

from import_graph import syntax

SRC = Path(__file__).parents[2] / "src" / "assay"


def test_no_public_class_has_the_name_of_another() -> None:
    homes = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for node in syntax(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(SRC).as_posix())
    # What a user of the Python API calls a run is that, and what can be done with it.
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {
        "AssayCallback": ["integrations/lightning.py", "integrations/transformers.py"],
        "Campaign": ["api/campaigns.py", "records/campaign.py"],
        "Dataset": ["api/datasets.py", "data/dataset/dataset.py"],
        "Recipe": ["api/recipes.py", "training/recipe.py"],
        "Run": ["api/training.py", "records/run.py"],
    }
