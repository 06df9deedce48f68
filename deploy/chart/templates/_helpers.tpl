{{/* Labels of every object. Call with (dict "root" $ "component" "webhook"); component may be missing. */}}
{{- define "neuron-dra.labels" -}}
{{ include "neuron-dra.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The selector of a component's pods. */}}
{{- define "neuron-dra.selector" -}}
app.kubernetes.io/name: neuron-dra
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* An image reference. Call with (dict "root" $ "image" .Values.webhook.image). */}}
{{- define "neuron-dra.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.image.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* Container security of pods that do not use the host. */}}
{{- define "neuron-dra.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Pod security of pods that do not use the host. */}}
{{- define "neuron-dra.podSecurity" -}}
runAsNonRoot: true
{{- if not .Values.openshift.enabled }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The excluded namespaces, as a JSON list. */}}
{{- define "neuron-dra.excludedNamespaces" -}}
{{- concat (list "kube-system" "kube-node-lease" .Release.Namespace) (.Values.admission.excludedNamespaces | default list) | uniq | toJson -}}
{{- end }}

{{/* How the API server reaches the webhook. Call with (dict "root" $ "path" "/mutate"). */}}
{{- define "neuron-dra.clientConfig" -}}
service:
  name: neuron-dra
  namespace: {{ .root.Release.Namespace }}
  path: {{ .path }}
{{- if and (eq .root.Values.certificates.mode "secret") .root.Values.certificates.caBundle }}
caBundle: {{ .root.Values.certificates.caBundle }}
{{- end }}
{{- end }}

{{/* Annotations of the webhook configurations. */}}
{{- define "neuron-dra.configurationAnnotations" -}}
{{- if eq .Values.certificates.mode "cert-manager" }}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/neuron-dra-webhook
{{- end }}
{{- end }}

{{/* The namespaces whose objects are sent to the webhook. */}}
{{- define "neuron-dra.namespaceSelector" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: [{{ include "neuron-dra.excludedNamespaces" . | fromJsonArray | join ", " }}]
{{- end }}

{{/* "true" if the webhook writes the CA into the webhook configurations. */}}
{{- define "neuron-dra.injects" -}}
{{- if or (eq .Values.certificates.mode "managed") (and (eq .Values.certificates.mode "secret") (not .Values.certificates.caBundle)) -}}
true
{{- end -}}
{{- end }}

{{/* "true" if there are policy files. */}}
{{- define "neuron-dra.policies" -}}
{{- if or .Values.policies.packs .Values.policies.files .Values.policies.existingConfigMap -}}
true
{{- end -}}
{{- end }}

{{/* The volume with the policy files. */}}
{{- define "neuron-dra.policiesVolume" -}}
- name: policies
  projected:
    sources:
      {{- if or .Values.policies.packs .Values.policies.files }}
      - configMap:
          name: neuron-dra-policies
      {{- end }}
      {{- with .Values.policies.existingConfigMap }}
      - configMap:
          name: {{ . }}
      {{- end }}
{{- end }}

{{/* Names of the DeviceClasses of the release, as a JSON list. */}}
{{- define "neuron-dra.deviceClasses" -}}
{{- concat (ternary (list "neuron.aws.com") list .Values.deviceClasses.default.enabled) (keys (.Values.deviceClasses.extra | default dict) | sortAlpha) | toJson -}}
{{- end }}

{{/* Variables of OpenTelemetry's SDK. Call with (dict "root" $ "attributes" "k8s.pod.name=$(NAME)"). */}}
{{- define "neuron-dra.tracingEnv" -}}
{{- with .root.Values.tracing -}}
{{- if .endpoint -}}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: {{ prepend (get .env "OTEL_RESOURCE_ATTRIBUTES" | list | compact) $.attributes | join "," | quote }}
{{- if not (kindIs "invalid" .sampleRatio) }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .sampleRatio | quote }}
{{- end }}
{{- with .headers.secretName }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.root.Values.tracing.headers.key }}
{{- end }}
{{- if .ca.secretName }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /etc/neuron-dra/collector-ca/{{ .ca.key }}
{{- end }}
{{- range $name, $value := omit .env "OTEL_RESOURCE_ATTRIBUTES" }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The mount of the collector's CA. */}}
{{- define "neuron-dra.collectorCAMount" -}}
{{- if and .Values.tracing.endpoint .Values.tracing.ca.secretName -}}
- name: collector-ca
  mountPath: /etc/neuron-dra/collector-ca
  readOnly: true
{{- end }}
{{- end }}

{{/* The volume with the collector's CA. */}}
{{- define "neuron-dra.collectorCAVolume" -}}
{{- if and .Values.tracing.endpoint .Values.tracing.ca.secretName -}}
- name: collector-ca
  secret:
    secretName: {{ .Values.tracing.ca.secretName }}
    items:
      - key: {{ .Values.tracing.ca.key }}
        path: {{ .Values.tracing.ca.key }}
{{- end }}
{{- end }}

{{/* Where a pod may run. Call with the values that have nodeSelector and tolerations. */}}
{{- define "neuron-dra.placement" -}}
{{- with .nodeSelector -}}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{ end }}
{{- with .tolerations -}}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* "true" for a schedule that a CronJob may have: five fields, without a time zone, or a name such as @daily. */}}
{{- define "neuron-dra.isSchedule" -}}
{{- $words := list "" "" "" "_ jan feb mar apr may jun jul aug sep oct nov dec" "sun mon tue wed thu fri sat" -}}
{{- $bounds := list "0-59" "0-23" "1-31" "1-12" "0-6" -}}
{{- $fields := regexSplit "[ \\t]+" (trim .) -1 -}}
{{- $right := eq (len $fields) 5 -}}
{{- range $index, $bound := $right | ternary $bounds list -}}
{{- $field := index $fields $index | lower -}}
{{- range $number, $word := index $words $index | splitList " " | compact -}}
{{- $field = regexReplaceAll (printf "\\b%s\\b" $word) $field (toString $number) -}}
{{- end -}}
{{- if not (regexMatch "^([*?]|\\d{1,2}(-\\d{1,2})?)(/[1-9]\\d*)?(,([*?]|\\d{1,2}(-\\d{1,2})?)(/[1-9]\\d*)?)*$" $field) -}}
{{- $right = false -}}
{{- end -}}
{{- /* Of each range, and of the field: no number is less than the one before it, or outside. */ -}}
{{- $limits := splitList "-" $bound -}}
{{- range splitList "," (regexReplaceAll "/\\d+" $field "") -}}
{{- $last := first $limits -}}
{{- range append (regexFindAll "\\d+" . -1) (last $limits) -}}
{{- if lt (atoi .) (atoi $last) -}}
{{- $right = false -}}
{{- end -}}
{{- $last = . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if or $right (regexMatch "^@(yearly|annually|monthly|weekly|daily|midnight|hourly|every [1-9][0-9]*[hm]([1-9][0-9]*m)?)$" .) -}}
true
{{- end -}}
{{- end }}

{{/* A quantity such as 1500m or 2Gi as a number. */}}
{{- define "neuron-dra.quantity" -}}
{{- $number := regexFind "^[0-9.]+" (toString .) -}}
{{- $unit := trimPrefix $number (toString .) -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- if hasKey $units $unit -}}
{{- mulf (float64 $number) (get $units $unit) -}}
{{- else -}}
{{- float64 (toString .) -}}
{{- end -}}
{{- end }}

{{/* A duration such as 90m or 1h30m in seconds. */}}
{{- define "neuron-dra.seconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $sum = add $sum (mul (trimSuffix (regexFind "[hms]" .) . | int) (get (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end }}
