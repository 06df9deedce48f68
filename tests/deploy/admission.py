"""The chart's ValidatingAdmissionPolicies, evaluated by our own CEL on one request.

`tests/cluster/test_accounts.py` sends the same requests to a real API server.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.compile import Cel, Program
from kubecel.errors import CelError
from kubecel.types import BOOL, DYN, STRING, Type
from kubecel_tests.evaluating import frozen_clock
from tests.deploy.charts import NAMESPACE, Object

POD_NODE: Final = "authentication.kubernetes.io/node-name"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_NAMES: Final = ("object", "oldObject", "request", "variables")


class Policies:
    """The policies of a rendered chart."""

    def __init__(self, objects: Iterable[Object]) -> None:
        objects = list(objects)
        bound = {
            each["spec"]["policyName"]
            for each in objects
            if each["kind"] == "ValidatingAdmissionPolicyBinding" and each["spec"]["validationActions"] == ["Deny"]
        }
        self._all = [
            each
            for each in objects
            if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] in bound
        ]
        assert all(each["spec"]["failurePolicy"] == "Fail" for each in self._all)
        self._cel = Cel()
        self._programs: dict[tuple[str, str], Program] = {}

    def refusals(
        self,
        account: str,
        operation: str,
        resource: str,
        new: Object | None,
        old: Object | None = None,
        *,
        extra: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> list[str]:
        """Messages of the policies that deny a request of one of our ServiceAccounts.

        Args:
            account: name of the ServiceAccount.
            operation: CREATE, UPDATE or DELETE.
            resource: `group/plural`, and `group/plural/subresource`; the group may be empty.
            new: `object`.
            old: `oldObject`.
            extra: of the token.
            dry_run: whether nothing is to be stored.
        """
        group, _, plural = resource.partition("/")
        either = new or old or {}
        user = {
            "username": f"system:serviceaccount:{NAMESPACE}:{account}",
            "extra": {key: [value] for key, value in (extra or {}).items()},
        }
        request = {
            "operation": operation,
            "name": either["metadata"].get("name", ""),
            "namespace": either["metadata"].get("namespace", ""),
            "resource": {"group": group, "resource": plural.partition("/")[0]},
            "subResource": plural.partition("/")[2],
            "userInfo": user,
            "dryRun": dry_run,
        }
        values: dict[str, Any] = {"object": new, "oldObject": old, "request": request, "variables": {}}
        found: list[str] = []
        for policy in self._all:
            if _sees(policy["spec"], group, plural, operation):
                found += self._judge(policy["spec"], values)
        return found

    def _judge(self, spec: Object, values: dict[str, Any]) -> list[str]:
        if not all(self._value(each["expression"], values, BOOL) for each in spec.get("matchConditions", ())):
            return []
        variables: dict[str, Any] = {}
        within = values | {"variables": variables}
        for each in spec.get("variables", ()):
            variables[each["name"]] = self._value(each["expression"], within, DYN)
        said = []
        for each in spec["validations"]:
            if self._value(each["expression"], within, BOOL):
                continue
            text = each.get("messageExpression")
            said.append(str(self._value(text, within, STRING)) if text else each["message"])
        return said

    def _value(self, expression: str, values: Mapping[str, Any], result: Type) -> Any:
        key = (expression, str(result))
        if key not in self._programs:
            self._programs[key] = self._cel.compile(expression, dict.fromkeys(_NAMES, DYN), result=result)
        try:
            return self._programs[key].evaluate(dict(values), Budget(frozen_clock))
        except CelError as error:
            raise AssertionError(f"{expression}: {error}") from error


def _sees(spec: Object, group: str, plural: str, operation: str) -> bool:
    return any(
        group in rule["apiGroups"] and plural in rule["resources"] and operation in rule["operations"]
        for rule in spec["matchConstraints"]["resourceRules"]
    )
