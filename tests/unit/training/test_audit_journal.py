"""Commits with and without a journal: what is counted, what was never kept, and what ought to be there."""

from types import SimpleNamespace

import numpy as np

from assay.base.digest import sha256_of_bytes
from assay.data.loader.receipts import receipt
from assay.records.commit import Commit, FileDigest
from assay.records.cursor import Cursor
from assay.records.journal import JournaledAnswer, JournaledGroup, PromptCounts
from assay.store.commit_log import JOURNAL_NAME
from assay.store.objects import ObjectStore, open_store
from assay.training.audit_journal import Account, audit_journal
from assay.training.checkpoint.journal import journal_file, journal_table

METHOD = SimpleNamespace(problems_of_journal=lambda groups: iter(()))
LEARNED = {(step, 0): receipt(np.array([10 * step], np.uint64)) for step in (1, 2, 3)}


def commit(store: ObjectStore, step: int, *, is_journaled: bool = True) -> Commit:
    """Step number `step`, in which lane 0 learned row 10 times that."""
    folder, files = f"checkpoints/{step:08d}-0001", ()
    if is_journaled:
        answers = (
            JournaledAnswer(1, 1, False, 1.0, (1.0,), 0.5),
            JournaledAnswer(2, 1, False, 0.0, (0.0,), -0.5),
        )
        data = journal_file([journal_table([JournaledGroup(step, 0, 10 * step, "learned", "[]", answers)])])
        store.put(f"{folder}/{JOURNAL_NAME}", data)
        files = (FileDigest(path=JOURNAL_NAME, num_bytes=len(data), sha256=sha256_of_bytes(data)),)
    return Commit(
        attempt=1, world_size=1, step=step, cursor=Cursor(), committed_s=0.0, folder=folder, files=files,
        weights_digest="", receipts_from_step=step - 1, rows_learned=1,
        prompts=PromptCounts(learned=1) if is_journaled else None,
    )  # fmt: skip


def account(*is_journaled: bool) -> Account:
    store = open_store("memory:")
    commits = [commit(store, step, is_journaled=each) for step, each in enumerate(is_journaled, start=1)]
    return audit_journal(store, commits, LEARNED, METHOD)  # type: ignore[arg-type]


def test_prompts_of_all_commits_are_added_up() -> None:
    assert account(True, True, True) == Account(PromptCounts(learned=3), [], [])


def test_what_an_older_assay_committed_has_no_journal_and_is_not_checked() -> None:
    found = account(False, True, True)
    assert found.prompts == PromptCounts(learned=2) and found.problems == []
    assert found.not_checked == ["what became of the prompts up to step 1: an older assay kept no journal"]
    assert account(False, False) == Account(None, [], [])


def test_a_journal_that_stops_is_a_problem() -> None:
    found = account(True, False, True)
    assert found.problems == [
        "checkpoints/00000002-0001: the commit has no journal, and those before it have one"
    ]
