{{/*
etcd-snapshot.policy gives the policy's manifest.
*/}}
{{- define "etcd-snapshot.policy" -}}
{{- $spec := include "etcd-snapshot.policySpec" . | trim -}}
apiVersion: etcdsnapshot.dev/v1
kind: EtcdSnapshotPolicy
metadata:
  name: {{ include "etcd-snapshot.policyName" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "etcd-snapshot.labels" . | nindent 4 }}
  annotations:
    # Helm takes it into the release, should a run have made it, but as it is: by the digest a run sees that it is older.
    meta.helm.sh/release-name: {{ .Release.Name }}
    meta.helm.sh/release-namespace: {{ .Release.Namespace }}
    etcdsnapshot.dev/spec-digest: {{ $spec | sha256sum | quote }}
spec:
  {{- $spec | nindent 2 }}
{{- end }}

{{/*
etcd-snapshot.policySpec gives its spec.
*/}}
{{- define "etcd-snapshot.policySpec" -}}
{{- $etcd := include "etcd-snapshot.endpoints" . | fromYaml -}}
{{- $certificates := include "etcd-snapshot.certificates" . | fromYaml -}}
{{- with .Values.clusterName }}
clusterName: {{ . | quote }}
{{- end }}
{{- with .Values.clusterUID }}
clusterUID: {{ . | quote }}
{{- end }}
timeZone: {{ .Values.retentionTimeZone | default .Values.timeZone | default "UTC" }}
etcd:
  endpoints:
  {{- range $etcd.endpoints }}
  - {{ . | quote }}
  {{- end }}
  {{- range $field := list "caFile" "certFile" "keyFile" }}
  {{- with get $certificates $field }}
  {{ $field }}: {{ .path }}
  {{- end }}
  {{- end }}
  {{- with .Values.etcd.serverName }}
  serverName: {{ . | quote }}
  {{- end }}
compression:
  {{- toYaml .Values.compression | nindent 2 }}
{{- if (.Values.encryption.age).recipients }}
encryption:
  {{- toYaml .Values.encryption | nindent 2 }}
{{- end }}
{{- if or .Values.signing.keySecret .Values.signing.trustedKeys }}
signing:
  ssh:
    {{- if .Values.signing.keySecret }}
    keyFile: /etc/etcd-snapshot/signing/ssh-privatekey
    {{- end }}
    {{- with .Values.signing.trustedKeys }}
    trustedKeys:
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
destinations:
{{- include "etcd-snapshot.destinations" . | trim | nindent 0 }}
verification:
  afterStore: {{ .Values.verification.afterStore }}
{{- with include "etcd-snapshot.metrics" . | trim }}
metrics:
  {{- . | nindent 2 }}
{{- end }}
{{- with include "etcd-snapshot.notifications" . | trim }}
notifications:
{{- . | nindent 0 }}
{{- end }}
{{- with (include "etcd-snapshot.extrasPaths" . | fromYaml).paths }}
extras:
  paths:
  {{- range . }}
  - {{ . | quote }}
  {{- end }}
  {{- if ($.Values.extras.encryption.age).recipients }}
  encryption:
    {{- toYaml $.Values.extras.encryption | nindent 4 }}
  {{- end }}
  {{- with $.Values.extras.destinations }}
  destinations:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.policyComesLater is "true" where the policy cannot be part of the release: in the one that brings the CRDs
to a cluster without them. Helm looks up every kind before it makes the first object. The first run makes the policy
then, of the manifest in the ConfigMap, and the next upgrade takes it into the release. A template that is rendered
without a cluster (`helm template`, GitOps) always holds it.
*/}}
{{- define "etcd-snapshot.policyComesLater" -}}
{{- if and .Values.crds.enabled (not (.Capabilities.APIVersions.Has "etcdsnapshot.dev/v1/EtcdSnapshotPolicy")) -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
true
{{- end -}}
{{- end -}}
{{- end }}
