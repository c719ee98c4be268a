"""Benchmarks with sampled completions, graded by a grader or by a registry's rule.

A prompt without a completion is a failure of the machinery. A completion without sense is not: the grader scores it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.base.digest import canonical_json, sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.evals.config import Generation, RegistryBenchmark
from assay.evals.contamination import TrainingText, contamination, prompts
from assay.evals.engine import EvalEngine
from assay.evals.items import checked_items, conversation
from assay.evals.scorer import PROMPT_TOKENS_CUT, Identity, Scorer, chunk_ranges
from assay.evals.version import generation_version, registry_version
from assay.inference.protocol import Completion, Engine, Message, SamplerError, SamplingParams
from assay.records.benchmark import Contamination
from assay.scoring.grade import Grade, sampler_failure
from assay.scoring.grader_runner import Tools, judge_failure, sample_values
from assay.scoring.graders import grader_sha256
from assay.scoring.registry.matching import fuzzy_match, includes, json_match, match, token_f1
from assay.scoring.registry.model_graded import choices_of, escaped, filled, judge_prompt, judgement, several_as_one
from assay.scoring.registry.registry import Registry, RegistryEval, as_chat
from assay.statistics.benchmark_items import ItemScore


class _SampledScorer(Scorer):
    """Samples completions in chunks of items."""

    def __init__(self, num_items: int, chunk_items: int, model: Engine, training_text: TrainingText | None) -> None:
        self._model = model
        self._chunks = chunk_ranges(num_items, chunk_items)
        self.num_chunks = len(self._chunks)
        self._training_text = training_text
        self.training_fingerprint = training_text.fingerprint if training_text else None

    def contamination(self, items: Sequence[ItemScore]) -> Contamination | None:
        """Return the items with texts that occur in the training text."""
        return contamination(prompts(self._texts()), items, self._training_text)

    def _texts(self) -> Mapping[str, Sequence[str]]:
        """Return the texts of each item."""
        raise NotImplementedError


class GenerationScorer(_SampledScorer):
    """Scores completions with a grader of the API."""

    def __init__(
        self, config: Generation, folder: Path, model: Engine, tools: Tools, training_text: TrainingText | None = None
    ) -> None:
        """Read the items and check that they have what the grader needs."""
        path = folder / config.items
        self._items = checked_items(config, folder)
        super().__init__(len(self._items), config.chunk_items, model, training_text)
        self._prompts = [conversation(item, path) for item in self._items]
        self._sampling = config.sampling
        self._engine = EvalEngine([config.grader], tools)
        judges = {model: judge.name for model, judge in sorted(tools.judges.items())}
        self.identity = Identity(
            benchmark=config.name,
            grader_sha256=sha256_of_json([grader_sha256(config.grader), judges]),
            **generation_version(config, self._items, self._prompts),
            higher_is_better=config.higher_is_better,
        )

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        indices = self._chunks[chunk]
        completions = self._model.generate([self._prompts[index] for index in indices], self._sampling)
        values = [
            sample_values(completion.text, self._items[index].fields) if isinstance(completion, Completion) else None
            for index, completion in zip(indices, completions, strict=True)
        ]
        grades = self._engine.grades(values)
        return [self._item_score(*item) for item in zip(indices, completions, grades, strict=True)]

    def _texts(self) -> Mapping[str, Sequence[str]]:
        return {item.item_id: _contents(prompt) for item, prompt in zip(self._items, self._prompts, strict=True)}

    def close(self) -> None:
        self._engine.close()

    def _item_score(self, index: int, completion: Completion | SamplerError, grades: list[Grade] | None) -> ItemScore:
        item = self._items[index]
        if isinstance(completion, SamplerError):
            return ItemScore(item.item_id, item.cluster, None, failure=sampler_failure(completion))
        assert grades is not None, "every completion is graded"
        (grade,) = grades
        label = {} if grade.label is None else {"label": grade.label}
        return ItemScore(
            item.item_id,
            item.cluster,
            grade.score,
            failure=grade.failure,
            completion=completion.text,
            details=_details({**grade.parts, **label}, completion),
            finish_reason=completion.finish_reason,
        )


class RegistryScorer(_SampledScorer):
    """Scores completions by the rule of a registry's class."""

    def __init__(
        self,
        config: RegistryBenchmark,
        folder: Path,
        model: Engine,
        tools: Tools,
        training_text: TrainingText | None = None,
    ) -> None:
        """Read the eval. A model-graded eval needs the judge `*`; otherwise the model grades itself."""
        self._eval = Registry(folder / config.registry).eval(config.eval)
        super().__init__(len(self._eval.samples), config.chunk_items, model, training_text)
        self._judge = tools.judges.get("*") or model
        rule = [self._eval.rule, self._judge.name if self._eval.spec else None]
        self.identity = Identity(
            benchmark=config.name,
            grader_sha256=sha256_of_json(rule),
            **registry_version(self._eval),
            higher_is_better=True,
        )

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        indices = list(self._chunks[chunk])
        if self._eval.spec is not None:
            return [_ModelGraded(self._eval, self._model, self._judge).score(index) for index in indices]
        completions = self._model.generate([self._eval.prompt(index) for index in indices], self._eval.sampling())
        return [self._item_score(index, completion) for index, completion in zip(indices, completions, strict=True)]

    def _texts(self) -> Mapping[str, Sequence[str]]:
        """Return the input of each sample, or all its texts without one."""
        return {self._eval.sample_id(index): _prompt_texts(sample) for index, sample in enumerate(self._eval.samples)}

    def _item_score(self, index: int, completion: Completion | SamplerError) -> ItemScore:
        item_id = self._eval.sample_id(index)
        if isinstance(completion, SamplerError):
            return ItemScore(item_id, item_id, None, failure=sampler_failure(completion))
        ideals = self._eval.ideals(index)
        try:
            is_right, details = _graded_by_rule(self._eval, completion.text, ideals)
        except ValueError as error:
            raise DataError(f"eval '{self._eval.name}': an ideal of sample {index} is not JSON: {error}.") from error
        return ItemScore(
            item_id,
            item_id,
            float(is_right),
            completion=completion.text,
            details=_details(details, completion),
            finish_reason=completion.finish_reason,
        )


