"""Find out what A and B are (commits, datasets or recipes), and build the variants to run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple

from assay.base.config import LoadedConfig, read_config_file
from assay.base.digest import sha256_of_json
from assay.base.errors import AssayError, ConfigError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.workflows.ab_test.checkouts import Checkouts, CodeCommit, CodeRepository
from assay.workflows.ab_test.short_run import Variant, VariantError
from assay.workflows.run import check_recipe

Kind = Literal["commits", "datasets", "recipes"]


class VariantPair(NamedTuple):
    """Two variants of one kind."""

    kind: Kind
    a: Variant
    b: Variant
    sources: dict[str, str]
    """Digest of each source: A, B, recipe."""


@contextmanager
def variant_pair(a: str, b: str, recipe: Path | None) -> Iterator[VariantPair]:
    """Return both variants, which can run while the context is open. Raises `ConfigError` if they are not of
    one kind."""
    kinds = _kind(a), _kind(b)
    if kinds[0] != kinds[1]:
        raise ConfigError(f"--ab: '{a}' is of kind {kinds[0]}, and '{b}' of kind {kinds[1]}. Name two of one kind.")
    if kinds[0] == "recipes":
        yield _recipes(a, b, recipe)
        return
    if recipe is None:
        raise ConfigError(f"--ab: two {kinds[0]} need a RECIPE to run. Add its file.")
    values = read_config_file(recipe, ()).values
    if kinds[0] == "datasets":
        yield _datasets(a, b, values, recipe)
        return
    with ExitStack() as stack:
        yield _commits(a, b, values, stack)


def commit_variant(name: str, commit: CodeCommit, values: dict[str, Any], checkouts: Checkouts) -> Variant:
    """Return the variant of a commit. Raises `VariantError` if the commit has no src/assay."""
    if not commit.code:
        raise VariantError(name, f"commit {commit.sha[:10]} has no src/assay")
    return Variant(name, values, checkouts.source_of(commit), commit.sha)


def named_commit(repository: CodeRepository, revision: str, *, name: str) -> CodeCommit:
    """Return the commit of a revision. Raises `ConfigError` if there is none."""
    commit = repository.commit(revision)
    if commit is None:
        raise ConfigError(f"{name}: '{revision}' names no commit of {repository.top}.")
    return commit


def _kind(text: str) -> Kind:
    path = Path(text)
    if path.is_file():
        return "recipes"
    if (path / MANIFEST_FILE).is_file():
        return "datasets"
    if CodeRepository.found().commit(text) is not None:
        return "commits"
    problem = f"{text} is a folder without a {MANIFEST_FILE}" if path.is_dir() else f"there is no file '{text}'"
    raise ConfigError(
        f"--ab: {problem}, and {CodeRepository.found().top} has no such commit. Expected two commits, the "
        "folders of two datasets, or the files of two recipes."
    )


def _commits(a: str, b: str, values: dict[str, Any], stack: ExitStack) -> VariantPair:
    repository = CodeRepository.found()
    checkouts = stack.enter_context(Checkouts(repository))
    commits = [named_commit(repository, text, name="--ab") for text in (a, b)]
    names = [f"{side} {commit.text()}" for side, commit in zip("AB", commits, strict=True)]
    a_side, b_side = (commit_variant(*pair, values, checkouts) for pair in zip(names, commits, strict=True))
    digests = {"A": commits[0].sha, "B": commits[1].sha, "recipe": sha256_of_json(values)}
    return VariantPair("commits", a_side, b_side, digests)


def _datasets(a: str, b: str, values: dict[str, Any], recipe: Path) -> VariantPair:
    variants, digests = [], {"recipe": sha256_of_json(values)}
    for name, folder in (("A", a), ("B", b)):
        tree = deepcopy(values)
        tree["data"] = {**(tree.get("data") or {}), "dataset": str(Path(folder).resolve())}
        variants.append(_check_variant(name, folder, tree, recipe))
        digests[name] = Dataset.open(Path(folder)).fingerprint
    return VariantPair("datasets", variants[0], variants[1], digests)


def _recipes(a: str, b: str, base: Path | None) -> VariantPair:
    shared = {} if base is None else read_config_file(base, ()).values
    variants, digests = [], {} if base is None else {"recipe": sha256_of_json(shared)}
    for name, file in (("A", a), ("B", b)):
        tree = _merge(shared, read_config_file(Path(file), ()).values)
        variants.append(_check_variant(name, file, tree, Path(file)))
        digests[name] = sha256_of_json(tree)
    return VariantPair("recipes", variants[0], variants[1], digests)


def _check_variant(name: str, text: str, tree: dict[str, Any], file: Path) -> Variant:
    """Return a variant of the running code; problems of its recipe or dataset are reported before anything
    runs."""
    try:
        check_recipe(LoadedConfig(tree, {"name": str(file)}))
    except AssayError as error:
        raise ConfigError(f"{name} {text}: {error}") from error
    return Variant(f"{name} {text}", tree)


def _merge(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Merge a recipe over a base. A section of another type is replaced as a whole."""
    merged = deepcopy(base)
    for key, value in tree.items():
        old = merged.get(key)
        merged[key] = deepcopy(value)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("type") in (None, old.get("type")):
            merged[key] = _merge(old, value)
    return merged
