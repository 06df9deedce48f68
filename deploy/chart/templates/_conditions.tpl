{{/*
CEL for matchConditions. Every look-up is guarded: an error would deny any object. Loops are at most as deep as the object,
and every string is searched once: an object of 1.5 MB, the limit of etcd, costs a fraction of the API server's budget
(1,000,000 per expression).
*/}}

{{/* DeviceClasses with Neuron devices, as a CEL list. */}}
{{- define "neuron-dra.celClasses" -}}
{{- $made := keys (.Values.deviceClasses.extra | default dict) | sortAlpha -}}
['{{ concat .Values.admission.deviceClasses (list .Values.conversion.deviceClass) $made | uniq | join "', '" }}']
{{- end }}

{{/* Claims, templates and DeviceClasses, of any API version, that name a class or driver of Neuron. */}}
{{- define "neuron-dra.celClaims" -}}
[object, oldObject].exists(o, o != null && (
  request.resource.resource == 'deviceclasses'
  ? (
    [o.?metadata.?name.orValue(''), o.?metadata.?generateName.orValue(''), o.?spec.?extendedResourceName.orValue('')]
      .exists(name, name in {{ include "neuron-dra.celClasses" . }} || name.contains('neuron'))
    || o.?spec.?selectors.orValue([]).exists(s, s.?cel.?expression.orValue('').contains('neuron'))
    || o.?spec.?config.orValue([]).exists(c, c.?opaque.?driver.orValue('').contains('neuron'))
  )
  : [o.?spec.?devices.orValue({}), o.?spec.?spec.?devices.orValue({})].exists(devices,
    devices.?requests.orValue([]).exists(r,
      ([r, r.?exactly.orValue({})] + r.?firstAvailable.orValue([])).exists(x,
        x.?deviceClassName.orValue('') in {{ include "neuron-dra.celClasses" . }}
        || x.?deviceClassName.orValue('').contains('neuron')
        || x.?selectors.orValue([]).exists(s, s.?cel.?expression.orValue('').contains('neuron'))))
    || devices.?config.orValue([]).exists(c, c.?opaque.?driver.orValue('').contains('neuron'))
    || devices.?constraints.orValue([]).exists(c,
      c.?matchAttribute.orValue('').contains('neuron') || c.?distinctAttribute.orValue('').contains('neuron')))))
{{- end }}

{{/*
A creation, or an update that changes spec (a PodTemplate has `template` instead), labels or annotations. Updates of finalizers
and owner references are not sent: the scheduler adds a finalizer to a claim before it allocates devices, and controllers
remove theirs from pods. Neither may depend on the webhook.
*/}}
{{- define "neuron-dra.celChanged" -}}
oldObject == null
|| object.?spec.orValue({}) != oldObject.?spec.orValue({})
|| object.?template.orValue({}) != oldObject.?template.orValue({})
|| object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({})
|| object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({})
{{- end }}

{{/* A pod or pod template that requests a legacy resource. Call with its CEL. */}}
{{- define "neuron-dra.celLegacy" -}}
[{{ . }}.?spec.?containers.orValue([]), {{ . }}.?spec.?initContainers.orValue([])].exists(containers,
  containers != null && containers.exists(c,
    ['aws.amazon.com/neuron', 'aws.amazon.com/neurondevice', 'aws.amazon.com/neuroncore'].exists(name,
      name in c.?resources.?limits.orValue({}) || name in c.?resources.?requests.orValue({}))))
{{- end }}

{{/*
A pod or pod template that requests an extended resource that may stand for Neuron devices: a name with "neuron" in it, any
DeviceClass by its name (KEP-5004; the webhook knows which classes have Neuron devices), or a name that is listed or
belongs to a class of this release. Call with a dict: "root", and "pod", its CEL.
*/}}
{{- define "neuron-dra.celExtended" -}}
[{{ .pod }}.?spec.?containers.orValue([]), {{ .pod }}.?spec.?initContainers.orValue([])].exists(containers,
  containers != null && containers.exists(c,
    [c.?resources.?limits.orValue({}), c.?resources.?requests.orValue({})].exists(amounts,
      amounts != null && amounts.exists(name, name.contains('neuron')
        || name.startsWith('deviceclass.resource.kubernetes.io/')
        {{- with include "neuron-dra.extendedResources" .root | fromJsonArray }}
        || name in ['{{ join "', '" . }}']
        {{- end }}))))
{{- end }}

{{/* Extended resources without "neuron" in the name, listed or of DeviceClasses of the release: a JSON list. */}}
{{- define "neuron-dra.extendedResources" -}}
{{- $names := .Values.admission.extendedResources | default list -}}
{{- if .Values.deviceClasses.default.enabled -}}
{{- $names = append $names .Values.deviceClasses.default.extendedResourceName -}}
{{- end -}}
{{- range .Values.deviceClasses.extra -}}
{{- $names = append $names .extendedResourceName -}}
{{- end -}}
{{- $others := list -}}
{{- range compact $names | uniq | sortAlpha -}}
{{- if not (contains "neuron" .) -}}
{{- $others = append $others . -}}
{{- end -}}
{{- end -}}
{{- $others | toJson -}}
{{- end }}

