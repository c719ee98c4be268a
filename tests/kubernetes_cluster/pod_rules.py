"""Defaults and rules of pods and of every object's metadata that no schema states."""

import re

from kubernetes_cluster.errors import Object
from kubernetes_cluster.field_errors import at_least_zero, invalid_value, not_supported, required
from kubernetes_cluster.quantities import quantity

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_ENVIRONMENT_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_FIELD_PATH = re.compile(
    r"metadata\.(name|namespace|uid)|metadata\.(labels|annotations)\['.+'\]"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs)"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_WHEN_ONE_OF = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character"
)
DNS_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character"
)
_SERVICE_LABEL = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character"
)


def is_dns_label(text: str) -> bool:
    """Whether a host may have this name."""
    return len(text) <= 63 and re.fullmatch(_LABEL, text) is not None


def check_metadata(subject: Object) -> list[str]:
    """Return what is wrong with an object's name, labels and annotations."""
    metadata = subject["metadata"]
    name, problems = metadata["name"], []
    if len(name) > 253 or not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", name):
        problems.append(invalid_value("metadata.name", name, _SUBDOMAIN))
    return problems + _label_problems(metadata, "metadata")


def default_pod_spec(spec: Object) -> None:
    """Fill in what a server fills in."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    for container in spec.get("containers", []):
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("terminationMessagePolicy", "File")


def check_pod_template(template: Object, path: str) -> list[str]:
    """Return what is wrong with a pod, or with the template of pods."""
    spec, where = template["spec"], f"{path}.spec".lstrip(".")
    problems = _label_problems(template.get("metadata", {}), f"{path}.metadata".lstrip("."))
    problems += at_least_zero(f"{where}.terminationGracePeriodSeconds", spec["terminationGracePeriodSeconds"])
    for field in ("hostname", "subdomain"):
        if field in spec and not is_dns_label(spec[field]):
            problems.append(invalid_value(f"{where}.{field}", spec[field], DNS_LABEL))
    for index, toleration in enumerate(spec.get("tolerations", [])):
        problems += _toleration_problems(toleration, f"{where}.tolerations[{index}]")
    problems += _volume_problems(spec, where)
    if not spec.get("containers"):
        problems.append(required(f"{where}.containers"))
    names: list[str] = []
    for index, container in enumerate(spec.get("containers", [])):
        here = f"{where}.containers[{index}]"
        if container.get("name") in names:
            problems.append(f'{here}.name: Duplicate value: "{container["name"]}"')
        names.append(container.get("name", ""))
        problems += _container_problems(container, spec, here)
    return problems


def service_problems(service: Object) -> list[str]:
    """Return what is wrong with a Service."""
    spec, name = service.get("spec", {}), service["metadata"]["name"]
    problems = _label_problems(service["metadata"], "metadata")
    if not is_dns_label(name) or name[0].isdigit():
        problems.append(invalid_value("metadata.name", name, _SERVICE_LABEL))
    ports = spec.get("ports", [])
    if not ports and spec.get("clusterIP") != "None":
        problems.append(required("spec.ports"))
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            problems.append(required(f"spec.ports[{index}].name"))
        if not 0 < port.get("port", 0) < 65536:
            problems.append(
                invalid_value(
                    f"spec.ports[{index}].port", port.get("port", 0), "must be between 1 and 65535, inclusive"
                )
            )
    return problems


def _label_problems(metadata: Object, where: str) -> list[str]:
    problems = []
    for field in ("labels", "annotations"):
        for key, value in (metadata.get(field) or {}).items():
            if not _QUALIFIED.fullmatch(key):
                problems.append(
                    invalid_value(
                        f"{where}.{field}", key, "name part must consist of alphanumeric characters, '-', '_' or '.'"
                    )
                )
            if field == "labels" and not _LABEL_VALUE.fullmatch(value):
                reason = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
                problems.append(invalid_value(f"{where}.labels", value, f"{reason}; must be no more than 63 bytes"))
    return problems


def _toleration_problems(toleration: Object, where: str) -> list[str]:
    operator, effect, problems = toleration.get("operator", "Equal"), toleration.get("effect", ""), []
    if operator not in ("Equal", "Exists"):
        problems.append(not_supported(f"{where}.operator", operator, ["Equal", "Exists"]))
    if operator == "Exists" and toleration.get("value"):
        reason = "value must be empty when `operator` is 'Exists'"
        problems.append(invalid_value(f"{where}.operator", toleration["value"], reason))
    if effect and effect not in _EFFECTS:
        problems.append(not_supported(f"{where}.effect", effect, list(_EFFECTS)))
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        reason = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        problems.append(invalid_value(f"{where}.effect", effect, reason))
    return problems


def _volume_problems(spec: Object, where: str) -> list[str]:
    problems, names = [], set()
    for index, volume in enumerate(spec.get("volumes", [])):
        here, name = f"{where}.volumes[{index}]", volume.get("name", "")
        if not is_dns_label(name):
            problems.append(invalid_value(f"{here}.name", name, DNS_LABEL) if name else required(f"{here}.name"))
        if name in names:
            problems.append(f'{here}.name: Duplicate value: "{name}"')
        names.add(name)
        if (sources := len(volume) - 1) != 1:
            more = f"{here}: Forbidden: may not specify more than 1 volume type"
            problems.append(more if sources else required(here, "must specify a volume type"))
    return problems


def _container_problems(container: Object, spec: Object, where: str) -> list[str]:
    problems, name = [], container.get("name", "")
    if not is_dns_label(name):
        problems.append(invalid_value(f"{where}.name", name, DNS_LABEL) if name else required(f"{where}.name"))
    if not container.get("image"):
        problems.append(required(f"{where}.image"))
    for field, allowed in _WHEN_ONE_OF.items():
        if field in container and container[field] not in allowed:
            problems.append(not_supported(f"{where}.{field}", container[field], list(allowed)))
    for index, variable in enumerate(container.get("env", [])):
        problems += _variable_problems(variable, f"{where}.env[{index}]")
    volumes = {volume.get("name") for volume in spec.get("volumes", [])}
    for index, mount in enumerate(container.get("volumeMounts", [])):
        here = f"{where}.volumeMounts[{index}]"
        if mount.get("name") not in volumes:
            problems.append(f'{here}.name: Not found: "{mount.get("name", "")}"')
        if not mount.get("mountPath"):
            problems.append(required(f"{here}.mountPath"))
    return problems + _resource_problems(container.get("resources", {}), f"{where}.resources")


def _variable_problems(variable: Object, where: str) -> list[str]:
    name, source = variable.get("name", ""), variable.get("valueFrom")
    problems = []
    if not _ENVIRONMENT_NAME.fullmatch(name):
        reason = "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.'"
        problems.append(invalid_value(f"{where}.name", name, reason) if name else required(f"{where}.name"))
    if source is not None and variable.get("value"):
        problems.append(invalid_value(f"{where}.valueFrom", "", "may not be specified when `value` is not empty"))
    if source is not None and len(source) != 1:
        problems.append(
            invalid_value(
                f"{where}.valueFrom",
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
            )
        )
    path = (source or {}).get("fieldRef", {}).get("fieldPath")
    if path is not None and not _FIELD_PATH.fullmatch(path):
        problems.append(invalid_value(f"{where}.valueFrom.fieldRef.fieldPath", path, "error converting fieldPath"))
    return problems


def _resource_problems(resources: Object, where: str) -> list[str]:
    problems: list[str] = []
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            try:
                quantity(text)
            except ValueError:
                reason = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                problems.append(f"{where}.{part}[{name}]: Invalid value: {text!r}: {reason}")
    if problems:
        return problems
    for name in requests.keys() & limits.keys():
        if quantity(requests[name]) > quantity(limits[name]):
            reason = f"must be less than or equal to {name} limit of {limits[name]}"
            problems += [invalid_value(f"{where}.requests", requests[name], reason)]
    for name in {name for name in (*limits, *requests) if "/" in name}:
        if name not in limits:
            problems.append(required(f"{where}.limits", "Limit must be set for non overcommitable resources"))
        elif name in requests and quantity(requests[name]) != quantity(limits[name]):
            problems.append(
                invalid_value(f"{where}.requests", requests[name], f"must be equal to {name} limit of {limits[name]}")
            )
    return problems
