"""Datasets on the screen: what one holds, how it splits, what changed between two."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from assay.base.errors import AssayError
from assay.base.names import shell_line
from assay.base.units import bytes_text, count_text, number_of, tenths_text
from assay.data.dataset.columns import KEY, LABEL
from assay.data.dataset.label_values import class_name
from assay.data.dataset.raw.type_inference import parse_number
from assay.data.loader.config import LoaderConfig
from assay.data.loader.mixing import Mixing
from assay.records.dataset import BoundaryTokens, BuildSummary, ColumnProfile, DatasetManifest, LengthProfile
from assay.records.dataset_diff import ChangedShard, DatasetDiff, Shift
from assay.reporting.document import Table, name, number
from assay.reporting.terminal.table import print_table
from assay.reporting.terminal.terminal import stdout
from assay.reporting.views.dataset_order import OrderView
from assay.reporting.views.dataset_split import SplitView
from assay.reporting.views.warnings import warning_text
from assay.statistics.warnings import Warned, warnings_of_cuts, warnings_of_leaks, warnings_of_split

if TYPE_CHECKING:
    from assay.data.dataset.dataset import Dataset

BAR = 40
MAX_LINES = 12
MAX_EXAMPLE_CHARACTERS = 4_000
BUILD_EXAMPLES, MAX_BUILD_CHARACTERS = 3, 1_000
NUM_VALUES = 4
MAX_VALUE_CHARACTERS = 24
MAX_TRAITS = 3
OFTEN = 3.0
"""Pair recurrence (relative to chance) from which a hint is printed."""


def print_manifest(manifest: DatasetManifest, folder: Path) -> None:
    """Print the profile of a dataset."""
    console = stdout(markup=True)
    console.print(
        f"[bold]{escape(manifest.name)}[/]  fingerprint {manifest.fingerprint[:16]}  in {escape(str(folder))}"
    )
    num_bytes = sum(shard.num_bytes for shard in manifest.shards)
    console.print(
        f"{_counted(manifest.num_rows, 'row')}, {count_text(manifest.num_tokens)} tokens, "
        f"{bytes_text(num_bytes)} in {_counted(len(manifest.shards), 'shard')} and "
        f"{_counted(manifest.num_row_groups, 'row group')} under "
        f"{escape(manifest.source_url)}"
    )
    if manifest.format != "labelled":
        trained = manifest.num_trained_tokens
        share = f"; {tenths_text(trained / manifest.num_tokens)} of the tokens are trained" if trained else ""
        console.print(f"rows for a language model, of the format '{manifest.format}'{share}")
    if manifest.item_fields:
        some = [f"{escape(name)} ({rows:,})" for name, rows in sorted(manifest.item_fields.items())]
        console.print(f"fields that graders read, with their rows: {', '.join(some)}")
    if (scored := manifest.scored) is not None:
        console.print(
            f"with logprobs of {escape(scored.reference)} (weights {scored.weights_digest[:16]}) on the pairs of "
            f"{escape(scored.source)} ({scored.source_fingerprint[:16]})"
        )
    if manifest.label_counts:
        console.print("\n" + "\n".join(_label_lines(manifest.label_counts)))
    _print_lengths(console, manifest.lengths)
    console.print(f"largest token id {manifest.max_token_id:,}\n")
    for warning in _warnings_of_cuts(manifest):
        console.print(f"[yellow]warning: {escape(warning_text(warning, with_hint=True))}[/]\n")
    group = manifest.build.group if manifest.build is not None else ""
    print_table(_column_table(manifest.column_profiles, manifest.num_rows, group))


_UNKNOWN = frozenset({"n/a", "na", "nan", "null", "none", "nil", "-", "?", "unknown", "missing"})
"""Lower-case labels that usually mean that the label is unknown."""
_FEWEST_OF_A_CLASS = 10
"""Fewer rows of a class may leave none of it in a validation split of 10%."""


def _warnings_of_cuts(manifest: DatasetManifest) -> list[Warned]:
    num_cut = manifest.build.num_cut if manifest.build is not None else None
    return warnings_of_cuts(manifest.lengths, num_rows=manifest.num_rows, num_cut=num_cut)


def print_build(manifest: DatasetManifest, dataset: Path) -> None:
    """Print how many rows were used, dropped or altered, with hints."""
    if (build := manifest.build) is None:
        return
    lines = [f"read {_counted(build.num_read, 'row')}, kept {manifest.num_rows:,}"]
    lines += [what.replace("{}", _counted(count, noun), 1) for count, noun, what in _outcomes(manifest, build) if count]
    lines += [f"not read: {', '.join(build.unread_fields)}"] if build.unread_fields else []
    lines += [
        f"label '{label}' ({_counted(rows, 'row')}) is trained as a class: if it means that the label is "
        "unknown, leave it empty, and these rows are dropped"
        for label, rows in manifest.label_counts.items()
        if label.casefold() in _UNKNOWN
    ]
    if manifest.columns.get(LABEL) == "string":
        lines += _doubtful_classes(manifest.label_counts)
    print("\n" + "\n".join(lines))
    if manifest.boundaries is not None:
        _print_training_summary(manifest, build, dataset)
    if manifest.format != "prompts" and ("label" in manifest.columns or manifest.format != "labelled"):
        print(f"\nnext: {shell_line('assay', 'train', 'new', str(dataset), '--out', 'recipe.yaml')}")


def _outcomes(manifest: DatasetManifest, build: BuildSummary) -> list[tuple[int, str, str]]:
    """Return (count, noun, text) of each outcome; the count replaces the braces."""
    lost = f"{count_text(build.num_cut_tokens)} tokens"
    cut = f"cut {{}} at {manifest.lengths.max:,} tokens, which lost {lost}: --max-tokens allows more"
    by_option = {name: "" if name in build.drop else f" (--drop {name})" for name in ("doubled", "conflicting")}
    return [
        (build.num_empty, "row", f"left out {{}} without text (the first: {build.first_empty})"),
        (build.num_unlabelled, "row", f"left out {{}} without a label (the first: {build.first_unlabelled})"),
        (build.num_cut, "row", f"lost {lost} of the rows that were cut" if _warnings_of_cuts(manifest) else cut),
        (build.num_split, "text", "split {} longer than --max-tokens into several rows"),
        (build.num_long, "row", f"left out {{}} longer than --max-tokens (the first: {build.first_long})"),
        (
            build.num_unusable,
            "row",
            f"left out {{}} that cannot be read or learned from. The first: {build.first_unusable}",
        ),
        (
            build.num_altered,
            "row",
            "altered: {} that the tokenizer does not write as they are: it lacks characters, or normalizes "
            f"them. The first: {build.first_altered}",
        ),
        (build.num_doubled, "row", f"doubled: {{}} whose text an earlier row has{by_option['doubled']}"),
        (
            build.num_conflicting,
            "row",
            f"conflicting: {{}} of texts that have several labels{by_option['conflicting']}",
        ),
        (build.num_dropped, "row", "dropped {} of these, as requested"),
        (
            build.num_shared,
            "row",
            "leaks: {} whose text also occurs in another group, so that a split by group may train on it and hold "
            "it out (--drop doubled, or another --group-by)",
        ),
        (
            build.num_numbers if 2 * build.num_numbers > build.num_read else 0,
            "row",
            "text: {} hold just a number, of which a model sees the digits. Name another --text; as --metadata the "
            "number itself can be read",
        ),
    ]


def _print_training_summary(manifest: DatasetManifest, build: BuildSummary, dataset: Path) -> None:
    """Print examples, row counts by outcome, and the end tokens that are trained."""
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.tokens import load_tokenizer

    print_examples(Dataset.open(dataset), BUILD_EXAMPLES, max_characters=MAX_BUILD_CHARACTERS)
    tokenizer, bounds = load_tokenizer(dataset), manifest.boundaries or BoundaryTokens()
    begin, ends = (
        ", ".join(str(tokenizer.id_to_token(token)) for token in tokens) or "no control token"
        for tokens in (bounds.begin_ids, bounds.end_ids)
    )
    trained = manifest.num_trained_tokens
    share = tenths_text((trained or 0) / manifest.num_tokens)
    left_out = (
        ("  left out: no text", build.num_empty),
        ("  left out: longer than --max-tokens", build.num_long),
        ("  left out: unusable", build.num_unusable),
        ("  left out: doubled", build.num_dropped),
        ("reasoning dropped by the template from turns that are not trained", build.num_reasoning_dropped),
    )
    rows = [("rows read", f"{build.num_read:,}"), ("  kept", f"{manifest.num_rows:,}")]
    rows += [(what, f"{count:,}") for what, count in left_out if count]
    rows += [("tokens", f"{manifest.num_tokens:,}")]
    rows += [("  trained", f"{trained:,} ({share})")] if trained is not None else []
    rows += [("a text begins with", begin), ("a completion ends with", ends)]
    rows += [("  trained", f"{bounds.num_trained_ends:,} of {bounds.num_ends:,}")] if bounds.num_ends else []
    print()
    print_table(Table(("what", "value"), rows))
    if bounds.num_trained_ends < bounds.num_ends:
        stdout(markup=True).print(f"\n[yellow]warning: {escape(_untrained_ends(manifest.format, bounds, ends))}[/]")


def _untrained_ends(format: str | None, bounds: BoundaryTokens, ends: str) -> str:
    missing = bounds.num_ends - bounds.num_trained_ends
    why = f"a model does not learn to stop from {missing:,} of {bounds.num_ends:,} completions: "
    if bounds.end_ids and format != "text":
        return (
            f"{why}{ends} follows them but is not trained. Move it before {{% endgeneration %}} in the "
            "chat template, or name a template that trains it (--chat-template)."
        )
    return f"{why}no control token ends them. Name one (--end-token, or a chat template that writes one)."


def _doubtful_classes(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield warnings on class names that may be the same class, and on rare classes."""
    spellings: dict[str, list[str]] = {}
    for label in counts:
        number = parse_number(label.strip())
        spelling = " ".join(label.casefold().split()) if number is None else class_name(number)
        spellings.setdefault(spelling, []).append(label)
    for labels in spellings.values():
        if len(labels) > 1:
            listed = " and ".join(f"'{label}' ({_counted(counts[label], 'row')})" for label in labels)
            yield (
                f"labels {listed} differ only in case, blanks or how a number is written: if they are one "
                "class, use one name"
            )
    rare = sorted((rows, label) for label, rows in counts.items() if rows < _FEWEST_OF_A_CLASS)
    if rare:
        classes = number_of(len(rare), "class has", "classes have")
        yield (
            f"{classes} fewer than {_FEWEST_OF_A_CLASS} rows, e.g. '{rare[0][1]}' with {rare[0][0]:,}: validation "
            "may have none or all of them"
        )


