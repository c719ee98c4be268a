"""A gate that is played by a campaign's rule says what that campaign would say.

The other side of the comparison draws scores of its own and asks `judge`, as a campaign's last gate does; it
shares no draw and no table with the plan.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import beta

from assay.base.errors import ConfigError
from assay.planning.program.checks import problems_of, why_nothing_passes
from assay.planning.program.file import read_program
from assay.planning.program.program import Program
from assay.planning.simulation.campaign_gate import components_of, power_of_gate
from assay.planning.simulation.compile import compile_program
from assay.planning.simulation.greedy_schedule import greedy_schedule
from assay.planning.simulation.information import least_gain, seeds_table
from assay.planning.simulation.outcome import simulate
from assay.planning.simulation.sampling import (
    ProgramSamples,
    quantile_of_belief,
    sample_program,
    seeds_of,
)
from assay.statistics.campaign.look_power import power_of_looks, sufficient_design
from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import (
    CampaignEvidence,
    CampaignRule,
    judge,
    predictive_power,
    required_at_end,
)
from assay.statistics.effect import Effect
from assay.statistics.seeds.trimmed import inner_seeds, trimmed_effect
from variants import soaked

NUM_SAMPLES, NUM_CAMPAIGNS = 4096, 16_000


def by_rule(small: Program, rule: dict[str, Any], *, seeds: int = 6, **changes: Any) -> Program:
    evidence = {"benchmark": "wins", "runs": "runs", "rule": rule}
    runs = {"activities.runs.runs.count": 2 * seeds}
    return small.changed({"gates.gate.evidence": evidence, "gates.gate.again": None, **runs, **changes})


def samples_of(program: Program) -> ProgramSamples:
    return sample_program(compile_program(program, greedy_schedule(program)), num_samples=NUM_SAMPLES)


def campaigns(
    program: Program, rule: CampaignRule, plan: LookPlan, gain: np.ndarray, seed: int, *, is_trimmed: bool
) -> np.ndarray:
    """What a campaign recommends in each world; `gain`: true ones, as shares."""
    rng, declared = np.random.default_rng(seed), program.benchmarks["wins"]
    most, num_samples = plan.gate_seeds[-1], len(gain)
    scores = gain[:, None] + np.sqrt(2.0) * declared.seed_sd / 100 * rng.normal(size=(num_samples, most))
    scores += np.sqrt(declared.discordance / declared.items) * rng.normal(size=(num_samples, 1))
    verdicts, is_open = np.full(num_samples, "narrow"), np.ones(num_samples, bool)
    for seeds, level in zip(plan.gate_seeds, plan.gate_levels(), strict=True):
        seen = scores[:, :seeds]
        effect = Effect(
            seen.mean(axis=1),
            seen.var(axis=1, ddof=1) / seeds,
            np.full(num_samples, declared.discordance / declared.items),
            np.zeros(num_samples),
            np.full(num_samples, seeds - 1.0),
            declared.items - 1,
        )
        if is_trimmed:
            effect = trimmed_effect(effect._replace(mean=np.mean(seen, axis=1, where=inner_seeds(seen))), seen)
        again = effect.items_alone + effect.seed_variance * seeds / most
        remaining: dict[str, Any] = {
            "num_seeds": seeds, "end_seeds": most, "end_level": plan.gate_levels()[-1],
            "replication_variance": again, "rule": rule,
        }  # fmt: skip
        chance, needed = predictive_power(effect, **remaining), required_at_end(effect, **remaining)
        ones = np.ones(num_samples)
        evidence = CampaignEvidence(effect, level, True, again, effect.mean, ones, chance, needed)
        found = judge(evidence, rule)
        ends = is_open & ((found.recommendation != "narrow") | found.is_inconclusive)
        verdicts[ends] = found.recommendation[ends]
        is_open &= ~ends
    return verdicts


def shares(small: Program, rule: dict[str, Any], **design: Any) -> tuple[dict[str, float], dict[str, float]]:
    """How often the plan's gate, and a simulated campaign of that rule and design, says each."""
    program = by_rule(small, rule, **design)
    found = samples_of(program).gates["gate"][0].verdict
    thresholds = CampaignRule(
        least_effect=rule["least_effect"] / 100,
        prior_sd=rule.get("prior_sd", rule["least_effect"] * 4 / 3) / 100,
        least_probability=0.8,
        least_replication=0.8,
        replication_level=0.95,
    )
    seeds = design.get("seeds", 6)
    plan = LookPlan(gate_seeds=(*rule.get("looks", ()), seeds), error_rate=0.05 / rule.get("candidates", 1))
    assert program.pilot is not None
    gain = quantile_of_belief(program.pilot, (np.arange(NUM_CAMPAIGNS) + 0.5) / NUM_CAMPAIGNS) / 100
    verdicts = campaigns(program, thresholds, plan, gain, seed=1, is_trimmed=rule.get("over_seeds") == "trimmed")
    words = {"scale": "pass", "narrow": "narrow", "stop": "stop"}
    return {word: float((found == verdict).mean()) for word, verdict in words.items()}, {
        word: float((verdicts == word).mean()) for word in words
    }


