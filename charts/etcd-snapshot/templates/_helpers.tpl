{{/*
etcd-snapshot.shorten gives a name of at most `max` characters. One that is cut ends in a hash of the whole, so that
two long names that begin alike stay apart.
*/}}
{{- define "etcd-snapshot.shorten" -}}
{{- if gt (len .name) (int .max) -}}
{{- $head := .name | trunc (sub .max 9 | int) | trimAll "-." -}}
{{- printf "%s-%s" $head (sha256sum .name | trunc 8) -}}
{{- else -}}
{{- .name -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.fullname is the name of all objects, at most 63 characters.
*/}}
{{- define "etcd-snapshot.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- include "etcd-snapshot.shorten" (dict "name" ($full | replace "." "-") "max" 63) -}}
{{- end }}

{{/*
etcd-snapshot.nameWith gives the name of all objects with a suffix that survives shortening.
*/}}
{{- define "etcd-snapshot.nameWith" -}}
{{- $max := sub 62 (len .suffix) -}}
{{- printf "%s-%s" (include "etcd-snapshot.shorten" (dict "name" (include "etcd-snapshot.fullname" .root) "max" $max)) .suffix -}}
{{- end }}

{{/*
etcd-snapshot.cronJobName: at most 52 characters, because the CronJob controller adds 11 to name its Jobs.
*/}}
{{- define "etcd-snapshot.cronJobName" -}}
{{- include "etcd-snapshot.shorten" (dict "name" (include "etcd-snapshot.fullname" .) "max" 52) -}}
{{- end }}

{{/*
etcd-snapshot.policyName: at most 40 characters, because the name of every snapshot begins with it.
*/}}
{{- define "etcd-snapshot.policyName" -}}
{{- include "etcd-snapshot.shorten" (dict "name" (include "etcd-snapshot.fullname" .) "max" 40) -}}
{{- end }}

{{/*
etcd-snapshot.clusterWideName is unique in the cluster. A colon cannot be part of either name.
*/}}
{{- define "etcd-snapshot.clusterWideName" -}}
{{- include "etcd-snapshot.shorten" (dict "name" (printf "%s:%s" .Release.Namespace (include "etcd-snapshot.fullname" .)) "max" 63) -}}
{{- end }}

{{/*
etcd-snapshot.clusterWideNameWith is the same with a suffix that survives shortening.
*/}}
{{- define "etcd-snapshot.clusterWideNameWith" -}}
{{- $max := sub 62 (len .suffix) -}}
{{- $name := printf "%s:%s" .root.Release.Namespace (include "etcd-snapshot.fullname" .root) -}}
{{- printf "%s-%s" (include "etcd-snapshot.shorten" (dict "name" $name "max" $max)) .suffix -}}
{{- end }}

{{- define "etcd-snapshot.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "etcd-snapshot.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "etcd-snapshot.selectorLabels" -}}
app.kubernetes.io/name: {{ include "etcd-snapshot.shorten" (dict "name" (default .Chart.Name .Values.nameOverride) "max" 63) }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "etcd-snapshot.labels" -}}
{{- include "etcd-snapshot.labelsWith" (dict "root" . "extra" dict) -}}
{{- end }}

{{/*
etcd-snapshot.labelsWith gives the labels of an object, with extra ones. The chart's own win.
*/}}
{{- define "etcd-snapshot.labelsWith" -}}
{{- $own := include "etcd-snapshot.selectorLabels" .root | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" (include "etcd-snapshot.shorten" (dict "name" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") "max" 63)) -}}
{{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "etcd-snapshot" -}}
{{- merge $own (.extra | default dict) (.root.Values.commonLabels | default dict) | toYaml -}}
{{- end }}

{{- define "etcd-snapshot.image" -}}
{{- $image := .Values.image -}}
{{- $name := printf "%s/%s" $image.registry $image.repository | trimPrefix "/" -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.rendersCRDs is "true" if this release installs the CRDs: not where those of another release are in the
cluster, which two releases would fight over. `helm template` sees no cluster and goes by crds.enabled alone.
*/}}
{{- define "etcd-snapshot.rendersCRDs" -}}
{{- if .Values.crds.enabled -}}
{{- if not (include "etcd-snapshot.crdOwner" .) -}}
true
{{- end -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.crdOwner is the other release, as namespace/name, that the CRDs in the cluster belong to, if one does.
*/}}
{{- define "etcd-snapshot.crdOwner" -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "etcdsnapshotpolicies.etcdsnapshot.dev" | default dict -}}
{{- $annotations := dig "metadata" "annotations" dict $crd | default dict -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- if and (ne $owner "/") (ne $owner (printf "%s/%s" .Release.Namespace .Release.Name)) -}}
{{- $owner -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.bytes gives the bytes of a quantity, such as 1.5Gi.
*/}}
{{- define "etcd-snapshot.bytes" -}}
{{- $quantity := kindIs "float64" . | ternary (printf "%.0f" .) (toString .) -}}
{{- $number := regexFind "^[0-9.]+" $quantity -}}
{{- $unit := trimPrefix $number $quantity -}}
{{- $factor := get (dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) $unit -}}
{{- if and $number $factor -}}
{{- mulf (float64 $number) $factor | int64 -}}
{{- end -}}
{{- end }}

{{/*
etcd-snapshot.goLimits gives the environment that tells Go's runtime the limits of these resources.
*/}}
{{- define "etcd-snapshot.goLimits" -}}
{{- $limits := (. | default dict).limits | default dict -}}
{{- with include "etcd-snapshot.bytes" (default "" $limits.memory) }}
- name: GOMEMLIMIT
  value: {{ printf "%dMiB" (div (mul (int64 .) 9) 10485760) }}
{{- end }}
{{- with $limits.cpu }}
{{- $cpu := toString . }}
{{- $cores := ternary (divf (float64 (trimSuffix "m" $cpu)) 1000) (float64 $cpu) (hasSuffix "m" $cpu) }}
- name: GOMAXPROCS
  value: {{ max 1 (ceil $cores | int) | quote }}
{{- end }}
{{- end }}
