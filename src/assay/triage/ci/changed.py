"""Selects the tests that a change affects, with a back-test, as a record."""

from collections.abc import Sequence
from pathlib import Path

from assay.base.errors import ConfigError
from assay.records.ci_report import CiChanged
from assay.triage.ci.back_test import back_test
from assay.triage.ci.recorded import FileRun
from assay.triage.ci.repository import opened_repository
from assay.triage.ci.select_tests import select_tests


def changed_since(rev: str, folder: Path, files: Sequence[FileRun]) -> CiChanged:
    """Compare a revision with the working tree of a repository; with results, also run the back-test.

    Raises `ConfigError` if the folder is not in a repository, or the revision does not exist.
    """
    repository = opened_repository(folder)
    commit = repository.commit(rev)
    if commit is None:
        raise ConfigError(
            f"--changed {rev}: {folder} has no such commit. Expected a hash, a branch or a tag that is there "
            "(git fetch), or HEAD."
        )
    changed = repository.changed_since(commit)
    selection = select_tests(repository.working_tree(), changed)
    return CiChanged(
        since=commit,
        files=_shown(changed),
        tests=_shown(sorted(selection.tests)),
        test_files=len(selection.graph.tests),
        selects_all=_shown(selection.selects_all),
        unreached_files=_shown(selection.unreached),
        unknown=dict(zip(_shown(list(selection.unknown)), selection.unknown.values(), strict=True)),
        back_test=back_test(repository, files) if files else None,
    )


def _shown(paths: Sequence[str]) -> tuple[str, ...]:
    """Return paths as text, with invalid UTF-8 escaped."""
    return tuple(path.encode(errors="backslashreplace").decode() for path in paths)
