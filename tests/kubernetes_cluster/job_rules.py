"""Defaults and rules of batch/v1 Jobs that no schema states: what a real API server answers 422 to."""

from copy import deepcopy

from kubernetes_cluster.errors import Object
from kubernetes_cluster.field_errors import at_least_zero, immutable, invalid_value, not_supported, required
from kubernetes_cluster.pod_rules import check_metadata, check_pod_template, default_pod_spec, is_dns_label

_NEW_FIELDS = {"podReplacementPolicy": 29, "backoffLimitPerIndex": 29, "successPolicy": 31, "managedBy": 32}
"""Fields of a Job that a server drops without a word below this minor version: their feature is off there."""
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_IMMUTABLE = ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")
_SCHEDULING = ("nodeSelector", "tolerations", "affinity", "schedulingGates")
"""What may change in the template of a suspended Job that has not started."""


def default_job(job: Object, version: str) -> None:
    """Fill in what a server fills in; drop what a server of this version drops."""
    spec, uid = job["spec"], job["metadata"]["uid"]
    for field, minor in _NEW_FIELDS.items():
        if int(version.partition(".")[2]) < minor:
            spec.pop(field, None)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6 if "backoffLimitPerIndex" not in spec else 2**31 - 1)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    names = {"controller-uid": uid, "job-name": job["metadata"]["name"]}
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
    labels = spec.setdefault("template", {}).setdefault("metadata", {}).setdefault("labels", {})
    labels |= names | {f"batch.kubernetes.io/{name}": value for name, value in names.items()}
    default_pod_spec(spec["template"].setdefault("spec", {}))


def job_problems(job: Object) -> list[str]:
    """Return what is wrong with a new Job."""
    spec = job["spec"]
    counts = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
    problems = check_metadata(job) + [
        problem for field in counts for problem in at_least_zero(f"spec.{field}", spec.get(field))
    ]
    problems += _mode_problems(job)
    if "podFailurePolicy" in spec:
        problems += _failure_policy_problems(spec)
    allowed = ["Failed"] if "podFailurePolicy" in spec else ["Failed", "TerminatingOrFailed"]
    if spec["podReplacementPolicy"] not in allowed:
        problems.append(not_supported("spec.podReplacementPolicy", spec["podReplacementPolicy"], allowed))
    problems += check_pod_template(spec["template"], "spec.template")
    return problems + _restart_problems(spec)


def job_update_problems(job: Object, old: Object) -> list[str]:
    """Return what is wrong with a changed Job."""
    spec, before = job["spec"], old["spec"]
    problems = job_problems(job)
    changed_completions = spec.get("completions") != before.get("completions")
    if changed_completions and spec["completionMode"] != "Indexed":
        problems.append(immutable("spec.completions", spec.get("completions")))
    elif changed_completions and spec["completions"] != spec["parallelism"]:
        reason = "can only be modified in tandem with spec.parallelism"
        problems.append(invalid_value("spec.completions", spec["completions"], reason))
    for field in _IMMUTABLE:
        if spec.get(field) != before.get(field):
            problems.append(immutable(f"spec.{field}", spec.get(field)))
    if _fixed_template(spec, old) != _fixed_template(before, old):
        problems.append(immutable("spec.template", spec["template"]))
    return problems


def _fixed_template(spec: Object, old: Object) -> Object:
    template: Object = deepcopy(spec["template"])
    if old["spec"].get("suspend") and "startTime" not in old.get("status", {}):
        template.pop("metadata", None)
        for field in _SCHEDULING:
            template["spec"].pop(field, None)
    return template


def _mode_problems(job: Object) -> list[str]:
    spec = job["spec"]
    mode, completions = spec["completionMode"], spec.get("completions")
    if mode not in ("NonIndexed", "Indexed"):
        return [not_supported("spec.completionMode", mode, ["NonIndexed", "Indexed"])]
    if mode == "Indexed":
        if completions is None:
            return [required("spec.completions", "when completion mode is Indexed")]
        longest = f"{job['metadata']['name']}-{completions - 1}"
        if completions > 0 and not is_dns_label(longest):
            reason = f"will not able to create pod with invalid DNS label: {longest}"
            return [invalid_value("metadata.name", job["metadata"]["name"], reason)]
        return _success_policy_problems(spec)
    return [
        invalid_value(f"spec.{field}", spec[field], "requires indexed completion mode")
        for field in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy")
        if field in spec
    ]


