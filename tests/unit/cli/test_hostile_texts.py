"""Texts that strangers wrote into records, on every screen, page and Markdown: shown, and obeyed in nothing.

Every free text of a golden record ("the FIELD") is replaced, and the records are those of one run and of one
campaign. A page must be built of the same tags and attributes as with harmless texts; Markdown, too, once it is
a page.
"""

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt

from assay.base.digest import sha256_of_bytes
from assay.base.errors import AssayError
from assay.cli.main import main
from assay.records.record import Record
from assay.records.statement import Statement
from assay.reporting.document import Document, Fact, Listing, Paragraph, Section, Table, TitledTable, Verdict
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.memo import Memo, memo_document
from assay.reporting.documents.model_card import ModelFacts, model_card
from assay.statistics.predictions import PREDICTIONS_FILE, evaluation_folder
from assay.store.home import Home
from golden.write_records import golden_record
from record_kinds import record_kinds
from tiny_recipe import tiny_recipe

HARMLESS = "a text"
NAME = "\"'><img src=x onerror=alert(1)>[bold]&lt;"
"""What may be the name of a run, too."""
HOSTILE = (
    f"{NAME}[/nothing]<script>alert(2)</script></style></svg><a href='javascript:alert(3)'>x</a>"
    "javascript:alert(4)"
    "\x1b]0;title\x07\x1b[2J\x9b2J\x1b[1A\x08\u202eevil\u2066\u200e\r| a | b |\n# head\n" + "long" * 2000
)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COLOURS = re.compile("\x1b\\[[0-9;]*m")
SCREENS = (
    "runs", "runs show r", "runs diff r s", "runs goodput", "runs goodput r s", "decide list", "eval history r",
    "runs --json", "runs show r --json", "runs diff r s --json", "eval history r --json",
)  # fmt: skip
PAGES = ("report r",)


def planted(tree: Any, text: str) -> Any:
    """A golden tree with a text in place of each of its own."""
    if isinstance(tree, dict):
        return {
            planted(key, text) if str(key).startswith("the ") else key: planted(value, text)
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [planted(item, text) for item in tree]
    return text if isinstance(tree, str) and tree.startswith("the ") else tree


def record(kind: str, text: str, **facts: Any) -> Any:
    """A golden record with a text wherever one may be; a name's where only a name may be."""
    record_class: type[Record] = record_kinds()[kind]
    golden = golden_record(record_class).to_tree()
    for item in (text, text if text == HARMLESS else NAME):
        try:
            return record_class.from_tree(planted(golden, item) | facts, source=kind)
        except AssayError as error:
            problem = error
    raise problem


def predicted(run_dir: Path, text: str) -> str:
    """The digest of a run's predictions, whose metadata is such a text."""
    path = evaluation_folder(run_dir, step=3, split="validation") / PREDICTIONS_FILE
    path.parent.mkdir(parents=True)
    rows = range(40)
    columns = {
        "row_id": pa.array(rows, pa.uint64()),
        "label": pa.array([row % 2 for row in rows], pa.int8()),
        "probability": pa.array([row / 40 for row in rows]),
        text: pa.array([text] * 40),
    }
    pq.write_table(pa.table(columns), path)
    return sha256_of_bytes(path.read_bytes())


def filled(folder: Path, text: str) -> Home:
    """A home whose ledger holds two runs and a campaign, with a text wherever one may be."""
    home = Home.at(folder)
    with home.open_ledger() as ledger:
        for run_id in ("r", "s"):
            of_run, location = {"run_id": run_id}, str(folder / run_id)
            recipe = tiny_recipe() | {"name": NAME if text == HOSTILE else text}
            of_attempt = {
                **of_run,
                "attempt": 1,
                "world_size": 1,
                "end_step": 3,
                "started_s": 1.0,
                "ended_s": 9.0,
            }
            failure = record("failure", text, run_id=run_id, attempt=1).model_dump(mode="json")
            ledger.record_run(
                record(
                    "run",
                    text,
                    **of_run,
                    run_dir=location,
                    store_url=location,
                    recipe=recipe,
                    num_steps=3,
                    is_drill=False,
                )
            )
            ledger.record_attempt(record("attempt", text, **of_attempt, failure=failure, hosts=[text], devices=[text]))
            ledger.record_launch(record("launch", text, **of_run, number=1))
            ledger.record_incidents(run_id, {0: record("incident", text, **of_run)})
            ledger.record_log_entries(
                run_id,
                {
                    n: record(kind, text, attempt=1)
                    for n, kind in enumerate(("attempt_began", "commit", "commit_quarantined", "run_finished"))
                },
            )
            ledger.record_phase_seconds(record("phase_seconds", text, **of_run, attempt=1, rank=0))
            of_rows = {"split": "validation", "predictions_sha256": predicted(folder / run_id, text)}
            ledger.record_evaluation(record("classifier_evaluation", text, **of_run, **of_rows))
            ledger.record_benchmark_result(record("benchmark_result", text, **of_run))
            ledger.record_audit(record("audit_report", text, **of_run))
            ledger.record_run_notes(record("run_notes", text, **of_run))
        ledger.record_comparison(record("auc_comparison", text, baseline_run_id="r", candidate_run_id="s"))
        ledger.record_campaign(record("campaign", text, name="c"))
        ledger.record_decision(record("decision", text, campaign="c"))
    return home


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Home]:
    return {text: filled(tmp_path_factory.mktemp("home"), text) for text in (HARMLESS, HOSTILE)}


