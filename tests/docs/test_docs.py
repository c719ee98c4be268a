"""The documentation says what the code does: each command, key and link."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from assay.base.config import read_config_file, validated
from assay.cli.main import _COMMANDS
from assay.training.recipe import Recipe
from assay.training.recipe_reference import recipe_reference

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_key_of_a_recipe_is_documented() -> None:
    """Rewrite with: assay train --keys > docs/recipe.md."""
    assert (ROOT / "docs" / "recipe.md").read_text() == recipe_reference()


def test_every_key_has_a_meaning_or_a_name_that_needs_none() -> None:
    bare = re.findall(r"^\| `(\w+)` \| [^|]* \|  \|$", recipe_reference(), re.M)
    assert set(bare) <= {"type", "seed", "epochs", "num_layers", "num_heads", "dropout", "encoder", "data", "loader",
                         "method", "trainer", "retention", "betas", "epsilon", "optimizer", "schedule",
                         "head_dropout", "layout", "column"}  # fmt: skip


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert any(f"assay {command}" in page.read_text() for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_is_valid(recipe: Path) -> None:
    validated(Recipe, read_config_file(recipe, []))


def test_help_needs_neither_torch_nor_pydantic() -> None:
    program = (
        "import sys\nfrom assay.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'pydantic', 'pyarrow', 'sqlalchemy') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    assert "train" in out
