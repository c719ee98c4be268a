"""Plots of predictions against labels: a confusion matrix, and numbers by bins."""

from collections.abc import Sequence

from assay.base.units import count_text, number_of, percent_text
from assay.records.evaluation import ClassScore, NumberBin, NumberFit
from assay.reporting.charts.plots import number_text
from assay.reporting.charts.svg import Axis, domain, plot_area, svg_root, tag, text, title
from assay.reporting.document import Drawing, Figure, Table, figure

MAX_CLASSES = 12
"""Number of the most frequent classes that are drawn; the table has all."""
_CELL, _NAME_CHARACTERS, _DIGIT = 34, 18, 7


def confusion_figure(classes: Sequence[ClassScore]) -> Figure:
    """Return the confusion matrix."""
    shown = sorted(range(len(classes)), key=lambda index: -classes[index].num_rows)[:MAX_CLASSES]
    confused = max(
        (
            (count, true.name, classes[index].name)
            for true in classes
            for index, count in enumerate(true.predicted_as)
            if classes[index].name != true.name and count
        ),
        default=None,
    )
    caption = (
        "Each line is a true class, each cell its rows with that prediction, dark if "
        "they are a large share; a dark diagonal is good. "
        + ("No class is confused with another." if confused is None else _most_confused(*confused))
        + (f" The {MAX_CLASSES} most frequent of {len(classes)} are drawn." if len(classes) > MAX_CLASSES else "")
    )
    return figure(
        lambda width: _confusion_plot(classes, shown, width=width),
        title="Class by class",
        caption=caption,
        table=Table.of(
            classes,
            ("class", lambda class_score: class_score.name),
            ("rows", lambda class_score: f"{class_score.num_rows:,}"),
            ("found (recall)", lambda class_score: _share(class_score.recall)),
            ("right where said (precision)", lambda class_score: _share(class_score.precision)),
            ("F1", lambda class_score: f"{class_score.f1:.3f}"),
        ),
    )


def fit_figure(fit: NumberFit) -> Figure:
    """Return mean label over mean prediction, by bins of predictions."""
    ends = [end for bin_ in fit.bins for end in (bin_.mean_predicted, bin_.mean_label)]
    low, high = domain(ends)
    area = plot_area(
        320,
        290,
        Axis("predicted", (low, high), number_text),
        Axis("true, on average", (low, high), number_text),
    )
    markers = [
        area.dot(bin_.mean_predicted, bin_.mean_label, "s1", r=4, tooltip=_bin_tooltip(bin_)) for bin_ in fit.bins
    ]
    explained = "" if fit.r_squared is None else f" R² is {fit.r_squared:.3f}: 0 is as good as predicting the mean."
    return Figure(
        title="Predicted and true",
        caption=f"Points on the dashed line: rows with prediction 10 have a mean label of 10.{explained}",
        chart=Drawing(
            lambda _: area.svg_root(
                area.line([low, high], [low, high], "guide"), *markers, label="Mean label over mean prediction, by bin"
            )
        ),
        has_one_width=True,
        table=Table.of(
            fit.bins,
            ("rows", lambda bin_: f"{bin_.num_rows:,}"),
            ("mean predicted", lambda bin_: f"{bin_.mean_predicted:.4g}"),
            ("mean label", lambda bin_: f"{bin_.mean_label:.4g}"),
        ),
        size="third",
    )


def _confusion_plot(classes: Sequence[ClassScore], shown: Sequence[int], *, width: int) -> str:
    left = 8 + 7 * min(_NAME_CHARACTERS, max(len(classes[index].name) for index in shown))
    cell = min(_CELL * 2, max(16, (width - left - 12) / len(shown)))
    top, height = 24.0, 24 + _CELL * len(shown) + 30
    marks = [text("taken for →", left, 14, class_="axis")]
    for line, true in enumerate(shown):
        y = top + _CELL * line
        marks.append(text(_short(classes[true].name), left - 8, y + 21, class_="tick", text_anchor="end"))
        for column, predicted in enumerate(shown):
            count, rows = classes[true].predicted_as[predicted], classes[true].num_rows
            x, share = left + cell * column, count / rows if rows else 0.0
            tooltip = f"{classes[true].name} taken for {classes[predicted].name}: {count:,} of {rows:,} rows"
            colour = "runs" if true == predicted else "gate"
            marks.append(
                tag(
                    "rect",
                    title(tooltip),
                    x=x,
                    y=y,
                    width=cell - 2,
                    height=_CELL - 2.0,
                    class_=f"bar {colour}",
                    fill_opacity=round(0.06 + 0.94 * share, 3),
                )
            )
            if count and _DIGIT * len(count_text(count)) < cell - 2:
                on_bar = "tick on-bar" if share > 0.5 else "tick"
                marks.append(text(count_text(count), x + cell / 2, y + 21, class_=on_bar, text_anchor="middle"))
    bottom = top + _CELL * len(shown) + 16
    marks += [
        text(
            _short(classes[index].name, 9),
            left + cell * (column + 0.5),
            bottom,
            class_="tick",
            text_anchor="middle",
        )
        for column, index in enumerate(shown)
        if cell > 2 * _CELL - 8
    ]
    label = "Rows of each class by what they are taken for, in the order of the lines"
    return svg_root(*marks, width=width, height=height, label=label)


def _most_confused(count: int, true: str, predicted: str) -> str:
    return f"Most often {true} is taken for {predicted}: {number_of(count, 'row')}."


def _share(value: float | None) -> str:
    return "—" if value is None else percent_text(value)


def _short(name: str, most: int = _NAME_CHARACTERS) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _bin_tooltip(bin_: NumberBin) -> str:
    return f"{number_of(bin_.num_rows, 'row')}: predicted {bin_.mean_predicted:.4g}, true {bin_.mean_label:.4g}"
