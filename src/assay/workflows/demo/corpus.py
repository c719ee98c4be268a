"""A real dataset that every machine has: the functions of the installed Python packages.

    labelled    a function's code with the docstring taken out; label 1 if it had one
    documented  its signature, which is a prompt, and the docstring's first paragraph

The code is printed from its syntax tree, so that no blank line shows where a docstring was. A model can learn
which functions programmers document (public names, long bodies, many parameters), and how.
"""

import ast
import json
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import xxhash

Rows = Literal["labelled", "documented"]
MIN_STATEMENTS = 2
"""Shorter functions carry no signal once the docstring is removed."""

MAX_CHARACTERS = 6_000
MOST_WORDS = 40
"""Maximum length of a docstring's first paragraph."""

MAX_FUNCTIONS_OF_A_FILE = 12
"""Functions of a file are correlated, and a file counts as one draw: more files make the same number of rows
twice as informative."""

PACKAGES = (
    "numpy", "scipy", "sklearn", "torch", "transformers", "sqlalchemy", "pydantic", "pyarrow", "rich",
    "click", "jinja2", "huggingface_hub", "networkx", "sympy", "fsspec", "yaml", "httpx2", "anyio",
)  # fmt: skip
"""Packages to read; nearly all are dependencies of assay, and missing ones are skipped."""


def write_corpus(folder: Path, *, max_functions: int, rows: Rows = "labelled") -> int:
    """Write `functions.jsonl` and return the number of functions. The result is deterministic on a machine."""
    site_packages = Path(sysconfig.get_path("purelib"))
    files = [path for name in PACKAGES for path in sorted((site_packages / name).rglob("*.py"))]
    files.sort(key=lambda path: xxhash.xxh3_64_intdigest(str(path.relative_to(site_packages)).encode()))
    folder.mkdir(parents=True, exist_ok=True)
    num_written = 0
    with (folder / "functions.jsonl").open("w", encoding="utf-8") as out, ProcessPoolExecutor(2) as pool:
        of_file = partial(_functions_of, site_packages=site_packages, rows=rows)
        for functions in pool.map(of_file, files, chunksize=8):
            for function in functions[: max_functions - num_written]:
                out.write(json.dumps(function) + "\n")
                num_written += 1
            if num_written == max_functions:
                pool.shutdown(cancel_futures=True)
                break
    return num_written


def _functions_of(path: Path, site_packages: Path, rows: Rows) -> list[dict[str, object]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []  # templates and test data of other packages
    created_at = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
    where = path.relative_to(site_packages)
    shared = {"shard_id": str(where), "created_at": created_at, "package": where.parts[0]}
    of_tree = _labelled if rows == "labelled" else _documented
    return [{**row, **shared} for row in islice(of_tree(tree), MAX_FUNCTIONS_OF_A_FILE)]


def _labelled(tree: ast.Module) -> Iterator[dict[str, object]]:
    methods = {child for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        has_docstring = ast.get_docstring(node, clean=False) is not None
        if has_docstring:
            node.body = node.body[1:]
        if len(node.body) < MIN_STATEMENTS:
            continue
        returns, decorators = node.returns, node.decorator_list
        text = ast.unparse(node)
        if len(text) > MAX_CHARACTERS:
            continue
        yield {
            "text": text,
            "label": int(has_docstring),
            "kind": "method" if node in methods else "function",
            "returns": ast.unparse(returns)[:40] if returns else None,
            "decorator": ast.unparse(decorators[0])[:40] if decorators else None,
            "num_parameters": len(node.args.args) + len(node.args.kwonlyargs),
            "num_statements": sum(isinstance(child, ast.stmt) for child in ast.walk(node)) - 1,
        }


def _documented(tree: ast.Module) -> Iterator[dict[str, object]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (docstring := ast.get_docstring(node)):
            words = docstring.split("\n\n")[0].split()
            if 2 < len(words) <= MOST_WORDS:
                returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                signature = f"def {node.name}({ast.unparse(node.args)}){returns}:\n"
                yield {"prompt": signature, "completion": " ".join(words)}


def read_texts(path: Path, *, max_texts: int) -> list[str]:
    """Return the code of the first functions."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line, _ in zip(file, range(max_texts), strict=False)]
