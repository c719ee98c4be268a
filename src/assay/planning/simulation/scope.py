"""Which scope to offer: the one that keeps its promises under the simulation and gives up the least.

A schedule that is optimal when nothing happens is not a safe plan. The program states what could be done
otherwise (`options`: less scope, another order), what it could do without (`optional`) and what could be done
about its risks (`mitigations`).
From the full scope, whatever brings the promises nearest is names_with until they hold; then each thing names_with is
given back if they hold without it. All scopes are scheduled under the same luck, so small differences are
real.
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
"""Played for each scope in the search: a probability of 0.85 is known to 0.65 of a point."""

MARGIN = 0.01
"""What the search asks beyond the promise on time, and a quarter of it on budget: about the error of one
search."""


class ReliabilityTargets(NamedTuple):
    """What the offered plan must keep."""

    p_on_time: float = 0.85
    p_over_budget: float = 0.02

    def shortfall(self, outcome: Outcome, *, margin: float = 0.0) -> float:
        """By how much both together are missed, in probability; 0 where they hold. `margin` asks for more."""
        late = max(0.0, self.p_on_time + margin - outcome.p_on_time())
        return late + max(0.0, outcome.p_over_budget() - max(0.0, self.p_over_budget - margin / 4))


@dataclass(frozen=True)
class ScopeChoice:
    """What was tried, and what is offered."""

    program: Program
    """With the chosen moves made."""
    moves: tuple[Move, ...]
    meets_targets: bool
    evaluated: tuple[EvaluatedScope, ...]
    """In the order of the search; the first is the full scope."""


def moves_of(program: Program) -> dict[str, Move]:
    """Every option, every optional activity that no option removes (`without NAME`), every mitigation (`risk:
    mitigation`), in the file's order."""
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
    """The program run so, moves applied in the given order."""
    return reduce(Program.changed, (move.changes for move in moves), program)


def choose_scope(
    program: Program,
    targets: ReliabilityTargets | None = None,
    *,
    num_samples: int = SEARCH_SAMPLES,
    seed: int = 0,
) -> ScopeChoice:
    """Search; where no scope keeps the promises, the nearest one is returned and says so."""
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
        self._program, self._promises = program, targets
        self._num_samples, self._seed = num_samples, seed
        self._shortfalls: dict[tuple[str, ...], float] = {}
        self._full: Outcome | None = None

    def rank(self, names: tuple[str, ...]) -> tuple[float, float]:
        """Lower is better: first the promises, then the chance of both."""
        shortfall = self.shortfall(names)
        return shortfall, -self.evaluated[names].p_within_limits if names in self.evaluated else 0.0

    def program_with(self, names: Sequence[str]) -> Program:
        return with_moves(self._program, [self.moves[name] for name in names])

    def shortfall(self, names: tuple[str, ...]) -> float:
        """Infinite where the moves do not go together."""
        if names not in self._shortfalls:
            self._try([names])
        return self._shortfalls[names]

    def forward(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Take what helps most until the promises hold, or nothing helps any more."""
        while self.shortfall(names) > 0:
            more = list(self._more(names))
            self._try(more)
            best = min(more, key=self.rank, default=names)
            if self.shortfall(best) >= self.shortfall(names):
                break
            names = best
        return names

    def give_back(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Drop whatever the promises do not need."""
        while True:
            fewer = [tuple(other for other in names if other != name) for name in names]
            self._try(fewer)
            sufficient = [scope for scope in fewer if self.shortfall(scope) <= self.shortfall(names)]
            if not sufficient:
                return names
            names = min(sufficient, key=self.rank)

    def _try(self, scopes: Sequence[tuple[str, ...]]) -> None:
        """Play those that have not been; a world that a move does not change is not scheduled again."""
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
            self._shortfalls[names] = self._promises.shortfall(outcome, margin=MARGIN)

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
