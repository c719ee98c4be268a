"""Random programs, for testing the schedule, its checker and its conflicts against one another.

Small, and with everything that a program may hold: alternative ways, several runs, lags, events, people with
roles and absences, bookings, every reading of the fair-use rule, dates, and budgets that may be too small.
"""

import random
from typing import Any

from assay.planning.program.program import Program

ROLES = ("scientist", "engineer")


def random_program(seed: int) -> Program:
    """One of them; equal seeds give equal programs."""
    rng = random.Random(seed)
    count = rng.randint(3, 9)
    activities = {f"a{index}": _activity(rng, index) for index in range(count)}
    activities["memo"] = {
        "title": "The memo",
        "stage": "one",
        "after": [f"a{index}" for index in range(count) if rng.random() < 0.6] or ["a0"],
        "work": {"days": 1, "people": {"scientist": 1}},
    }
    return Program.model_validate(
        {
            "name": f"random_{seed}",
            "title": "A random program",
            "calendar": {
                "start": f"2027-01-{rng.randint(1, 28):02d}",
                "weeks": rng.randint(5, 9),
                "holidays": ["2027-02-01"] if rng.random() < 0.3 else [],
            },
            "decision": {"decided_by": "memo", "by": f"end of week {rng.randint(2, 5)}"},
            "team": _team(rng),
            "capacity": _capacity(rng),
            "budget": _budget(rng),
            "events": {"arrival": {"title": "Something arrives", "at": f"week 1 day {rng.randint(1, 7)}"}},
            "stages": {
                name: {"title": name, "owners": {"responsible": "engineer", "accountable": "scientist"}}
                for name in ("one", "two")
            },
            "activities": activities,
            "gates": _gates(rng, activities),
        }
    )


def _activity(rng: random.Random, index: int) -> dict[str, Any]:
    after: list[Any] = [
        {
            "name": f"a{other}",
            "lag_hours": rng.choice([0, 0, 0, 5, 30, -6]),
            "of": rng.choice(["end", "end", "start"]),
        }
        for other in range(index)
        if rng.random() < 0.3
    ]
    if rng.random() < 0.2:
        after.append("arrival")
    activity: dict[str, Any] = {"title": f"Number {index}", "stage": rng.choice(["one", "two"]), "after": after}
    if rng.random() < 0.5:
        activity["work"] = [_work(rng) for _ in range(rng.randint(1, 2))]
    else:
        activity["runs"] = _runs(rng)
    if rng.random() < 0.1:
        activity["due"] = f"end of week {rng.randint(2, 4)}"
    if rng.random() < 0.1:
        activity["not_before"] = f"week 1 day {rng.randint(2, 7)}"
    return activity


def _work(rng: random.Random) -> dict[str, Any]:
    people = {rng.choice(ROLES): rng.choice([0.5, 1])}
    if rng.random() < 0.2:
        people = {"ada": 1}
    return {"days": rng.choice([0.5, 1, 2, 3.5, 5]), "people": people}


def _runs(rng: random.Random) -> dict[str, Any]:
    runs: dict[str, Any] = {"count": rng.randint(1, 3), "resume_hours": rng.randint(0, 2)}
    if rng.random() < 0.5:
        runs |= {"device_hours": rng.choice([30, 120, 400]), "devices": rng.sample([4, 8, 16, 32], 2)}
    else:
        runs["modes"] = [
            {"devices": rng.choice([4, 8, 16, 24]), "hours": rng.randint(1, 60)} for _ in range(rng.randint(1, 2))
        ]
    if rng.random() < 0.2:
        runs["people"] = {"engineer": 0.1}
    return runs


def _team(rng: random.Random) -> dict[str, Any]:
    away = [{"since": "week 2 day 2", "until": "week 2 day 4", "fte": 1}] if rng.random() < 0.4 else []
    return {
        "scientist": {"fte": rng.choice([1, 2]), "away": away},
        "engineer": rng.choice([1, 1.5, 2]),
        "ada": {"fte": 1, "part_of": "scientist", "away": [{"since": "week 1 day 3", "until": "week 1 day 4"}]},
    }


def _capacity(rng: random.Random) -> dict[str, Any]:
    bookings: dict[str, Any] = {}
    if rng.random() < 0.6:
        since = rng.randint(1, 3)
        bookings["others"] = {"share": 0.4, "since": f"week {since}", "until": f"end of week {since + 1}"}
    if rng.random() < 0.4:
        bookings["maintenance"] = {"share": 1.0, "since": "week 2 day 3", "until": "end of week 2 day 3"}
    rule = {
        "share": rng.choice([0.2, 0.3, 0.5]),
        "max_hours": rng.choice([6, 12, 24]),
        "of": rng.choice(["total", "available"]),
        "job": rng.choice(["run", "activity"]),
        "segments": rng.choice(["forbidden", "chained"]),
        "gap_hours": rng.randint(1, 4),
    }
    fair_use = rule if rng.random() < 0.8 else None
    return {"devices": rng.choice([24, 32, 48]), "bookings": bookings, "fair_use": fair_use}


def _budget(rng: random.Random) -> dict[str, Any]:
    budget: dict[str, Any] = {"device_hours": rng.choice([2500, 6000, 20000]), "reserve": rng.choice([0, 0.1])}
    if rng.random() < 0.3:
        budget["stages"] = {"one": rng.choice([1200, 4000])}
    return budget


def _gates(rng: random.Random, activities: dict[str, Any]) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {}
    activities["memo"]["after"].append("gate")
    gate = {"title": "A gate", "stage": "two", "after": ["a0"], "probabilities": {"pass": 1.0}}
    return {"gate": gate | {"people": {"scientist": 0.5}}}
