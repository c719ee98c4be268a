"""Made-up fleets whose culprit is known: hosts in racks, a driver for some racks, images that users keep
to, gangs of hosts, recipes of very unequal size, commits one after the other."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

HOSTS, RACKS, DRIVERS = 64, 8, ("535", "550", "560")
IMAGES = ("base", "cuda12", "cuda13", "nightly", "slim", "team")
DATASETS = ("chat", "code", "maths", "web", "tools", "long")
ATTENTION = ("eager", "flash", "sdpa")
USERS, RECIPES, COMMITS = 12, 100, 10
LEAST_RECIPES = 5
BASE_RATE, CULPRIT_RATE = 0.04, 0.10
CULPRITS: tuple[tuple[str, ...], ...] = (
    ("host",), ("rack",), ("image",), ("dataset",), ("commit",), ("image", "driver"), ("attention", "dataset"),
)  # fmt: skip
FACTORS = ("host", "rack", "driver", "image", "user", "dataset", "attention", "commit")


class Fleet(NamedTuple):
    """Attempts as columns of text, and what is at fault."""

    columns: dict[str, list[str]]
    culprit: dict[str, str]

    def csv(self) -> str:
        """As a table."""
        rows = zip(*self.columns.values(), strict=True)
        return "\n".join([",".join(self.columns), *(",".join(row) for row in rows)]) + "\n"


def random_fleet(num_attempts: int, culprit: Sequence[str], *, unit_sd: float, rng: np.random.Generator) -> Fleet:
    """`culprit`: the factors at fault, one of whose values is drawn; none where it is empty. `unit_sd`: how
    much the log-odds of recipes differ."""
    driver_of_rack = rng.integers(len(DRIVERS), size=RACKS)
    driver_of_rack[: len(DRIVERS)] = range(len(DRIVERS))
    size = np.exp(rng.normal(0, 1.2, RECIPES))
    recipe = rng.choice(RECIPES, num_attempts, p=size / size.sum())
    user_of, dataset_of, attention_of = (
        rng.integers(count, size=RECIPES) for count in (USERS, len(DATASETS), len(ATTENTION))
    )
    home_image = rng.integers(len(IMAGES), size=USERS)
    user = user_of[recipe]
    strays = rng.random(num_attempts) < 0.3
    image = np.where(strays, rng.integers(len(IMAGES), size=num_attempts), home_image[user])
    at = np.sort(rng.uniform(0, 14 * 86_400, num_attempts))
    commit = np.minimum((at / at.max() * COMMITS).astype(int), COMMITS - 1)
    gangs = [_gang(rng) for _ in range(num_attempts)]
    racks = [sorted({host * RACKS // HOSTS for host in gang}) for gang in gangs]
    values = {
        "host": [[f"n{host:02}" for host in gang] for gang in gangs],
        "rack": [[f"r{rack}" for rack in row] for row in racks],
        "driver": [sorted({DRIVERS[driver_of_rack[rack]] for rack in row}) for row in racks],
        "image": [[IMAGES[k]] for k in image],
        "user": [[f"u{k}"] for k in user],
        "dataset": [[DATASETS[k]] for k in dataset_of[recipe]],
        "attention": [[ATTENTION[k]] for k in attention_of[recipe]],
        "commit": [[f"c{k}"] for k in commit],
    }
    chosen, inside = _chosen(values, culprit, recipe, rng)
    chance = np.where(inside, _rate_inside(float(inside.mean())), BASE_RATE)
    random_draws = rng.normal(0, unit_sd, RECIPES)[recipe]
    odds = np.log(chance / (1 - chance)) + random_draws
    failed = rng.random(num_attempts) < 1 / (1 + np.exp(-odds))
    columns = {
        "failed": [str(int(item)) for item in failed],
        "at": [f"{1.75e9 + item:.0f}" for item in at],
        "recipe": [f"recipe-{k}" for k in recipe],
        **{name: ["|".join(cell) for cell in cells] for name, cells in values.items()},
    }
    return Fleet(columns, chosen)


def _gang(rng: np.random.Generator) -> list[int]:
    """1 to 8 hosts that stand beside each other."""
    size = int(rng.choice([1, 2, 4, 8], p=[0.5, 0.2, 0.2, 0.1]))
    first = int(rng.integers(HOSTS))
    return sorted({(first + k) % HOSTS for k in range(size)})


def _chosen(
    values: dict[str, list[list[str]]],
    culprit: Sequence[str],
    recipe: Int64[np.ndarray, " attempt"],
    rng: np.random.Generator,
) -> tuple[dict[str, str], Bool[np.ndarray, " attempt"]]:
    """The values at fault: those of an attempt, so that it happens; not too rare, nor nearly always, nor
    the matter of a few recipes, which would be the recipes' own fault."""
    num_attempts = len(recipe)
    if not culprit:
        return {}, np.zeros(num_attempts, bool)
    while True:
        example = int(rng.integers(num_attempts))
        chosen = {name: str(rng.choice(values[name][example])) for name in culprit}
        inside = np.all([[chosen[n] in cell for cell in values[n]] for n in culprit], axis=0)
        is_shared = len(np.unique(recipe[inside])) >= LEAST_RECIPES
        if is_shared and max(0.03 * num_attempts, 8) <= inside.sum() <= 0.5 * num_attempts:
            return chosen, inside


def _rate_inside(share: float) -> float:
    """By which the whole fleet fails at `CULPRIT_RATE`, as far as that can be."""
    if share == 0:
        return BASE_RATE
    return min(BASE_RATE + (CULPRIT_RATE - BASE_RATE) / share, 0.95)
