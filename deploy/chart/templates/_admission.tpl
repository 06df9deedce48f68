{{/*
CEL for ValidatingAdmissionPolicies on what our own ServiceAccounts write. `dyn` keeps the type checker from refusing loops over the
fields of an object: so a field that a later version of Kubernetes adds is compared, too.
*/}}

{{/* Two maps that differ in no key but some. Call with a dict: "before" and "after", their CEL, and "but", a list of keys. */}}
{{- define "neuron-dra.celSameBut" -}}
dyn({{ .before }}).all(key, key in ['{{ .but | join "', '" }}']
  || (key in dyn({{ .after }}) && dyn({{ .after }})[key] == dyn({{ .before }})[key]))
&& dyn({{ .after }}).all(key, key in ['{{ .but | join "', '" }}'] || key in dyn({{ .before }}))
{{- end }}

{{/*
Metadata of an update that is as it was, but for what the API server writes and for a list of fields. Call with that list. With
ownerReferences and finalizers, a right to change an object becomes a right to delete it, or to keep it from being deleted.
*/}}
{{- define "neuron-dra.celMetadataKept" -}}
{{ include "neuron-dra.celSameBut" (dict "before" "oldObject.metadata" "after" "object.metadata" "but" (concat (list "managedFields" "resourceVersion" "generation") .)) }}
{{- end }}

{{/* A new object without owners and finalizers. */}}
{{- define "neuron-dra.celUnowned" -}}
object.metadata.?ownerReferences.orValue([]).size() == 0 && object.metadata.?finalizers.orValue([]).size() == 0
{{- end }}

{{/* The user name of a ServiceAccount of the release. Call with (dict "root" $ "account" "neuron-dra"). */}}
{{- define "neuron-dra.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .account }}
{{- end }}

{{/* The binding of a ValidatingAdmissionPolicy. Call with (dict "name" "neuron-dra-secrets" "labels" $labels). */}}
{{- define "neuron-dra.denies" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- .labels | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}

{{/* Keys of the Secret that the webhook writes (`certs.material.KEYS`), as a JSON list. */}}
{{- define "neuron-dra.certificateKeys" -}}
{{- list "ca.crt" "ca.key" "tls.crt" "tls.key" "next-ca.crt" "next-ca.key" | toJson -}}
{{- end }}
