{{/*
etcd-snapshot.alertRules gives the rules of monitoring/alerts.yaml as Prometheus reads them: with the values' settings, and
for one policy where a selector is given (alone, not in a list: a rule's matchers end with it).
*/}}
{{- define "etcd-snapshot.alertRules" -}}
{{- $source := .root.Files.Get "monitoring/alerts.yaml" | fromYaml -}}
{{- $values := .root.Values.monitoring.prometheusRule -}}
{{- $verification := .root.Values.verification -}}
{{- $proves := and $verification.schedule (ne $verification.level "checksum") -}}
{{- $rules := list -}}
{{- range $alert := $source.alerts -}}
{{- $set := get $values.alerts $alert.alert | default dict -}}
{{- $wanted := or $.everything (ne ($alert.onlyIf | default "") "verification") $proves -}}
{{- if hasKey $set "enabled" -}}{{- $wanted = $set.enabled -}}{{- end -}}
{{- if $wanted -}}
{{- $threshold := $alert.threshold -}}
{{- if hasKey $set "threshold" -}}{{- $threshold = $set.threshold -}}{{- end -}}
{{- if eq (kindOf $threshold) "float64" -}}{{- $threshold = toJson $threshold -}}{{- end -}}
{{- $expr := $alert.expr | replace "$LATEST" ($source.macros.LATEST | nindent 2 | trim) | replace "$VERIFIED" ($source.macros.VERIFIED | nindent 2 | trim) -}}
{{- $expr = $expr | replace "$LABELS" $source.macros.LABELS | replace "$THRESHOLD" (toString $threshold) -}}
{{- if $.selector -}}
{{- $expr = $expr | replace "$SELECTOR" $.selector -}}
{{- else -}}
{{- $expr = $expr | replace "{$SELECTOR}" "" | replace ",$SELECTOR" "" -}}
{{- end -}}
{{- $rule := dict "alert" $alert.alert "expr" $expr "for" ($set.for | default $alert.for) -}}
{{- with $alert.keepFiringFor -}}{{- $_ := set $rule "keep_firing_for" . -}}{{- end -}}
{{- $labels := merge (dict "severity" ($set.severity | default $alert.severity)) ($set.labels | default dict) -}}
{{- $_ := set $rule "labels" $labels -}}
{{- $_ := set $rule "annotations" (dict "summary" $alert.summary "description" $alert.description "runbook_url" (printf "%s/%s.md" ($values.runbookURL | trimSuffix "/") $alert.alert)) -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "rules" $rules) -}}
{{- end }}
