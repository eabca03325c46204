{{/*
Where the files of a notification lie in the pod:
  /etc/etcd-snapshot/notifications/NAME/         existingSecret: the file url and, where it signs, the file signing-key
  /etc/etcd-snapshot/notification-ca/NAME/ca.crt caBundle
All of them are optional for the kubelet: a run that cannot notify takes its snapshot all the same.
*/}}

{{/*
etcd-snapshot.notifications gives the notifications as the policy lists them, sorted by name.
*/}}
{{- define "etcd-snapshot.notifications" -}}
{{- range $name, $values := .Values.notifications }}
{{- range $kind := list "webhook" "ping" }}
{{- with get ($values | default dict) $kind }}
{{- $n := set (omit . "existingSecret" "caBundle") "credentialsDir" (printf "/etc/etcd-snapshot/notifications/%s" $name) }}
{{- if .caBundle }}
{{- $n = set $n "caBundleFile" (printf "/etc/etcd-snapshot/notification-ca/%s/ca.crt" $name) }}
{{- end }}
- name: {{ $name }}
  {{ $kind }}:
    {{- toYaml $n | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.notificationVolumes gives the volumes that the notifications need.
*/}}
{{- define "etcd-snapshot.notificationVolumes" -}}
{{- $root := . }}
{{- range $name, $values := .Values.notifications }}
{{- range $kind := list "webhook" "ping" }}
{{- with get ($values | default dict) $kind }}
- name: notification-{{ $name }}
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0400
    optional: true
{{- with .caBundle }}
- name: notifier-ca-{{ $name }}
  {{- include "etcd-snapshot.caBundleSource" (dict "root" $root "bundle" . "key" (printf "notification.%s.crt" $name) "optional" true) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
etcd-snapshot.notificationVolumeMounts gives the mounts of notificationVolumes, all read-only.
*/}}
{{- define "etcd-snapshot.notificationVolumeMounts" -}}
{{- range $name, $values := .Values.notifications }}
{{- range $kind := list "webhook" "ping" }}
{{- with get ($values | default dict) $kind }}
- name: notification-{{ $name }}
  mountPath: /etc/etcd-snapshot/notifications/{{ $name }}
  readOnly: true
{{- if .caBundle }}
- name: notifier-ca-{{ $name }}
  mountPath: /etc/etcd-snapshot/notification-ca/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
