{{/*
etcd-snapshot.extrasPaths gives, under the key `paths`, what goes into the disaster bundle: the paths of the values or the
distribution, and the additional ones. A folder ends with a slash.
*/}}
{{- define "etcd-snapshot.extrasPaths" -}}
{{- $paths := list -}}
{{- with .Values.extras -}}
{{- if .enabled -}}
{{- $paths = .paths -}}
{{- if kindIs "invalid" $paths -}}
{{- $paths = (include "etcd-snapshot.preset" $ | fromYaml).extras | default list -}}
{{- end -}}
{{- $paths = concat $paths .additionalPaths | uniq | sortAlpha -}}
{{- end -}}
{{- end -}}
{{- dict "paths" $paths | toYaml -}}
{{- end }}

{{/*
etcd-snapshot.extrasMounted gives, under the key `paths`, those that need a mount of their own: a file that is mounted as
one of etcd's certificates, or a folder that is a destination's, is there already.
*/}}
{{- define "etcd-snapshot.extrasMounted" -}}
{{- $there := dict -}}
{{- range include "etcd-snapshot.certificates" . | fromYaml -}}
{{- $_ := set $there .path true -}}
{{- end -}}
{{- range .Values.destinations -}}
{{- with ((. | default dict).hostPath).path -}}
{{- $_ := set $there . true -}}
{{- end -}}
{{- end -}}
{{- $paths := list -}}
{{- range (include "etcd-snapshot.extrasPaths" . | fromYaml).paths -}}
{{- $path := trimSuffix "/" . -}}
{{- if not (hasKey $there $path) -}}
{{- $_ := set $there $path true -}}
{{- $paths = append $paths . -}}
{{- end -}}
{{- end -}}
{{- dict "paths" $paths | toYaml -}}
{{- end }}

{{- define "etcd-snapshot.extrasVolumes" -}}
{{- range $i, $path := (include "etcd-snapshot.extrasMounted" . | fromYaml).paths }}
- name: extras-{{ $i }}
  hostPath:
    path: {{ trimSuffix "/" $path }}
    type: {{ ternary "Directory" "File" (hasSuffix "/" $path) }}
{{- end }}
{{- end }}

{{- define "etcd-snapshot.extrasVolumeMounts" -}}
{{- range $i, $path := (include "etcd-snapshot.extrasMounted" . | fromYaml).paths }}
- name: extras-{{ $i }}
  mountPath: {{ trimSuffix "/" $path }}
  readOnly: true
{{- end }}
{{- end }}