def print_examples(dataset: "Dataset", num_rows: int, *, max_characters: int = MAX_EXAMPLE_CHARACTERS) -> None:
    """Print rows as a language model reads them, with the trained parts in colour or brackets."""
    from assay.data.dataset.formats.examples import examples_of

    console = Console(highlight=False, soft_wrap=True)
    try:
        found = examples_of(dataset, num_rows)
    except AssayError as error:
        console.print(f"\nexamples: none. {escape(str(error))}")
        return
    for example in found:
        console.print(f"\n[bold]{example.name}[/] ({number_of(example.num_tokens, 'token')})")
        text = Text()
        for part, is_trained in example.parts:
            is_bracketed = is_trained and not console.is_terminal
            text.append(f"⟦{part}⟧" if is_bracketed else part, "green" if is_trained else "")
        shown = text[:max_characters]
        more = f" … and {len(text) - len(shown):,} characters" if len(text) > len(shown) else ""
        console.print(shown + Text(more))
        if example.item:
            console.print(f"item: {escape(example.item[:max_characters])}")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _label_lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a bar for label 1, or for each of the most frequent classes."""
    total = sum(counts.values())
    is_binary = counts.keys() <= {"0", "1"}
    most = [("1", counts.get("1", 0))] if is_binary else Counter(counts).most_common(MAX_LINES)
    width = max(len(_short(name)) for name, _ in most)
    for label, rows in most:
        filled = min(BAR, round(BAR * rows / total))
        bar = f"[cyan]{'█' * filled}[/][dim]{'░' * (BAR - filled)}[/]"
        behind = f"{rows:,} of {total:,} rows" if is_binary else f"{number_of(rows, 'row')}"
        yield f"label {escape(_short(label)):<{width}} {bar} {tenths_text(rows / total)} ({behind})"
    if len(counts) > MAX_LINES and len(most) == MAX_LINES:
        yield f"and {len(counts) - MAX_LINES} other classes"


def _print_lengths(console: Console, lengths: LengthProfile) -> None:
    console.print(
        f"\ntokens a row: mean {lengths.mean:.0f}, median {lengths.p50:.0f}, 95% {lengths.p95:.0f}, "
        f"99% {lengths.p99:.0f}, max {lengths.max:,}"
    )
    most = max(1, *lengths.histogram_rows)
    for edge, rows in zip(lengths.histogram_edges, lengths.histogram_rows, strict=False):
        bar = "█" * round(BAR * rows / most) or ("▏" if rows else "")
        console.print(f"{edge:>7,} [cyan]{bar:<{BAR}}[/] {rows:>10,}")


def _column_table(columns: Sequence[ColumnProfile], num_rows: int, group: str) -> Table:
    def called(column: ColumnProfile) -> str:
        return f"{column.name} ({group})" if group not in ("", column.name) and column.name == KEY else column.name

    def type_text(column: ColumnProfile) -> str:
        return column.type.removesuffix(", ordered=0>") if column.type.startswith("dictionary") else column.type

    return Table.of(
        columns,
        (name("column"), called),
        ("type", type_text),
        (number("missing"), lambda column: tenths_text(column.missing_rate) if column.missing_rate else "-"),
        ("values", lambda column: _values_text(column, num_rows)),
    )


def _values_text(column: ColumnProfile, num_rows: int) -> str:
    if column.top_values:
        shown = [f"{_short(value)} {tenths_text(count / num_rows)}" for value, count in column.top_values[:NUM_VALUES]]
        return ", ".join(shown) + (", …" if len(column.top_values) > NUM_VALUES else "")
    if column.minimum is None:
        return ""
    return f"{column.minimum} to {column.maximum}" + ("" if column.mean is None else f", mean {column.mean:.3g}")


def _short(value: str) -> str:
    return value if len(value) <= MAX_VALUE_CHARACTERS else f"…{value[1 - MAX_VALUE_CHARACTERS :]}"


def order_lines(mixing: Mixing | OrderView, config: LoaderConfig, *, mean_tokens: float) -> Iterator[str]:
    """Compare the row order with a uniform shuffle, and name settings that would fix it."""
    yield (
        f"order of the rows (window_rows={config.window_rows}, shuffle_radius_windows={config.shuffle_radius_windows}, "
        f"lanes={config.lanes}, global_batch_size={config.global_batch_size}, {config.layout.type}) "
        "compared with a uniform shuffle:"
    )
    yield f"  a row's positions in two epochs correlate {mixing.position_correlation:.2f} (uniform: 0)"
    for trait in mixing.traits[:MAX_TRAITS]:
        yield (
            f"  a step's '{trait.name}' varies {trait.variation:.1f} times as much; neighbouring steps "
            f"correlate {trait.neighbours:.2f}"
        )
    if not mixing.traits:
        yield "  too few steps or informative columns to compare steps"
    yield f"  two rows of a step meet again in the next epoch {mixing.pair_recurrence:.1f} times as often"
    if (fix := mixing.fix) is not None:
        memory = int(config.buffer_bytes_per_token * config.lanes * fix.window_rows * mean_tokens)
        yield (
            f"  fix it by loader.window_rows={fix.window_rows} ({bytes_text(memory)} over all ranks), or by "
            f"row groups of {fix.rows_per_group} rows ('assay data build --rows-per-group "
            f"{fix.rows_per_group}', or write the shards again)"
        )
    if mixing.pair_recurrence >= OFTEN and config.layout.type == "bucketed":
        more = f"more than {config.layout.jitter:g}" if config.layout.jitter else "0.1 or more"
        yield (
            f"  loader.layout.jitter of {more} mixes pairs better at the cost of some padding; "
            "loader.layout.type=padded mixes all rows equally"
        )


def print_split(dataset: Path, found: SplitView, build: BuildSummary | None) -> None:
    """Print both sides of a split, and its lines for a recipe."""
    held_out = found.validation.num_rows + found.num_dropped
    total = found.train.num_rows + held_out
    for part, side in (("train", found.train), ("validation", found.validation)):
        label = "" if side.num_positive is None else f"  label 1: {tenths_text(side.num_positive / side.num_rows)}"
        print(f"{part:<11} {side.num_rows:>12,} rows  {tenths_text(side.num_rows / total):>6}{label}")
    if found.num_dropped:
        print(
            f"left out    {found.num_dropped:>12,} rows  {tenths_text(found.num_dropped / total):>6}  "
            "whose tokens a training row has"
        )
    if (fraction := found.split.get("validation_fraction")) is not None:
        for warning in warnings_of_split(held_out, total, target_share=fraction, num_dropped=found.num_dropped):
            print(f"warning     {warning_text(warning, with_hint=True)}")
    if (leak := found.leak) is not None:
        examples = f", e.g. rows {', '.join(map(str, leak.examples))}" if leak.examples else ""
        print(
            f"leaks       {leak.num_rows:>12,} of {leak.num_validation_rows:,} validation rows have the tokens "
            f"of a training row{examples}"
        )
        for warning in warnings_of_leaks(leak.num_rows, leak.num_validation_rows):
            print(f"warning     {warning_text(warning)}")
        if leak.num_rows:
            print(
                "            --drop-leaks leaves them out of validation; --by input_ids keeps copies of a text "
                f"on one side{_build_hint(build)}"
            )
    values = {key: "true" if value is True else value for key, value in found.split.items() if value is not False}
    settings_text = ", ".join(f"{key}: {value}" for key, value in values.items())
    print(f"\ndata:\n  dataset: {dataset}\n  split: {{{settings_text}}}")


def _build_hint(build: BuildSummary | None) -> str:
    """Return a hint on how another build would avoid the leaks; empty for an adopted dataset."""
    if build is None:
        return ""
    if "doubled" not in build.drop:
        return "; 'assay data build --drop doubled' keeps one copy of each text"
    return "; the texts differ after the cut: a larger 'assay data build --max-tokens' distinguishes them"


def print_diff(found: DatasetDiff) -> None:
    """Print the differences of two datasets, the most important first."""
    console = stdout(markup=True)
    if found.is_equal:
        console.print(f"[bold green]equal[/]: {number_of(found.rows_after, 'row')}, fingerprint {found.after[:16]}")
        return
    console.print(f"[bold]{found.before[:16]} → {found.after[:16]}[/]")
    console.print(f"rows    {found.rows_before:,} → {found.rows_after:,}{_change(found.rows_before, found.rows_after)}")
    tokens = _change(found.tokens_before, found.tokens_after)
    console.print(f"tokens  {count_text(found.tokens_before)} → {count_text(found.tokens_after)}{tokens}")
    if found.rows is not None:
        console.print(
            f"        {number_of(found.rows.num_added, 'row')} added, {found.rows.num_removed:,} removed, "
            f"{found.rows.num_relabelled:,} relabelled, compared by their tokens"
        )
    _print_some(console, "[green]+[/] shard ", found.shards_added)
    _print_some(console, "[red]-[/] shard ", found.shards_removed)
    _print_some(console, "= shard ", [f"{old} is now {new}" for old, new in found.shards_renamed])
    _print_some(console, "[yellow]~[/] shard ", [_shard_line(shard) for shard in found.shards_changed])
    _print_some(console, "[green]+[/] column ", found.columns_added)
    _print_some(console, "[red]-[/] column ", found.columns_removed)
    retyped = [f"{name}: {old} → {new}" for name, old, new in found.columns_retyped]
    _print_some(console, "[yellow]~[/] column ", retyped)
    if found.shifts:
        console.print()
        print_table(_shift_table(found.shifts[:MAX_LINES]))
        if len(found.shifts) > MAX_LINES:
            console.print(f"and {len(found.shifts) - MAX_LINES} smaller shifts (--json has all)")
    console.print(
        f"\n{tenths_text(found.length_distance)} of the rows would need another length for equal length distributions"
    )


def _print_some(console: Console, mark: str, lines: Sequence[str]) -> None:
    for line in lines[:MAX_LINES]:
        console.print(f"{mark}{escape(line)}")
    if len(lines) > MAX_LINES:
        console.print(f"{mark}and {len(lines) - MAX_LINES} more")


def _shard_line(shard: ChangedShard) -> str:
    if shard.rows_before != shard.rows_after:
        return f"{shard.path}: {shard.rows_before:,} → {number_of(shard.rows_after, 'row')}"
    if not shard.columns:
        rows = number_of(shard.rows_after, "row")
        return f"{shard.path}: {rows}, cut into other row groups, or other metadata"
    return f"{shard.path}: {', '.join(shard.columns)} in {number_of(shard.num_row_groups, 'row group')}"


def _shift_table(shifts: Sequence[Shift]) -> Table:
    def difference(shift: Shift) -> str:
        if shift.is_share:
            return f"{100 * (shift.after - shift.before):+.2f} points"
        return _change(shift.before, shift.after).strip(" ()")

    return Table.of(
        shifts,
        ("shift", lambda shift: shift.name),
        (number("before"), lambda shift: format(shift.before, ".2%" if shift.is_share else ",.1f")),
        (number("after"), lambda shift: format(shift.after, ".2%" if shift.is_share else ",.1f")),
        (number("difference"), difference),
    )


def _change(before: float, after: float) -> str:
    return f" ({(after - before) / before:+.1%})" if before and after != before else ""
