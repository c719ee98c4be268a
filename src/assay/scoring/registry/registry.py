"""Reads a registry folder in the layout of OpenAI Evals: `evals/*.yaml`, `modelgraded/*.yaml`, `data/**.jsonl`.

    evals/arithmetic.yaml           arithmetic: {id: arithmetic.dev.v0, metrics: [accuracy]}
                                    arithmetic.dev.v0:
                                      class: evals.elsuite.basic.match:Match
                                      args: {samples_jsonl: arithmetic/samples.jsonl}
    data/arithmetic/samples.jsonl   {"input": [{"role": "user", "content": "2 + 3 ="}], "ideal": "5"}

The class only names a rule and is never imported. Evals of other classes are rejected.
"""

import difflib
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import ValidationError

from assay.base.config import unreadable_yaml
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.base.parsing.bounded_yaml import parse_yaml
from assay.inference.protocol import Message, SamplingParams
from assay.scoring.json_lines import json_lines
from assay.scoring.registry.model_graded import ModelGradedSpec

Rule = Literal["Match", "Includes", "FuzzyMatch", "JsonMatch", "ModelBasedClassify"]
_RULES: dict[str, Rule] = {
    "evals.elsuite.basic.match:Match": "Match",
    "evals.elsuite.basic.includes:Includes": "Includes",
    "evals.elsuite.basic.fuzzy_match:FuzzyMatch": "FuzzyMatch",
    "evals.elsuite.basic.json_match:JsonMatch": "JsonMatch",
    "evals.elsuite.modelgraded.classify:ModelBasedClassify": "ModelBasedClassify",
}
_ARGUMENTS: dict[Rule, frozenset[str]] = {
    "Match": frozenset({"samples_jsonl", "max_tokens", "num_few_shot", "few_shot_jsonl"}),
    "Includes": frozenset({"samples_jsonl", "ignore_case"}),
    "FuzzyMatch": frozenset({"samples_jsonl", "max_tokens"}),
    "JsonMatch": frozenset({"samples_jsonl", "max_tokens"}),
    "ModelBasedClassify": frozenset(
        {
            "samples_jsonl", "modelgraded_spec", "modelgraded_spec_args", "sample_kwargs", "eval_kwargs",
            "multicomp_n", "eval_type", "match_fn", "metaeval"
        }
    ),
}  # fmt: skip
_MAX_TOKENS: dict[Rule, int] = {"Match": 500, "FuzzyMatch": 100, "JsonMatch": 512, "ModelBasedClassify": 1024}