{{/*
A pod or pod template with claims that names Neuron: in names of claims, tolerations, node selectors, affinity, images or
variables. The pod does not contain the classes of its claims. Call with its CEL.
*/}}
{{- define "neuron-dra.celSpeaks" -}}
({{ . }}.?spec.?resourceClaims.orValue([]).size() > 0 && (
  {{ . }}.?spec.?resourceClaims.orValue([]).exists(c,
    [c.?name.orValue(''), c.?resourceClaimTemplateName.orValue(''), c.?resourceClaimName.orValue('')]
      .exists(name, name.contains('neuron')))
  || {{ . }}.?spec.?tolerations.orValue([]).exists(t, t.?key.orValue('').contains('neuron'))
  || {{ . }}.?spec.?nodeSelector.orValue({}).exists(key, key.contains('neuron')
    || ['neuron', 'trn', 'inf1', 'inf2'].exists(word, {{ . }}.spec.nodeSelector[key].startsWith(word)))
  || {{ . }}.?spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([])
    .exists(t, t.?matchExpressions.orValue([]).exists(e, e.?key.orValue('').contains('neuron')
      || e.?values.orValue([]).exists(v, ['neuron', 'trn', 'inf1', 'inf2'].exists(word, v.startsWith(word)))))
  || [{{ . }}.?spec.?containers.orValue([]), {{ . }}.?spec.?initContainers.orValue([])].exists(containers,
    containers != null && containers.exists(c, c.?image.orValue('').contains('neuron')
      || c.?env.orValue([]).exists(e, e.?name.orValue('').startsWith('NEURON_'))))))
{{- end }}

{{/* Our label and annotations on a pod or pod template. Call with its CEL. */}}
{{- define "neuron-dra.celMarked" -}}
'neuron.aws.com/converted' in {{ . }}.?metadata.?labels.orValue({})
|| {{ . }}.?metadata.?annotations.orValue({}).exists(key, key.startsWith('neuron.aws.com/'))
{{- end }}

{{/* A pod or pod template that names Neuron. Call with its CEL. */}}
{{- define "neuron-dra.celNeuron" -}}
{{ include "neuron-dra.celMarked" . }}
|| {{ include "neuron-dra.celLegacy" . }}
|| {{ include "neuron-dra.celSpeaks" . }}
{{- end }}

{{/* The documents of policies.files and of the packs, as a JSON list. One that is no mapping has the key `Error` only. */}}
{{- define "neuron-dra.policyDocuments" -}}
{{- $texts := values (.Values.policies.files | default dict) -}}
{{- range .Values.policies.packs -}}
{{- $texts = append $texts ($.Files.Get (printf "files/packs/%s.yaml" .)) -}}
{{- end -}}
{{- $documents := list -}}
{{- range $texts -}}
{{- range regexSplit "(?m)^---.*$" . -1 -}}
{{- $documents = append $documents (fromYaml .) -}}
{{- end -}}
{{- end -}}
{{- compact $documents | toJson -}}
{{- end }}

{{/*
Names of the templates of ClaimTemplates: those of policies.files, which can be read here, and those that are listed. A JSON list.
*/}}
{{- define "neuron-dra.claimTemplates" -}}
{{- $names := .Values.policies.claimTemplates | default list -}}
{{- range include "neuron-dra.policyDocuments" . | fromJsonArray -}}
{{- if eq (toString .kind) "ClaimTemplate" -}}
{{- $names = append $names (toString (dig "spec" "template" "metadata" "name" "" .)) -}}
{{- end -}}
{{- end -}}
{{- $known := list -}}
{{- range $names -}}
{{- if regexMatch "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$" . -}}
{{- $known = append $known . -}}
{{- end -}}
{{- end -}}
{{- $known | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* A new pod that asks for a template of a ClaimTemplate: by the annotation, or by a claim. */}}
{{- define "neuron-dra.celNamesTemplate" -}}
{{- with include "neuron-dra.claimTemplates" . | fromJsonArray }}
|| 'neuron.aws.com/template' in object.metadata.?annotations.orValue({})
|| object.?spec.?resourceClaims.orValue([]).exists(c, c.?resourceClaimTemplateName.orValue('') in ['{{ join "', '" . }}'])
{{- end }}
{{- end }}

{{/* The pod templates of a LeaderWorkerSet, as a CEL list. */}}
{{- define "neuron-dra.celGroups" -}}
[object.?spec.?leaderWorkerTemplate.?leaderTemplate.orValue({}),
  object.?spec.?leaderWorkerTemplate.?workerTemplate.orValue({})]
{{- end }}

