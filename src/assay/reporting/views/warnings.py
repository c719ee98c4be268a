"""The words of warnings: what each rule says, its sentence with the numbers of a run, and what to do about it."""

from collections.abc import Mapping
from string import Formatter
from typing import Any, NamedTuple, cast

from assay.base.units import percent_text
from assay.records.rollout_log import GAP_TIMES
from assay.records.statement import Statement
from assay.statistics.warnings import (
    CUT_SHARE,
    DIVERGED_FACTOR,
    ENDS,
    FAILED_SHARE,
    FAR_NATS,
    GRADIENT_TIMES,
    GROWN,
    IDLE_SHARE,
    LABEL_LEAK_SHARE,
    LEAK_SHARE,
    LOSS_TIMES,
    MAX_LOST,
    MIN_FOUND,
    MIN_OTHERS,
    MIN_STEPS_AT_END,
    MISMATCH_NATS,
    SHRUNK,
    SPIKE_GAP,
    SPIKE_STEPS,
    SPLIT_SLACK,
    TRUNCATED_SHARE,
    RuleName,
    Warned,
)

MAX_LISTED = 5
"""Spikes that a sentence lists."""


class Rule(NamedTuple):
    """When a warning is given, and what to do about it."""

    holds: str
    hint: str
    did: str = ""
    """What such a run did, for a memo on several runs: `2 of 3 runs of baseline diverged`."""


