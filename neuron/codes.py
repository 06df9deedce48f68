"""Every finding's code, with the texts of docs/errors.md, which `make reference` writes.

The meaning of a code does not change; the wording may.
"""

from typing import Final, NamedTuple


class FindingCode(NamedTuple):
    """One kind of finding.

    Attributes:
        title: the problem, as a sentence without its full stop.
        why: what the title and the message do not say: the reason, the limits.
        message: an example, as it is printed after the code.
        fix: what to do if the message does not say all of it; empty if it does.
    """

    title: str
    why: str
    message: str
    fix: str = ""


CODES: Final = {
    # 1xx: requests of a pod
    "NEU101": FindingCode(
        "A Neuron resource quantity is not a whole number of devices or cores",
        "Devices and cores are counted: Kubernetes refuses fractions and negative numbers of extended resources.",
        "container main asks for aws.amazon.com/neuron: '1.5', which is not a whole number. Use a whole number such "
        "as 4.",
    ),
    "NEU102": FindingCode(
        "A Neuron resource is requested without a limit",
        "Kubernetes does not overcommit extended resources: only the limit counts.",
        "container main requests aws.amazon.com/neuron: 4 without a limit. Put aws.amazon.com/neuron under limits; "
        "Kubernetes does not overcommit extended resources.",
    ),
    "NEU103": FindingCode(
        "A Neuron resource request differs from its limit",
        "Kubernetes wants both equal. Conversion removes both names, so no other component would notice.",
        "container main requests aws.amazon.com/neuron: 2 but its limit is 4. Make them equal, or leave the request "
        "out.",
    ),
    "NEU104": FindingCode(
        "One container asks for devices and cores that differ",
        "Its names stand for the same hardware. Names that mean the same devices, such as 16 devices and 32 cores of "
        "trn1.32xlarge, are one request; the cores may be those at any logical NeuronCore of the type.",
        "container main asks for aws.amazon.com/neuron: 4 and aws.amazon.com/neuroncore: 7, which name different "
        "amounts of the same hardware on trn1.32xlarge. Keep one of them.",
    ),
    "NEU105": FindingCode(
        "No candidate instance type serves this number of devices",
        "On Trainium only some numbers of devices are connected with each other. The first sentence is that of the "
        "Neuron scheduler extension.",
        "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number of "
        "devices. Nearest valid counts: 4 or 8. Instance types that serve 7: inf2.48xlarge, inf1.24xlarge.",
        "Ask for a count that the message names, or select another instance type with the annotation "
        "`neuron.aws.com/instance-type`.",
    ),
    "NEU106": FindingCode(
        "No candidate instance type has this many devices or cores",
        "A pod runs on one node, and its claim is allocated there. Containers that request parts of devices use them "
        "together.",
        "the pod's containers need 32 Neuron devices in all, and trn1.32xlarge has 16. Spread the containers over "
        "several pods, or request fewer devices.",
        "Ask for fewer, use several pods, or select a larger instance type. A type has more cores with a smaller "
        "logical NeuronCore, which the annotation `neuron.aws.com/logical-neuron-core` or the variable "
        "`NEURON_LOGICAL_NC_CONFIG` of a container sets.",
    ),
    "NEU108": FindingCode(
        "The pod asks for more than one ResourceClaim can hold",
        "A claim has at most 32 requests, 32 devices, 32 constraints, and 8 alternatives per request "
        "(`resource.k8s.io/v1`).",
        "33 containers ask for Neuron devices, and a ResourceClaim holds at most 32 requests. Spread the containers "
        "over several pods.",
        "Use several pods, or select an instance type.",
    ),
    "NEU109": FindingCode(
        "An annotation has a value that is not allowed",
        "A wrong value is refused, because ignoring it would change what is allocated.",
        "annotation neuron.aws.com/logical-neuron-core is '3'. Allowed: 1, 2.",
    ),
    "NEU110": FindingCode(
        "Node selection excludes every instance type that could serve the pod",
        "Node selector, required node affinity and annotation leave no type, so the pod would stay Pending. The "
        "message names the first that excludes everything.",
        "nodeSelector node.kubernetes.io/instance-type=m5.large admits no Neuron instance type. Select a Neuron "
        "instance type, or drop the selector.",
    ),
    "NEU111": FindingCode(
        "The logical NeuronCore setting does not exist on the candidate instance types",
        "Only trn2 and trn3 have a choice. The value comes from the annotation `neuron.aws.com/logical-neuron-core`, "
        "or from a ConversionPolicy.",
        "Instance type trn1.32xlarge does not support logical NeuronCore 2 (allowed: 1). Change the annotation, or "
        "select a trn2 or trn3 instance type.",
    ),
    "NEU112": FindingCode(
        "An UltraServer needs the whole node",
        "The nodes of an UltraServer work together as a whole.",
        "ultraserver-mode 4 needs the whole node: one container with 16 devices, not 8. Request "
        "aws.amazon.com/neuron: 16 in one container, or drop the annotation.",
    ),
    "NEU113": FindingCode(
        "The names for the pod's Neuron claim are taken",
        "Conversion needs one of the two names for its own claim.",
        "the claim names neuron and neuron-dra are both taken. Rename one of the pod's own claims.",
    ),
    "NEU114": FindingCode(
        "The object is not a readable Pod",
        "A field has a type that its kind does not have, or the object nests deeper than 100 levels or holds more "
        "than 100000 lists and objects or 250000 values. Of pods to convert also: two containers have one name, "
        "there are more than 512, `affinity`, `nodeSelector`, `tolerations` or `resourceClaims` has more than 64 KiB "
        "or 1024 objects, required node affinity has more than 64 terms, or the patch would have more than 44 KiB. A "
        "review larger than `--max-body-bytes` has this code too.",
        "the object is not a readable Pod: Expected `array | null`, got `int` - at `$.spec.containers`. Compare it "
        "with the API reference of its kind.",
    ),
    "NEU115": FindingCode(
        "The Neuron devices of a converted pod cannot change",
        "The claim of a running pod is immutable.",
        "container main now asks for aws.amazon.com/neuron: 8, but the pod was converted with aws.amazon.com/neuron: "
        "4, which cannot change. Delete the pod and create it again.",
    ),
    "NEU118": FindingCode(
        "The UltraServer nodes publish another kind of device than the pod needs",
        "Without shared counters (feature gate DRAPartitionableDevices, off by default in Kubernetes 1.34 and 1.35), "
        "a node publishes either the whole node or its single devices, and the pod would stay Pending.",
        "No node of type trn2u.48xlarge publishes the whole node, which ultraserver-mode 4 needs: they publish their "
        "devices one by one. Set the label neuron.aws.com/ultraserver-publish=node on the nodes, or enable the "
        "feature gate DRAPartitionableDevices.",
        "Set the nodes' label `neuron.aws.com/ultraserver-publish` to `node` or `devices`, or enable the feature gate.",
    ),
    "NEU120": FindingCode(
        "A policy names a ResourceClaimTemplate that does not exist",
        "A pod can only use templates of its own namespace, and the webhook does not create templates of operators.",
        "ResourceClaimTemplate xl-trn2, which policy 'team-a' names for 16 devices, does not exist in namespace "
        "team-a. Create it in namespace team-a, or ask the cluster's admins.",
        "Create the template, or let the policy carry it (`template` instead of `name`).",
    ),
    "NEU121": FindingCode(
        "A ResourceClaimTemplate that a policy names does not serve the pod",
        "It differs in devices or cores, DeviceClass, logical NeuronCore, UltraServer mode, or in what keeps the "
        "devices connected. The message has the difference.",
        "ResourceClaimTemplate team-a/xl-trn2, which policy 'team-a' names for 16 devices, does not serve this pod: "
        "it gives 8 devices on trn2.48xlarge, where the pod needs 16 devices. Ask the cluster's admins to change the "
        "template or the policy.",
        "Create a template under a new name (templates cannot change), or change the policy's `demand`, `families`, "
        "`deviceClass` or `logicalNeuronCore`.",
    ),
    "NEU122": FindingCode(
        "Another ResourceClaimTemplate has the name of one that a policy carries",
        "The spec of a template cannot change. After a change in the policy, the template that was created before "
        "stays.",
        "ResourceClaimTemplate team-a/four exists with another spec than policy 'team-a' gives it, and templates "
        "cannot change. Give the template a new name in the policy, or delete the existing one if no pod uses it.",
        "Give the template a new name in the policy whenever its spec changes.",
    ),
    "NEU123": FindingCode(
        "A claim can get devices that a locked policy does not allow",
        "A locked ConversionPolicy with `bindsClaims: true` also binds claims that users write. This claim can get "
        "devices of other families, or is not known.",
        "request 'devices' of 'mine' can get devices of trn1.32xlarge, and policy 'research' allows only trn2. "
        "Select an instance type in the claim or in the pod, or ask the cluster's admins.",
        "Select an instance type of the families in the claim (`instanceType`) or the pod "
        "(`node.kubernetes.io/instance-type`). Create claims and templates before their pods.",
    ),
    "NEU124": FindingCode(
        "A claim sets another logical NeuronCore than a locked policy",
        "The policy has `bindsClaims: true` and `logicalNeuronCore`, and the user's claim has another value or none.",
        "request 'devices' of 'mine' sets no logical NeuronCore, and policy 'research' is locked to 1. Add a "
        "NeuronConfig with logicalNeuronCore: 1 to the claim.",
    ),
    "NEU125": FindingCode(
        "EFA interfaces do not fit into the claim of the Neuron devices",
        "The device group has fewer interfaces (trn1.32xlarge has 8: two devices share one), the devices are no "
        "whole group, the type publishes no groups, an UltraServer mode is set, the number is not valid, or not "
        "exactly one container has both limits. Or a converted pod is created again, and no policy requests its "
        "interfaces any more.",
        "container main asks for vpc.amazonaws.com/efa: 16 with 16 devices, and a group of 16 devices of "
        "trn1.32xlarge has 8 EFA interfaces. Request at most 8.",
        "Request the number in the message, or another instance type. To keep the limit, exclude the pod from the "
        "policy.",
    ),
    "NEU126": FindingCode(
        "A container cannot have the logical NeuronCore that it sets or gets",
        "Containers of a pod may set different ones, but a container has one: `NEURON_LOGICAL_NC_CONFIG` and its older "
        "name have different values. Or a container without the variable gets its logical NeuronCore by a setting (of "
        "the Namespace, a policy or the nodes), and uses devices together with a container whose variable sets another "
        "one: the driver sets one for all containers of a request.",
        "container a sets NEURON_LOGICAL_NC_CONFIG to 1 and NEURON_RT_VIRTUAL_CORE_SIZE to 2: a container has one "
        "logical NeuronCore. Remove NEURON_RT_VIRTUAL_CORE_SIZE, or set the annotation "
        "neuron.aws.com/logical-neuron-core.",
    ),
    "NEU128": FindingCode(
        "A pod with nodeName has a claim that nothing allocates",
        "The scheduler allocates the claims that are made from a template, and `nodeName` bypasses it: the pod waits "
        "for ever, without an event. `kubectl debug --copy-to --same-node` makes such a copy.",
        "nodeName is 'node-a', so that no scheduler allocates claim 'neuron', which is made from template "
        "neuron-4-fdc84041cb55: the pod would wait for ever. Leave --same-node out, or debug the pod itself: kubectl "
        "debug POD --image=IMAGE --target=CONTAINER. In a manifest, write a nodeSelector instead of nodeName.",
    ),
    "NEU129": FindingCode(
        "A Neuron resource stands where Kubernetes reads none",
        "Amounts for the pod as a whole (`spec.resources`) have only CPU, memory and huge pages. kubectl refuses "
        "fields that do not exist, such as `limits` beside `resources`, or `resource` for `resources`; other clients "
        "lose them.",
        "the pod as a whole asks for aws.amazon.com/neuron: Kubernetes takes only CPU and memory there. The API server "
        "refuses the pod. Put it under resources.limits of the container.",
    ),
    # 2xx: warnings of conversion
    "NEU201": FindingCode(
        "A pod with nodeName is not converted",
        "The scheduler allocates claims, and such a pod bypasses it. A locked ConversionPolicy that converts denies "
        "it; so it does a pod with the annotation `kubernetes.io/config.mirror` that no kubelet creates.",
        "nodeName is 'node-1': the pod is not converted, because no scheduler would allocate its claim. Use a "
        "nodeSelector.",
        "Use a nodeSelector, and drop the annotation.",
    ),
    "NEU202": FindingCode(
        "More cores are allocated than were asked for",
        "Cores were rounded up: to whole devices, or where devices are shared to 1, 2, 4 or more cores of "
        "a device. `NEURON_RT_NUM_CORES` keeps the container to the cores that it asked for.",
        "main asked for 9 cores and gets 5 devices on trn1.32xlarge (10 cores): 1 unused.",
        "Ask for devices, or for cores that fill them. On Kubernetes 1.36 and newer, let the driver share cores.",
    ),
    "NEU203": FindingCode(
        "A custom scheduler may not know DRA",
        "The scheduler is neither the default nor the Neuron scheduler extension. Without DRA it leaves the pod "
        "Pending.",
        "scheduler 'my-own' must support Dynamic Resource Allocation to place this pod.",
        "Make sure that it supports DRA, or drop `schedulerName`. Volcano gets NEU232 instead. For `kai-scheduler` the "
        "message names the releases that cannot allocate from slices with shared counters.",
    ),
    "NEU204": FindingCode(
        "A legacy ResourceQuota does not count the converted pod",
        "The converted pod has no such resource any more. A DeviceClass with that `extendedResourceName` is counted, "
        "and not reported, nor is a quota that also has the line of the fix. A quota with scopes never counts claims.",
        "ResourceQuota neurons no longer counts this pod. Use neuron.aws.com.deviceclass.resource.k8s.io/devices in "
        "its spec.hard.",
    ),
    "NEU205": FindingCode(
        "A LimitRange refuses the converted pod",
        "A `min`, `max` or `maxLimitRequestRatio` for a Neuron resource refuses every pod that does not have it, and "
        "so every converted one. Without this error the API server would say only that the pod has no limit.",
        "LimitRange neurons has a min, max or ratio for a Neuron resource, which refuses this pod. Drop it; bound "
        "Neuron devices by quota neuron.aws.com.deviceclass.resource.k8s.io/devices.",
    ),
    "NEU206": FindingCode(
        "The pod also claims Neuron devices itself",
        "Both are allocated: the pod gets the sum.",
        "claim devices already requests neuron.aws.com devices; the limits add more of them.",
        "Keep one of the two.",
    ),
    "NEU207": FindingCode(
        "A dry run created no ResourceClaimTemplate",
        "A dry run must not change anything. The template is made when the pod is.",
        "dry run: ResourceClaimTemplate neuron-4-0123456789ab was not created.",
        "Nothing.",
    ),
    "NEU208": FindingCode(
        "Shadow mode: nothing was changed",
        "The message says what conversion would do.",
        "shadow mode: this pod would be converted, with template neuron-4-0123456789ab.",
        "Set the mode to `convert` when it would deny no pod that you need.",
    ),
    "NEU209": FindingCode(
        "One container refers to the claim more than once",
        "`neuron-dra convert` says this: `kubectl apply --server-side` refuses two entries of one claim in one "
        "container. An init container that uses devices of several containers needs them; so do large requests up to "
        "Kubernetes 1.35, which are divided.",
        "the container refers to claim neuron 2 times, which kubectl apply --server-side refuses. Apply it "
        "client-side.",
        "Apply client-side. For Kubernetes 1.36 or later, `convert --kubernetes-version 1.36` divides no request.",
    ),
    "NEU210": FindingCode(
        "The pod was admitted unchanged because its ResourceClaimTemplate could not be made",
        "`onTemplateFailure: admit` prefers a Pending pod to a denied one. A locked ConversionPolicy denies it.",
        "admitted unchanged: ResourceClaimTemplate team-a/neuron-4-0123456789ab could not be created: the API server "
        "did not answer within 2 s.",
        "Correct what the message names, then delete the pod; its controller makes it again.",
    ),
    "NEU211": FindingCode(
        "The record of a conversion is not readable",
        "Without the record, a later change cannot be told from a repetition.",
        "annotation neuron.aws.com/converted-from is not readable: the pod is not taken for a converted one. Remove "
        "it and the label neuron.aws.com/converted; conversion writes them itself.",
    ),
    "NEU212": FindingCode(
        "The exclusive topology of a LeaderWorkerSet does not fit its UltraServer mode",
        "Its groups would be spread over nodes that do not form an UltraServer.",
        "exclusive-topology is 'topology.kubernetes.io/zone', and the pods ask for UltraServers of 4 nodes. Use "
        "neuron.amazonaws.com/ultraserver-server-id-4.",
    ),
    "NEU213": FindingCode(
        "Instance types that need other requests are left out",
        "Their init containers would share devices in another way, and the alternatives of one claim must give every "
        "container the same requests.",
        "inf2.48xlarge would distribute the devices differently and cannot share a claim with the other types. To "
        "run there, set the annotation neuron.aws.com/instance-type.",
    ),
    "NEU214": FindingCode(
        "A locked policy overrules an annotation",
        "A policy with `locked: true` comes before annotations of the pod and its Namespace.",
        "policy 'team-a' is locked to mode convert: the pod's annotation neuron.aws.com/convert (off) does not "
        "count. Drop the annotation, or ask the cluster's admins.",
    ),
    "NEU215": FindingCode(
        "Devices of one container need not be connected",
        "A ConversionPolicy has `unconnected: Allow`. The scheduler takes any devices; those that are not neighbours "
        "exchange data more slowly.",
        "main gets 7 devices that need not be connected with each other on trn1.32xlarge: policy allows it. "
        "Connected counts: 1, 4, 8, 16.",
        "Ask for a connected count if the work spans the devices.",
    ),
    "NEU216": FindingCode(
        "Nothing says which instance types there are",
        "Neither the pod, a policy, ResourceSlices, Nodes nor the setting `families` names types. The claim fits "
        "every released type that can serve it; no node affinity is added, as a wrong guess could keep the pod off "
        "its nodes.",
        "neither the pod, a policy, ResourceSlices nor Nodes say which Neuron instance types there are: the claim "
        "fits all types that can serve the pod, and no node affinity to instance types is added. Name the families "
        "with --families or in a ConversionPolicy, or set the annotation neuron.aws.com/instance-type or the label "
        "node.kubernetes.io/instance-type in the pod.",
    ),
    "NEU217": FindingCode(
        "A value of the node selection is taken as a hint to families",
        "A selector has a value such as `inferentia-inf2` under a key of your own, and nothing else decides the "
        "family. The value is no proof, so no node affinity is added. Or it contradicts the families of a "
        "ConversionPolicy, which stay.",
        "nodeSelector instanceType=inferentia-inf2 is taken as a hint to inf2: the claim is made for inf2, and no "
        "node affinity to instance types is added. Name the families with --families or in a ConversionPolicy, or set "
        "the annotation neuron.aws.com/instance-type or the label node.kubernetes.io/instance-type in the pod.",
    ),
    "NEU218": FindingCode(
        "An instance type, or a figure of it, is not known",
        "The name begins like a Neuron type and is not in the catalogue, or nothing says how many devices or "
        "cores the type has, which groups its nodes publish, or in which UltraServers it is (`neuron-dra "
        "types`). The pod keeps its limits; only a locked ConversionPolicy denies it. If it names other types"
        " too, the claim is made for those.",
        "trn9.48xlarge is not in the catalogue of instance types: the pod is left as it is. Correct the name,"
        " or add {name: trn9.48xlarge, devices: <number>, coresPerDevice: <number>} to the types of an "
        "InstanceTypeCatalog (docs/policies.md).",
        "Correct the name, or add the type to an [InstanceTypeCatalog](policies.md). When a node of the type "
        "publishes ResourceSlices, its devices are known.",
    ),
    "NEU219": FindingCode(
        "Some runs of consecutive devices are not tried",
        "A request has at most 8 alternatives, and fewer if the scheduler would search too long. So the claim cannot "
        "name every run of an Inferentia node, or every group. It is said for each type that the pod may run on.",
        "2 of the 12 runs of 5 devices on inf2.48xlarge are not tried, from device 10 or 11: the pod waits if no "
        "other run is free. All are tried with the annotation neuron.aws.com/instance-type: inf2.48xlarge. "
        "`neuron-dra explain` shows which devices are free.",
        "Nothing while another run is free. The message names the instance type with which all are tried.",
    ),
    "NEU220": FindingCode(
        "An object with Neuron limits was left as it is",
        "Its kind has no field for claims (Spark, Knative Service, KServe InferenceService, TrainJob), or is "
        "not known. `validate` reports a note; `convert --strict` exits with 1.",
        "the Service is left as it is: Knative accepts no claims in it. The webhook converts its pods when they are "
        "created.",
        "None where the webhook runs: it converts the pods.",
    ),
    "NEU221": FindingCode(
        "The name of a resource looks like a Neuron resource and is none",
        "No node offers the misspelt resource. The API server denies a name without a domain. An "
        "`extendedResourceName` of a DeviceClass is not reported.",
        "container main asks for 'aws.amazon.com/neurons', which no Neuron device plugin offers. Did you mean "
        "'aws.amazon.com/neuron'? Correct the name: the pod would stay Pending, without devices.",
    ),
    "NEU222": FindingCode(
        "A key looks like one that is read, and is none",
        "A label or annotation below `neuron.aws.com/` or `neuron.amazonaws.com/` of a pod, template or Namespace is "
        "close to one of ours, such as the opt-out written as a label, or a setting stands on a Deployment instead of "
        "its pod template, or a container has a field such as `resources.limit`. It is ignored: the pod gets the "
        "default.",
        "annotation 'neuron.aws.com/logical-neuroncore' is not read. Did you mean "
        "neuron.aws.com/logical-neuron-core? Correct the key, or remove it.",
    ),
    "NEU225": FindingCode(
        "The logical NeuronCore that a container sets is not known",
        "`NEURON_LOGICAL_NC_CONFIG` or `NEURON_RT_VIRTUAL_CORE_SIZE` has its value from a ConfigMap, Secret or field, "
        "or a value that the runtime does not know. If it is not known, or `envFrom` may set it, and the pod requests "
        "more cores than the type has by default, but not more than it has with another value, the pod is left as it "
        "is.",
        "container main takes NEURON_LOGICAL_NC_CONFIG from elsewhere: its value is not known here, and cores are "
        "counted with the default of the instance type. Write the value, or set the annotation "
        "neuron.aws.com/logical-neuron-core.",
    ),
    "NEU226": FindingCode(
        "A container's logical NeuronCore differs from that of its claim",
        "The annotation of the pod, or a locked policy, precedes the variable. The driver replaces the variable in the "
        "container. Or the container asks for devices and cores together, and so many cores are those of these devices "
        "at another logical NeuronCore. Or it sets none, and gets that of the other containers, which is not the "
        "default of the nodes.",
        "container main sets NEURON_LOGICAL_NC_CONFIG to 1, and the claim has logical NeuronCore 2: the driver sets "
        "NEURON_LOGICAL_NC_CONFIG=2 in the container. Make the variable and the setting "
        "(neuron.aws.com/logical-neuron-core, or the policy's) agree.",
    ),
    "NEU227": FindingCode(
        "The runtime's collectives do not serve this number of cores",
        "On Trn1 they serve 1, 2, 8, 16 cores, or a multiple of 32 (huggingface/optimum-neuron#619), and end a model "
        'that uses collectives on other counts with "Unsupported topology". Models without collectives run on any.',
        "main asks for 9 cores, and the runtime's collectives on trn1.32xlarge serve 1, 2, 8, 16 or a multiple of 32. "
        "Models without collectives run. Otherwise request 8 or 16.",
    ),
    "NEU228": FindingCode(
        "No node and no pool meets the node selection",
        "Neuron nodes or pools are known, and none of them has the labels that the pod selects: neither a Node that "
        "exists without a pool, nor a NodePool, nor a node group that Cluster Autoscaler's annotations describe. The "
        "pod waits with limits as with a claim. A node group without nodes whose labels are in no object is not known. "
        "Or those that have the labels cannot take the pod: their types have fewer devices, or the pod does not "
        "tolerate a taint of the pool.",
        "no Neuron node and no pool that is known meets nodeSelector workload=rayhead: the pod waits until one does. "
        "Correct the node selection, or add the label to a node group or to the template of a NodePool.",
        "Correct the node selection, or add the label to a node group or to the template of a NodePool.",
    ),
    "NEU229": FindingCode(
        "The converted object needs a newer version of its controller",
        "A warning of `neuron-dra convert`: an older version has no field for claims in this kind, and its pods would "
        "start without devices.",
        "the claims of the converted Workflow need Argo Workflows newer than 4.0. With an older version, apply the "
        "object as it was: the webhook converts its pods.",
        "Use that version, or leave the object as it is where the webhook runs: it converts the pods.",
    ),
    "NEU230": FindingCode(
        "A ResourceClaimTemplate that a policy names was not checked",
        "Its content is not known here: it is not among the files, or the server runs without a cluster. It is "
        "checked when the pod is created.",
        "ResourceClaimTemplate xl-trn2, which policy 'team-a' names for 16 devices, was not checked: it is not among "
        "the files. Pods wait until it exists in namespace team-a.",
        "Add the template's file, or `--kubeconfig` to `validate`.",
    ),
    "NEU231": FindingCode(
        "EFA interfaces stay a limit because their DeviceClass does not exist",
        "A claim for a missing DeviceClass would stay pending. The Neuron devices are converted.",
        "policy 'fabric' requests vpc.amazonaws.com/efa from DeviceClass efa.networking.k8s.aws, which does not "
        "exist in this cluster: the limit stays, and the interfaces need not be near the Neuron devices. Install the "
        "DRA network driver, or name its DeviceClass in spec.efa.deviceClass of the policy.",
    ),
    "NEU232": FindingCode(
        "A queue or a limit does not count converted pods",
        "The pod is in a queue of Kueue (label `kueue.x-k8s.io/queue-name`), or Volcano or YuniKorn schedules it. A "
        "queue that is not set up for claims counts no devices, so more pods start than the quota allows; Kueue with "
        "DRA and without the mapping admits none, and it admits no claim with alternatives (`firstAvailable`). In "
        "files also: a ClusterQueue, Volcano Queue or Karpenter NodePool that names a Neuron resource. The webhook "
        "says it once per process and namespace (up to 4096), and once for alternatives. Kueue counts Jobs, JobSets, "
        "Kubeflow and Ray jobs, StatefulSets and LeaderWorkerSets by their template, which admission does not change, "
        "if the label is in `metadata` of the workload: only `neuron-dra convert` tells those. If only the pod template"
        " has the label, it counts each pod.",
        "Kueue counts aws.amazon.com/neuron in queue 'training', and does not count the claims of converted pods "
        "unless it is set up for them. Kueue's Configuration needs {name: aws.amazon.com/neuron, deviceClassNames: "
        "[neuron.aws.com]} in resources.deviceClassMappings. This is said once for namespace team-a.",
        "[Set up the queue](migrate.md#queues-and-schedulers-that-count), or keep the pods on the device plugin by "
        "`queued` of a [ConversionPolicy](policies.md#pods-in-queues). With `queued.mode: convert`, and "
        "in `report` of a cluster whose Kueue maps the DeviceClass, it is about alternatives only.",
    ),
    "NEU233": FindingCode(
        "A VerticalPodAutoscaler resizes pods with claims in place",
        "A warning at admission of pods and workloads and of the commands, for `updateMode` InPlaceOrRecreate and "
        "InPlace of an autoscaler of the namespace, or among the files. Kubernetes 1.36 refuses every in-place "
        'resize of a pod with a claim, also of CPU ("only cpu and memory resources are mutable", kubernetes#138641): '
        "the autoscaler evicts the pod instead, or its size never changes.",
        "VerticalPodAutoscaler train resizes pods of Deployment train in place, which Kubernetes refuses for pods with "
        "a claim: they are evicted instead, or keep their size. Set updateMode to Initial, Recreate or Off.",
    ),
    "NEU234": FindingCode(
        "A Neuron device of the host is mounted beside a claim",
        "A `hostPath` volume `/dev/neuron*`, or `/dev`, gives a privileged container a device that the claim does not "
        "hold, and that another pod may use. The policy `host-devices` can deny it.",
        "volume 0 is the host's /dev/neuron0, beside a claim: another pod may hold this device. Remove the volume: the "
        "driver gives the container the devices of its claim.",
    ),
    "NEU235": FindingCode(
        "A container sets another logical NeuronCore than its claim",
        "The driver sets `NEURON_LOGICAL_NC_CONFIG` by the config of the claim, and the container's own value is lost.",
        "container main sets NEURON_LOGICAL_NC_CONFIG to 1, and claim 'devices' sets logicalNeuronCore 2: the driver "
        "replaces the variable. Write the same value in both, or remove the variable.",
    ),
    "NEU240": FindingCode(
        "Shadow mode: a claim was not enriched",
        "In mode `shadow`, a claim or template with DeviceClass and count only, which is to be enriched, is "
        "stored as it is (warning). Shadow mode changes nothing.",
        "shadow mode: this ResourceClaimTemplate would be enriched: gpus: 4 devices (selectors, constraints).",
        "Nothing, or set the mode `convert`.",
    ),
    "NEU241": FindingCode(
        "A claim with class and count stays as it is",
        "A claim or template is to be enriched, and conversion would refuse a pod with limits of this count "
        "(warning). No candidate instance type has connected devices of this number, or no type is allowed. "
        "The claim is never refused for that; other checks may.",
        "this ResourceClaimTemplate stays as it is: Instance type trn1.32xlarge does not support requests for"
        " device: 7. Please request a different number of devices. Nearest valid counts: 4 or 8.",
        "Change the count, or the families and instance types that the policy or the annotation allows.",
    ),
    # 3xx: ResourceClaimTemplates
    "NEU301": FindingCode(
        "The API server refused to create the ResourceClaimTemplate",
        "A converted pod is admitted only after its template exists. The message has the API server's reason: "
        "permissions, a quota on templates, or another webhook; or a template that is marked for pruning could not "
        "be kept.",
        "ResourceClaimTemplate team-a/neuron-4-0123456789ab could not be created: the webhook runs as "
        '"system:serviceaccount:neuron-dra:neuron-dra", which is not allowed to create '
        'resourceclaimtemplates.resource.k8s.io in namespace "team-a". An administrator has to add this rule to its '
        "ClusterRole: - {apiGroups: [resource.k8s.io], resources: [resourceclaimtemplates], verbs: [create]}",
    ),
    "NEU302": FindingCode(
        "The API server cannot be reached",
        "The pod's controller tries again.",
        "ResourceClaimTemplate team-a/neuron-4-0123456789ab could not be created: the API server did not answer "
        "within 2 s. Try again. If the error lasts, check the API server and the network between it and the webhook.",
    ),
    "NEU303": FindingCode(
        "A foreign ResourceClaimTemplate has the name of ours",
        "Generated names are made from the content, so another client made it. Using it would allocate the wrong "
        "devices.",
        "ResourceClaimTemplate team-a/neuron-4-0123456789ab exists with another spec than its name's hash; it is not "
        "labelled app.kubernetes.io/managed-by=neuron-dra. If nothing else uses it, delete it; it is then created "
        "again with the right spec: kubectl delete resourceclaimtemplate neuron-4-0123456789ab -n team-a",
    ),
    "NEU304": FindingCode(
        "The API server is too busy",
        "It answered that it cannot serve the request now. The webhook tried again as long as the review allows, with "
        "the pauses that the API server asked for. The pod's controller tries again.",
        "ResourceClaimTemplate team-a/neuron-4-0123456789ab could not be created: the API server answered HTTP 429, "
        "too many requests. Try again. If the error lasts, look for what loads the API server, and at its own logs.",
    ),
    "NEU305": FindingCode(
        "A replica of the webhook is too busy",
        "The API server may have answered, but this process did not come to read it. The pod's controller tries again.",
        "ResourceClaimTemplate team-a/neuron-4-0123456789ab could not be created: this replica of the webhook had too "
        "much other work to read the answer. Try again. If the error lasts, give the webhook more replicas or CPU "
        "(docs/operations.md).",
    ),
    # 4xx: opaque configs
    "NEU401": FindingCode(
        "An opaque config is not readable JSON",
        "The driver would fail on the node, after the pod is scheduled.",
        "The opaque config is not readable JSON: it is nested too deeply. Correct the JSON.",
    ),
    "NEU402": FindingCode(
        "An opaque config is not a JSON object",
        "`opaque.parameters` is null, a list, a string or a number.",
        "The opaque config is a list, not a JSON object. Write an object of kind NeuronConfig or UltraServerConfig.",
    ),
    "NEU403": FindingCode(
        "An opaque config is larger than Kubernetes allows",
        "More than 10 KiB are refused (`OpaqueParametersMaxLength`).",
        "The opaque config has 10320 bytes; Kubernetes allows 10240. Write an object of kind NeuronConfig or "
        "UltraServerConfig.",
    ),
    "NEU404": FindingCode(
        "An opaque config has a field twice",
        "JSON libraries keep one of the two, and not all the same one.",
        'The opaque config has the field "kind" twice. Keep one of them.',
    ),
    "NEU405": FindingCode(
        "The apiVersion of an opaque config is missing or unknown",
        "The driver refuses it when it prepares the claim: the pod hangs in ContainerCreating.",
        "The apiVersion \"neuron.aws.com/v2\" of the opaque config is not known. Did you mean 'neuron.aws.com/v1'? "
        "Write apiVersion: neuron.aws.com/v1.",
    ),
    "NEU406": FindingCode(
        "The kind of an opaque config is missing or unknown",
        "NeuronConfig sets the logical NeuronCore, UltraServerConfig the mode.",
        "The opaque config kind \"NeuronConf\" is not known. Did you mean 'NeuronConfig'? Write an object of kind "
        "NeuronConfig or UltraServerConfig.",
    ),
    "NEU407": FindingCode(
        "An opaque config has an unknown field",
        'The driver decodes strictly: the pod would hang in ContainerCreating with "strict decoding error".',
        "NeuronConfig has no field \"logicalNeuronCoreCount\". Did you mean 'logicalNeuronCore'? Its fields are "
        "apiVersion, kind and logicalNeuronCore; a newer field needs a newer version of this program.",
    ),
    "NEU408": FindingCode(
        "An opaque config lacks its setting",
        "Without its setting, a config means nothing to the driver.",
        "The NeuronConfig has no logicalNeuronCore. Set logicalNeuronCore to 1 or 2.",
        "Set the field, or drop the config.",
    ),
    "NEU409": FindingCode(
        "A field of an opaque config has the wrong type",
        'In YAML, `"1"` is text; the driver wants a number.',
        'logicalNeuronCore is "1", a string, not an integer. Set it to 1 or 2, without quotes.',
    ),
    "NEU410": FindingCode(
        "A setting of an opaque config has a value that does not exist",
        "Logical NeuronCores join 1 or 2 physical ones; UltraServers have 1, 2 or 4 nodes.",
        "logicalNeuronCore is 3, which does not exist. Set it to 1 or 2.",
    ),
    "NEU411": FindingCode(
        "An opaque config has an older apiVersion",
        "A warning: this apiVersion of the private beta means the same, but newer drivers may drop it.",
        'The apiVersion "neuron.aws.com/v1alphav1" of the opaque config is an older spelling. Write apiVersion: '
        "neuron.aws.com/v1.",
        "`neuron-dra convert` rewrites it.",
    ),
    "NEU412": FindingCode(
        "The instance type does not have this logical NeuronCore setting",
        "The driver would refuse the claim: trn1 and inf have nothing to choose.",
        "logicalNeuronCore cannot be set on trn1.32xlarge, whose size is always 1. Remove the NeuronConfig.",
        "Remove the NeuronConfig, or select a trn2 or trn3 type.",
    ),
    "NEU413": FindingCode(
        "The instance type does not have this UltraServer mode",
        "UltraServers exist for trn2u, in sets of 1, 2 and 4 nodes.",
        "ultraserverMode 2 does not exist on trn2.48xlarge. Use an UltraServer instance type, such as trn2u.48xlarge.",
    ),
    "NEU414": FindingCode(
        "An UltraServerConfig applies to a device that is no whole node",
        "The mode concerns whole nodes. The driver publishes one device of resourceType neuron_node for each.",
        "ultraserverMode 4 needs a neuron_node device, not a neuron_device. Add the selector "
        "device.attributes['neuron.aws.com'].resourceType == 'neuron_node' to request neurons.",
    ),
    # 5xx: claims, templates and DeviceClasses
    "NEU501": FindingCode(
        "A field of a claim or DeviceClass is unknown",
        "kubectl refuses it; other clients drop it, and the claim means something else. Fields of a request stand "
        "under `exactly` in v1 and v1beta2, and in the request itself in v1beta1.",
        "exactly has no field 'selector'. Did you mean 'selectors'? Its fields are deviceClassName, selectors, "
        "allocationMode, count, tolerations, capacity, adminAccess.",
    ),
    "NEU502": FindingCode(
        "A field of a claim or DeviceClass is missing or has the wrong type",
        "The API server refuses the object.",
        "count is '4', a string, not an integer. Write an integer.",
    ),
    "NEU503": FindingCode(
        "The apiVersion of a claim or DeviceClass is unknown",
        "v1, v1beta2 and v1beta1 are known.",
        "apiVersion 'resource.k8s.io/v1alpha3' is not known. Did you mean 'resource.k8s.io/v1'? Write apiVersion: "
        "resource.k8s.io/v1.",
    ),
    "NEU504": FindingCode(
        "A request has neither or both of one request and alternatives",
        "A request has exactly one of `exactly` and `firstAvailable`.",
        "request 'neurons' has neither a device class nor alternatives. Set exactly or firstAvailable, and not both.",
    ),
    "NEU505": FindingCode(
        "The name of a request is malformed or taken",
        "Containers, constraints and configs refer to requests by name: each is a DNS label and occurs once.",
        "name 'Neurons_1' is no DNS label. Use lower-case letters, digits and dashes.",
    ),
    "NEU506": FindingCode(
        "An allocation mode does not exist",
        "Upper and lower case count.",
        "allocationMode 'all' is not known. Did you mean 'All'? Write ExactCount or All.",
    ),
    "NEU507": FindingCode(
        "A count and its allocation mode do not fit",
        "`All` takes every matching device of a node. A negative number has this code too.",
        "allocationMode All requests all devices, and count is 4. Drop count, or write allocationMode: ExactCount.",
    ),
    "NEU508": FindingCode(
        "A constraint or config names a request that does not exist",
        "The API server refuses it. Alternatives are written as `request/alternative`.",
        "'neuron' names no request of this claim. Did you mean 'neurons'? Its requests are: neurons.",
    ),
    "NEU509": FindingCode(
        "A list is longer than Kubernetes allows",
        "The limits: 32 requests, 32 constraints, 32 configs, 32 selectors, 8 alternatives.",
        "requests has 33 entries; Kubernetes allows 32. Keep 32 or fewer.",
        "Make several claims.",
    ),
    "NEU510": FindingCode(
        "Two configs of one kind disagree about a request",
        "The later entry wins wherever the earlier one applies. A general entry followed by an exception is fine.",
        "two NeuronConfig entries disagree: logicalNeuronCore 1 here and 2 in config[1], which wins. Keep one of "
        "them, or give each its own requests.",
    ),
    "NEU511": FindingCode(
        "A config is for a driver whose devices are not requested",
        "A warning: a driver sees only configs that apply to its own devices.",
        "the config is for 'gpu.nvidia.com', and the claim asks for Neuron devices only. Drop it, or request devices "
        "of that driver.",
    ),
    "NEU512": FindingCode(
        "The driver of a config is misspelt",
        "The setting would never be applied.",
        "no driver is called 'neurn.aws.com'. Did you mean 'neuron.aws.com'? Write driver: neuron.aws.com; configs "
        "of other drivers are ignored without a message.",
    ),
    "NEU513": FindingCode(
        "A DeviceClass does not exist",
        "A warning: the pod stays Pending until the class exists. Without a cluster, only likely misspellings are "
        "reported.",
        "DeviceClass 'neuron.aws.co' does not exist. Did you mean 'neuron.aws.com'? Pods wait until it exists.",
        "Correct the name, or create the class.",
    ),
    "NEU514": FindingCode(
        "Some of the instance types that a request admits do not have a setting",
        "A warning: if the scheduler picks such a type, the driver refuses to prepare the claim. If the instance types "
        "of the cluster are known, only these count.",
        "request neurons also admits trn1.32xlarge (by the catalogue), which does not take logicalNeuronCore 1. "
        "Select an instance type "
        "that does, such as trn2.48xlarge.",
        "Select by `instanceType`.",
    ),
    "NEU520": FindingCode(
        "An instance type does not support this number of devices",
        "On Trn1 the devices of a container are connected in sets of 1, 4, 8 and 16 only. The first sentence is that "
        "of the Neuron scheduler extension.",
        "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number of "
        "devices. Nearest valid counts: 4 or 8.",
    ),
    "NEU521": FindingCode(
        "More devices are requested than one node has",
        "A claim is allocated on one node. Selectors may leave fewer devices than it has. The scheduler would search "
        "until its time-out, again and again.",
        "17 devices are requested, and a node of trn2.48xlarge has 16. Request 16 or fewer.",
        "Request fewer, or make several claims.",
    ),
    "NEU522": FindingCode(
        "More devices are to be connected than a group has",
        "`devicegroup4_id` is equal on four devices, `window5_1` on five consecutive ones.",
        "8 devices must agree on resource.aws.com/devicegroup4_id, and at most 4 do. Request 4 or fewer, or use "
        "matchAttribute: resource.aws.com/devicegroup8_id.",
    ),
    "NEU523": FindingCode(
        "No admitted device has the attribute of a constraint",
        "The allocator never takes a device without the attribute. An attribute that no known device has only warns: "
        "a newer driver may publish it.",
        "no device of inf2.24xlarge has the attribute resource.aws.com/devicegroup4_id, and it is the only type "
        "admitted. Drop the constraint, or select a type such as trn1.32xlarge.",
    ),
    "NEU524": FindingCode(
        "Nothing keeps the devices of a request connected",
        "A warning: the scheduler takes any devices. On Trainium collective operations then go through the host; on "
        "Inferentia devices that are not consecutive fail at start. All devices of a node, and a selector that "
        "matches one group or run, need no constraint.",
        "nothing keeps the 4 devices of request neurons connected. Add constraints: [{requests: [neurons], "
        "matchAttribute: resource.aws.com/devicegroup4_id}]",
        "Add the constraint to `devices`. A window such as `neuron.aws.com/window5_1` has only some of the runs of "
        "5: `firstAvailable` with the other shifts finds more. Without an attribute (AWS's own driver, sizes without "
        "a window), select by `deviceId`.",
    ),
    "NEU525": FindingCode(
        "A number of devices is not sure to be connected",
        "A warning: only single devices, published groups and whole nodes are sure to be connected, and consecutive "
        "devices on Inf1 and Inf2.",
        "2 devices of trn2.48xlarge are not sure to be connected with each other. Connected counts: 1, 4, 8, 16; "
        "nearest: 1 or 4.",
    ),
    "NEU526": FindingCode(
        "More devices are requested than a claim can hold",
        "Scheduling would fail for good.",
        "33 devices are requested in all; a claim holds at most 32. Spread them over several claims.",
    ),
    "NEU527": FindingCode(
        "The requests of a claim have no instance type in common",
        "A claim is allocated on one node, which has one type.",
        "requests a, b have no instance type in common. A claim is allocated on one node: select the same type, or "
        "make two claims.",
    ),
    "NEU528": FindingCode(
        "An alternative of a request can never be chosen",
        "A warning: the other alternatives work.",
        "alternative neurons/big is never chosen: 32 devices are requested, and a node of trn2.48xlarge has 16. "
        "Request 16 or fewer.",
        "Correct or drop it.",
    ),
    "NEU529": FindingCode(
        "The attribute of a constraint has no domain",
        "Constraints take `domain/identifier`.",
        "attribute 'devicegroup4_id' has no domain. Write resource.aws.com/devicegroup4_id.",
    ),
    "NEU530": FindingCode(
        "A list is too long to be judged",
        "Entries beyond twice the Kubernetes limit are not read, so the object cannot be called right.",
        "requests has 65 entries, of which the first 64 are checked. Keep 32 or fewer.",
        "Make several objects.",
    ),
    "NEU531": FindingCode(
        "No admitted device has a capacity",
        "The allocator skips devices without it, so the pod waits. Names are compared as published: `neuroncores` "
        "and `memory`, without a domain. A misspelt name is an error, others a warning.",
        "no Neuron device has the capacity 'neuroncore'. Did you mean 'neuroncores'? Write neuroncores.",
        "AWS's own driver publishes no capacities.",
    ),
    "NEU532": FindingCode(
        "More of a capacity is requested than a device has",
        "A capacity request is for each device. Cores are physical, whatever the logical NeuronCore setting is. A "
        "warning if another alternative works.",
        "3 neuroncores of one device are requested, and inf2.48xlarge has 2. Request 2 or fewer.",
        "Request less, or more devices.",
    ),
    "NEU533": FindingCode(
        "A share of cores is rounded up",
        "A warning: shares are powers of two, up to all cores of the device.",
        "3 cores are requested, and 4 are allocated on inf1.6xlarge. Valid numbers: 1, 2, 4.",
        "Request the number that is allocated, or two requests.",
    ),
    "NEU534": FindingCode(
        "A share has no cores",
        "0 lets a monitor see a device that is used up. The driver refuses any other such claim: its pod would stay "
        "in ContainerCreating.",
        "request neurons asks for 0 neuroncores: the driver refuses a share without cores. Request 1 or more; 0 is "
        "for adminAccess. Without neuroncores, a request gets whole devices.",
    ),
    "NEU535": FindingCode(
        "A share is not a whole number of logical cores",
        "A logical core cannot be divided. On trn2 and trn3 the setting is 2 unless a NeuronConfig says 1. A warning "
        "if some admitted types have another setting.",
        "a share of 1 physical cores is not a whole number of logical cores on trn2.3xlarge: each is 2 physical "
        "ones. Request a multiple of 2, or set logicalNeuronCore: 1.",
    ),
    "NEU536": FindingCode(
        "allocationMode All leaves out shared devices that are in use",
        "A warning: of shared devices, `All` means all with free capacity, so the pod can start with fewer devices "
        "([topology.md](topology.md#what-the-scheduler-does-with-them)).",
        "allocationMode All leaves out devices of inf2.48xlarge that are in use, because they are shared. Write "
        "allocationMode: ExactCount with count: 12 to get all of them or none, or have sharing switched off for these "
        "nodes (their label neuron.aws.com/share-cores: off).",
        "Write a count, or let the driver share no cores on these nodes: the Node's label "
        '`neuron.aws.com/share-cores: "off"`, or for all nodes `kubeletPlugin.shareCores: "off"`.',
    ),
    "NEU537": FindingCode(
        "adminAccess fails on shared devices that are used up",
        "A warning: the allocator checks the free capacity for `adminAccess`, too; only 0 cores always fit. Devices "
        "that are not shared belong in a claim of their own.",
        "adminAccess fails on a shared device of inf2.48xlarge that is used up, unless it consumes nothing. Add "
        'capacity: {requests: {neuroncores: "0"}}.',
    ),
    "NEU538": FindingCode(
        "No device that the cluster publishes now has the attribute of a constraint",
        "A warning: the pod waits until a node publishes it. AWS's own driver publishes no windows for Inf1 and Inf2. "
        "Of `firstAvailable`, no alternative can be allocated.",
        "no device of inf2.48xlarge that the cluster publishes now has the attribute "
        "resource.aws.com/devicegroup2_id. The driver there may be AWS's: select by device id, such as "
        "device.attributes['neuron.aws.com'].deviceId < 2.",
        "Select by `deviceId`, or install the driver of this project.",
    ),
    "NEU539": FindingCode(
        "Cores are requested of devices that are not shared",
        "A warning: the claim gets whole devices.",
        "devices of trn1.32xlarge are not shared: 1 cores take a whole device of 2. Kubernetes 1.36 shares devices "
        "of which the driver's setting share_cores allows it.",
        "Select a type whose devices are shared, or drop `capacity`.",
    ),
    "NEU540": FindingCode(
        "adminAccess waits for free devices where they consume shared counters",
        "A warning: on UltraServer nodes the allocator counts `adminAccess` as use of the counters "
        "([kubernetes#140729](https://github.com/kubernetes/kubernetes/issues/140729)).",
        "adminAccess waits for devices that no claim holds on trn2u.48xlarge, because they consume shared counters "
        '(kubernetes#140729). Exclude such nodes: device.attributes["neuron.aws.com"].instanceType != '
        '"trn2u.48xlarge".',
        "Exclude these nodes, and monitor them from a pod that needs no claim.",
    ),
    "NEU541": FindingCode(
        "A constraint fails beside devices in use where they consume shared counters",
        "A warning: up to Kubernetes 1.36.2 the allocator keeps the counters of a device that it tried and did not "
        "take ([kubernetes#140436](https://github.com/kubernetes/kubernetes/issues/140436)), and refuses groups that "
        "are free.",
        "up to Kubernetes 1.36.2, resource.aws.com/devicegroup4_id is refused on a node of trn2u.48xlarge if one of "
        "its devices is in use, because they consume shared counters (kubernetes#140436). List an alternative for "
        "each group, with a selector such as: device.attributes['neuron.aws.com'].?deviceId.orValue(-1) in [0, 1, 2, "
        "3].",
        "Conversion lists such alternatives itself.",
    ),
    "NEU542": FindingCode(
        "The search for the devices of a claim costs the scheduler seconds",
        "A warning: more than 70,000 attempts on a node where the claim does not fit. Kubernetes 1.34 and 1.35 (and "
        "an unknown version) try the free devices in every order: 9 devices of which 8 are free take 0.4 s, 11 and "
        "more the time-out of 10 s, in which no other pod is scheduled. Later versions try all subsets: 15 free of "
        "16 take 0.2 s per node. Each request is tried again for all ways to allocate those before it: 4 + 4 + 4 of "
        "11 free took 10 s on 1.35, 1.4 s on 1.36.",
        "one request for 16 devices costs the scheduler seconds on a node of trn2.48xlarge where they are not all "
        "free: it tries them in every order (Kubernetes 1.34 and 1.35). Write requests for 3 devices each: {name: "
        "n0, exactly: {deviceClassName: neuron.aws.com, count: 3, selectors: [{cel: {expression: "
        "\"device.attributes['neuron.aws.com'].?deviceId.orValue(-1) in [0, 1, 2]\"}}]}}, and so on.",
        "Divide it into requests for 3 devices by id, as conversion does; the container refers to the claim without "
        "a request. The policy `search-cost` ([policies.md](policies.md#shipped-packs)) can deny such claims.",
    ),
    "NEU543": FindingCode(
        "More EFA interfaces are tied to devices than their group has",
        "`matchAttribute: resource.aws.com/devicegroup<N>_id` ties devices and interfaces (DeviceClass "
        "`efa.networking.k8s.aws`, or `efa.deviceClass` of a ConversionPolicy), and no admitted type has so many in "
        "one group; on trn1.32xlarge two devices share one. Fewer devices than a group are no error. Interfaces "
        "without the constraint, or of other DeviceClasses, are not checked.",
        "4 EFA interfaces must agree on resource.aws.com/devicegroup4_id with the Neuron devices, and a group of 4 "
        "devices of trn1.32xlarge has 2 EFA interfaces. Request at most 2.",
        "Request the number in the message, or use a larger group or another type.",
    ),
    "NEU544": FindingCode(
        "adminAccess gives a claim devices that other claims hold",
        "A warning: containers with `adminAccess: true` can open devices of other claims, of any namespace. "
        'Kubernetes admits it in Namespaces with the label `resource.kubernetes.io/admin-access: "true"`; the chart '
        "denies that label and such claims outside of `adminAccess.namespaces`, and the driver refuses to prepare "
        "them.",
        "adminAccess gives its containers Neuron devices that other claims hold. Keep it to monitoring, in a "
        "namespace of the chart's adminAccess.namespaces: elsewhere the driver refuses it.",
        "[how-to/monitoring.md](how-to/monitoring.md) shows a setup.",
    ),
    "NEU545": FindingCode(
        "A DeviceTaintRule may taint other devices than it should",
        "A warning: the rule has no selector, an empty one, a field of an older version, or a device name that is "
        "not published. An empty selector taints every device of every driver; without one, a rule taints nothing by "
        "its documentation, and everything on Kubernetes 1.37 (kubernetes/kubernetes#141620). `deviceClassName` and "
        "`selectors` exist up to 1.34; later versions drop them.",
        "the DeviceTaintRule selects every device of every driver in the cluster. Set driver: neuron.aws.com, and a "
        "pool or device.",
        "Set driver, pool (the node's name) and device. `neuron-dra cordon` writes such rules "
        "([how-to/cordon.md](how-to/cordon.md)).",
    ),
    "NEU546": FindingCode(
        "A DeviceTaintRule is not valid",
        "The API server refuses the rule, or it taints no device. Effects are None, NoSchedule and NoExecute; a "
        "selector has driver, pool and device.",
        "the driver 'neuron.aws.con' publishes no devices. Did you mean 'neuron.aws.com'? Write driver: "
        "neuron.aws.com.",
    ),
    # 6xx: device selectors
    "NEU601": FindingCode(
        "A device selector is not CEL",
        "The API server refuses it.",
        "the selector is not CEL (line 1, column 18): the expression ends too early. Correct the expression.",
    ),
    "NEU602": FindingCode(
        "A device selector can never be evaluated",
        "The API server refuses it. A selector reads `device.driver`, `device.attributes`, `device.capacity` and "
        "`device.allowMultipleAllocations`, and gives true or false.",
        "the selector can never be evaluated (line 1, column 8): 'device' has no field 'attribute'. Did you mean "
        "'attributes'? Correct the expression.",
    ),
    "NEU603": FindingCode(
        "A device selector was not checked",
        "A warning, and no fault: it uses CEL that this program does not evaluate, takes too long on every known "
        "device, or builds too large a value.",
        "the selector was not checked: evaluating it on all known devices takes too long. Only Kubernetes evaluates "
        "it.",
        "Nothing.",
    ),
    "NEU604": FindingCode(
        "A device selector is too long",
        "More than 10 KiB are refused (`CELSelectorExpressionMaxLength`). All selectors of a request have to match.",
        "the selector has 10259 bytes; Kubernetes allows 10240. Split it into several selectors.",
    ),
    "NEU605": FindingCode(
        "A device selector costs too much",
        "The API server's limit is 1,000,000 (`CELSelectorExpressionMaxCost`), estimated for the largest device that "
        "it allows. The figure is the API server's own. Evaluation on one device may not cost more, either.",
        "the selector costs too much: too complex, exceeds cost limit: the estimated cost is 3840195, 1000000 is "
        "allowed: loop over less, compare or search shorter texts, or split the expression. Loop over less, or split "
        "it.",
    ),
    "NEU606": FindingCode(
        "No Neuron device has an attribute or a capacity",
        "A lookup of a missing attribute is a run-time error, which ends the scheduling of the pod. A name that is "
        "nearly a known one is refused; others warn, since a newer driver may publish them.",
        "no Neuron device has the attribute 'instanceTyp'. Did you mean 'instanceType'? Write "
        "device.attributes['neuron.aws.com'].instanceType.",
        "`kubectl get resourceslices -o yaml` shows the attributes.",
    ),
    "NEU607": FindingCode(
        "An attribute is compared with a value of another type",
        "CEL does not convert: `==` is false for every device, and `<` between a number and a string fails.",
        "topology_x is an integer, and is compared with '1', a string: that is never true. Write topology_x == 1.",
    ),
    "NEU608": FindingCode(
        "The Neuron driver version is no semantic version",
        "`semver()` and the methods of versions fail on every device.",
        "neuronDriverVersion has four parts, such as 2.25.4.0: semver() fails on it. Compare it as a string: "
        "neuronDriverVersion == '2.25.4.0'.",
        "Compare whole strings, or use `startsWith`.",
    ),
    "NEU609": FindingCode(
        "An attribute or a capacity is read without a guard",
        "A warning: one failing device on one node ends the scheduling of the pod everywhere. If the instance types of "
        "the cluster are known, only these count.",
        "topology_x is missing on trn1.2xlarge and 20 more types (by the catalogue): one such device ends the "
        "scheduling of the pod. "
        'Guard it: "topology_x" in device.attributes["neuron.aws.com"] && ...',
        "Test for the attribute first, or select a type that has it in an earlier selector.",
    ),
    "NEU610": FindingCode(
        "No device matches the selectors of a request",
        "A warning: the pod stays Pending. Mostly a value is misspelt; the message names the closest.",
        "no device has instanceType 'trn2.48xlarg'. Did you mean 'trn2.48xlarge'? Nothing can be allocated until one "
        "does.",
        "Correct the value.",
    ),
    "NEU611": FindingCode(
        "A device selector fails on devices",
        "An error ends the scheduling of the pod. A selector that fails on every device is refused, one that fails "
        "on some warns.",
        "the selector fails on every device on which it is evaluated: division by zero. Correct the expression.",
        "Give true or false on every device.",
    ),
    "NEU612": FindingCode(
        "No device that the cluster publishes now matches",
        "A warning: the pod stays Pending until such a node joins, which is fine where nodes come on demand. Of "
        "`firstAvailable`, no alternative matches.",
        "no device that the cluster publishes now matches. It has devices of: trn2.48xlarge.",
        "Nothing, or select a type that the cluster has.",
    ),
    # 7xx: pods and workloads
    "NEU701": FindingCode(
        "The pods of a workload would be refused",
        "A warning at `kubectl apply`: denied pods show up only in the events of a ReplicaSet or Job. The findings "
        "that follow say why.",
        "pods of this Deployment would be refused: spec.template.spec.containers[0]",
        "Correct what they say.",
    ),
    "NEU702": FindingCode(
        "No container refers to a claim of the pod",
        "A warning.",
        "no container refers to claim 'neurons': its devices are allocated and no container sees them. Add {name: "
        "neurons} to resources.claims of the container that needs them.",
    ),
    "NEU703": FindingCode(
        "A container refers to a claim that the pod does not declare",
        "The API server refuses the pod.",
        "container main refers to claim 'neuron', which is not declared. Did you mean 'neurons'? Add it to "
        "spec.resourceClaims.",
    ),
    "NEU704": FindingCode(
        "A pod asks for Neuron devices in both ways",
        "A warning: plugin and driver do not share a node. With a DeviceClass that has `extendedResourceName`, the "
        "devices are allocated twice.",
        "container main asks for aws.amazon.com/neuron, and claim 'devices' for Neuron devices too. No node serves "
        "both: drop one of them.",
    ),
    "NEU705": FindingCode(
        "A ResourceClaimTemplate does not exist",
        "A warning: once the template exists, the claim is made.",
        "ResourceClaimTemplate big does not exist in this namespace. The pod waits until it does: create it.",
        "Create it, or correct the name.",
    ),
    "NEU706": FindingCode(
        "A ResourceClaim does not exist",
        "A warning.",
        "ResourceClaim shared does not exist in this namespace. The pod waits until it does: create it.",
        "Create it, or correct the name.",
    ),
    "NEU707": FindingCode(
        "A converted pod has lost its claim",
        "A webhook that reads pods into an older API type drops fields that it does not know. The container would "
        "start without devices.",
        "container main was converted from aws.amazon.com/neuron: 4, but the pod's claim is gone. Another webhook "
        "dropped it: update that webhook, or let it run before this one. Where the label neuron.aws.com/converted "
        "was copied from another pod, remove it.",
    ),
    "NEU708": FindingCode(
        "A container refers to a request that its claim does not have",
        "Kubernetes admits the pod, and the container gets no devices.",
        "claim 'neurons' has no request 'neuron'. Did you mean 'neurons'? Its requests are: neurons.",
        "Correct `request`, or leave it out to get the whole claim.",
    ),
    "NEU709": FindingCode(
        "Devices that one container uses together are not connected",
        "A warning if nothing connects the requests of one container; an error if their sum is no count that the "
        "type allows.",
        "one container uses 8 devices of requests a, b; nothing keeps them connected. Add constraints: "
        "[{matchAttribute: resource.aws.com/devicegroup8_id}]",
        "Add the constraint, or use one request.",
    ),
    "NEU710": FindingCode(
        "The size of a LeaderWorkerSet does not fit its UltraServer mode",
        "A warning: each pod takes one node of the UltraServer set, and a group is one set.",
        "groups have 2 pods, and UltraServer mode 4 needs 4, one for each node. Set size to 4, or the mode to 2.",
    ),
    "NEU711": FindingCode(
        "Pod templates of a workload were not checked",
        "A warning: a workload has more than 64 templates, or checking them takes more than a second.",
        "36 pod templates of this JobSet were not checked: it has too many, or they take too long. Their pods are "
        "checked when they are created.",
        "None. Split the workload to see errors earlier.",
    ),
    "NEU712": FindingCode(
        "A claim of a PodGroup is not valid",
        "An entry of `resourceClaims` of a PodGroup, or of a template of a Workload, has no valid name, the "
        "name of another entry, or not exactly one of `resourceClaimTemplateName` and `resourceClaimName`; or"
        " there are more than 4. The API server refuses the object.",
        "claim 'neuron' of the PodGroup names neither a template nor a claim. Set resourceClaimTemplateName "
        "or resourceClaimName, and not both.",
        "Correct the entry.",
    ),
    "NEU713": FindingCode(
        "A pod does not share the claim of its PodGroup",
        "A pod of a PodGroup has a claim with the name of a claim of the group, which refers to another "
        "object (warning). Only `neuron-dra` commands report it. Kubernetes compares the whole entry. If the "
        "two differ, the pod gets a claim and devices of its own.",
        "claim 'neuron' of the pod is ResourceClaimTemplate small, and claim 'neuron' of PodGroup gang is "
        "ResourceClaimTemplate large: the pod does not share the claim of its group. Refer to the same object"
        " to share it, or give the claim another name.",
        "Refer to the same template or claim, or choose another name.",
    ),
    "NEU714": FindingCode(
        "A converted pod shares the claim of its PodGroup",
        "Conversion gives a pod a claim that has the name and the template of a claim of its PodGroup "
        "(warning). Only `neuron-dra` commands report it. Each pod asked for devices of its own by limits. "
        "With such a PodGroup, all its pods share the devices of one claim, on one node.",
        "PodGroup gang shares claim 'neuron' of ResourceClaimTemplate neuron-4-fdc84041cb55 among its pods: "
        "conversion makes an equal entry for this pod, so that it gets no devices of its own. Keep it if the "
        "pods are to share the devices; else give the claim of the PodGroup another name.",
        "Give the claim of the PodGroup another name, unless the pods are to share.",
    ),
    "NEU715": FindingCode(
        "A field of an object of AWS's UltraServer operator is not valid",
        "A NeuronUltraServerWorkload or NeuronUltraServer lacks a field, has an unknown one, or a value that "
        "the operator cannot serve. The CustomResourceDefinition admits more: any `topologySize` from 1 to 4,"
        " and any text as `failureStrategy`. The workload would stay Pending. An older name of a strategy, as"
        " AWS's documentation has it, is a warning.",
        "topologySize is 3, an integer, not 1, 2 or 4. Write 1, 2 or 4.",
        "Correct the field.",
    ),
    "NEU716": FindingCode(
        "An API version is none of AWS's UltraServer operator",
        "An object of the operator has another API version than `neuron.aws.com/v1beta1` (warning). AWS's "
        "documentation writes `neuron.aws.com/v1` in places, which is the version of device configs. No "
        "cluster serves it for these kinds.",
        "AWS's UltraServer operator serves NeuronUltraServerWorkload as neuron.aws.com/v1beta1, not "
        "'neuron.aws.com/v1'. Write apiVersion: neuron.aws.com/v1beta1.",
        "Write `neuron.aws.com/v1beta1`.",
    ),
    "NEU717": FindingCode(
        "A key stands twice in a mapping",
        "A warning about a file. YAML does not allow it, and kubectl takes the last value without a word; so do the "
        "commands. Policy files and settings with such a key are refused.",
        'the key \'volumes\' stands twice in lines 9 and 12, with [{"name":"one"}] and [{"name":"two"}]: the last '
        "value counts, for kubectl, too. Keep one of them.",
    ),
    "NEU718": FindingCode(
        "The kind does not exist in its API group",
        "The group is one of Kubernetes itself, to which no other program adds kinds; or the API server has removed "
        "the version, as of apps/v1beta1 and batch/v1beta1; or apiVersion or kind is missing. A kind that resembles "
        "none of the group is not judged: a newer Kubernetes may have it.",
        "no API server has a kind 'Deploymnet' in apps/v1. Did you mean kind: Deployment? kubectl refuses the object: "
        "correct it.",
    ),
    "NEU720": FindingCode(
        "An API version is not served by every cluster",
        "A warning of `neuron-dra validate` for v1beta1 and v1beta2; an error if the cluster of `--kubeconfig` does "
        "not serve the version. Of a DeviceTaintRule, only with a cluster: it is `v1` from Kubernetes 1.37.",
        "resource.k8s.io/v1beta1 is not served by default: a cluster that serves only resource.k8s.io/v1 refuses "
        "this object. Write apiVersion: resource.k8s.io/v1; neuron-dra convert rewrites the object.",
    ),
    "NEU721": FindingCode(
        "Another template stands in the place of a ClaimTemplate's",
        "A warning. The webhook makes the template of a ClaimTemplate only where none of that name exists, and "
        "replaces only what it made itself for an earlier version. Pods that name it use the other one, and their "
        "annotation `neuron.aws.com/template-version` says so: `NAME=own`, or the later version.",
        "namespace team-a has a ResourceClaimTemplate xl-trn2 of its own: the pod uses that, and not version 1 of "
        "policy 'xl-trn2'. Delete or rename it if the policy's template is to be used.",
        "Nothing, if it is meant so.",
    ),
    "NEU722": FindingCode(
        "No ClaimTemplate has the template that the annotation names",
        "`neuron.aws.com/template` asks for devices instead of limits. A pod whose annotation is not understood would "
        "run without them.",
        "the pod asks for template 'xxl-trn2', which no ClaimTemplate policy that matches it has, so it would run "
        "without devices. Name a template of a policy for this namespace, or ask the cluster's admins.",
    ),
    "NEU723": FindingCode(
        "The annotation `neuron.aws.com/template` contradicts the pod",
        "The pod has limits of Neuron, too, or no container of the name that the annotation gives.",
        "the pod asks for template 'xl-trn2', and container 'main' for aws.amazon.com/neuron: it would get both. "
        "Remove aws.amazon.com/neuron, or the annotation.",
    ),
    # 8xx: policy files
    "NEU801": FindingCode(
        "A policy refuses the object",
        "The message is the policy's own, and so is a reason such as Forbidden.",
        "policy 'few-devices': at most 4 devices, and the pod asks for 16",
        "Do what it says, or ask the admins for an exception. One that has expired is named.",
    ),
    "NEU802": FindingCode(
        "A policy warns of the object",
        "The policy's `validationActions` has Warn; Deny may follow.",
        "policy 'owner-label': Neuron workloads need the label owner",
        "Do what the message says.",
    ),
    "NEU803": FindingCode(
        "A policy could not be evaluated",
        "An expression fails, or there was no time to evaluate it, and `failurePolicy` is Fail; or an overloaded "
        "server could not ask a policy with `Deny` and Fail. A locked ConversionPolicy fails closed as well. A "
        "warning: `failurePolicy` is Ignore, and there was no time. Mostly a missing field is read without `has()` "
        "or `.?`.",
        "policy 'few-devices': expression 'object.spec.priority > 3' resulted in error: no such key: 'priority' "
        "(line 1, column 13)",
        "Guard the field, or loop over less. Until then, `failurePolicy: Ignore` lets objects pass. If it was not "
        "evaluated, try again later.",
    ),
    "NEU804": FindingCode(
        "A policy's exception ends soon",
        "A warning, 14 days before the exception expires.",
        "policy 'few-devices': exception 'migration' of team-a ends on 2026-12-31.",
        "Do what the policy asks for, or ask the exception's owner to renew it.",
    ),
    "NEU805": FindingCode(
        "A policy notes the object",
        "`validationActions` has Audit alone: the server writes an audit annotation, and `neuron-dra validate` a "
        "note. Warn or Deny may follow.",
        "policy 'owner-label': Neuron workloads need the label owner",
        "Do what the message says.",
    ),
    "NEU806": FindingCode(
        "A policy cannot change the object",
        "An expression of a MutatingAdmissionPolicy fails, its patch does not fit the object, or there was no time, "
        "and `failurePolicy` is Fail. Also a patch that is too large together with that of conversion.",
        "policy 'add-sidecar' cannot change the object: mutations[0] (JSONPatch) failed: there is nothing at "
        "'/metadata/labels', the parent in the path '/metadata/labels/team'.",
        "Guard fields that may be missing with `.?`, add missing parents before their fields, and use a JSONPatch for "
        "atomic lists and maps. `neuron-dra policy explain` shows the object before and after.",
    ),
    # 9xx: reports
    "NEU901": FindingCode(
        "A container pins its cores",
        "Some images number the cores of the whole node. `NEURON_RT_NUM_CORES` may stay if it is no more than the "
        "container gets.",
        "container main sets NEURON_RT_VISIBLE_CORES: with a claim, the driver chooses the devices, and the "
        "container sees only these. Remove the variable: the driver sets what the claim gives the container.",
    ),
    "NEU903": FindingCode(
        "Only dynamic pools can take the pod",
        "Nodes for the pod come only from pools whose autoscaler makes none for its claim, or it selects nodes by a "
        "label that only nodes of Karpenter or EKS Auto Mode have. The pod is left as it is; a locked "
        "ConversionPolicy denies it. Karpenter ignores pods with claims (`ignore-dra-requests`), and its provider of "
        "AWS describes no Neuron devices of nodes that do not exist yet: the converted pod would stay Pending. "
        "NodePools with `replicas` have their nodes, and so have nodes that exist without a pool. EKS Auto Mode cannot "
        "run the driver.",
        "nodes for the pod come from NodePool accel only, and Karpenter makes none for a pod with a claim: the pod is "
        "left as it is. Run it on a managed or self-managed node group, or in a NodePool with replicas. If Karpenter "
        "makes nodes for pods with Neuron claims, set --karpenter-serves-claims, or "
        'neuron.aws.com/karpenter-serves-claims: "true" on the Namespace.',
        "Run the pod on a managed or self-managed node group, or in a static NodePool. If your Karpenter "
        "makes such nodes, say so: see [Instance types, and autoscalers](how-to/types.md).",
    ),
    "NEU904": FindingCode(
        "No node can serve the claim of a workload",
        "No node has a type that can serve the claim, the pods do not select the nodes of these types, or plugin "
        "and driver both run on all of them: then the driver "
        "taints the devices, so that none gets two owners.",
        "the device plugin and the DRA driver both offer devices of 2 nodes (node-1, node-2): claims get none of "
        "them. Stop the device plugin on these nodes (docs/migrate.md, step 3).",
        "Add nodes of these types, or stop the device plugin there.",
    ),
    "NEU905": FindingCode(
        "The pools of autoscalers are not known",
        "The webhook cannot list NodePools, EC2NodeClasses, MachineDeployments or Nodes, or cannot read one of them, "
        "and nothing that it knows can take the pod. It is converted; if only a dynamic pool can take it, it waits. In "
        "files: one of these objects, a ResourceSlice, Namespace, ResourceQuota or LimitRange has a field of a wrong "
        "type.",
        "it is not known whether an autoscaler makes the nodes of this pod: the list of nodepools.karpenter.sh is not "
        "complete yet. The pod is converted; if only a dynamic pool can take it, it stays Pending. Allow the webhook "
        "to list and watch the pools (docs/how-to/types.md), or correct what cannot be read, and create the pod again.",
        "Allow the webhook to list and watch them (deploy/manifests/rbac.yaml), correct what cannot be read, and "
        "create the pod again.",
    ),
}
