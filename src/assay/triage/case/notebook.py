"""Appends hypotheses, predictions, votes and evidence to a case; each function returns the new case."""

from collections.abc import Sequence
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.base.names import meant
from assay.records.case import Case, CaseEvidence, Hypothesis, Prediction, Vote
from assay.triage.case.expectation import parse_expectation
from assay.triage.case.questions import command_words

LONGEST_TEXT = 500


class Predicted(NamedTuple):
    """A command and its expected result, as written by a person."""

    command: str
    expect: str


def with_hypothesis(case: Case, text: str, predicted: Sequence[Predicted], *, by: str, now_s: float) -> Case:
    """Add a hypothesis with its predictions; if it exists, add only new predictions."""
    text = text.strip()
    if not text or len(text) > LONGEST_TEXT:
        raise ConfigError(f"--hypothesis: expected a sentence of at most {LONGEST_TEXT} characters.")
    hypotheses = case.hypotheses
    known = [hypothese.text for hypothese in hypotheses]
    if text not in known:
        hypotheses = (*hypotheses, Hypothesis(text=text, by=by, at_s=now_s))
        known.append(text)
    number = known.index(text) + 1
    known_predictions = {
        (prediction.command, prediction.expect) for prediction in case.predictions if prediction.hypothesis == number
    }
    new = list[Prediction]()
    for prediction in predicted:
        command, expect = command_words(prediction.command), prediction.expect.strip()
        parse_expectation(expect)
        if (command, expect) not in known_predictions:
            known_predictions.add((command, expect))
            new.append(Prediction(hypothesis=number, command=command, expect=expect, at_s=now_s))
    return case.model_copy(update={"hypotheses": hypotheses, "predictions": (*case.predictions, *new)})


def with_vote(case: Case, hypothesis: str, *, by: str, now_s: float) -> Case:
    """Add a vote for a hypothesis, by number or text; a second vote by the same person is ignored."""
    if not by.strip():
        raise ConfigError("--vote: whose vote is it? Give a name.")
    vote = Vote(hypothesis=_number(case, hypothesis), by=by.strip(), at_s=now_s)
    if any((known_vote.hypothesis, known_vote.by) == (vote.hypothesis, vote.by) for known_vote in case.votes):
        return case
    return case.model_copy(update={"votes": (*case.votes, vote)})


def with_evidence(case: Case, evidence: CaseEvidence) -> Case:
    """Add the result of a prediction."""
    return case.model_copy(update={"evidence": (*case.evidence, evidence)})


def _number(case: Case, hypothesis: str) -> int:
    texts = [hypothese.text for hypothese in case.hypotheses]
    if hypothesis.isdecimal() and 1 <= int(hypothesis) <= len(texts):
        return int(hypothesis)
    if hypothesis in texts:
        return texts.index(hypothesis) + 1
    known = f"1 to {len(texts)}" if texts else "none yet; 'assay triage case add' adds one"
    raise ConfigError(
        f"case '{case.name}' has no hypothesis '{hypothesis}'{meant(hypothesis, texts)}. There is {known}."
    )
