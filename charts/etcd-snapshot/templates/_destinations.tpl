{{/*
Where the files of a destination lie in the pod:
  /etc/etcd-snapshot/credentials/NAME/   auth.existingSecret, one file for each key
  /etc/etcd-snapshot/sse-c/NAME/         serverSideEncryption.existingSecret
  /etc/etcd-snapshot/ca/NAME/ca.crt      caBundle
*/}}

{{/*
etcd-snapshot.destinations gives the destinations as the policy lists them, sorted by name: what a Secret or a ConfigMap
holds is named by the file that it is mounted as.
*/}}
{{- define "etcd-snapshot.destinations" -}}
{{- range $name, $values := .Values.destinations }}
{{- if $values }}
- name: {{ $name }}
  {{- range $backend := list "hostPath" "gcs" "azure" "s3" }}
  {{- with get $values $backend }}
  {{- $b := deepCopy . }}
  {{- if $b.caBundle }}
  {{- $b = set (omit $b "caBundle") "caBundleFile" (printf "/etc/etcd-snapshot/ca/%s/ca.crt" $name) }}
  {{- end }}
  {{- if ($b.auth).existingSecret }}
  {{- $folder := printf "/etc/etcd-snapshot/credentials/%s" $name }}
  {{- $where := ternary (dict "credentialsFile" (printf "%s/key.json" $folder)) (dict "credentialsDir" $folder) (eq $backend "gcs") }}
  {{- $_ := set $b "auth" (merge (omit $b.auth "existingSecret") $where) }}
  {{- end }}
  {{- if ($b.serverSideEncryption).existingSecret }}
  {{- $_ := set $b "serverSideEncryption" (set (omit $b.serverSideEncryption "existingSecret") "keyDir" (printf "/etc/etcd-snapshot/sse-c/%s" $name)) }}
  {{- end }}
  {{ $backend }}:
    {{- toYaml $b | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- if hasKey $values "required" }}
  required: {{ $values.required }}
  {{- end }}
  {{- with $values.retention }}
  retention:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.destinationVolumes gives the volumes that the destinations need.
*/}}
{{- define "etcd-snapshot.destinationVolumes" -}}
{{- $root := . }}
{{- range $name, $values := .Values.destinations }}
{{- $values = $values | default dict }}
{{- with $values.hostPath }}
- name: destination-{{ $name }}
  hostPath:
    path: {{ .path }}
    type: DirectoryOrCreate
{{- end }}
{{- range $backend := list "gcs" "azure" "s3" }}
{{- with get $values $backend }}
{{- with (.auth).existingSecret }}
- name: credentials-{{ $name }}
  secret:
    secretName: {{ . }}
    defaultMode: 0400
{{- end }}
{{- with (.serverSideEncryption).existingSecret }}
- name: sse-c-{{ $name }}
  secret:
    secretName: {{ . }}
    defaultMode: 0400
{{- end }}
{{- with .caBundle }}
- name: ca-{{ $name }}
  {{- include "etcd-snapshot.caBundleSource" (dict "root" $root "bundle" . "key" (printf "%s.crt" $name)) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.caBundleSource gives the source of a volume with the file ca.crt: what the caBundle `bundle` names or, where
it is inline, the key `key` of our own ConfigMap. With `optional` what is missing is no reason not to start.
*/}}
{{- define "etcd-snapshot.caBundleSource" -}}
{{- $from := .bundle.existingSecret | default .bundle.configMap | default dict -}}
{{- if .bundle.existingSecret -}}
secret:
  secretName: {{ .bundle.existingSecret.name }}
{{- else if .bundle.configMap -}}
configMap:
  name: {{ .bundle.configMap.name }}
{{- else -}}
configMap:
  name: {{ include "etcd-snapshot.nameWith" (dict "root" .root "suffix" "ca") }}
{{- end }}
  items:
  - key: {{ ternary .key ($from.key | default "ca.crt") (empty $from) }}
    path: ca.crt
  {{- if .optional }}
  optional: true
  {{- end }}
{{- end }}

{{/*
etcd-snapshot.destinationVolumeMounts gives the mounts of destinationVolumes: read-only, but for the folders that
snapshots are stored in, which have the path that they have on the node.
*/}}
{{- define "etcd-snapshot.destinationVolumeMounts" -}}
{{- range $name, $values := .Values.destinations }}
{{- $values = $values | default dict }}
{{- with $values.hostPath }}
- name: destination-{{ $name }}
  mountPath: {{ .path }}
{{- end }}
{{- range $backend := list "gcs" "azure" "s3" }}
{{- with get $values $backend }}
{{- if (.auth).existingSecret }}
- name: credentials-{{ $name }}
  mountPath: /etc/etcd-snapshot/credentials/{{ $name }}
  readOnly: true
{{- end }}
{{- if (.serverSideEncryption).existingSecret }}
- name: sse-c-{{ $name }}
  mountPath: /etc/etcd-snapshot/sse-c/{{ $name }}
  readOnly: true
{{- end }}
{{- if .caBundle }}
- name: ca-{{ $name }}
  mountPath: /etc/etcd-snapshot/ca/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.describeDestination says in one line where a destination is and what it keeps.
*/}}
{{- define "etcd-snapshot.describeDestination" -}}
{{- with .hostPath -}}{{ .path }} on the node's disk{{- end -}}
{{- with .gcs -}}gs://{{ .bucket }}{{ with .prefix }}/{{ . | trimAll "/" }}{{ end }}{{- end -}}
{{- with .azure -}}{{ .serviceURL | default (printf "https://%s.blob.core.windows.net" .account) | trimSuffix "/" }}/{{ .container }}{{ with .prefix }}/{{ . | trimAll "/" }}{{ end }}{{- end -}}
{{- with .s3 -}}s3://{{ .bucket }}{{ with .prefix }}/{{ . | trimAll "/" }}{{ end }}{{ with .endpoint }} at {{ . }}{{ end }}{{- end -}}
{{- $rules := list -}}
{{- range $rule := list "last" "hourly" "daily" "weekly" "monthly" "yearly" "within" -}}
{{- with get ($.retention | default dict) $rule -}}
{{- $rules = append $rules (printf "%s %v" $rule .) -}}
{{- end -}}
{{- end -}}
, keeps {{ $rules | join ", " | default "everything" }}
{{- end }}
