"""Judges existing objects by the policies for validation, as on CREATE. Pure.

A workload is judged itself, and through the pods that it would create, converted. The words for results are those of
PolicyReports: `fail` is a violation that a policy denies or audits, `warn` one that it only warns of, `error` a policy
that cannot be evaluated, `skip` an exception that admits the object.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from cluster.store import Store
from commands.objects.file_policies import FilePolicies
from commands.objects.manifests import Manifest
from commands.report.assess import Assessment
from commands.report.model import Audit, AuditViolation, Cause, Obstacle, Reference
from conversion.decide import located
from neuron.findings import Finding
from policies.judging.verdicts import PolicyOutcome, Verdict, objections
from policies.patching.json_patch import patched

_ACTIONS: Final = {PolicyOutcome.DENY: "Deny", PolicyOutcome.WARN: "Warn", PolicyOutcome.AUDIT: "Audit"}
_PASSED: Final = (PolicyOutcome.ALLOW,)


class Auditor:
    """Collects the results of one report."""

    def __init__(self, policies: FilePolicies, view: Store) -> None:
        self._policies = policies
        self._view = view
        self._objects = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._violations: list[AuditViolation] = []

    def workload(self, assessment: Assessment) -> list[Obstacle]:
        """Judge a workload and its pods; returns what would deny them."""
        manifest, ref = assessment.manifest, assessment.workload.ref
        denied: list[Obstacle] = []
        matched = False
        for each in assessment.judged:
            pod = patched(each.place.template, each.decision.patch)
            verdicts = self._policies.pod_verdicts(manifest, pod, each.decision, self._view)
            path = each.place.field_path("")
            matched = self._note(ref, path, verdicts) or matched
            denied += (_obstacle(located(each.place, finding)) for finding in _denials(verdicts))
        if (manifest.group, manifest.kind) != ("", "Pod"):
            verdicts = self._policies.object_verdicts(manifest, self._view)
            matched = self._note(ref, "", verdicts) or matched
            denied += map(_obstacle, _denials(verdicts))
        self._objects += matched
        return denied

    def object(self, ref: Reference, manifest: Manifest) -> None:
        """Judge an object that is no workload, such as a ResourceClaimTemplate."""
        self._objects += self._note(ref, "", self._policies.object_verdicts(manifest, self._view))

    def result(self, unread: tuple[str, ...] = ()) -> Audit:
        """The results so far. `unread`: resources that could not be read."""
        return Audit(self._policies.validating, self._objects, dict(self._counts), tuple(self._violations), unread)

    def _note(self, ref: Reference, path: str, verdicts: tuple[Verdict, ...]) -> bool:
        matched = False
        for verdict in verdicts:
            if verdict.outcome is PolicyOutcome.NO_MATCH:
                continue
            matched = True
            if verdict.outcome in _PASSED:
                self._counts[ref.namespace, "pass"] += 1
                continue
            for violation in _violations(ref, path, verdict):
                self._counts[ref.namespace, violation.result] += 1
                self._violations.append(violation)
        return matched


def _violations(ref: Reference, path: str, verdict: Verdict) -> Iterator[AuditViolation]:
    rule, exemption = verdict.rule, verdict.exemption
    if verdict.outcome is PolicyOutcome.EXCEPT:
        who = f"'{exemption.name}' of {exemption.owner}" if exemption else ""
        message = f"exception {who} admits it".replace("  ", " ")
        yield AuditViolation(ref, path, rule.name, rule.severity, "skip", message)
        return
    action = _ACTIONS[verdict.outcome]
    for each in verdict.violations:
        result = "error" if each.failed else "warn" if action == "Warn" else "fail"
        yield AuditViolation(ref, path, rule.name, rule.severity, result, each.message, action)


def _denials(verdicts: Iterable[Verdict]) -> Iterator[Finding]:
    """The first finding of each policy that denies."""
    return (objections(verdict)[0] for verdict in verdicts if verdict.outcome is PolicyOutcome.DENY)


def _obstacle(finding: Finding) -> Obstacle:
    return Obstacle(Cause.POLICY, finding, blocks=True)
