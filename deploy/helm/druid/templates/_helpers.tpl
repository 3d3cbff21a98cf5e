{{- define "druid.labels" -}}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "druid.selector" . }}
{{- end }}

{{- define "druid.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "druid.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "druid.steward" -}}
{{ .Values.etcd.stewardImage | default (printf "%s/etcd-steward:%s" .Values.image.registry (include "druid.tag" .)) }}
{{- end }}

{{/* The configuration file of one controller. */}}
{{- define "druid.config" -}}
{{- $config := deepCopy .controller.config }}
{{- $images := dict "steward" (include "druid.steward" .root) }}
{{- if eq .name "etcd-controller" }}
{{- $images = merge $images (dict "etcd" .root.Values.etcd.image) }}
{{- end }}
{{- if has .name (list "etcd-controller" "compaction-controller") }}
{{- $config = merge $config (dict "images" $images) }}
{{- end }}
{{- $telemetry := dict "logFormat" .root.Values.telemetry.logFormat "logFilter" .root.Values.telemetry.logFilter }}
{{- with .root.Values.telemetry.otlpEndpoint }}
{{- $telemetry = merge $telemetry (dict "otlpEndpoint" .) }}
{{- end }}
{{- toYaml (dict
  "leaderElection" .root.Values.leaderElection
  "server" (dict "bindAddress" "0.0.0.0" "port" 8080)
  "telemetry" $telemetry
  "controller" $config) }}
{{- end }}