RULES: Mapping[str, Rule] = {
    "diverged": Rule(
        f"the last training loss or gradient is not finite, or the median of the last {ENDS} losses is above "
        f"{DIVERGED_FACTOR:g} times that of the first {ENDS} and, without {ENDS // 4} outliers on each side, "
        f"every last loss is above every first; with fewer than {2 * ENDS} steps, the two halves are compared "
        f"({MIN_STEPS_AT_END} steps or more, no outliers)",
        "lower `trainer.optimizer.learning_rate` or warm up longer; `assay runs replay RUN --step N --explain`",
        "diverged",
    ),
    "spikes": Rule(
        f"a step's loss is over {LOSS_TIMES:g} times and its gradient over {GRADIENT_TIMES:g} times the "
        f"median of the {SPIKE_STEPS} steps before, both came down again, and the log ratios are over "
        f"{SPIKE_GAP:g} times those of any other step; RL methods use only the gradient",
        "`assay runs replay RUN --step N --bisect` names the rows",
        "had steps that stand far out",
    ),
    "one score": Rule(
        "every validation row has the same prediction: probability, class or number",
        "check the loss, the learning rate and the labels: the model ignores its input",
        "gave every row the same prediction",
    ),
    "worse than constant": Rule(
        "the whole interval of the log-loss is above that of predicting the class shares; for numbers, R² is below 0",
        "train longer or with a lower learning rate; check the meaning of the labels",
        "did worse than a constant prediction would",
    ),
    "no better than chance": Rule(
        "the interval of the AUC, or of the accuracy on pairs, is not wholly above 0.5",
        "use more validation rows, or train longer or with a higher learning rate",
        "may rank no better than chance",
    ),
    "reward hacking": Rule(
        f"the training reward rose (by its intervals over {ENDS} steps), and the interval of the last "
        "held-out reward is below that of an earlier evaluation",
        "the policy exploits the grader: read its completions (`assay eval chat RUN`), fix the grader, and "
        "continue from the better commit; leave out `method.validation_temperature`",
        "earned more in training and less on held-out prompts",
    ),
    "completions collapsed": Rule(
        f"completions within a group differ less than {SHRUNK:g} times as often as in the first {ENDS} steps, "
        "and the reward did not rise",
        "lower `trainer.optimizer.learning_rate`, or raise `method.kl`",
        "came to one completion",
    ),
    "groups without variance": Rule(
        f"in the last {ENDS} steps, {IDLE_SHARE:.0%} or more of the groups have equal rewards, and the reward "
        "did not rise",
        "choose prompts of medium difficulty; warm up by SFT until some completions earn a reward",
        "had nothing to learn from",
    ),
    "completions grow": Rule(
        f"completions are at least {GROWN:g} times as long as in the first {ENDS} steps, and held-out prompts "
        "did not earn more",
        "use a loss without length bias (`method.loss.type=dr_grpo`), `method.overlong`, or a grader that "
        "does not reward length",
        "wrote longer completions, no better ones",
    ),
    "completions truncated": Rule(
        f"{TRUNCATED_SHARE:.0%} or more of the completions in the last {ENDS} steps were truncated at "
        "`method.sampling.max_tokens`",
        "raise it, or reward shorter completions (`method.overlong`)",
        "had many completions cut",
    ),
    "far from the reference": Rule(
        f"the divergence from the reference was above {FAR_NATS:g} nat per token in the last {ENDS} steps",
        "raise `method.kl`, or lower `trainer.optimizer.learning_rate`",
        "went far from the reference",
    ),
    "graders fail": Rule(
        f"{FAILED_SHARE:.0%} or more of a run's completions have no reward because a grader failed",
        "fix the grader: these completions leave their groups, and failures are seldom random",
        "lost rewards to graders that fail",
    ),
    "sampler mismatch": Rule(
        f"the sampler's and the policy's logprobs differ by more than {MISMATCH_NATS:g} nats on average in the "
        f"first step, or later by {GAP_TIMES:g} times as much as then",
        "sampling used another temperature, other filters or stale weights: `assay runs replay RUN --step N` "
        "samples the step again; continue from a commit before it",
        "learned from completions that another model drew",
    ),
    "steps differ": Rule(
        "the compared runs made different numbers of steps",
        "compare at equal steps, or state that longer training is the change",
    ),
    "methods differ": Rule(
        "the compared runs use two methods, so scores of one name mean two things",
        "compare both on one suite (`evaluation.suite`, `assay eval run`)",
    ),
    "rows not observed": Rule(
        "a script of its own trained a compared run (`assay.record`), so the last logged values are compared",
        "a campaign scores the checkpoints of recorded runs on a suite (`runs` of a candidate)",
    ),
    "guardrail at zero": Rule(
        "baseline and candidate score 0 on every item of a guardrail",
        "choose items that the baseline can solve",
    ),
    "leaking rows": Rule(
        f"at least {LEAK_SHARE:.0%} of the validation rows have the tokens of a training row",
        "split by a key that keeps them together (`column: input_ids`), or set `data.split.drop_leaks`",
        "were evaluated on rows that they had learned",
    ),
    "truncated rows": Rule(
        f"at least {CUT_SHARE:.0%} of the rows were truncated; in adopted shards: are as long as the longest row",
        "build the dataset with a larger `--max-tokens`",
    ),
    "uneven split": Rule(
        f"a split by hash holds out a share that is more than {SPLIT_SLACK:.0%} off the requested one, "
        "because groups that stay together are few or unequal",
        "choose another `data.split.seed` or a column with more values",
    ),
    "label leakage": Rule(
        f"a metadata column that the model reads is wrong on at most {LABEL_LEAK_SHARE:.0%} of the rows that "
        f"the most common class gets wrong ({MIN_OTHERS} or more rows)",
        "remove it from the recipe's columns, unless its value is known before the label",
    ),
    "underpowered look": Rule(
        f"a declared look would end more than {MAX_LOST:.0%} of the candidates that are worth having (by "
        "`rule.prior_sd`) without scaling them, and more than it would scale",
        "remove it from `looks`, or give it more seeds",
    ),
    "underpowered campaign": Rule(
        f"by its last look the campaign would scale less than {MIN_FOUND:.0%} of the candidates worth having",
        "use more seeds or items: the warning says how many",
    ),
    "underpowered guardrail": Rule(
        f"by the last look, harmless candidates would pass the guardrails less than {MIN_FOUND:.0%} of the "
        "time; or a safety benchmark has too few items to bound its rate even without failures",
        "use more items, more seeds or a wider margin: the warning says how many",
    ),
    "clusters differ": Rule(
        "primary benchmarks use different rows and count them by different columns",
        "give them one `cluster`; otherwise the interval of their mean may be too narrow",
    ),
    "outlier seed": Rule(
        "one run of an arm is an outlier (by a test that errs in one memo of twenty; three seeds or more)",
        "inspect that run before you trust the mean; a campaign of five seeds or more can declare "
        "`rule.over_seeds: trimmed`",
    ),
    "underdispersed seeds": Rule(
        "two seeds of an arm ended with equal weights; or the gains of three seeds or more scatter less than "
        "their own items allow (a test that errs in one memo of a hundred)",
        "find what the seeds share, e.g. a seed that nothing reads or a common initial commit",
    ),
    "several changes": Rule("a candidate's patch has more than one key", "make one candidate per key"),
}


