"""Embedded cases describe requests about subresources and CONNECT."""

from policies.files.loader import load

TEXT = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: p}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CONNECT], resources: [pods/exec], resourceNames: [train]}
    - {apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments/scale]}
    - {apiGroups: [leaderworkerset.x-k8s.io], apiVersions: [v1], operations: [UPDATE], resources: ["*/scale"]}
  validations: [{expression: "request.subResource == 'none'", message: never}]
  tests:
  - name: exec
    operation: CONNECT
    resource: pods/exec
    objectName: train
    object: {apiVersion: v1, kind: PodExecOptions, command: [sh]}
    expect: Deny
  - name: exec in another pod
    operation: CONNECT
    resource: pods/exec
    objectName: other
    object: {apiVersion: v1, kind: PodExecOptions, command: [sh]}
    expect: NoMatch
  - name: scale
    operation: UPDATE
    resource: deployments/scale
    object: {apiVersion: autoscaling/v1, kind: Scale, metadata: {name: a}}
    expect: Deny
  - name: scale of a custom resource
    operation: UPDATE
    resource: leaderworkersets.v1.leaderworkerset.x-k8s.io/scale
    object: {apiVersion: autoscaling/v1, kind: Scale, metadata: {name: a}}
    expect: Deny
  - name: scale of another resource
    operation: UPDATE
    resource: jobsets.v1alpha2.jobset.x-k8s.io/scale
    object: {apiVersion: autoscaling/v1, kind: Scale, metadata: {name: a}}
    expect: NoMatch
"""


def test_cases_about_subresources_and_connect() -> None:
    assert len(load({"p.yaml": TEXT.encode()}).validating) == 1