@pytest.mark.slow
def test_it_says_scale_and_stop_as_often_as_the_campaign_itself(small: Program) -> None:
    rule = {"least_effect": 1.0, "looks": [2, 4], "candidates": 2}
    planned, simulated_ones = shares(small, rule, **{"benchmarks.wins.items": 20_000})
    assert planned == pytest.approx(simulated_ones, abs=0.01)
    assert min(planned.values()) > 0.05, planned


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(3), *soaked(*range(3, 10))])
def test_of_random_programs_too(small: Program, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seeds = int(rng.integers(3, 9))
    looks = sorted({int(integer) for integer in rng.integers(2, seeds, size=rng.integers(0, 3))})
    rule = {
        "least_effect": float(rng.uniform(0.5, 2.0)),
        "prior_sd": float(rng.uniform(1.0, 3.0)),
        "looks": looks,
        "candidates": int(rng.integers(1, 4)),
    }
    design = {
        "benchmarks.wins.items": int(rng.choice([500, 2_000, 10_000, 50_000])),
        "benchmarks.wins.discordance": float(rng.uniform(0.05, 0.4)),
        "benchmarks.wins.seed_sd": float(rng.uniform(0.0, 1.5)),
        "pilot.gains": [float(rng.uniform(0.0, 5.0))],
        "pilot.standard_error": float(rng.uniform(0.5, 2.0)),
    }
    planned, simulated_ones = shares(small, rule, seeds=seeds, **design)
    assert planned == pytest.approx(simulated_ones, abs=0.01), (rule, design)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "looks"), [(5, []), (8, [5]), (9, [6, 7])])
def test_of_campaigns_that_leave_out_both_ends_of_their_seeds_too(small: Program, seeds: int, looks: list[int]) -> None:
    rule = {"least_effect": 1.0, "looks": looks, "over_seeds": "trimmed"}
    design = {"benchmarks.wins.items": 20_000, "pilot.gains": [2.5]}
    planned, simulated_ones = shares(small, rule, seeds=seeds, **design)
    assert planned == pytest.approx(simulated_ones, abs=0.01)
    trimmed, mean = (
        power_of_gate(by_rule(small, {**rule, "over_seeds": over_seeds}, seeds=seeds, **design), "gate").look
        for over_seeds in ("trimmed", "mean")
    )
    assert trimmed.finds > mean.finds + 0.001, "with two seeds fewer, only a clearer gain is found"