def run(home: Home, command: str, patch: pytest.MonkeyPatch) -> int:
    patch.setenv("ASSAY_HOME", str(home.folder))
    patch.delenv("ASSAY_LEDGER", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", SCREENS)
def test_a_screen_shows_hostile_texts_and_obeys_none(
    homes: dict[str, Home], command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run(homes[HOSTILE], command, monkeypatch)
    output = capfd.readouterr()
    assert code == 0, output.err
    assert not OBEYED.findall(COLOURS.sub("", output.out + output.err))
    if command.startswith("runs show"):
        assert "[/nothing]" in output.out.replace("\n", "")
    if "--json" in command:
        json.loads(output.out)


class Structure(HTMLParser):
    """The tags of a page, each with the names of its attributes; and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[tuple[str, frozenset[str]]] = set()
        self.links: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add((tag, frozenset(name for name, _ in attrs)))
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")}


def is_harmless(page: str, like: str) -> bool:
    """Whether a page has no tags or attributes but those that it has with harmless texts, and leads nowhere."""
    found, known = Structure(page), Structure(like)
    assert found.tags <= known.tags, found.tags - known.tags
    assert not [link for link in found.links if not re.match(r"#|data:,$|[\w./-]*$", link)], found.links
    assert not OBEYED.findall(page), "a browser obeys some of these, and shows none"
    return True


def pages(command: str, homes: dict[str, Home], patch: pytest.MonkeyPatch) -> Iterator[str]:
    for home in (homes[HOSTILE], homes[HARMLESS]):
        out = home.folder / "page.html"
        assert run(home, f"{command} --out {out}", patch) == 0
        yield out.read_text()


@pytest.mark.parametrize("command", PAGES)
def test_a_page_shows_hostile_texts_and_obeys_none(
    homes: dict[str, Home], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_harmless(*pages(command, homes, monkeypatch))


WARNED = {"warned": 1, "runs": 2, "rule": "diverged", "seed": 0}


def memo_of(text: str) -> str:
    decision = record("decision", text)
    look = decision.look.model_copy(update={"num_seeds": 1})
    effects = tuple(
        effect.model_copy(
            update={"role": "primary", "by_seed": (0.1,), "candidate_results": effect.candidate_results[:1]}
        )
        for effect in decision.effects
    )
    drill = {"type": "drill", "reason": "problem", "values": {"workers": 1, "exercise": text, "problem": text}}
    worth = {"type": "worth", "reason": "pass", "verdict": "pass", "values": {"least": 1.0}}
    clause = decision.gates[0].clauses[0]
    clauses = tuple(clause.model_copy(update={**kind, "is_thin": False, "more": None}) for kind in (drill, worth))
    gate = decision.gates[0].model_copy(update={"then": "scale", "clauses": clauses, "more": None})
    statements = {
        "flips": {"narrow": (Statement(code="without benchmark", values={"benchmark": text}),)},
        "turning_point": None,
        "risks": (Statement(code="items left out", values={"benchmark": text, "items": 2}),),
        "dissent": (Statement(code="lower with seeds", values={"seeds": [1]}),),
        "warnings": (Statement(code="runs warned", values=WARNED | {"arm": text, "text": text}),),
        "meaning": (Statement(code="likelihood", values={"per": text, "factor": 2.0}),),
        "cheapest": None,
    }
    decision = decision.model_copy(
        update={"look": look, "runs": 2 * decision.runs[:1], "effects": effects, "gates": (gate,), **statements}
    )
    memo = Memo(
        campaign=text,
        question=text,
        declared_s=0.0,
        decisions=[decision],
        undecided=[text],
        stopped_by=text,
        budget_s=1.0,
        cost=text,
    )
    return markdown(memo_document(memo))


def card_of(text: str) -> str:
    recipe = tiny_recipe() | {"name": text}
    exported = record("exported_model", text, recipe=recipe, form="classifier", is_tokenizer_proved=False)
    audit = record("audit_report", text)
    facts = ModelFacts(
        run=record("run", text, run_id="r", recipe=recipe),
        commit=record("commit", text, attempt=1),
        exported=exported.model_copy(update={"columns": {text: "string"}}),
        manifest=record("dataset", text),
        attempts=(record("attempt", text, hosts=[text], devices=[text]),),
        evaluation=record("classifier_evaluation", text),
        audit=audit.model_copy(update={"problems": (text,), "missing": (text,), "repeated": (text,)}),
    )
    return model_card(facts)


def document_of(text: str) -> str:
    table = Table((text, "n"), [[text, text]])
    blocks = (
        Paragraph(text),
        Listing([text], text),
        TitledTable(text, text, table),
    )
    return markdown(
        Document(
            name="d",
            title=text,
            kind=text,
            subtitle=text,
            verdict=Verdict("good", text, text),
            tiles=[Fact(text, text, text)],
            sections=[Section(text, blocks)],
            footer=text,
        )
    )


@pytest.mark.parametrize("written", [memo_of, card_of, document_of])
@pytest.mark.parametrize("text", [NAME, HOSTILE, "# a | `b` |\n---\n- c", "```\n\n<b>"])
def test_markdown_shows_hostile_texts_and_obeys_none(written: Callable[[str], str], text: str) -> None:
    def page(text: str) -> str:
        return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(written(text))

    found, like = page(text), page(HARMLESS)
    assert is_harmless(found, like)
    for tag in ("p", "li", "h1", "h2", "h3", "tr", "td", "pre", "hr"):
        assert found.count(f"<{tag}>") == like.count(f"<{tag}>"), tag
