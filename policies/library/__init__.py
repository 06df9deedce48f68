"""The functions of Kubernetes CEL, one module per library; `policies.functions` lists them all.

Sources: cel-go (common/stdlib, ext/strings, ext/lists, ext/sets, cel/library) and k8s.io/apiserver
(pkg/cel/library), as of Kubernetes 1.36.
"""