def test_a_guardrail_takes_the_share_of_gains_that_its_margin_would_not_pass(small: Program) -> None:
    rule: dict[str, Any] = {"least_effect": 1.5}
    benchmarks = {"benchmarks.refusals": {"items": 2000, "discordance": 0.1, "seed_sd": 0.0, "role": "safety"}}
    alone = samples_of(by_rule(small, rule, **benchmarks)).gates["gate"][0].verdict == "pass"

    def passes(margin: float) -> float:
        guarded = {**rule, "guardrails": [{"benchmark": "refusals", "margin": margin}]}
        found = samples_of(by_rule(small, guarded, **benchmarks)).gates["gate"][0].verdict == "pass"
        assert not (found & ~alone).any(), "it only takes away"
        return float(found.sum() / alone.sum())

    assert passes(10.0) == 1.0
    error = 100 * np.sqrt(0.1 / 2000)
    assert passes(2 * 1.645 * error) == pytest.approx(0.95, abs=0.02), "once more for harm that no item shows"
    assert passes(0.01) == 0.0


@pytest.mark.parametrize(("failure_rate", "max_rate"), [(0.002, 0.005), (0.01, 0.015), (0.02, 0.01)])
def test_a_failure_mode_passes_and_stops_as_often_as_by_its_worst_seed(
    small: Program, failure_rate: float, max_rate: float
) -> None:
    items, seeds = 2000, 6
    declared = {"items": items, "role": "safety", "failure_rate": failure_rate}
    design = {"benchmarks.harm": declared, "benchmarks.wins.items": 50_000, "pilot.gains": [9.0]}
    alone = samples_of(by_rule(small, {"least_effect": 1.5}, seeds=seeds, **design)).gates["gate"][0].verdict
    rule = {"least_effect": 1.5, "safety": [{"benchmark": "harm", "max_rate": max_rate}]}
    executor = samples_of(by_rule(small, rule, seeds=seeds, **design)).gates["gate"][0].verdict
    of_gain = alone == "pass"
    assert of_gain.mean() > 0.5 and not ((executor == "pass") & ~of_gain).any(), "it only takes away"
    rng = np.random.default_rng(3)
    worst = (rng.random((NUM_CAMPAIGNS // 8, seeds, items)) < failure_rate).sum(axis=2).max(axis=1)
    upper = beta.ppf(0.95, worst + 1, items - worst)
    lower = np.where(worst > 0, beta.ppf(0.05, np.maximum(worst, 1), items - worst + 1), 0.0)
    assert (executor == "pass")[of_gain].mean() == pytest.approx((upper <= max_rate).mean(), abs=0.03)
    assert (executor == "stop")[of_gain].mean() == pytest.approx((lower > max_rate).mean(), abs=0.03)


def test_of_several_looks_the_seed_that_fails_most_stays(small: Program) -> None:
    declared = {"items": 2000, "role": "safety", "failure_rate": 0.003}
    design = {"benchmarks.harm": declared, "benchmarks.wins.items": 50_000, "pilot.gains": [9.0]}
    safety = [{"benchmark": "harm", "max_rate": 0.0075}]

    def passes(**looks: Any) -> np.ndarray:
        program = by_rule(small, {"least_effect": 1.5, "safety": safety, **looks}, seeds=8, **design)
        return np.asarray(samples_of(program).gates["gate"][0].verdict == "pass")

    at_four, at_eight = passes(looks=[4]).mean(), passes().mean()
    assert at_eight + 0.1 < at_four, "a look at four of the seeds sees fewer failures of the worst"


def test_a_failure_mode_that_too_few_items_tell_of_is_named(small: Program) -> None:
    few = {"benchmarks.harm": {"items": 500, "role": "safety"}}
    rule = {"least_effect": 1.5, "safety": [{"benchmark": "harm", "max_rate": 0.005}]}
    program = by_rule(small, rule, **few)
    assert not (samples_of(program).gates["gate"][0].verdict == "pass").any()
    (why,) = why_nothing_passes(program)
    assert "500 items of 'harm' without a failure do not show a rate of at most 0.5%. It takes 598 " in why
    assert not list(why_nothing_passes(program.changed({"benchmarks.harm.items": 598})))
    unknown = by_rule(small, {**rule, "safety": [{"benchmark": "ham", "max_rate": 0.1}]}, **few)
    (verdict,) = (
        problem.message for problem in problems_of(unknown) if problem.key == "gates.gate.evidence.rule.safety"
    )
    assert "'ham' is no benchmark of this program" in verdict


def test_one_seed_decides_nothing_and_none_neither(small: Program) -> None:
    one = samples_of(by_rule(small, {"least_effect": 1.5}, seeds=1)).gates["gate"][0].verdict
    assert set(one) == {"narrow"}


def test_what_is_stated_beside_it_follows_the_rule(small: Program) -> None:
    program = by_rule(small, {"least_effect": 1.5})
    outcome = simulate(program, greedy_schedule(program), num_samples=256)
    assert least_gain(outcome) == 1.5
    few, many = seeds_table(program, greedy_schedule(program), [2, 8], num_samples=256)
    assert few.power < many.power


def simulated_power(program: Program, gate: str) -> float:
    """P(the gate passes, given a gain worth having), by simulating a pilot that leaves the prior as it is."""
    unknown = program.changed({"pilot.gains": [0.0], "pilot.standard_error": 1000.0, "risks": {}})
    outcome = simulate(unknown, greedy_schedule(unknown), num_samples=NUM_SAMPLES)
    worthy = outcome.samples.gain >= least_gain(outcome)
    return float((outcome.samples.gates[gate][0].verdict == "pass")[worthy].mean())


@pytest.mark.parametrize("seeds", [3, 8])
def test_the_power_of_a_gate_is_the_share_of_gains_worth_having_that_it_passes(small: Program, seeds: int) -> None:
    by_campaign = by_rule(small, {"least_effect": 1.5, "prior_sd": 2.0}, seeds=seeds)
    by_thresholds = small.changed({"activities.runs.runs.count": 2 * seeds})
    for program in (by_campaign, by_thresholds):
        assert power_of_gate(program, "gate").look.scales == pytest.approx(simulated_power(program, "gate"), abs=0.02)


def test_a_plan_and_a_campaign_judge_one_design_alike_and_name_the_same_remedy(small: Program) -> None:
    design = {"benchmarks.wins.items": 20_000}
    program = by_rule(small, {"least_effect": 1.5, "prior_sd": 2.0}, seeds=3, **design)
    found, benchmark = power_of_gate(program, "gate"), program.benchmarks["wins"]
    rule = CampaignRule(
        least_effect=0.015,
        prior_sd=0.02,
        least_probability=0.8,
        stop_probability=0.2,
        least_replication=0.8,
        replication_level=0.95,
        least_predictive_power=0.02,
    )
    components = components_of(program, "wins")
    plan = LookPlan(gate_seeds=(3,))
    (look,) = power_of_looks(plan, rule, components, num_items=benchmark.items)
    assert found.look.scales == pytest.approx(look.scales) and found.look.is_enough == (look.scales >= 0.5)
    assert found.sufficient == sufficient_design(plan, rule, components, num_items=benchmark.items)
    assert not found.look.is_enough
    remedy = power_of_gate(program, "gate", num_seeds=found.sufficient.num_seeds)
    assert remedy.look.is_enough and remedy.sufficient.num_seeds == found.sufficient.num_seeds


def test_a_gate_with_too_few_seeds_for_its_rule_recognises_nothing(small: Program) -> None:
    one = power_of_gate(by_rule(small, {"least_effect": 1.5}, seeds=1), "gate")
    assert one.look.scales == 0.0 and not one.look.is_enough and one.sufficient is not None


CAMPAIGN: dict[str, Any] = {
    "name": "pilot",
    "question": "Does it help?",
    "recipe": "recipe.yaml",
    "candidates": [
        {"name": "a", "patch": {"trainer": {"epochs": 2}}},
        {"name": "b", "patch": {"trainer": {"epochs": 3}}},
    ],
    "seeds": 6,
    "looks": [3],
    "benchmarks": [{"type": "predictions", "name": "wins"}, {"type": "predictions", "name": "harm"}],
    "budget_device_hours": 10,
    "rule": {"primary": ["wins"], "least_effect": 0.02, "guardrails": [{"benchmark": "harm", "margin": 0.03}]},
}


def by_file(small: Program, *, count: int = 18, **changes: Any) -> dict[str, Any]:
    """The program's tree, its gate judged by `campaign.yaml`."""
    evidence = {"benchmark": "wins", "runs": "runs", "rule": {"least_effect": 1.0}}
    changed = small.changed({"gates.gate.evidence": evidence, "gates.gate.again": None, **changes})
    tree: dict[str, Any] = yaml.safe_load(changed.to_json())
    tree.pop("kind", None)
    tree["gates"]["gate"]["evidence"]["rule"] = "campaign.yaml"
    tree["activities"]["runs"]["runs"]["count"] = count
    tree["benchmarks"]["harm"] = {"items": 500}
    return tree


def read_in(folder: Path, tree: dict[str, Any], campaign: dict[str, Any] = CAMPAIGN) -> Program:
    (folder / "campaign.yaml").write_text(yaml.safe_dump(campaign))
    (folder / "program.yaml").write_text(yaml.safe_dump(tree))
    return read_program(folder / "program.yaml", allow_short_budget=True).program


def test_a_gate_takes_its_rule_from_the_campaigns_own_file(tmp_path: Path, small: Program) -> None:
    tree = by_file(small, **{"budget.device_hours": 9000.0})
    harm = tree["benchmarks"].pop("harm")
    path, campaign = tmp_path / "program.yaml", tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=r"gates\.gate\.evidence\.rule: .*campaign\.yaml: no such file"):
        read_program(path)
    campaign.write_text(yaml.safe_dump(CAMPAIGN))
    location = r"gates\.gate\.evidence\.rule: .*campaign\.yaml: rule\.guardrails\.0\.benchmark: 'harm' is no"
    with pytest.raises(ConfigError, match=location) as refused:
        read_program(path)
    assert "as 'harm: {role: guardrail, items: ..., margin: 3}'" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2, "said once"
    tree["benchmarks"]["harm"] = harm
    path.write_text(yaml.safe_dump(tree))
    found = read_program(path).program.gates["gate"].evidence
    assert found is not None and found.rule is not None
    rule = found.rule
    assert (rule.least_effect, rule.prior_sd, rule.candidates) == (2.0, None, 2)
    assert [(guardrail.benchmark, guardrail.margin) for guardrail in rule.guardrails] == [("harm", 3.0)]
    assert rule.looks == (3, 6) and rule.arms == 3


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (17, r"activities\.runs\.runs\.count: 17 runs of 3 arms: no whole number of seeds for gate 'gate'"),
        (6, r"6 runs of 3 arms: too few seeds .* first at 3 of each\. Give a multiple of 3, 9 or more\."),
        (
            15,
            r"15 runs are 5 seeds of 3 arms \(baseline, a, b\), .*seeds: 6\. Write count: 18, or seeds: 5 ",
        ),
    ],
)
def test_runs_that_are_not_the_campaigns_are_refused(tmp_path: Path, small: Program, count: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_in(tmp_path, by_file(small, count=count))
    assert len([line for line in str(refused.value).splitlines() if "runs.count" in line]) == 1


@pytest.mark.parametrize(("count", "seeds", "arms"), [(18, 6, 3), (12, 6, 2)])
def test_all_arms_of_a_campaign_share_its_runs_or_those_of_one_candidate(
    tmp_path: Path, small: Program, count: int, seeds: int, arms: int
) -> None:
    program = read_in(tmp_path, by_file(small, count=count))
    evidence = program.gates["gate"].evidence
    assert evidence is not None and evidence.arms == arms
    assert seeds_of(compile_program(program, greedy_schedule(program)), "runs") == seeds


def test_an_option_that_leaves_a_gate_too_few_runs_is_refused(tmp_path: Path, small: Program) -> None:
    less = {"title": "Less", "changes": {"activities.runs.runs.count": 6}}
    message = r"options\.less\.changes\.activities\.runs\.runs\.count: 6 runs of 3 arms: too few seeds"
    with pytest.raises(ConfigError, match=message):
        read_in(tmp_path, by_file(small, **{"options.less": less}))


def test_half_a_seed_is_refused_where_thresholds_judge_too(small: Program) -> None:
    found = problems_of(small.changed({"activities.runs.runs.count": 3}))
    assert [violation.message for violation in found] == [
        "3 runs of 2 arms: no whole number of seeds for gate 'gate', which reads them. Give a multiple of 2, 2 or more."
    ]


@pytest.mark.parametrize("changes", [{"activities.runs.runs.count": 2}, {"activities.runs": None}])
def test_a_gate_that_can_never_pass_says_why(small: Program, changes: dict[str, Any]) -> None:
    program = by_rule(small, {"least_effect": 1.5}, **changes)
    assert set(samples_of(program).gates["gate"][0].verdict) == {"narrow"}
    assert len(list(why_nothing_passes(program))) == 1
    assert not list(why_nothing_passes(by_rule(small, {"least_effect": 1.5})))


def test_its_failure_modes_are_played_too(tmp_path: Path, small: Program) -> None:
    tree = by_file(small, **{"budget.device_hours": 9000.0})
    rule_with_safety = {**CAMPAIGN["rule"], "safety": [{"benchmark": "leaks", "max_rate": 0.01}]}
    benchmarks = [*CAMPAIGN["benchmarks"], {"type": "predictions", "name": "leaks"}]
    campaign = {**CAMPAIGN, "rule": rule_with_safety, "benchmarks": benchmarks}
    with pytest.raises(ConfigError) as refused:
        read_in(tmp_path, tree, campaign)
    assert "rule.safety.0.benchmark: 'leaks' is no benchmark of this program" in str(refused.value)
    assert "as 'leaks: {role: safety, items: ..., failure_rate: ...}'" in str(refused.value)
    tree["benchmarks"]["leaks"] = {"role": "safety", "items": 1000, "failure_rate": 0.002}
    (gate,) = read_in(tmp_path, tree, campaign).gates.values()
    assert gate.evidence is not None and gate.evidence.rule is not None
    assert [(safety.benchmark, safety.max_rate) for safety in gate.evidence.rule.safety] == [("leaks", 0.01)]


@pytest.mark.parametrize("score", ["log_likelihood", "own"])
@pytest.mark.parametrize(("name", "key"), [("harm", "guardrails.0.benchmark"), ("wins", "primary.0")])
def test_what_need_not_be_a_share_is_never_played_in_points(
    tmp_path: Path, small: Program, score: str, name: str, key: str
) -> None:
    benchmarks = [{**item, "score": score} if item["name"] == name else item for item in CAMPAIGN["benchmarks"]]
    with pytest.raises(ConfigError, match=rf"campaign\.yaml: rule\.{key}: '{name}' has score: {score}, which"):
        read_in(tmp_path, by_file(small), {**CAMPAIGN, "benchmarks": benchmarks})


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": {"least_effect": 1.0}, "pass_at": 1.0}, "leave pass_at out"),
        ({"pass_at": 1.0}, "give pass_at and stop_below, or the rule"),
        ({}, "give pass_at and stop_below, or the rule"),
    ],
)
def test_a_gate_is_judged_in_one_way(small: Program, rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.changed({"gates.gate.evidence": {"benchmark": "wins", "runs": "runs", **rule}})
