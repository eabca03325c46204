{{/*
What runs is one of three components: snapshot, verification (away from etcd, stores read-only) and test (the doctor in the
snapshot's place). The templates below take a dict of `root` and `component`.
*/}}

{{/*
etcd-snapshot.schedule puts a minute in the place of H: one that follows from the cluster's name, so that many clusters do
not begin at once, and that is the same with each rendering. `schedule` besides.
*/}}
{{- define "etcd-snapshot.schedule" -}}
{{- $schedule := .schedule -}}
{{- if regexMatch "^ *[hH] " $schedule -}}
{{- $cluster := .root.Values.clusterName | required (printf "clusterName: the H in the schedule %q becomes a minute that follows from it. Set clusterName, or write the minute." $schedule) -}}
{{- $minute := mod (printf "0x%s" (printf "%s/%s" .component $cluster | sha256sum | trunc 8) | int64) 60 -}}
{{- $schedule = regexReplaceAllLiteral "^ *[hH] " $schedule (printf "%d " $minute) -}}
{{- end -}}
{{- $schedule -}}
{{- end }}

{{/*
etcd-snapshot.cronJob gives a CronJob: `name` and `schedule` besides.
*/}}
{{- define "etcd-snapshot.cronJob" -}}
{{- $config := .root.Values -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "etcd-snapshot.labelsWith" (dict "root" .root "extra" $config.cronJobLabels) | nindent 4 }}
  {{- with $config.cronJobAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  schedule: {{ include "etcd-snapshot.schedule" . | quote }}
  {{- with $config.timeZone }}
  timeZone: {{ . | quote }}
  {{- end }}
  suspend: {{ $config.suspend }}
  concurrencyPolicy: {{ $config.concurrencyPolicy }}
  {{- if not (kindIs "invalid" $config.startingDeadlineSeconds) }}
  startingDeadlineSeconds: {{ int64 $config.startingDeadlineSeconds }}
  {{- end }}
  successfulJobsHistoryLimit: {{ int64 $config.successfulJobsHistoryLimit }}
  failedJobsHistoryLimit: {{ int64 $config.failedJobsHistoryLimit }}
  jobTemplate:
    metadata:
      labels:
        {{- include "etcd-snapshot.labelsWith" (dict "root" .root "extra" $config.jobLabels) | nindent 8 }}
      {{- with $config.jobAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "etcd-snapshot.jobSpec" . | trim | nindent 6 }}
{{- end }}

{{/*
etcd-snapshot.hookJob gives a Job that is a Helm hook: `suffix` of its name and `hook`, its annotations, besides.
*/}}
{{- define "etcd-snapshot.hookJob" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "etcd-snapshot.nameWith" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "etcd-snapshot.labelsWith" (dict "root" .root "extra" .root.Values.jobLabels) | nindent 4 }}
  annotations:
    {{- merge .hook .root.Values.jobAnnotations | toYaml | nindent 4 }}
spec:
  {{- include "etcd-snapshot.jobSpec" . | trim | nindent 2 }}
{{- end }}

{{/*
etcd-snapshot.onEveryNode is "true" for components that run on each of the nodes, as nodes: all says.
*/}}
{{- define "etcd-snapshot.onEveryNode" -}}
{{- if and (eq .root.Values.nodes "all") (ne .component "verification") -}}true{{- end -}}
{{- end }}

{{- define "etcd-snapshot.jobSpec" -}}
{{- $config := .root.Values -}}
{{- if include "etcd-snapshot.onEveryNode" . }}
# One pod for each control-plane node.
completionMode: Indexed
completions: {{ $config.nodeCount }}
parallelism: {{ $config.nodeCount }}
{{- end }}
{{- if not (kindIs "invalid" $config.activeDeadlineSeconds) }}
activeDeadlineSeconds: {{ int64 $config.activeDeadlineSeconds }}
{{- end }}
backoffLimit: {{ ternary 0 (int64 $config.backoffLimit) (eq .component "test") }}
podFailurePolicy:
  rules:
  {{- if eq .component "verification" }}
  # Exit code 2: wrong configuration. 4: a snapshot is corrupt. Trying again cures neither.
  {{- else }}
  # Exit code 2: wrong configuration, which trying again does not cure.
  {{- end }}
  - action: FailJob
    onExitCodes:
      containerName: agent
      operator: In
      values: {{ ternary "[2, 4]" "[2]" (eq .component "verification") }}
  # The node was drained or the pod preempted: try again without counting.
  - action: Ignore
    onPodConditions:
    - type: DisruptionTarget
      status: "True"
{{- if not (kindIs "invalid" $config.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ int64 $config.ttlSecondsAfterFinished }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "etcd-snapshot.podLabels" . | nindent 6 }}
    {{- with $config.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- include "etcd-snapshot.podSpec" . | trim | nindent 4 }}
{{- end }}

{{/*
etcd-snapshot.podLabels gives the pods' labels. Azure's workload identity webhook only looks at labelled pods.
*/}}
{{- define "etcd-snapshot.podLabels" -}}
{{- $extra := deepCopy (.root.Values.podLabels | default dict) -}}
{{- range .root.Values.destinations -}}
{{- if eq "workloadIdentity" (dig "azure" "auth" "method" "" (. | default dict)) -}}
{{- $_ := set $extra "azure.workload.identity/use" "true" -}}
{{- end -}}
{{- end -}}
{{- $_ := set $extra "app.kubernetes.io/component" .component -}}
{{- include "etcd-snapshot.labelsWith" (dict "root" .root "extra" $extra) -}}
{{- end }}

{{/*
etcd-snapshot.hasHostPath is "true" where a folder on the node is among the destinations.
*/}}
{{- define "etcd-snapshot.hasHostPath" -}}
{{- $found := "" -}}
{{- range .Values.destinations -}}
{{- if (. | default dict).hostPath -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end }}

{{/*
etcd-snapshot.writesOnNode is "true" where a folder on the node is written to: a destination, or the one that node-exporter
reads.
*/}}
{{- define "etcd-snapshot.writesOnNode" -}}
{{- if or (include "etcd-snapshot.hasHostPath" .) (.Values.monitoring.metrics | default dict).textfile -}}true{{- end -}}
{{- end }}

{{/*
etcd-snapshot.user says who the agent is: `runAsUser` and the added `capabilities`. It is the distribution's reader of
etcd's key, but root wherever a folder on the node is written to, because the kubelet makes such folders for root, and for
extras, which are root's.
*/}}
{{- define "etcd-snapshot.user" -}}
{{- $preset := include "etcd-snapshot.preset" . | fromYaml -}}
{{- $user := int (default 0 $preset.runAsUser) -}}
{{- $capabilities := default list $preset.capabilities -}}
{{- if and $user (or .Values.extras.enabled (include "etcd-snapshot.writesOnNode" .)) -}}
{{- $user = 0 -}}
{{- $capabilities = list "DAC_READ_SEARCH" -}}
{{- end -}}
{{- dict "runAsUser" $user "capabilities" $capabilities | toYaml -}}
{{- end }}

{{- define "etcd-snapshot.podSpec" -}}
{{- $config := .root.Values }}
{{- $verify := eq .component "verification" }}
{{- $preset := include "etcd-snapshot.preset" .root | fromYaml }}
{{- $user := include "etcd-snapshot.user" .root | fromYaml }}
{{- $hostNetwork := $config.hostNetwork }}
{{- if kindIs "invalid" $hostNetwork }}
{{- $hostNetwork = ne $config.distribution "external" }}
{{- end }}
{{- $onNode := or (not $verify) (include "etcd-snapshot.writesOnNode" .root) }}
restartPolicy: Never
serviceAccountName: {{ include "etcd-snapshot.serviceAccountName" .root }}
automountServiceAccountToken: true
{{- with $config.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- if not $verify }}
{{- with $config.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}
terminationGracePeriodSeconds: {{ int64 $config.terminationGracePeriodSeconds }}
{{- if not $verify }}
{{- if $hostNetwork }}
hostNetwork: true
{{- end }}
dnsPolicy: {{ $config.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "ClusterFirst" $hostNetwork) }}
{{- end }}
{{- if $onNode }}
{{- $nodeSelector := $config.nodeSelector }}
{{- if kindIs "invalid" $nodeSelector }}
{{- $nodeSelector = $preset.nodeSelector }}
{{- end }}
{{- with $nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := $config.tolerations }}
{{- if and (kindIs "invalid" $tolerations) $preset.nodeSelector }}
{{- $tolerations = (include "etcd-snapshot.presets" .root | fromYaml).tolerations }}
{{- end }}
{{- with $tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
{{- if not $verify }}
{{- with include "etcd-snapshot.affinity" . | fromYaml }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
securityContext:
  {{- include "etcd-snapshot.podSecurity" (dict "root" .root "component" .component "user" $user "preset" $preset) | nindent 2 }}
containers:
- name: agent
  image: {{ include "etcd-snapshot.image" .root | quote }}
  imagePullPolicy: {{ $config.image.pullPolicy }}
  args:
  {{- include "etcd-snapshot.args" . | trim | nindent 2 }}
  env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  {{- $resources := ternary $config.verification.resources $config.resources $verify }}
  {{- with include "etcd-snapshot.goLimits" $resources | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $config.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- $capabilities := dict "drop" (list "ALL") }}
    {{- if and $user.capabilities (not $verify) }}
    {{- $_ := set $capabilities "add" $user.capabilities }}
    {{- end }}
    {{- $security := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" $capabilities }}
    {{- mergeOverwrite $security (ternary dict ($config.securityContext | default dict) $verify) | toYaml | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
  {{- if $verify }}
  - name: scratch
    mountPath: /scratch
  {{- else }}
  - name: spool
    mountPath: /spool
  {{- end }}
  - name: policy
    mountPath: /etc/etcd-snapshot/policy
    readOnly: true
  {{- with include "etcd-snapshot.metricsVolumeMounts" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "etcd-snapshot.notificationVolumeMounts" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if $verify }}
  {{- if $config.verification.identitySecret }}
  - name: identity
    mountPath: /etc/etcd-snapshot/identity
    readOnly: true
  {{- end }}
  {{- range include "etcd-snapshot.destinationVolumeMounts" .root | fromYamlArray }}
  - {{ set . "readOnly" true | toYaml | nindent 4 | trim }}
  {{- end }}
  {{- else }}
  {{- with include "etcd-snapshot.etcdVolumeMounts" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "etcd-snapshot.extrasVolumeMounts" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "etcd-snapshot.destinationVolumeMounts" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if $config.signing.keySecret }}
  - name: signing
    mountPath: /etc/etcd-snapshot/signing
    readOnly: true
  {{- end }}
  {{- with $config.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
volumes:
{{- if $verify }}
- name: scratch
  emptyDir:
    sizeLimit: {{ $config.verification.scratchSizeLimit }}
{{- else }}
- name: spool
  emptyDir:
    {{- with $config.spool.medium }}
    medium: {{ . }}
    {{- end }}
    sizeLimit: {{ $config.spool.sizeLimit }}
{{- end }}
- name: policy
  configMap:
    name: {{ include "etcd-snapshot.nameWith" (dict "root" .root "suffix" "policy") }}
{{- if $verify }}
{{- with $config.verification.identitySecret }}
- name: identity
  secret:
    secretName: {{ . }}
    defaultMode: 0400
    items:
    - key: identity.txt
      path: identity.txt
{{- end }}
{{- else }}
{{- with include "etcd-snapshot.etcdVolumes" .root | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- with $config.signing.keySecret }}
- name: signing
  secret:
    secretName: {{ . }}
    defaultMode: 0400
    items:
    - key: ssh-privatekey
      path: ssh-privatekey
{{- end }}
{{- with include "etcd-snapshot.extrasVolumes" .root | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- end }}
{{- with include "etcd-snapshot.destinationVolumes" .root | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- with include "etcd-snapshot.metricsVolumes" .root | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- with include "etcd-snapshot.notificationVolumes" .root | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- if not $verify }}
{{- with $config.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.podSecurity gives the pods' security context. A verification is root only where a folder of the node is read or written.
*/}}
{{- define "etcd-snapshot.podSecurity" -}}
{{- $id := int .user.runAsUser -}}
{{- $security := dict "runAsUser" $id "runAsGroup" $id "runAsNonRoot" (ne 0 $id) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if ne .component "verification" -}}
{{- with .preset.seLinuxType -}}
{{- $_ := set $security "seLinuxOptions" (dict "type" .) -}}
{{- end -}}
{{- with (.root.Values.podSecurityContext).runAsUser -}}
{{- $_ := set $security "runAsNonRoot" true -}}
{{- end -}}
{{- mergeOverwrite $security (.root.Values.podSecurityContext | default dict) | toYaml -}}
{{- else if include "etcd-snapshot.writesOnNode" .root -}}
{{- dict "runAsUser" 0 "runAsGroup" 0 "runAsNonRoot" false "seccompProfile" $security.seccompProfile | toYaml -}}
{{- else -}}
{{- dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "runAsNonRoot" true "seccompProfile" $security.seccompProfile | toYaml -}}
{{- end -}}
{{- end }}

{{- define "etcd-snapshot.args" -}}
{{- $config := .root.Values -}}
{{- if eq .component "verification" }}
{{- $v := $config.verification }}
- verify
{{- if $v.since }}
- --all
- --since={{ $v.since }}
{{- else }}
- --latest
{{- end }}
- --level={{ $v.level }}
{{- else }}
- {{ ternary "doctor" "snapshot" (eq .component "test") }}
{{- end }}
- --policy={{ include "etcd-snapshot.policyName" .root }}
- --namespace=$(POD_NAMESPACE)
- --policy-manifest=/etc/etcd-snapshot/policy/policy.yaml
{{- if eq .component "verification" }}
- --scratch-dir=/scratch
{{- if $config.verification.identitySecret }}
- --identity=/etc/etcd-snapshot/identity/identity.txt
{{- end }}
{{- else if eq .component "test" }}
- --spool-dir=/spool
- --spool-limit={{ $config.spool.sizeLimit }}
{{- else }}
- {{ printf "--schedule=%s" (include "etcd-snapshot.schedule" (dict "root" .root "component" .component "schedule" $config.schedule)) | quote }}
{{- with $config.timeZone }}
- --schedule-time-zone={{ . }}
{{- end }}
- --spool-dir=/spool
{{- if include "etcd-snapshot.onEveryNode" . }}
- --index=$(JOB_COMPLETION_INDEX)
{{- end }}
{{- range $config.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.affinity gives the affinity of the values and, with nodes: all, keeps the pods of a run on different nodes.
*/}}
{{- define "etcd-snapshot.affinity" -}}
{{- $affinity := deepCopy (.root.Values.affinity | default dict) -}}
{{- if include "etcd-snapshot.onEveryNode" . -}}
{{- $labels := include "etcd-snapshot.selectorLabels" .root | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/component" .component -}}
{{- $apart := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $pods := get $affinity "podAntiAffinity" | default dict -}}
{{- $required := append (get $pods "requiredDuringSchedulingIgnoredDuringExecution" | default list) $apart -}}
{{- $_ := set $pods "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "podAntiAffinity" $pods -}}
{{- end -}}
{{- if $affinity -}}{{- toYaml $affinity -}}{{- end -}}
{{- end }}
