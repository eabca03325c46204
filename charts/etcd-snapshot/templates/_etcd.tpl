{{/*
etcd-snapshot.presets gives presets.yaml.
*/}}
{{- define "etcd-snapshot.presets" -}}
{{- .Files.Get "presets.yaml" -}}
{{- end }}

{{/*
etcd-snapshot.preset gives what the chosen distribution stands for.
*/}}
{{- define "etcd-snapshot.preset" -}}
{{- $presets := include "etcd-snapshot.presets" . | fromYaml -}}
{{- get $presets.distributions .Values.distribution | default dict | toYaml -}}
{{- end }}

{{/*
etcd-snapshot.endpoints gives etcd's client URLs as a list under the key `endpoints`, and under `tls` whether any of
them speaks TLS.
*/}}
{{- define "etcd-snapshot.endpoints" -}}
{{- $preset := include "etcd-snapshot.preset" . | fromYaml -}}
{{- $endpoints := .Values.etcd.endpoints | default (list) -}}
{{- if and (not $endpoints) $preset.endpoint -}}
{{- $endpoints = list $preset.endpoint -}}
{{- end -}}
{{- $tls := false -}}
{{- range $endpoints -}}
{{- if regexMatch "^(https|unixs)://" . -}}{{- $tls = true -}}{{- end -}}
{{- end -}}
{{- dict "endpoints" $endpoints "tls" $tls | toYaml -}}
{{- end }}

{{/*
etcd-snapshot.certificates says for each of caFile, certFile and keyFile which path the agent reads (`path`), and how it
gets there: as the file `hostPath` of the node; as the file `subPathExpr`, which names the node, in the node's folder
`folder`; or, where none of these is given, out of etcd.existingSecret.
*/}}
{{- define "etcd-snapshot.certificates" -}}
{{- $etcd := .Values.etcd -}}
{{- $files := (include "etcd-snapshot.preset" . | fromYaml).files | default dict -}}
{{- $result := dict -}}
{{- if (include "etcd-snapshot.endpoints" . | fromYaml).tls -}}
{{- range $part := list (list "caFile" "ca" "ca.crt" "ca.crt") (list "certFile" "cert" "tls.crt" "client.crt") (list "keyFile" "key" "tls.key" "client.key") -}}
{{- $field := index $part 0 -}}
{{- $file := get $etcd $field -}}
{{- if and (not $file) (not $etcd.existingSecret) -}}
{{- $file = get $files (index $part 1) -}}
{{- end -}}
{{- if and $file (contains "$(" $file) -}}
{{- $path := printf "/etc/etcd-snapshot/etcd/%s" (index $part 3) -}}
{{- $_ := set $result $field (dict "path" $path "folder" (dir $file) "subPathExpr" (base $file)) -}}
{{- else if $file -}}
{{- $_ := set $result $field (dict "path" $file "hostPath" $file) -}}
{{- else if $etcd.existingSecret -}}
{{- $_ := set $result $field (dict "path" (printf "/etc/etcd-snapshot/etcd-secret/%s" (index $part 2))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $result -}}
{{- end }}

{{/*
etcd-snapshot.etcdVolumes gives the volumes that hold etcd's certificates.
*/}}
{{- define "etcd-snapshot.etcdVolumes" -}}
{{- $secret := false -}}
{{- range $field, $c := include "etcd-snapshot.certificates" . | fromYaml }}
{{- if $c.hostPath }}
- name: etcd-{{ $field | kebabcase }}
  hostPath:
    path: {{ $c.hostPath }}
    type: File
{{- else if $c.folder }}
- name: etcd-{{ $field | kebabcase }}
  hostPath:
    path: {{ $c.folder }}
    type: Directory
{{- else }}
{{- $secret = true }}
{{- end }}
{{- end }}
{{- if $secret }}
- name: etcd-secret
  secret:
    secretName: {{ .Values.etcd.existingSecret }}
    defaultMode: 0400
{{- end }}
{{- end }}

{{/*
etcd-snapshot.etcdVolumeMounts gives the mounts of etcdVolumes, all read-only.
*/}}
{{- define "etcd-snapshot.etcdVolumeMounts" -}}
{{- $secret := false -}}
{{- range $field, $c := include "etcd-snapshot.certificates" . | fromYaml }}
{{- if or $c.hostPath $c.folder }}
- name: etcd-{{ $field | kebabcase }}
  mountPath: {{ $c.path }}
  {{- with $c.subPathExpr }}
  subPathExpr: {{ . }}
  {{- end }}
  readOnly: true
{{- else }}
{{- $secret = true }}
{{- end }}
{{- end }}
{{- if $secret }}
- name: etcd-secret
  mountPath: /etc/etcd-snapshot/etcd-secret
  readOnly: true
{{- end }}
{{- end }}
