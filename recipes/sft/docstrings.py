"""Text to fine-tune on that any machine has: functions of the standard library, and what their docstrings say.

    python recipes/sft/docstrings.py > docstrings.jsonl
    assay data build docstrings.jsonl --format chat --tokenizer new:2000 --group-by file \\
        --end-token '[CLS]' --out datasets/docstrings-sft
    assay train recipes/sft/docstrings.yaml

A row is a signature, which is the prompt, and the first paragraph of the docstring, which is learned. Modules
are keys: a split holds out whole files.
"""

import ast
import json
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

OTHERS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
MOST_WORDS = 60
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def rows(folder: Path) -> Iterator[dict[str, str]]:
    """Of all modules below a folder, by their names; tests and other people's packages are left out."""
    for path in sorted(folder.rglob("*.py")):
        where = path.relative_to(folder)
        if OTHERS & set(where.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # samples for tools that read what is no Python
        for node in ast.walk(tree):
            if isinstance(node, Documented) and (docstring := ast.get_docstring(node)):
                words = docstring.split("\n\n")[0].split()
                if 0 < len(words) <= MOST_WORDS:
                    yield {"prompt": f"{_signature(node)}\n", "completion": " ".join(words), "file": str(where)}


def _signature(node: Documented) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}:"
    return f"def {node.name}({ast.unparse(node.args)}):"


if __name__ == "__main__":
    warnings.simplefilter("ignore", SyntaxWarning)  # about escapes in other people's texts
    for row in rows(Path(sysconfig.get_path("stdlib"))):
        sys.stdout.write(json.dumps(row) + "\n")
