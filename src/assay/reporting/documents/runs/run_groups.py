"""Documents of runs grouped by recipe: the table of groups, and groups compared."""

from collections.abc import Callable, Iterator, Sequence

from assay.base.units import number_of
from assay.reporting.charts.run_figures import series_figure
from assay.reporting.document import (
    Block,
    Cell,
    Commands,
    Document,
    Figure,
    Paragraph,
    Section,
    Table,
    Text,
    TitledTable,
    Verdict,
    name,
    number,
)
from assay.reporting.values import device_hours_text, estimate_text, value_text
from assay.reporting.views.runs.run_groups import RunGroup, best_of_groups, group_title
from assay.reporting.views.runs.series import Series

MAX_KEYS = 12
"""Recipe keys with a column of their own."""


def groups_table(
    groups: Sequence[RunGroup], *, baseline: str = "", address: Callable[[RunGroup], str] = lambda group: ""
) -> Table:
    """Return a row for each group: what its recipe changes, how many seeds it has, what it scored and what it cost.
    `baseline`: key of the pinned group, from which changes are told."""
    pinned = next((group for group in groups if group.key == baseline), None)
    ordered = sorted(groups, key=lambda group: group is not pinned)
    scores = list(dict.fromkeys(score.name for group in groups for score in group.scores))
    return Table.of(
        ordered,
        (name("recipe"), lambda group: Cell(_title(group, pinned), link=address(group))),
        (number("runs"), lambda group: f"{len(group.runs):,}"),
        (number("seeds"), lambda group: f"{len(set(group.seeds)):,}"),
        *((number(title), _score_of(title, pinned)) for title in scores),
        (name("status"), lambda group: ", ".join(f"{count:,} {word}" for word, count in group.statuses.items())),
        (number("device time"), lambda group: device_hours_text(3600 * group.device_hours)),
        (number("per run"), lambda group: device_hours_text(3600 * group.device_hours / len(group.runs))),
        (
            number("evaluation"),
            lambda group: device_hours_text(3600 * group.evaluation_hours) if group.evaluation_hours else "",
        ),
    ).without_empty_columns()


def _title(group: RunGroup, pinned: RunGroup | None) -> str:
    if pinned is None:
        return group_title(group)
    if group is pinned:
        return f"{group_title(group)} (baseline)"
    changes = [key for key in group.patch if group.patch[key] != pinned.patch[key]]
    text = ", ".join(f"{key.rpartition('.')[2]}={value_text(group.patch[key])}" for key in changes[:3])
    return f"{text}{', …' if len(changes) > 3 else ''}"


def _score_of(title: str, pinned: RunGroup | None) -> Callable[[RunGroup], Text]:
    def value(group: RunGroup | None) -> float | None:
        return next((score.estimate.value for score in group.scores if score.name == title), None) if group else None

    def text(group: RunGroup) -> str:
        score = next((score for score in group.scores if score.name == title), None)
        if score is None:
            return ""
        of_some = f" of {score.num_seeds:,}" if score.num_seeds < len(set(group.seeds)) else ""
        base = value(pinned) if group is not pinned else None
        change = "" if base is None else f" ({score.estimate.value - base:+.4f})"
        return f"{estimate_text(score.estimate)}{of_some}{change}"

    return text


def compare_document(
    groups: Sequence[RunGroup],
    curves: Sequence[Series],
    *,
    metric: str,
    baseline: str = "",
    selected: Sequence[str] = (),
    address: Callable[[RunGroup], str] = lambda group: "",
    run_address: Callable[[str], str] = lambda run_id: "",
    run_filter: str = "",
) -> Document:
    """Return recipes compared over all their seeds: curves, differences, scores, cost and runs.

    `selected`: runs whose own curves are drawn. `run_filter`: arguments that select the groups on a command line."""
    runs = [run_id for group in groups for run_id in group.runs]
    return Document(
        title="Compare",
        kind="comparison",
        subtitle=f"{number_of(len(groups), 'recipe')}, {number_of(len(runs), 'run')}",
        verdict=_verdict(groups),
        sections=[
            Section("Curves", [_figure(groups, curves, metric)]),
            Section(
                "Scores and cost", [TitledTable("", SCORES, groups_table(groups, baseline=baseline, address=address))]
            ),
            Section("What the recipes change", list(_changes(groups))),
            Section("Runs", [_runs(groups, selected, run_address), *_commands(groups, selected)], pages_only=True),
        ],
        footer=f"The same as JSON: assay runs groups {run_filter} --json",
    )


