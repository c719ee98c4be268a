"""The document of a GPU's facts: its ceilings, and which promises of equal bits hold on it."""

from collections.abc import Iterator

from assay.base.units import bytes_text, number_of
from assay.records.throughput import EqualBits, GpuFacts
from assay.reporting.document import Cell, Document, Fact, FactList, Listing, Section, TitledTable, Tone, Verdict, name

SHARED_BYTES = 2 << 30
"""More memory than a context and torch take: another process is on the card."""

PROMISES: dict[EqualBits, tuple[str, str, Tone]] = {
    "attention_twice": (
        "attention computed twice",
        "A step cannot be replayed here, and spot checks fail: use loader.layout.type=bucketed.",
        "bad",
    ),
    "captured_graph": (
        "a captured graph and plain calls",
        "A captured step can only be compared with another captured one.",
        "open",
    ),
    "row_at_any_position": (
        "a row of a product at any position",
        "Rollouts depend on their position in a tile: each group of completions decodes alone, which is slow.",
        "open",
    ),
    "row_in_any_number_of_rows": (
        "a row of a product among any number of rows",
        "Tiles of the generation engine have one fixed size, which the run records.",
        "good",
    ),
    "attention_row_alone": (
        "attention of a row alone and among others",
        "A row's loss depends on the rows of its line; lines are recomputed whole, so replays hold.",
        "good",
    ),
    "attention_gradient_of_row_alone": (
        "its gradient, likewise",
        "A row's gradient depends on the rows of its line; lines are recomputed whole, so replays hold.",
        "good",
    ),
}
"""Equal bits -> what is compared, what follows if they are not equal, and how bad that is."""


def gpu_document(facts: GpuFacts) -> Document:
    """Return the document of a GPU's facts."""
    rows = [(*PROMISES[promise], facts.equal_bits[promise]) for promise in PROMISES if promise in facts.equal_bits]
    promises = TitledTable.of(
        "Equal bits",
        "",
        rows,
        (name("compared"), lambda row: row[0]),
        (name("bits"), lambda row: Cell("equal", "good") if row[3] else Cell("differ", row[2])),
        ("if they differ", lambda row: "" if row[3] else row[1]),
    )
    sections = [Section("Ceilings", [FactList(list(_ceilings(facts)))]), Section("What holds here", [promises])]
    if facts.failures:
        failures = [Cell(f"{part}: {reason}", "open") for part, reason in facts.failures.items()]
        sections.append(Section("Not measured", [Listing(failures)]))
    return Document(
        title=facts.card,
        kind="GPU",
        subtitle=f"torch {facts.torch}",
        verdict=_verdict(facts),
        sections=sections,
        footer="Equal bits hold for this card, driver and version of torch (docs/gpu.md).",
    )


def _verdict(facts: GpuFacts) -> Verdict:
    broken = [PROMISES[promise] for promise, holds in facts.equal_bits.items() if not holds]
    bad = [consequence for _, consequence, tone in broken if tone == "bad"]
    if not facts.has_bfloat16:
        return Verdict("bad", "no bfloat16", "This card computes in float32 only, which is several times as slow.")
    if bad:
        return Verdict("bad", "not repeatable", " ".join(bad))
    if facts.failures:
        number = number_of(len(facts.failures), "part")
        return Verdict("open", "partly measured", f"{number} could not be measured; the others hold as listed.")
    slow = [consequence for _, consequence, tone in broken if tone == "open"]
    if slow:
        return Verdict("open", "repeatable, with limits", " ".join(slow))
    return Verdict("good", "repeatable", "Steps replay bit for bit, and rollouts do not depend on their neighbours.")


def _ceilings(facts: GpuFacts) -> Iterator[Fact]:
    if facts.product_flops:
        rate = f"{facts.product_flops / 1e12:.0f} TFLOP/s"
        if facts.dense_flops is None:
            yield Fact("products in bfloat16", rate, "the card is not listed, so runs show no MFU")
        else:
            share = f"{facts.product_flops / facts.dense_flops:.0%} of the data sheet's {facts.dense_flops / 1e12:.4g}"
            yield Fact("products in bfloat16", rate, f"{share}; MFU is of the data sheet's")
    if facts.copied_bytes_per_s:
        yield Fact("copies", f"{bytes_text(facts.copied_bytes_per_s)}/s", "bytes read and written")
    if facts.total_bytes:
        used = facts.total_bytes - facts.free_bytes
        text = f"{bytes_text(facts.free_bytes)} free of {bytes_text(facts.total_bytes)}"
        is_shared = used > SHARED_BYTES
        note = f"another process holds {bytes_text(used)}: times and memory are shared with it" if is_shared else ""
        yield Fact("memory", Cell(text, "open") if is_shared else text, note)
