"""Row receipts of a recorded run: which rows `assay.torch.RowLoader` handed to another tool's loop, and how often.

receipts of each attempt --but the steps that a later attempt repeats--> how often each row came in each epoch
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class LoaderFacts(NamedTuple):
    """What the rows of a loader are compared with."""

    fingerprint: str
    num_rows: int
    steps_per_epoch: int
    world_size: int


class RowReceipt(NamedTuple):
    """Rows of one step of the loader, from 0, that a rank was handed before a step of its loop ended."""

    step: int
    loader_step: int
    rows: Sequence[int]


class AttemptReceipts(NamedTuple):
    """The receipts of an attempt's ranks, and the steps of it that stay."""

    attempt: int
    start_step: int
    end_step: int
    facts: LoaderFacts | None
    ranks: Mapping[int, Sequence[RowReceipt]]

    def receipts(self) -> list[RowReceipt]:
        """Return the receipts with rows, rank after rank."""
        return [receipt for receipts in self.ranks.values() for receipt in receipts if receipt.rows]

    def steps_ahead(self) -> int:
        """Return by how many steps the loader began ahead of the loop."""
        return min((receipt.loader_step for receipt in self.receipts()), default=self.start_step) - self.start_step

    def is_in_step(self) -> bool:
        """Return whether the loop's steps are those of the loader, of which it may read one ahead."""
        ahead = self.steps_ahead()
        newest = {receipt.step: receipt.loader_step + 1 - ahead for receipt in self.receipts()}
        return all(abs(loader_step - step) <= 1 for step, loader_step in newest.items())

    def gaps(self) -> Iterator[str]:
        """Yield why the receipts do not show which rows its steps trained."""
        if not self.is_in_step():
            yield f"attempt {self.attempt}: the steps of the loop are not those of the loader"
        if self.facts and not self.receipts():
            yield f"attempt {self.attempt}: another process read the loader, or none"
        for rank in range(self.facts.world_size if self.facts else 1):
            last = max((receipt.step for receipt in self.ranks.get(rank, ())), default=self.start_step)
            if last < self.end_step:
                yield f"rank {rank} left no receipts of attempt {self.attempt}, steps {last + 1} to {self.end_step}"


class RowCounts(NamedTuple):
    """How often each row came, over all epochs."""

    epochs: int
    expected: int
    trained: int
    missing: Sequence[str]
    repeated: Sequence[str]
    unknown: Sequence[str]


def count_rows(attempts: Iterable[AttemptReceipts]) -> RowCounts | None:
    """Count the rows of the steps that stay, of a run's attempts in order; None without receipts."""
    effective = [attempt for attempt in attempts if attempt.end_step > attempt.start_step]
    facts = next((attempt.facts for attempt in reversed(effective) if attempt.facts), None)
    if facts is None:
        return None
    unknown = [gap for attempt in effective for gap in attempt.gaps()]
    if effective[0].start_step:
        unknown.append(f"steps 1 to {effective[0].start_step} were trained before the first attempt on record")
    if any(attempt.facts and attempt.facts.fingerprint != facts.fingerprint for attempt in effective):
        unknown.append("earlier attempts read another dataset")
    epochs: dict[int, Counter[int]] = {}
    for attempt in filter(AttemptReceipts.is_in_step, effective):
        end_step = attempt.end_step + attempt.steps_ahead()
        for receipt in attempt.receipts():
            if receipt.loader_step < end_step:
                epochs.setdefault(receipt.loader_step // facts.steps_per_epoch, Counter()).update(receipt.rows)
    whole, rest = divmod(effective[-1].end_step + effective[-1].steps_ahead(), facts.steps_per_epoch)
    counts = [epochs.get(epoch, Counter()) for epoch in range(whole + bool(rest))]
    missing = [f"row {row} (epoch {n})" for n in range(whole) for row in range(facts.num_rows) if row not in counts[n]]
    repeated = [f"row {row} (epoch {n})" for n, rows in enumerate(counts) for row, times in rows.items() if times > 1]
    expected = whole * facts.num_rows + (len(counts[whole]) if rest else 0)
    rest_of = [f"epoch {whole} ended at its step {rest} of {facts.steps_per_epoch}, so more may be due"] * bool(rest)
    trained = sum(rows.total() for rows in counts)
    return RowCounts(len(counts), expected, trained, () if unknown else missing, repeated, [*unknown, *rest_of])
