{{/*
Where the files of the receivers of metrics lie in the pod:
  /etc/etcd-snapshot/metrics/KIND/           existingSecret: the files username and password, or token
  /etc/etcd-snapshot/metrics-ca/KIND/ca.crt  caBundle
All of them are optional for the kubelet: a run that cannot hand over metrics takes its snapshot all the same.
*/}}

{{/*
etcd-snapshot.metrics gives the policy's spec.metrics; nothing where no metrics are handed over.
*/}}
{{- define "etcd-snapshot.metrics" -}}
{{- $metrics := deepCopy (.Values.monitoring.metrics | default dict) -}}
{{- if or $metrics.textfile $metrics.pushgateway $metrics.otlp -}}
{{- range $kind := list "pushgateway" "otlp" -}}
{{- with get $metrics $kind -}}
{{- $endpoint := omit . "existingSecret" "caBundle" -}}
{{- if .existingSecret -}}
{{- $_ := set $endpoint "credentialsDir" (printf "/etc/etcd-snapshot/metrics/%s" $kind) -}}
{{- end -}}
{{- if .caBundle -}}
{{- $_ := set $endpoint "caBundleFile" (printf "/etc/etcd-snapshot/metrics-ca/%s/ca.crt" $kind) -}}
{{- end -}}
{{- $_ := set $metrics $kind $endpoint -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.nodes "all" -}}
{{- $_ := set $metrics "perNode" true -}}
{{- end -}}
{{- toYaml $metrics -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.metricsVolumes gives the volumes that handing over metrics needs.
*/}}
{{- define "etcd-snapshot.metricsVolumes" -}}
{{- $root := . }}
{{- $metrics := .Values.monitoring.metrics | default dict }}
{{- with $metrics.textfile }}
- name: metrics-textfile
  hostPath:
    path: {{ .directory }}
    type: DirectoryOrCreate
{{- end }}
{{- range $kind := list "pushgateway" "otlp" }}
{{- with get $metrics $kind }}
{{- with .existingSecret }}
- name: metrics-{{ $kind }}
  secret:
    secretName: {{ . }}
    defaultMode: 0400
    optional: true
{{- end }}
{{- with .caBundle }}
- name: metrics-ca-{{ $kind }}
  {{- include "etcd-snapshot.caBundleSource" (dict "root" $root "bundle" . "key" (printf "metrics.%s.crt" $kind) "optional" true) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.metricsVolumeMounts gives the mounts of metricsVolumes: read-only, but for the folder of the textfile.
*/}}
{{- define "etcd-snapshot.metricsVolumeMounts" -}}
{{- $metrics := .Values.monitoring.metrics | default dict }}
{{- with $metrics.textfile }}
- name: metrics-textfile
  mountPath: {{ .directory }}
{{- end }}
{{- range $kind := list "pushgateway" "otlp" }}
{{- with get $metrics $kind }}
{{- if .existingSecret }}
- name: metrics-{{ $kind }}
  mountPath: /etc/etcd-snapshot/metrics/{{ $kind }}
  readOnly: true
{{- end }}
{{- if .caBundle }}
- name: metrics-ca-{{ $kind }}
  mountPath: /etc/etcd-snapshot/metrics-ca/{{ $kind }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}
{{- end }}
