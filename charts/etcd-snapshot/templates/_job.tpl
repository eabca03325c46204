{{/*
etcd-snapshot.jobTemplate gives metadata and spec of one run, for the CronJob and for the Job after the installation.
*/}}
{{- define "etcd-snapshot.jobSpec" -}}
{{- if eq .Values.nodes "all" }}
# One pod for each control-plane node.
completionMode: Indexed
completions: {{ .Values.nodeCount }}
parallelism: {{ .Values.nodeCount }}
{{- end }}
{{- if not (kindIs "invalid" .Values.activeDeadlineSeconds) }}
activeDeadlineSeconds: {{ int64 .Values.activeDeadlineSeconds }}
{{- end }}
backoffLimit: {{ int64 .Values.backoffLimit }}
podFailurePolicy:
  rules:
  # Exit code 2: wrong configuration, which trying again does not cure.
  - action: FailJob
    onExitCodes:
      containerName: agent
      operator: In
      values: [2]
  # The node was drained or the pod preempted: try again without counting.
  - action: Ignore
    onPodConditions:
    - type: DisruptionTarget
      status: "True"
{{- if not (kindIs "invalid" .Values.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ int64 .Values.ttlSecondsAfterFinished }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "etcd-snapshot.podLabels" . | nindent 6 }}
    {{- with .Values.podAnnotations }}
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
{{- include "etcd-snapshot.podLabelsOf" (dict "root" . "component" "snapshot") -}}
{{- end }}

{{- define "etcd-snapshot.podLabelsOf" -}}
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
etcd-snapshot.user says who the agent is: `runAsUser` and the added `capabilities`. It is the distribution's reader of
etcd's key, but root wherever a folder on the node is stored in, because the kubelet makes such folders for root.
*/}}
{{- define "etcd-snapshot.user" -}}
{{- $preset := include "etcd-snapshot.preset" . | fromYaml -}}
{{- $user := int (default 0 $preset.runAsUser) -}}
{{- $capabilities := default list $preset.capabilities -}}
{{- if $user -}}
{{- range .Values.destinations -}}
{{- if (. | default dict).hostPath -}}
{{- $user = 0 -}}
{{- $capabilities = list "DAC_READ_SEARCH" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "runAsUser" $user "capabilities" $capabilities | toYaml -}}
{{- end }}

{{- define "etcd-snapshot.podSpec" -}}
{{- $preset := include "etcd-snapshot.preset" . | fromYaml }}
{{- $user := include "etcd-snapshot.user" . | fromYaml }}
{{- $hostNetwork := .Values.hostNetwork }}
{{- if kindIs "invalid" $hostNetwork }}
{{- $hostNetwork = ne .Values.distribution "external" }}
{{- end }}
restartPolicy: Never
serviceAccountName: {{ include "etcd-snapshot.serviceAccountName" . }}
automountServiceAccountToken: true
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
terminationGracePeriodSeconds: {{ int64 .Values.terminationGracePeriodSeconds }}
{{- if $hostNetwork }}
hostNetwork: true
{{- end }}
dnsPolicy: {{ .Values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "ClusterFirst" $hostNetwork) }}
{{- $nodeSelector := .Values.nodeSelector }}
{{- if kindIs "invalid" $nodeSelector }}
{{- $nodeSelector = $preset.nodeSelector }}
{{- end }}
{{- with $nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := .Values.tolerations }}
{{- if and (kindIs "invalid" $tolerations) $preset.nodeSelector }}
{{- $tolerations = (include "etcd-snapshot.presets" . | fromYaml).tolerations }}
{{- end }}
{{- with $tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with include "etcd-snapshot.affinity" . | fromYaml }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- $podSecurity := dict "runAsUser" $user.runAsUser "runAsGroup" $user.runAsUser "runAsNonRoot" (ne 0 (int $user.runAsUser)) "seccompProfile" (dict "type" "RuntimeDefault") }}
  {{- with $preset.seLinuxType }}
  {{- $_ := set $podSecurity "seLinuxOptions" (dict "type" .) }}
  {{- end }}
  {{- with (.Values.podSecurityContext).runAsUser }}
  {{- $_ := set $podSecurity "runAsNonRoot" true }}
  {{- end }}
  {{- mergeOverwrite $podSecurity (.Values.podSecurityContext | default dict) | toYaml | nindent 2 }}
containers:
- name: agent
  image: {{ include "etcd-snapshot.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
  - snapshot
  - --policy={{ include "etcd-snapshot.policyName" . }}
  - --namespace=$(POD_NAMESPACE)
  - --policy-manifest=/etc/etcd-snapshot/policy/policy.yaml
  - {{ printf "--schedule=%s" .Values.schedule | quote }}
  - --spool-dir=/spool
  {{- range .Values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
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
  {{- with include "etcd-snapshot.goLimits" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- $capabilities := dict "drop" (list "ALL") }}
    {{- with $user.capabilities }}
    {{- $_ := set $capabilities "add" . }}
    {{- end }}
    {{- $security := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" $capabilities }}
    {{- mergeOverwrite $security (.Values.securityContext | default dict) | toYaml | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
  - name: spool
    mountPath: /spool
  - name: policy
    mountPath: /etc/etcd-snapshot/policy
    readOnly: true
  {{- with include "etcd-snapshot.etcdVolumeMounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "etcd-snapshot.destinationVolumeMounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
- name: spool
  emptyDir:
    {{- with .Values.spool.medium }}
    medium: {{ . }}
    {{- end }}
    sizeLimit: {{ .Values.spool.sizeLimit }}
- name: policy
  configMap:
    name: {{ include "etcd-snapshot.nameWith" (dict "root" . "suffix" "policy") }}
{{- with include "etcd-snapshot.etcdVolumes" . | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- with include "etcd-snapshot.destinationVolumes" . | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- with .Values.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.affinity gives the affinity of the values and, with nodes: all, keeps the pods of a run on different nodes.
*/}}
{{- define "etcd-snapshot.affinity" -}}
{{- $affinity := deepCopy (.Values.affinity | default dict) -}}
{{- if eq .Values.nodes "all" -}}
{{- $labels := include "etcd-snapshot.selectorLabels" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/component" "snapshot" -}}
{{- $apart := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $pods := get $affinity "podAntiAffinity" | default dict -}}
{{- $required := append (get $pods "requiredDuringSchedulingIgnoredDuringExecution" | default list) $apart -}}
{{- $_ := set $pods "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "podAntiAffinity" $pods -}}
{{- end -}}
{{- if $affinity -}}{{- toYaml $affinity -}}{{- end -}}
{{- end }}