SCORES = (
    "Means over all seeds of a recipe, with 95% intervals (Student's, over seeds; for one seed over items). Whether a "
    "difference is real is decided pair by pair on the same rows: 'assay decide compare', or a campaign."
)


def _figure(groups: Sequence[RunGroup], curves: Sequence[Series], metric: str) -> Figure | Paragraph:
    if not curves:
        return Paragraph(f"No run has a metric '{metric}'.")
    caption = (
        "Each line is the mean over all runs of a recipe, its band from the 10% to the 90% quantile of the runs. "
        "Which runs are selected changes neither."
    )
    if len(groups) > len(curves):
        caption = "The mean over all runs, and the band from their 10% to their 90% quantile; selected runs as lines."
    return series_figure(curves, title=metric, caption=caption, y_label=metric)


def _verdict(groups: Sequence[RunGroup]) -> Verdict | None:
    titles = [score.name for group in groups for score in group.scores]
    if len(groups) < 2 or not titles:
        return None
    title = max(dict.fromkeys(titles), key=lambda name: (best_of_groups(groups, name) is not None, titles.count(name)))
    scored = [(score, group) for group in groups for score in group.scores if score.name == title]
    if len(scored) < 2:
        return None
    sign = 1 if scored[0][0].higher_is_better else -1
    score, group = max(scored, key=lambda pair: sign * pair[0].estimate.value)
    of_runs = number_of(score.num_seeds, "seed")
    best = f"{group_title(group)} has the best {title}: {estimate_text(score.estimate)}, {of_runs}."
    equals = best_of_groups(groups, title)
    if equals is None:
        return Verdict("open", "not sure", f"{best} Without intervals nothing says whether that is luck: add seeds.")
    reached = f"{equals.low:.4f} to {equals.high:.4f}"
    chance = f"the best of {equals.num_scores} equally good recipes would reach {reached} (95%)"
    if equals.may_be_chance:
        return Verdict("open", "may be luck", f"{best} By luck alone {chance}.")
    if equals.num_candidates > 1:
        among = f"the truly best is one of {equals.num_candidates}"
        return Verdict("open", "not all equal", f"{best} By luck alone {chance}, so they differ; {among} (95%).")
    return Verdict("good", "best", f"{best} By luck alone {chance}.")


def _changes(groups: Sequence[RunGroup]) -> Iterator[Block]:
    keys = list(groups[0].patch)
    if not keys:
        yield Paragraph("Recipes are the same, key for key, but for name and seed.")
        return
    yield TitledTable.of(
        "",
        f"{len(keys) - MAX_KEYS:,} more keys differ: see 'assay runs diff'." if len(keys) > MAX_KEYS else "",
        groups,
        (name("recipe"), lambda group: group.name or group.key),
        *((key, lambda group, key=key: value_text(group.patch[key])) for key in keys[:MAX_KEYS]),
    )


def _runs(groups: Sequence[RunGroup], selected: Sequence[str], address: Callable[[str], str]) -> TitledTable:
    rows = [
        (run_id, group_title(group), seed)
        for group in groups
        for run_id, seed in zip(group.runs, group.seeds, strict=True)
    ]
    rows.sort(key=lambda row: row[0] not in selected)
    more = f"The first {MAX_RUNS} of {len(rows):,} runs." if len(rows) > MAX_RUNS else ""
    return TitledTable.of(
        "",
        more,
        rows[:MAX_RUNS],
        (name("run"), lambda row: Cell(row[0], link=address(row[0]))),
        (name("recipe"), lambda row: row[1]),
        (number("seed"), lambda row: str(row[2])),
        (name("curve"), lambda row: "drawn" if row[0] in selected else ""),
    )


MAX_RUNS = 100


def _commands(groups: Sequence[RunGroup], selected: Sequence[str]) -> list[Block]:
    if len(groups) < 2:
        return []
    first, second = (
        next((run_id for run_id in selected if run_id in group.runs), group.runs[0]) for group in groups[:2]
    )
    return [
        Commands(
            [
                ("whether one run is as good as another, on the same rows", f"assay decide compare {first} {second}"),
                ("all that differs between two runs", f"assay runs diff {first} {second}"),
            ]
        )
    ]
