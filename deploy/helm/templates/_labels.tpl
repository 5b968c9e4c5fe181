{{- define "darksight.labels" -}}
{app.kubernetes.io/name: darksight, app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}, app.kubernetes.io/managed-by: {{ .Release.Service }}}
{{- end -}}
{{- define "darksight.server" -}}
{app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: server}
{{- end -}}
{{- define "darksight.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- define "darksight.bundles" -}}
{{ .Values.bundles.existingClaim | default (printf "%s-bundles" .Release.Name) }}
{{- end -}}
{{- define "darksight.scheme" -}}
{{ if eq (index .Values.settings "http_tls" | toString) "true" }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}
{{- define "darksight.pullSecrets" -}}
[{{ range $i, $name := .Values.image.pullSecrets }}{{ if $i }}, {{ end }}{name: {{ $name }}}{{ end }}]
{{- end -}}