class RegistryEval(NamedTuple):
    """One eval with its samples."""

    name: str
    """`base.split.version`, e.g. `arithmetic.dev.v0`."""
    rule: Rule
    args: Mapping[str, Any]
    samples: tuple[Mapping[str, Any], ...]
    few_shot: tuple[Mapping[str, Any], ...] = ()
    spec: ModelGradedSpec | None = None
    """The specification of ModelBasedClassify."""

    def sample_id(self, index: int) -> str:
        base, split = [*self.name.split("."), "default"][:2]
        return f"{base}.{split}.{index}"

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters of the eval's class. Includes uses the API's default temperature, 1."""
        if self.rule == "Includes":
            return SamplingParams(temperature=1.0, max_tokens=500, seed=0)
        options = (self.args.get("sample_kwargs") or {}) if self.rule == "ModelBasedClassify" else self.args
        return SamplingParams(max_tokens=int(options.get("max_tokens", _MAX_TOKENS[self.rule])))

    def prompt(self, index: int) -> list[Message]:
        """Return the prompt of a sample; plain text becomes a system message, as in OpenAI Evals."""
        prompt = self.samples[index]["input"]
        if self.few_shot:
            if isinstance(prompt, str):
                raise DataError(f"eval '{self.name}': few-shot examples need chat prompts; sample {index} is a text.")
            shots = [turn for example in self.few_shot for turn in example["sample"]]
            prompt = [*prompt[:-1], *shots, *prompt[-1:]]
        return as_chat(prompt)

    def ideals(self, index: int) -> tuple[str, ...]:
        ideal = self.samples[index]["ideal"]
        return tuple(ideal) if isinstance(ideal, list) else (ideal,)

    def sha256(self) -> str:
        spec = None if self.spec is None else self.spec.model_dump(mode="json")
        return sha256_of_json([self.rule, dict(self.args), list(self.samples), list(self.few_shot), spec])


def as_chat(prompt: Any) -> list[Message]:
    """Convert a prompt to a conversation."""
    if isinstance(prompt, str):
        return [Message(role="system", content=prompt)]
    return [Message(role=turn["role"], content=turn["content"]) for turn in prompt]


class Registry:
    """One registry folder."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "evals").is_dir():
            raise ConfigError(f"{folder}: no registry there (no folder 'evals'). Name the folder that holds it.")
        self._folder = folder
        self._evals = _entries(folder / "evals")
        self._specs = _entries(folder / "modelgraded")

    def eval(self, name: str) -> RegistryEval:
        key, entry = _dereferenced(name, self._evals, "eval", self._folder)
        class_name = entry.get("class")
        if class_name not in _RULES:
            raise ConfigError(
                f"eval '{key}' is of class {class_name}. These run here: {', '.join(sorted(_RULES))}. "
                "Run it with the package 'evals' and import its log: 'assay eval import'."
            )
        rule, args = _RULES[class_name], dict(entry.get("args") or {})
        if unknown := sorted(set(args) - _ARGUMENTS[rule]):
            raise ConfigError(f"eval '{key}': {rule} takes no argument {', '.join(unknown)}.")
        if "samples_jsonl" not in args:
            raise ConfigError(f"eval '{key}': args name no samples_jsonl.")
        samples = _jsonl(self._data_path(str(args["samples_jsonl"])))
        spec = self._spec(args["modelgraded_spec"]) if rule == "ModelBasedClassify" else None
        _check_samples(key, rule, samples, spec)
        shots: tuple[Mapping[str, Any], ...] = ()
        if num_few_shot := int(args.get("num_few_shot") or 0):
            if not args.get("few_shot_jsonl"):
                raise ConfigError(f"eval '{key}': num_few_shot={num_few_shot} needs few_shot_jsonl.")
            shots = _jsonl(self._data_path(str(args["few_shot_jsonl"])))[:num_few_shot]
        return RegistryEval(key, rule, args, samples, shots, spec)

    def data_files(self, name: str) -> tuple[Path, ...]:
        """Return the paths of an eval's samples and few-shot examples, whether they exist or not."""
        _, entry = _dereferenced(name, self._evals, "eval", self._folder)
        args = dict(entry.get("args") or {})
        named = (args.get(key) for key in ("samples_jsonl", "few_shot_jsonl"))
        return tuple(self._data_path(str(path)) for path in named if path)

    def _spec(self, name: str) -> ModelGradedSpec:
        key, entry = _dereferenced(name, self._specs, "modelgraded spec", self._folder)
        try:
            return ModelGradedSpec.model_validate(entry)
        except ValidationError as error:
            raise ConfigError(f"modelgraded spec '{key}' is not valid: {error}") from error

    def _data_path(self, path: str) -> Path:
        return Path(path) if Path(path).is_file() else self._folder / "data" / path


def _entries(folder: Path) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            tree = parse_yaml(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise unreadable_yaml(path, error) from error
        for name, entry in (tree if isinstance(tree, dict) else {}).items():
            if name in entries:
                raise ConfigError(f"{path}: '{name}' is defined twice in this registry. Rename one of the two.")
            entries[str(name)] = entry
    return entries


def _dereferenced(name: str, entries: Mapping[str, Any], what: str, folder: Path) -> tuple[str, Mapping[str, Any]]:
    seen: set[str] = set()
    while True:
        if name not in entries:
            close = difflib.get_close_matches(name, entries, n=3)
            hint = f" Perhaps you meant {' or '.join(close)}." if close else ""
            raise ConfigError(f"{folder}: no {what} '{name}'.{hint}")
        if name in seen:
            raise ConfigError(f"{folder}: {what} '{name}' is an alias of itself.")
        seen.add(name)
        entry = entries[name]
        alias = entry if isinstance(entry, str) else entry.get("id") if isinstance(entry, dict) else None
        if alias is None:
            if not isinstance(entry, dict):
                raise ConfigError(f"{folder}: {what} '{name}' is not a mapping.")
            return name, entry
        name = alias


def _jsonl(path: Path) -> tuple[Mapping[str, Any], ...]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file.")
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return tuple(json_lines(data, path, of_what="samples").values())


def _check_samples(name: str, rule: Rule, samples: tuple[Mapping[str, Any], ...], spec: ModelGradedSpec | None) -> None:
    needed = ("input", "ideal") if spec is None else tuple(spec.input_outputs)
    for index, sample in enumerate(samples):
        for key in needed:
            if key not in sample:
                raise DataError(f"eval '{name}': sample {index} has no '{key}'; it has {sorted(sample)}.")
        if spec is None and not _is_ideal(sample["ideal"]):
            raise DataError(f"eval '{name}': sample {index}: 'ideal' must be a text or a list of texts ({rule}).")


def _is_ideal(ideal: Any) -> bool:
    return isinstance(ideal, str) or (isinstance(ideal, list) and all(isinstance(text, str) for text in ideal))
