"""What a model learned, and which sampled sequence each trained token came from.

    model_input     p p p p s s s      spans: 4 tokens of the prompt of sequence X, 3 of those that it sampled
    target_tokens     p p p s s s s    likewise

The SDK sends such spans with a datum. They are claims of the client, so each token is compared with the stored prompt
or result. A datum without spans is looked up by its digest: its tokens are those of a sequence with its prompt.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.base.shapes import Bool, Int64
from assay.reporting.views.runs.session_audit import TokenSource
from assay.serving.sessions.request_log import Request, RequestId, Result, TargetId, read_request_id
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker.bodies import ForwardBackwardDatum, ProvenanceSpan, read_request
from assay.serving.tinker.messages import parse_message

_TARGETS = "target_tokens"
_RECENT = 1024
"""Samples that are kept in memory: datums of one group name the same one."""
Tokens = Int64[np.ndarray, "token"]


class Sampled(NamedTuple):
    """A sampled sequence."""

    request: RequestId
    number: int
    prompt: Tokens
    tokens: Tokens


class SampledSequences:
    """The sampled sequences of a project, from the requests and results of its sessions."""

    def __init__(self, sessions: SessionRepository, project: str) -> None:
        self._sessions = sessions
        self._project = project
        self._recent = OrderedDict[RequestId, list[Sampled]]()
        self._by_digest = defaultdict[str, list[tuple[float, RequestId, int]]](list)

    def add(self, sampler: TargetId, request: Request, result: Result) -> Iterator[str]:
        """Find the sequences of a request by their digests from now on; yield what is wrong with them."""
        if result.is_error:
            return
        request_id = RequestId(sampler, request.seq_id)
        found = _sampled(request_id, request, result)
        if len(found) != (requested := read_request(request).num_samples):
            yield f"its result has {len(found)} sequences, not {requested}"
        for sampled in found:
            digest = _digest(np.concatenate([sampled.prompt, sampled.tokens]))
            self._by_digest[digest].append((request.at_s, request_id, sampled.number))

    def named(self, sequence_id: str) -> Sampled:
        """Return a sequence by its id. Raises `DataError` if it was not sampled for the project."""
        request_id, number = read_request_id(sequence_id.rpartition(":")[0]), sequence_id.rpartition(":")[2]
        found = [] if request_id is None or request_id.target.role != "sample" else self._of_request(request_id)
        for sampled in found:
            if str(sampled.number) == number:
                return sampled
        raise DataError(f"sequence {sequence_id!r:.120} was not sampled")

    def equal_to(self, tokens: Tokens, *, before_s: float) -> Sampled | None:
        """Return the newest sequence with exactly these tokens, prompt included, that was requested before."""
        found = [entry for entry in self._by_digest.get(_digest(tokens), ()) if entry[0] <= before_s]
        if not found:
            return None
        _, request_id, number = max(found)
        return self._of_request(request_id)[number]

    def weights_of(self, sampler: TargetId) -> str:
        """Return what a sampler samples from, in words."""
        found = self._sessions.sampler(sampler.session_id, sampler.number)
        if found is None or found.base is not None:
            return "" if found is None else found.base_model
        model = TargetId(sampler.session_id, "train", found.model_index or 0)
        return found.path or f"{model} before request {found.seq_id}"

    def _of_request(self, request_id: RequestId) -> list[Sampled]:
        found = self._recent.pop(request_id, None)
        if found is None:
            session_id, log = request_id.target.session_id, self._sessions.requests(request_id.target)
            is_own = self._sessions.find(session_id, self._project) is not None
            request, result = (
                (log.request(request_id.seq_id), log.result(request_id.seq_id)) if is_own else (None, None)
            )
            found = [] if request is None or result is None else _sampled(request_id, request, result)
        self._recent[request_id] = found
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
        return found


class _Pass(NamedTuple):
    """A request whose gradient waits for an update."""

    num_datums: int
    num_tokens: int
    sources: list[TokenSource]


class TrainedDatums:
    """What one model learned, from its requests in the order of their numbers."""

    def __init__(self, model: TargetId, sampled: SampledSequences) -> None:
        self.num_trained = self.num_dropped = self.num_trained_tokens = 0
        self.sources: list[TokenSource] = []
        self._model = model
        self._sampled = sampled
        self._waiting: list[_Pass] = []

    @property
    def num_waiting(self) -> int:
        """Datums whose gradient waits for an update."""
        return sum(waiting.num_datums for waiting in self._waiting)

    def add(self, request: Request, result: Result) -> Iterator[str]:
        """Count an executed request; yield what is wrong with it."""
        if request.kind == "forward_backward" and not result.is_error:
            yield from self._add_pass(request, result)
        elif request.kind == "optim_step" and not result.is_error:
            self.num_trained += self.num_waiting
            self.num_trained_tokens += sum(waiting.num_tokens for waiting in self._waiting)
            self.sources += [source for waiting in self._waiting for source in waiting.sources]
            self._waiting = []
        elif request.kind == "optim_step" or (request.kind == "load_weights" and not result.is_error):
            self.num_dropped += self.num_waiting
            self._waiting = []

    def _add_pass(self, request: Request, result: Result) -> Iterator[str]:
        body, num_tokens = read_request(request), 0
        if _logprob_lengths(result) != [len(datum.inputs[_TARGETS]) for datum in body.datums]:
            yield f"its result has not one logprob for each target of its {len(body.datums)} datums"
        numbers: dict[tuple[RequestId, bool], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for index, datum in enumerate(body.datums):
            trained, problems = _is_trained(datum), list[str]()
            num_tokens += int(trained.sum())
            for sampled, own in self._origins(datum, problems, request.at_s):
                key = sampled.request, bool(datum.target_spans)
                numbers[key][sampled.number] += int(trained[own].sum())
            yield from (f"data[{index}].{problem}" for problem in problems)
        sources = [
            TokenSource(
                model=str(self._model),
                seq_id=request.seq_id,
                sampled_by=str(sampled_by),
                sequences=tuple(sorted(own)),
                weights=self._sampled.weights_of(sampled_by.target),
                num_tokens=sum(own.values()),
                is_claimed=is_claimed,
            )
            for (sampled_by, is_claimed), own in sorted(numbers.items())
        ]
        if not body.is_forward_only:
            self._waiting.append(_Pass(len(body.datums), num_tokens, sources))

    def _origins(
        self, datum: ForwardBackwardDatum, problems: list[str], before_s: float
    ) -> Iterator[tuple[Sampled, slice]]:
        """Yield sampled sequences with the targets that came from them; claims that are not true are problems."""
        targets = datum.inputs[_TARGETS]
        if datum.input_spans or datum.target_spans:
            for _ in self._true_claims("model_input", datum.tokens, datum.input_spans, problems):
                pass
            yield from self._true_claims(_TARGETS, targets, datum.target_spans, problems)
        elif np.array_equal(datum.tokens[1:], targets[:-1]):
            sampled = self._sampled.equal_to(np.append(datum.tokens, targets[-1:]), before_s=before_s)
            if sampled is not None:
                yield sampled, slice(len(sampled.prompt) - 1, None)

    def _true_claims(
        self, name: str, tokens: Tokens, spans: Sequence[ProvenanceSpan], problems: list[str]
    ) -> Iterator[tuple[Sampled, slice]]:
        """Yield the sequences that tokens were sampled in, as the spans say."""
        begin = 0
        for span in spans:
            own = slice(begin, begin + span.length)
            begin = own.stop
            try:
                sampled = self._sampled.named(span.sequence_id)
                _check_span(span, tokens[own], sampled)
            except DataError as error:
                problems.append(f"{name}[{own.start}:{own.stop}]: {error}")
                continue
            if span.is_sampled:
                yield sampled, own
        if begin != len(tokens):
            problems.append(f"{name}: its spans cover {begin:,} tokens, not {len(tokens):,}")


def _check_span(span: ProvenanceSpan, tokens: Tokens, sampled: Sampled) -> None:
    """Raise `DataError` if the tokens are not those that the span names."""
    source, what = (sampled.tokens, "sampled tokens") if span.is_sampled else (sampled.prompt, "tokens of the prompt")
    end = span.offset + span.length
    if span.offset < 0 or span.length < 0 or end > len(source) or len(tokens) < span.length:
        raise DataError(f"sequence {span.sequence_id} has {len(source):,} {what}, not {span.offset:,} to {end:,}")
    if (wrong := np.flatnonzero(tokens != source[span.offset : end])).size:
        first = int(wrong[0])
        raise DataError(
            f"token {tokens[first]} is not token {span.offset + first} of the {what} of {span.sequence_id}, which is "
            f"{source[span.offset + first]}"
        )


def _sampled(request_id: RequestId, request: Request, result: Result) -> list[Sampled]:
    """Return the sequences of a result; none if it is an error."""
    if result.is_error:
        return []
    prompt = np.array(read_request(request).prompt_tokens(), np.int64)
    sequences = parse_message("SampleResponse", result.body).sequences
    return [
        Sampled(request_id, number, prompt, np.frombuffer(sequence.tokens, "<i4").astype(np.int64))
        for number, sequence in enumerate(sequences)
    ]


def _is_trained(datum: ForwardBackwardDatum) -> Bool[np.ndarray, "token"]:
    """Return which targets have a weight or an advantage."""
    values = datum.inputs.get("weights", datum.inputs.get("advantages"))
    return np.ones(len(datum.inputs[_TARGETS]), bool) if values is None else values != 0


def _logprob_lengths(result: Result) -> list[int]:
    """Return the number of logprobs of each datum."""
    records = parse_message("ForwardBackwardOutput", result.body).loss_fn_outputs
    ends = [np.frombuffer(record.fields["logprobs"].offsets, "<i8") for record in records]
    return [int(length) // 4 for own in ends for length in np.diff(own)]


def _digest(tokens: Tokens) -> str:
    return sha256_of_bytes(tokens.astype("<i8").tobytes())
