{{/*
Written by deploy/kinds.py from conversion/objects/kinds.py. Do not edit.
*/}}

{{/* Rules of the workloads whose pods are checked when the workload is applied. */}}
{{- define "neuron-dra.workloadRules" -}}
- apiGroups: [""]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [podtemplates, replicationcontrollers]
  scope: Namespaced
- apiGroups: ["apps"]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [deployments, statefulsets, daemonsets, replicasets]
  scope: Namespaced
- apiGroups: ["batch"]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [jobs, cronjobs]
  scope: Namespaced
- apiGroups: ["jobset.x-k8s.io"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [jobsets]
  scope: Namespaced
- apiGroups: ["leaderworkerset.x-k8s.io"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [leaderworkersets]
  scope: Namespaced
- apiGroups: ["kubeflow.org"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [mpijobs, pytorchjobs, tfjobs, xgboostjobs, paddlejobs, jaxjobs, notebooks]
  scope: Namespaced
- apiGroups: ["trainer.kubeflow.org"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [trainingruntimes, clustertrainingruntimes, trainjobs]
- apiGroups: ["ray.io"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [rayclusters, rayjobs, rayservices]
  scope: Namespaced
- apiGroups: ["batch.volcano.sh"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [jobs]
  scope: Namespaced
- apiGroups: ["argoproj.io"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [rollouts, workflows, workflowtemplates, clusterworkflowtemplates, cronworkflows]
- apiGroups: ["sagemaker.amazonaws.com"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [hyperpodpytorchjobs]
  scope: Namespaced
- apiGroups: ["sparkoperator.k8s.io"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [sparkapplications, scheduledsparkapplications]
  scope: Namespaced
- apiGroups: ["serving.knative.dev"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [services, configurations, revisions]
  scope: Namespaced
- apiGroups: ["serving.kserve.io"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [inferenceservices, servingruntimes, clusterservingruntimes]
- apiGroups: ["scheduling.k8s.io"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [podgroups, workloads]
  scope: Namespaced
- apiGroups: ["neuron.aws.com"]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [neuronultraserverworkloads, neuronultraservers]
  scope: Namespaced
{{- end }}

{{/* Their resources, separated by commas. */}}
{{- define "neuron-dra.workloadResources" -}}
podtemplates,replicationcontrollers,deployments,statefulsets,daemonsets,replicasets,jobs,cronjobs,jobsets,leaderworkersets,mpijobs,pytorchjobs,tfjobs,xgboostjobs,paddlejobs,jaxjobs,notebooks,trainingruntimes,clustertrainingruntimes,rayclusters,rayjobs,rayservices,rollouts,hyperpodpytorchjobs,workflows,workflowtemplates,clusterworkflowtemplates,cronworkflows,sparkapplications,scheduledsparkapplications,services,configurations,revisions,inferenceservices,servingruntimes,clusterservingruntimes,trainjobs,podgroups,workloads,neuronultraserverworkloads,neuronultraservers
{{- end }}