_SENTENCES: Mapping[tuple[str, str], str] = {
    ("diverged", ""): "the training loss began at {first:.4g} and ended at {last:.4g}.",
    ("diverged", "not finite"): "the training loss or its gradient is not finite at the end.",
    ("spikes", ""): "{listed}.",
    ("one score", ""): "all validation rows got the same prediction.",
    ("one score", "probability"): "all {rows:,} validation rows got the probability {probability:.4g}.",
    ("one score", "class"): "all {rows:,} validation rows were predicted as class '{class}'.",
    ("one score", "number"): "all {rows:,} validation rows got the number {number:.4g}.",
    ("worse than constant", "binary"): "its log-loss is {loss:.4f}; the share of positives alone would have "
    "{constant:.4f}.",
    ("worse than constant", "classes"): "its log-loss is {loss:.4f}; the shares of the classes alone would have "
    "{constant:.4f}.",
    ("worse than constant", "fit"): "its R² is {r_squared:.3f}: the labels' mean would do better.",
    ("no better than chance", ""): "the interval of its {metric} begins at {low:.4f}: a coin has 0.5.",
    ("reward hacking", ""): "from step {steps[0]:,} to {steps[1]:,} the reward of training rose from {training[0]:.3f} "
    "to {training[1]:.3f}, that of held-out prompts fell from {held_out[0]:.3f} to {held_out[1]:.3f} "
    "({held_out[2]:.3f} to {held_out[3]:.3f}).",
    ("completions collapsed", ""): "{first:.0%} of a group's completions were distinct at first, {last:.0%} at the "
    "end.",
    ("groups without variance", ""): "in {last:.0%} of the groups all completions had one reward at the end.",
    ("completions grow", ""): "completions had {first:.4g} tokens at first, {last:.4g} at the end.",
    ("completions truncated", ""): "{last:.0%} of the completions were truncated at the end.",
    ("far from the reference", ""): "{last:.3g} nats per token at the end.",
    ("graders fail", ""): "{share:share} of the completions have no reward: {listed}.",
    ("sampler mismatch", ""): "at step {step:,} sampler and trainer were {gap:.2g} nats a token apart, so in {far:,} "
    "of {steps:,} steps, and in none before, which suggests that completions were sampled with stale weights.",
    ("sampler mismatch", "at once"): "at step {step:,} sampler and trainer were {gap:.2g} nats a token apart, so in "
    "{far:,} of {steps:,} steps, which suggests another sampling temperature, other filters, or another model.",
    ("steps differ", ""): "{candidate} made {steps[1]:,} steps, {baseline} {steps[0]:,}: the difference may be that of "
    "training longer.",
    ("methods differ", ""): "{candidate} is of method '{methods[1]}', {baseline} of '{methods[0]}': metrics of one "
    "name are not measured alike.",
    (
        "rows not observed",
        "",
    ): "which rows {unseen} validated on is not observed, so whether the difference "
    "is chance cannot be told; a campaign with a suite can tell.",
    ("leaking rows", ""): "{leaking:,} of {rows:,} validation rows ({share:share}) are in the training rows, too.",
    ("truncated rows", ""): "{cut:,} of {rows:,} rows ({share:share}) were cut at {longest:,} tokens.",
    ("truncated rows", "not counted"): "one row in {one_in} or more has {longest:,} tokens, the most that any has: "
    "they were likely cut.",
    ("uneven split", ""): "{share:share} of the rows are held out, {target:share} of the groups were requested.",
    ("uneven split", "dropped"): "{share:share} of the rows are held out ({left:share} without copies of training "
    "rows), {target:share} of the groups were requested.",
    ("label leakage", ""): "column '{column}' alone predicts the label of {share:share} of the rows, where the most "
    "common class has {majority:share}: is it known before the label is?",
}
"""By rule and case."""


class _Words(Formatter):
    """Fills the fields of a sentence; the format `share` is that of a percentage."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "no finite number"
        return percent_text(value) if format_spec == "share" else str(super().format_field(value, format_spec))


def warning_text(warned: Warned, *, with_hint: bool = False) -> str:
    """Return the sentence of a warning; `with_hint` adds what to do about it."""
    values = {**warned.values, "listed": _listed(warned.values)}
    text = _Words().vformat(_SENTENCES[warned.rule, warned.case], (), values)
    return f"{text} {hint_text(warned.rule)}" if with_hint else text


def run_warning_text(warning: str | Statement) -> str:
    """Return the sentence of a warning on record (`Warned.statement`, or the sentence itself)."""
    if isinstance(warning, str):
        return warning
    values = dict(warning.values)
    case = values.pop("case", "")
    return warning_text(Warned(cast("RuleName", warning.code), values, case))


def hint_text(rule: str) -> str:
    """Return what to do about it, as a sentence."""
    hint = RULES[rule].hint.replace("`", "'")
    return f"{hint[0].upper()}{hint[1:]}."


def _listed(values: Mapping[str, Any]) -> str:
    """Return the steps that stand out, or the kinds of failures."""
    if (kinds := values.get("kinds")) is not None:
        return ", ".join(f"{percent_text(share)} {kind}" for kind, share in kinds.items())
    # A record has its keys in alphabetical order, and its steps as text.
    spikes = {
        int(step): dict(sorted(curves.items(), reverse=True)) for step, curves in values.get("spikes", {}).items()
    }
    named = [
        f"step {step:,} ("
        + ", ".join(f"{name} {value:.3g}, before {before:.3g}" for name, (value, before) in curves.items())
        + ")"
        for step, curves in sorted(spikes.items())[:MAX_LISTED]
    ]
    more = f" and {len(spikes) - MAX_LISTED:,} more" if len(spikes) > MAX_LISTED else ""
    return f"{', '.join(named)}{more}"
