"""Who may do what: tokens name users, and roles bound to a user allow verbs on resources."""

from kubernetes_cluster.errors import ApiError, Object, forbidden
from kubernetes_cluster.kinds import KINDS, Kind
from kubernetes_cluster.store import Store

ADMIN = "kubernetes-admin"


def service_account_user(namespace: str, name: str) -> str:
    """The name under which a service account's token acts."""
    return f"system:serviceaccount:{namespace}:{name}"


def check_access(
    store: Store, user: str, verb: str, kind: Kind, namespace: str, name: str, subresource: str = ""
) -> None:
    """Raise 403, as a real server words it, unless a role allows this."""
    resource = f"{kind.resource}/{subresource}" if subresource else kind.resource
    if allows(store, user, verb, kind.group, resource, namespace, name):
        return
    scope = f'in the namespace "{namespace}"' if kind.is_namespaced and namespace else "at the cluster scope"
    why = f'User "{user}" cannot {verb} resource "{resource}" in API group "{kind.group}" {scope}'
    raise forbidden(kind, name, why)


def allows(store: Store, user: str, verb: str, group: str, resource: str, namespace: str, name: str) -> bool:
    """Whether a role that is bound to the user allows the verb."""
    if user == ADMIN:
        return True
    rules = [rule for role in _roles_of(store, user, namespace) for rule in role.get("rules", [])]
    return any(
        _matches(rule.get("apiGroups", []), group)
        and _matches(rule.get("resources", []), resource)
        and _matches(rule.get("verbs", []), verb)
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
        for rule in rules
    )


def access_review(store: Store, user: str, review: Object) -> Object:
    """Answer a SelfSubjectAccessReview."""
    query = review.get("spec", {}).get("resourceAttributes", {})
    resource = "/".join(filter(None, [query.get("resource", ""), query.get("subresource", "")]))
    namespace, name = query.get("namespace", ""), query.get("name", "")
    allowed = allows(store, user, query.get("verb", ""), query.get("group", ""), resource, namespace, name)
    return review | {"status": {"allowed": allowed}}


def unauthorized() -> ApiError:
    """401: no token, or one that nobody has."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def _roles_of(store: Store, user: str, namespace: str) -> list[Object]:
    bindings = store.all(KINDS["clusterrolebindings"])
    if namespace:
        bindings += store.all(KINDS["rolebindings"], namespace)
    roles = []
    for binding in bindings:
        if any(_is_user(subject, user, binding) for subject in binding.get("subjects", [])):
            reference = binding["roleRef"]
            kind = KINDS["roles" if reference["kind"] == "Role" else "clusterroles"]
            roles.append(store.find(kind, namespace, reference["name"]))
    return [role for role in roles if role is not None]


def _is_user(subject: Object, user: str, binding: Object) -> bool:
    if subject["kind"] == "ServiceAccount":
        namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
        return user == service_account_user(namespace, subject["name"])
    return subject["kind"] == "User" and bool(subject["name"] == user)


def _matches(listed: list[str], value: str) -> bool:
    return "*" in listed or value in listed
