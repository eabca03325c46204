{{/*
etcd-snapshot.validate refuses what the schema cannot: each sentence begins with the path of the value.
*/}}
{{- define "etcd-snapshot.validate" -}}
{{- $presets := include "etcd-snapshot.presets" . | fromYaml -}}
{{- with get $presets.refused .Values.distribution -}}
{{- fail (printf "distribution: %s is refused. %s" $.Values.distribution .) -}}
{{- end -}}
{{- if not (hasKey $presets.distributions .Values.distribution) -}}
{{- fail (printf "distribution: %q is unknown. It is one of %s. On another one use kubeadm or external and set etcd.* and nodeSelector." .Values.distribution (keys $presets.distributions | sortAlpha | join ", ")) -}}
{{- end -}}
{{- include "etcd-snapshot.validateSchedule" . -}}
{{- include "etcd-snapshot.validateTimeZone" (dict "path" "timeZone" "zone" .Values.timeZone) -}}
{{- include "etcd-snapshot.validateTimeZone" (dict "path" "retentionTimeZone" "zone" .Values.retentionTimeZone) -}}
{{- include "etcd-snapshot.validateEtcd" . -}}
{{- include "etcd-snapshot.validateDestinations" . -}}
{{- include "etcd-snapshot.validateExtras" . -}}
{{- if and (eq .Values.nodes "all") (not (include "etcd-snapshot.hasHostPath" .)) -}}
{{- fail "nodes: all is for folders on the nodes, and no destination has a hostPath. A bucket needs one copy: use nodes: any." -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.validateSchedule refuses ranges that run backwards; the schema has checked the rest.
*/}}
{{- define "etcd-snapshot.validateSchedule" -}}
{{- $schedule := .Values.schedule | lower -}}
{{- $names := dict "sun" 0 "mon" 1 "tue" 2 "wed" 3 "thu" 4 "fri" 5 "sat" 6 "jan" 1 "feb" 2 "mar" 3 "apr" 4 "may" 5 "jun" 6 "jul" 7 "aug" 8 "sep" 9 "oct" 10 "nov" 11 "dec" 12 -}}
{{- range $range := regexFindAll "[a-z0-9]+-[a-z0-9]+" $schedule -1 -}}
{{- $ends := list -}}
{{- range $end := splitList "-" $range -}}
{{- $ends = append $ends (int (get $names $end | default $end)) -}}
{{- end -}}
{{- if gt (index $ends 0) (index $ends 1) -}}
{{- fail (printf "schedule: the range %s in %q runs backwards. Write it as two, such as fri-sat,sun-mon." $range $.Values.schedule) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.validateTimeZone refuses a zone that the time zone database lacks. Go's zone abbreviations tell: a zone that
cannot be loaded is taken for UTC. Where that also happens to a zone that surely exists, there is no database to ask.
*/}}
{{- define "etcd-snapshot.validateTimeZone" -}}
{{- $day := toDate "2006-01-02" "2024-01-01" -}}
{{- if and .zone (eq "UTC" (dateInZone "MST" $day .zone)) (ne "UTC" (dateInZone "MST" $day "America/New_York")) -}}
{{- if not (has .zone (list "UTC" "UCT" "Zulu" "Universal" "Etc/UTC" "Etc/UCT" "Etc/Zulu" "Etc/Universal")) -}}
{{- fail (printf "%s: there is no time zone %q. Use an IANA name, such as Europe/Berlin." .path .zone) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "etcd-snapshot.validateEtcd" -}}
{{- $etcd := include "etcd-snapshot.endpoints" . | fromYaml -}}
{{- if not $etcd.endpoints -}}
{{- fail (printf "etcd.endpoints: is needed with distribution %s, such as {https://10.0.0.1:2379}." .Values.distribution) -}}
{{- end -}}
{{- $certificates := include "etcd-snapshot.certificates" . | fromYaml -}}
{{- if and $etcd.tls (not $certificates.certFile) -}}
{{- fail (printf "etcd.existingSecret: is needed with distribution %s where etcd speaks TLS: the Secret with ca.crt, tls.crt and tls.key. Or set etcd.caFile, etcd.certFile and etcd.keyFile." .Values.distribution) -}}
{{- end -}}
{{- if ne (hasKey $certificates "certFile") (hasKey $certificates "keyFile") -}}
{{- fail "etcd.keyFile: etcd.certFile and etcd.keyFile go together." -}}
{{- end -}}
{{- end }}

{{- define "etcd-snapshot.validateDestinations" -}}
{{- $folders := dict -}}
{{- $count := 0 -}}
{{- range $name, $values := .Values.destinations -}}
{{- if $values -}}
{{- $count = add1 $count -}}
{{- with ($values.hostPath).path -}}
{{- with get $folders . -}}
{{- fail (printf "destinations.%s.hostPath.path: is the folder of destination %s already. Give each its own." $name .) -}}
{{- end -}}
{{- $_ := set $folders . $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $count -}}
{{- fail "destinations: at least one is needed, such as destinations.node.hostPath.path=/var/lib/etcd-snapshots." -}}
{{- end -}}
{{- end }}

{{- define "etcd-snapshot.validateExtras" -}}
{{- if .Values.extras.enabled -}}
{{- if not (include "etcd-snapshot.extrasPaths" . | fromYaml).paths -}}
{{- fail (printf "extras.paths: is needed with distribution %s, which has none of its own: the files of the node to store beside each snapshot." .Values.distribution) -}}
{{- end -}}
{{- range .Values.extras.destinations -}}
{{- if not (get $.Values.destinations .) -}}
{{- fail (printf "extras.destinations: there is no destination %s." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