{{/* "true" if all pods with claims, and all workloads, are sent. */}}
{{- define "neuron-dra.everyWorkload" -}}
{{- $scope := .Values.admission.workloads.scope -}}
{{- if or (eq $scope "All") (and (eq $scope "Auto") (include "neuron-dra.policies" .)) -}}
true
{{- end -}}
{{- end }}

{{/*
"true" if pods have a separate entry with failurePolicy Fail: policies that deny pods hold also while the webhook does not answer. Workloads
keep Ignore, because all of them are sent and must not depend on the webhook.
*/}}
{{- define "neuron-dra.podsApart" -}}
{{- if and (eq .Values.admission.workloads.failurePolicy "Auto") (include "neuron-dra.policiesDeny" .) -}}
true
{{- end -}}
{{- end }}

{{/*
"true" if a policy can deny: one with Deny, a locked ConversionPolicy, or one that cannot be read here (a ConfigMap, a list of
objects). Policies that only audit or warn are no reason for pods to depend on the webhook.
*/}}
{{- define "neuron-dra.policiesDeny" -}}
{{- $denies := not (empty .Values.policies.existingConfigMap) -}}
{{- range include "neuron-dra.policyDocuments" . | fromJsonArray -}}
{{- $kind := toString .kind -}}
{{- $spec := .spec | default dict -}}
{{- if has $kind (list "ValidatingPolicy" "ValidatingAdmissionPolicyBinding") -}}
{{- $denies = or $denies (has "Deny" ($spec.validationActions | default (list "Deny"))) -}}
{{- else if eq $kind "ConversionPolicy" -}}
{{- $denies = or $denies (eq (toString $spec.locked) "true") -}}
{{- else -}}
{{- $denies = or $denies (not (has $kind (list "ValidatingAdmissionPolicy" "MutatingAdmissionPolicy" "MutatingAdmissionPolicyBinding" "MutatingPolicyTest" "SchedulingHintPolicy" "ClaimTemplate" "InstanceTypeCatalog"))) -}}
{{- end -}}
{{- end -}}
{{- if $denies -}}
true
{{- end -}}
{{- end }}

{{/* matchConditions of the entries about pods and workloads. */}}
{{- define "neuron-dra.podConditions" -}}
# Objects of a controller, such as the ReplicaSets of a Deployment: their owner was reviewed, and no user sees their
# warnings.
- name: not-controlled
  expression: >-
    request.kind.kind == 'Pod'
    || !object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false))
# Controllers change finalizers of workloads without the webhook.
- name: changed
  expression: >-
    {{- include "neuron-dra.celChanged" . | nindent 4 }}
{{- if include "neuron-dra.everyWorkload" . }}
# All pods with claims, because a policy may match them; pods that request an extended resource of Neuron; converted pods.
- name: claims
  expression: >-
    request.kind.kind != 'Pod'
    || object.spec.?resourceClaims.orValue([]).size() > 0
    || 'neuron.aws.com/converted' in object.metadata.?labels.orValue({})
    || {{ include "neuron-dra.celExtended" (dict "root" . "pod" "object") | nindent 4 | trim }}
    {{- include "neuron-dra.celPodConditions" . | nindent 4 }}
{{- else }}
# Pods with claims that name Neuron, pods that request an extended resource of Neuron, converted pods, and workloads with such
# pods. Objects of other groups (JobSet, Kubeflow, Argo, Knative and others) are all sent.
- name: claims
  expression: >-
    !(request.kind.group in ['', 'apps', 'batch', 'leaderworkerset.x-k8s.io'])
    || [request.kind.kind == 'Pod' ? object : {}, object.?template.orValue({}),
      object.?spec.?template.orValue({}), object.?spec.?jobTemplate.?spec.?template.orValue({}),
      object.?spec.?leaderWorkerTemplate.?leaderTemplate.orValue({}),
      object.?spec.?leaderWorkerTemplate.?workerTemplate.orValue({})].exists(pod, pod != null && (
        {{- include "neuron-dra.celMarked" "pod" | nindent 8 }}
        || {{ include "neuron-dra.celExtended" (dict "root" . "pod" "pod") | nindent 8 | trim }}
        || {{ include "neuron-dra.celSpeaks" "pod" | nindent 8 | trim }}))
    {{- include "neuron-dra.celPodConditions" . | nindent 4 }}
{{- end }}
{{- end }}

{{/* Further pods, of validation.podConditions. */}}
{{- define "neuron-dra.celPodConditions" -}}
{{- range .Values.validation.podConditions }}
|| (request.kind.kind == 'Pod' && ({{ regexReplaceAll "\\s+" . " " }}))
{{- end }}
{{- end }}
