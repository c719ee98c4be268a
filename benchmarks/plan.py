"""The schedule against the clock, and against plain CP-SAT on the textbook's projects.

    python benchmarks/plan.py                     # the case, J30, 24 of J60, 12 of J120; a quarter of an hour
    python benchmarks/plan.py --sets j30 --all    # every instance of a set; all three: hours

The case must be proved optimal within ten seconds. J30 is solved by ours alone: each instance gets
`--seconds`, and what is not proved by then a second try of `--longer` seconds. J60's and J120's are solved in
turn by ours and by plain CP-SAT (the same model without our first schedule): the same cores and the same wall
time, building the model included. The gap is that of the makespan to the best known one. `p_on_time` and
`p_over_budget` are those of the plan that the simulation offers for the case. The last line is one JSON
object.
"""

import csv
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ortools.sat.python import cp_model

from assay.planning.checker import plan_problems
from assay.planning.model import build
from assay.planning.problem import Problem
from assay.planning.program.file import read_program
from assay.planning.schedule import OBJECTIVES, Effort, new_solver, objective_expression, schedule, solve
from assay.planning.simulation.offer import make_offer
from harness import CHECKOUT, PUBLISHED_DATA, options_of, print_result
from psplib import read_psplib

CASE = CHECKOUT / "programs" / "helpfulness.yaml"
SAMPLE = {"j30": 480, "j60": 24, "j120": 12}


class Result(NamedTuple):
    """One instance, solved once."""

    makespan: float
    proved: bool
    took_s: float


def main() -> None:
    """Measure, print, and end with the figures as JSON."""
    parser = options_of(__doc__)
    parser.add_argument("--all", action="store_true", help="every instance")
    parser.add_argument("--seconds", type=float, default=10.0, help="wall time of one instance (10)")
    parser.add_argument("--longer", type=float, default=120.0, help="of a second try on J30 (120)")
    parser.add_argument("--workers", type=int, default=2, help="cores, and solver threads of ours and of plain (2)")
    parser.add_argument("--no-case", action="store_true", help="leave the case out")
    parser.add_argument("--sets", default="j30,j60,j120", help="which sets (j30,j60,j120)")
    sizes = ",".join(map(str, SAMPLE.values()))
    parser.add_argument("--sample", default=sizes, help=f"instances of J30, J60 and J120 ({sizes})")
    arguments = parser.parse_args()
    effort = Effort(seconds=arguments.seconds, workers=arguments.workers)
    _stay_on(arguments.workers)
    figures = {} if arguments.no_case else _case(effort)
    counts = dict(zip(SAMPLE, map(int, arguments.sample.split(",")), strict=True))
    for name in filter(None, arguments.sets.split(",")):
        figures |= _psplib(name, None if arguments.all else counts[name], effort, arguments.longer)
    print_result(figures)


def _case(effort: Effort) -> dict[str, object]:
    program = read_program(CASE).program
    began = time.monotonic()
    plan = schedule(program, effort=effort)
    took = time.monotonic() - began
    broken = plan_problems(program, plan)
    assert not broken, broken
    print(
        f"case: day {plan.decision_day()}, {plan.device_hours:,} device-hours, {took:.1f} s, {plan.objective_results}"
    )
    offer = make_offer(program, effort=effort).offer
    print(f"offered: {[move.name for move in offer.moves]}, day {offer.plan.decision_day()}, {offer.safety}")
    print(f"the calm optimum, played the same way: {offer.baseline_safety}")
    return {
        "case_proved_optimal": plan.is_proved(),
        "case_solve_s": round(took, 2),
        "p_on_time": offer.safety.p_on_time,
        "p_over_budget": offer.safety.p_over_budget,
        "calm_p_on_time": offer.baseline_safety.p_on_time,
        "calm_p_over_budget": offer.baseline_safety.p_over_budget,
    }


