"""Preference pairs that any machine has: docstrings of the standard library against their words shuffled.

    python recipes/preferences/docstring_pairs.py > pairs.jsonl
    assay data build pairs.jsonl --format pairs --tokenizer new:2000 --group-by file \\
        --out datasets/docstring-pairs
    assay train recipes/preferences/reward.yaml

A pair is a signature, the first paragraph of its docstring, and the same words in an order that their own text
draws, so the same library gives the same pairs. Modules are keys: a split holds out whole files.
"""

import ast
import json
import random
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

OTHERS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
FEWEST_WORDS, MOST_WORDS = 5, 60
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def pairs(folder: Path) -> Iterator[dict[str, str]]:
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
                if FEWEST_WORDS <= len(words) <= MOST_WORDS:
                    yield from _pair(_signature(node), words, str(where))


def _pair(signature: str, words: list[str], file: str) -> Iterator[dict[str, str]]:
    shuffled = random.Random(" ".join(words)).sample(words, len(words))
    if shuffled != words:
        yield {
            "prompt": f"{signature}\n",
            "chosen": " ".join(words),
            "rejected": " ".join(shuffled),
            "file": file,
        }


def _signature(node: Documented) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}:"
    return f"def {node.name}({ast.unparse(node.args)}):"


if __name__ == "__main__":
    warnings.simplefilter("ignore", SyntaxWarning)  # about escapes in other people's texts
    for pair in pairs(Path(sysconfig.get_path("stdlib"))):
        sys.stdout.write(json.dumps(pair) + "\n")