class _ModelGraded:
    """OpenAI Evals' ModelBasedClassify on single samples."""

    def __init__(self, evaluation: RegistryEval, model: Engine, judge: Engine) -> None:
        assert evaluation.spec is not None, "only model-graded evals have a spec"
        self._eval, self._spec = evaluation, evaluation.spec
        self._model, self._judge = model, judge
        count = evaluation.args.get("multicomp_n", 1)
        if not isinstance(count, int):
            raise ConfigError(
                f"eval '{evaluation.name}': multicomp_n={count} compares several models; one is asked here."
            )
        self._count = count

    def score(self, index: int) -> ItemScore:
        """Sample the missing completions, query the judge, and read its choice."""
        item_id = self._eval.sample_id(index)
        sample = dict(self._eval.samples[index])
        sampled: list[Completion] = []
        outputs: dict[str, str] = {}
        for key, output in self._spec.input_outputs.items():
            sample[key] = escaped(sample[key])
            if output not in sample:
                completion = self._completion(sample[key])
                if isinstance(completion, SamplerError):
                    return ItemScore(item_id, item_id, None, failure=sampler_failure(completion))
                sampled.append(completion)
                outputs[output] = completion.text
        args = self._eval.args
        choices = choices_of(self._spec, self._count)
        values = {"n": self._count, **outputs, **sample, **(args.get("modelgraded_spec_args") or {})}
        prompt = judge_prompt(self._spec, choices, values, args.get("eval_type"))
        (verdict,) = self._judge.generate([prompt], _sampling(args.get("eval_kwargs")))
        if (failure := judge_failure(verdict)) is not None:
            return ItemScore(item_id, item_id, None, failure=failure)
        assert isinstance(verdict, Completion), verdict
        choice, score = judgement(
            verdict.text,
            self._spec,
            choices,
            eval_type=args.get("eval_type"),
            match_rule=args.get("match_fn") or "starts_or_endswith",
        )
        details: dict[str, Any] = {"choice": choice}
        if args.get("metaeval") and "choice" in sample:
            details["metascore"] = float(choice == sample["choice"])
        if score is None:
            # A spec without scores only counts its choices; the score is then whether the judge made one.
            score = float(choice in choices)
        text = "\n".join(outputs.values()) or None
        reasons = [completion.finish_reason for completion in sampled]
        return ItemScore(
            item_id,
            item_id,
            score,
            completion=text,
            details=_details(details, *sampled, verdict),
            finish_reason="length" if "length" in reasons else next(iter(reasons), None),
        )

    def _completion(self, prompt: Any) -> Completion | SamplerError:
        plain = [Message(role=turn["role"], content=filled(turn["content"], {})) for turn in as_chat(prompt)]
        outcomes = self._model.generate([plain] * self._count, _sampling(self._eval.args.get("sample_kwargs")))
        completions: list[Completion] = []
        for outcome in outcomes:
            if isinstance(outcome, SamplerError):
                return outcome
            completions.append(outcome)
        first, texts = completions[0], [completion.text for completion in completions]
        if self._count == 1:
            return first
        if not self._spec.output_template:
            raise ConfigError(f"eval '{self._eval.name}': several completions need an output_template in its spec.")
        is_cut = any(completion.finish_reason == "length" for completion in completions)
        reason = "length" if is_cut else first.finish_reason
        text = several_as_one(texts, self._spec.output_template)
        return first._replace(text=text, finish_reason=reason)


def _details(found: Mapping[str, Any], *completions: Completion) -> str | None:
    """Return JSON, with the number of prompt tokens that were truncated."""
    cut = max(completion.prompt_tokens_cut for completion in completions)
    whole = {**found, **({PROMPT_TOKENS_CUT: cut} if cut else {})}
    return canonical_json(whole) if whole else None


def _contents(prompt: Sequence[Message]) -> list[str]:
    """Return the contents of a conversation's turns; other parts than text as JSON."""
    contents: list[Any] = [turn["content"] for turn in prompt]
    return [content if isinstance(content, str) else canonical_json(content) for content in contents]


def _prompt_texts(sample: Mapping[str, Any]) -> list[str]:
    if "input" in sample:
        return _contents(as_chat(sample["input"]))
    return [value for value in sample.values() if isinstance(value, str)]


def _graded_by_rule(
    evaluation: RegistryEval, completion: str, ideals: tuple[str, ...]
) -> tuple[bool, dict[str, float]]:
    match evaluation.rule:
        case "Match":
            return match(completion, ideals), {}
        case "Includes":
            return includes(completion, ideals, ignore_case=bool(evaluation.args.get("ignore_case"))), {}
        case "FuzzyMatch":
            return fuzzy_match(completion, ideals), {"f1_score": token_f1(completion, ideals)}
        case "JsonMatch":
            return json_match(completion, ideals), {}
    raise AssertionError(f"rule {evaluation.rule} is no comparison")


def _sampling(kwargs: Any) -> SamplingParams:
    options = {"max_tokens": 1024, **(kwargs or {})}
    return SamplingParams(temperature=float(options.get("temperature", 0.0)), max_tokens=int(options["max_tokens"]))