def _success_policy_problems(spec: Object) -> list[str]:
    if "successPolicy" not in spec:
        return []
    where, rules, completions = "spec.successPolicy.rules", spec["successPolicy"].get("rules"), spec["completions"]
    if not rules:
        return [required(where, "at least one rules must be specified when the successPolicy is specified")]
    problems = []
    for index, rule in enumerate(rules):
        count = rule.get("succeededCount")
        if count is None and "succeededIndexes" not in rule:
            reason = "at least one of succeededCount or succeededIndexes must be specified"
            problems.append(required(f"{where}[{index}]", reason))
        if count is not None and count > completions:
            reason = f"must be less than or equal to {completions} (the number of specified completions)"
            problems.append(invalid_value(f"{where}[{index}].succeededCount", count, reason))
    return problems


def _failure_policy_problems(spec: Object) -> list[str]:
    problems: list[str] = []
    for index, rule in enumerate(spec["podFailurePolicy"].get("rules", [])):
        where, action = f"spec.podFailurePolicy.rules[{index}]", rule.get("action")
        if action not in _ACTIONS:
            problems.append(not_supported(f"{where}.action", action, list(_ACTIONS)))
        elif action == "FailIndex" and "backoffLimitPerIndex" not in spec:
            problems.append(invalid_value(f"{where}.action", action, "requires the backoffLimitPerIndex to be set"))
        criteria = "onExitCodes" in rule, bool(rule.get("onPodConditions"))
        if all(criteria):
            problems.append(f"{where}: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported")
        elif not any(criteria):
            problems.append(f"{where}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required")
        if criteria[0]:
            problems += _exit_code_problems(rule["onExitCodes"], spec, f"{where}.onExitCodes")
        for number, pattern in enumerate(rule.get("onPodConditions") or []):
            statuses = ["False", "True", "Unknown"]
            if pattern.get("status") not in statuses:
                status = f"{where}.onPodConditions[{number}].status"
                problems.append(not_supported(status, pattern.get("status"), statuses))
    return problems


def _exit_code_problems(requirement: Object, spec: Object, where: str) -> list[str]:
    problems: list[str] = []
    operator, values = requirement.get("operator"), requirement.get("values") or []
    if operator not in ("In", "NotIn"):
        problems.append(not_supported(f"{where}.operator", operator, ["In", "NotIn"]))
    pod = spec["template"]["spec"]
    names = [container.get("name") for container in pod.get("containers", []) + pod.get("initContainers", [])]
    if (name := requirement.get("containerName")) is not None and name not in names:
        reason = "must be one of the container or initContainer names in the pod template"
        problems.append(invalid_value(f"{where}.containerName", name, reason))
    if not values:
        problems.append(invalid_value(f"{where}.values", values, "at least one value is required"))
    for index, value in enumerate(values):
        if operator == "In" and value == 0:
            problems.append(invalid_value(f"{where}.values[{index}]", 0, "must not be 0 for the In operator"))
        if value in values[:index]:
            problems.append(f"{where}.values[{index}]: Duplicate value: {value}")
    if values != sorted(values):
        problems.append(invalid_value(f"{where}.values", values, "must be ordered"))
    return problems


def _restart_problems(spec: Object) -> list[str]:
    where, policy = "spec.template.spec.restartPolicy", spec["template"]["spec"]["restartPolicy"]
    if policy == "Always":
        return [required(where, 'valid values: "OnFailure", "Never"')]
    if policy not in ("OnFailure", "Never"):
        return [not_supported(where, policy, ["OnFailure", "Never"])]
    if policy != "Never" and "podFailurePolicy" in spec:
        return [invalid_value(where, policy, 'only "Never" is supported when podFailurePolicy is specified')]
    return []
