"""All that must agree, by name."""

from agreement import pair_cases, rollout_cases, sft_cases

CASES = {**sft_cases.CASES, **pair_cases.CASES, **rollout_cases.CASES}