def _stay_on(cores: int) -> None:
    """Both sides get these cores and no more, where the system can say so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _psplib(name: str, count: int | None, effort: Effort, longer: float) -> dict[str, object]:
    folder = PUBLISHED_DATA / "psplib"
    with (folder / "best_known.csv").open() as file:
        best = {row["instance"]: int(row["upper_bound"]) for row in csv.DictReader(file)}
    paths = _quantiles(sorted((folder / name).glob("*.sm")), count)
    if not paths:
        raise SystemExit(f"{folder / name}: no instances. $ASSAY_DATA names the folder that holds psplib/.")
    return _j30(paths, best, effort, longer) if name == "j30" else _side_by_side(name, paths, best, effort)


def _j30(paths: Sequence[Path], best: Mapping[str, int], effort: Effort, longer: float) -> dict[str, object]:
    results = []
    for number, path in enumerate(paths, start=1):
        results.append(_ours(read_psplib(path), effort))
        _progress(number, len(paths), path, best, results[-1])
    found = list(results)
    for index in [index for index, result in enumerate(results) if not result.proved]:
        found[index] = _ours(read_psplib(paths[index]), effort._replace(seconds=longer))
        _progress(index + 1, len(paths), paths[index], best, found[index])
    gaps = [result.makespan / best[path.name] - 1.0 for path, result in zip(paths, found, strict=True)]
    return {
        "j30_instances": len(paths),
        "j30_proved": round(_mean([result.proved for result in results]), 4),
        "j30_proved_longer": round(_mean([result.proved for result in found]), 4),
        "j30_slowest_s": round(max(result.took_s for result in found), 2),
        "j30_worst_gap": round(max(gaps), 5),
    }


def _side_by_side(name: str, paths: Sequence[Path], best: Mapping[str, int], effort: Effort) -> dict[str, object]:
    draws: dict[str, list[Result]] = {"": [], "plain_": []}
    for number, path in enumerate(paths, start=1):
        problem = read_psplib(path)
        in_turn = [("", _ours), ("plain_", _plain)]
        for who, solve_one in in_turn if number % 2 else reversed(in_turn):
            draws[who].append(solve_one(problem, effort))
        _progress(number, len(paths), path, best, *(results[-1] for results in draws.values()))
    figures: dict[str, object] = {f"{name}_instances": len(paths)}
    for who, results in draws.items():
        gaps = [result.makespan / best[path.name] - 1.0 for path, result in zip(paths, results, strict=True)]
        figures[f"{who}{name}_gap"] = round(_mean(gaps), 5)
        figures[f"{who}{name}_proved"] = round(_mean([result.proved for result in results]), 4)
        figures[f"{who}{name}_slowest_s"] = max(result.took_s for result in results)
    return figures


def _progress(number: int, count: int, path: Path, best: Mapping[str, int], *results: Result) -> None:
    shown = "; ".join(
        f"{who} {item.makespan:g} {'proved' if item.proved else 'not proved'} in {item.took_s:.1f} s"
        for who, item in zip(("ours", "plain"), results, strict=False)
    )
    print(f"{number}/{count} {path.name}: best known {best[path.name]}; {shown}", flush=True)


def _quantiles(paths: Sequence[Path], count: int | None) -> list[Path]:
    """So many, evenly from all parameter settings."""
    if count is None or count >= len(paths):
        return list(paths)
    return [paths[index * len(paths) // count] for index in range(count)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ours(problem: Problem, effort: Effort) -> Result:
    began = time.monotonic()
    found, objective_results = solve(problem, objectives=OBJECTIVES[:1], effort=effort)
    return Result(found[problem.decision].end_h, objective_results[0].proved, round(time.monotonic() - began, 2))


def _plain(problem: Problem, effort: Effort) -> Result:
    began = time.monotonic()
    model = build(problem)
    model.cp.minimize(objective_expression(model, "decision_h"))
    left_s = effort.seconds - (time.monotonic() - began)
    solver = new_solver(effort._replace(seconds=left_s))
    status = solver.solve(model.cp)
    makespan = solver.objective_value if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else problem.horizon_h
    return Result(makespan, status == cp_model.OPTIMAL, round(time.monotonic() - began, 2))


if __name__ == "__main__":
    main()
