"""Campaigns: candidates against a baseline over several seeds, decided by declared gates."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

from assay.api.commands import path_text, run_command
from assay.api.report import Report
from assay.api.training import Run
from assay.base.config import read_config_file
from assay.cli.parameters import current_home
from assay.cli.wording import worded
from assay.records.decision import Decision, Recommendation
from assay.records.statement import Statement
from assay.reporting.documents.memo import Memo, memo_document
from assay.workflows.processes.foreground import flags_of


@worded
class Campaign:
    """A campaign on record: its decisions, its runs and its memo."""

    def __init__(self, name: str) -> None:
        """`name`: as in its file. Raises `AssayError` if no such campaign was started in this home."""
        self._home = current_home()
        self.name = name
        """As in its file."""
        self.folder = self._home.campaign_dir(name)
        """Where its records and its memo are."""

    def __repr__(self) -> str:
        return f"Campaign({self.name!r})"

    def _repr_html_(self) -> str:
        return self.memo()._repr_html_()

    @property
    def decisions(self) -> Sequence[Decision]:
        """The newest decision for each candidate that has one: scale first, then narrow, then stop."""
        return self.memo().facts.decisions

    @property
    def recommendations(self) -> dict[str, Recommendation]:
        """What is recommended for each candidate that was decided, such as `{"longer": "scale"}`."""
        return {decision.candidate: decision.recommendation for decision in self.decisions}

    @property
    def runs(self) -> list[Run]:
        """The runs that the decisions rest on."""
        return [Run(run.run_id) for run in self.memo().facts.runs()]

    def memo(self) -> Report[Memo]:
        """Return the memo, from the records as they are now; nothing is decided again."""
        from assay.workflows.campaign.folder import find_campaign
        from assay.workflows.campaign.memo import read_memo

        memo = read_memo(find_campaign(self._home, self.name))
        return Report(memo, memo_document(memo))

    def decide_again(self) -> "Campaign":
        """Evaluate the gates again from the results on record; return the campaign.

        Raises `AssayError` if a recorded decision no longer follows from the results.
        """
        run_command("decide", "again", self.name)
        return self


@overload
def decide(file: str | Path, *overrides: str, check: Literal[False] = False, **options: Any) -> Campaign: ...
@overload
def decide(file: str | Path, *overrides: str, check: bool, **options: Any) -> Report[tuple[Statement, ...]]: ...
def decide(
    file: str | Path, *overrides: str, check: bool = False, **options: Any
) -> Campaign | Report[tuple[Statement, ...]]:
    """Run a campaign, or continue it, until its gates have decided; return it.

    `file`: YAML with a known-good recipe, a change for each candidate, seeds, benchmarks and gates (docs/campaign.md).
    `overrides`: such as `budget_device_hours=2`. `check`: start nothing, and return a report of the cost of all runs
    and the power of each look and guardrail. `options`: those of `assay decide run` with underscores. Raises
    `AssayError` if the file is wrong or a run fails.
    """
    from assay.reporting.views.statements import statement_text

    arguments = ["decide", "run", path_text(file, of="decide", hint="Write the dictionary to a YAML file."), *overrides]
    if check:
        printed = json.loads(run_command(*arguments, "--check", *flags_of(options)))
        statements = tuple(Statement.from_tree(tree, source=file) for tree in printed)
        return Report(statements, lambda: print("\n".join(map(statement_text, statements))))
    name = read_config_file(Path(file), overrides).values.get("name")
    run_command(*arguments, *flags_of(options))
    return Campaign(str(name))
