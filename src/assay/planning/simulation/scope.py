"""Chooses the scope to offer: the one that meets the reliability targets and gives up the least.

An optimal schedule without uncertainty is not a safe plan. The program declares what it could do differently
(`options`), what it could do without (`optional`) and how to reduce its risks (`mitigations`). From the full
scope, the search greedily adds the move that helps most until the targets are met, then removes each move
that is not needed. All scopes use the same samples, so small differences are significant.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from pydantic import ValidationError

from assay.planning.program.offer import EvaluatedScope, Move
from assay.planning.program.program import Program
from assay.planning.simulation.compile import Baseline
from assay.planning.simulation.greedy_schedule import greedy_schedule
from assay.planning.simulation.outcome import Outcome, simulate_many

SEARCH_SAMPLES = 2_048
"""Samples per scope in the search: a probability of 0.85 has a standard error of about 0.8 points."""

MARGIN = 0.01
"""Margin of the search on P(on time); a quarter of it on P(over budget). About one standard error."""


class ReliabilityTargets(NamedTuple):
    """What the offered plan must reach."""

    p_on_time: float = 0.85
    p_over_budget: float = 0.02

    def shortfall(self, outcome: Outcome, *, margin: float = 0.0) -> float:
        """Return by how much the targets are missed, summed as probabilities; 0 if they are met. `margin`
        tightens them."""
        late = max(0.0, self.p_on_time + margin - outcome.p_on_time())
        return late + max(0.0, outcome.p_over_budget() - max(0.0, self.p_over_budget - margin / 4))


@dataclass(frozen=True)
class ScopeChoice:
    """The chosen scope, and all evaluated ones."""

    program: Program
    """With the chosen moves applied."""
    moves: tuple[Move, ...]
    meets_targets: bool
    evaluated: tuple[EvaluatedScope, ...]
    """In the order of the search; the first is the full scope."""


def moves_of(program: Program) -> dict[str, Move]:
    """Return every option, every optional activity that no option removes (`without NAME`), and every
    mitigation (`risk: mitigation`), in the file's order."""
    moves = [
        Move(name=name, title=option.title, gives_up=option.gives_up, changes=option.changes)
        for name, option in program.options.items()
    ]
    removed = [option.changes for option in program.options.values()]
    moves += [
        Move(name=f"without {name}", title=f"Without: {activity.title}", gives_up=activity.title, changes=change)
        for name, activity in program.activities.items()
        if activity.optional and (change := {f"activities.{name}": None}) not in removed
    ]
    moves += [
        Move(name=f"{risk_name}: {name}", title=mitigation.title, changes=mitigation.changes)
        for risk_name, risk in program.risks.items()
        for name, mitigation in risk.mitigations.items()
    ]
    return {move.name: move for move in moves}


def with_moves(program: Program, moves: Iterable[Move]) -> Program:
    """Return the program with the moves applied in order."""
    return reduce(Program.changed, (move.changes for move in moves), program)


def choose_scope(
    program: Program,
    targets: ReliabilityTargets | None = None,
    *,
    num_samples: int = SEARCH_SAMPLES,
    seed: int = 0,
) -> ScopeChoice:
    """Search the scope; if none meets the targets, return the closest one with `meets_targets=False`."""
    search = _Search(program, targets or ReliabilityTargets(), num_samples, seed)
    chosen = search.give_back(search.forward(()))
    return ScopeChoice(
        search.program_with(chosen),
        tuple(search.moves[name] for name in chosen),
        not search.shortfall(chosen),
        tuple(search.evaluated.values()),
    )


class _Search:
    def __init__(self, program: Program, targets: ReliabilityTargets, num_samples: int, seed: int) -> None:
        self.moves = moves_of(program)
        self.evaluated: dict[tuple[str, ...], EvaluatedScope] = {}
        self._program, self._targets = program, targets
        self._num_samples, self._seed = num_samples, seed
        self._shortfalls: dict[tuple[str, ...], float] = {}
        self._full: Outcome | None = None

    def rank(self, names: tuple[str, ...]) -> tuple[float, float]:
        """Lower is better: first the targets, then P(on time and within budget)."""
        shortfall = self.shortfall(names)
        return shortfall, -self.evaluated[names].p_within_limits if names in self.evaluated else 0.0

    def program_with(self, names: Sequence[str]) -> Program:
        return with_moves(self._program, [self.moves[name] for name in names])

    def shortfall(self, names: tuple[str, ...]) -> float:
        """Return the shortfall; infinite if the moves are incompatible."""
        if names not in self._shortfalls:
            self._try([names])
        return self._shortfalls[names]

    def forward(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Add the move that helps most until the targets are met or no move helps."""
        while self.shortfall(names) > 0:
            more = list(self._more(names))
            self._try(more)
            best = min(more, key=self.rank, default=names)
            if self.shortfall(best) >= self.shortfall(names):
                break
            names = best
        return names

    def give_back(self, names: tuple[str, ...]) -> tuple[str, ...]:
        while True:
            fewer = [tuple(other for other in names if other != name) for name in names]
            self._try(fewer)
            sufficient = [scope for scope in fewer if self.shortfall(scope) <= self.shortfall(names)]
            if not sufficient:
                return names
            names = min(sufficient, key=self.rank)

    def _try(self, scopes: Sequence[tuple[str, ...]]) -> None:
        new = {names: self._scheduled(names) for names in scopes if names not in self._shortfalls}
        self._shortfalls |= {names: float("inf") for names, scope in new.items() if scope is None}
        scheduled = {names: scope for names, scope in new.items() if scope is not None}
        known = [] if self._full is None else [self._full]
        found = simulate_many(scheduled.values(), num_samples=self._num_samples, seed=self._seed, known=known)
        for names, outcome in zip(scheduled, found, strict=True):
            self._full = self._full or outcome
            is_within_limits = outcome.is_on_time() & ~outcome.is_over_budget()
            self.evaluated[names] = EvaluatedScope(
                moves=names,
                p_on_time=outcome.p_on_time(),
                p_over_budget=outcome.p_over_budget(),
                p_within_limits=float(is_within_limits.mean()),
            )
            self._shortfalls[names] = self._targets.shortfall(outcome, margin=MARGIN)

    def _scheduled(self, names: tuple[str, ...]) -> tuple[Program, Baseline] | None:
        try:
            program = self.program_with(names)
            return program, greedy_schedule(program)
        except (KeyError, ValidationError):
            return None

    def _more(self, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name in self.moves:
            if name not in names:
                names_with = {*names, name}
                yield tuple(move for move in self.moves if move in names_with)
