{{- define "upcall.labels" -}}
app.kubernetes.io/name: upcall
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "upcall.pick" -}}
app.kubernetes.io/name: upcall
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "upcall.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "upcall.natsUrl" -}}
{{- if not .Values.nats.enabled -}}
{{ required "nats.url is needed where nats.enabled is false" .Values.nats.url }}
{{- else -}}
{{ if .Values.nats.tls.secret }}tls{{ else }}nats{{ end }}://{{ .Release.Name }}-nats:4222
{{- end -}}
{{- end }}

{{- define "upcall.redisUrl" -}}
{{- if not .Values.redis.enabled -}}
{{ required "redis.url is needed where redis.enabled is false" .Values.redis.url }}
{{- else -}}
redis://:$(UPCALL_REDIS_PASSWORD)@{{ .Release.Name }}-redis:6379/0
{{- end -}}
{{- end }}

{{/* What the services and provisioning have in their environment. */}}
{{- define "upcall.environment" -}}
- { name: UPCALL_NATS_URL, value: {{ include "upcall.natsUrl" . | quote }} }
- { name: UPCALL_NATS_USER, value: services }
- name: UPCALL_NATS_PASSWORD
  valueFrom: { secretKeyRef: { name: {{ .Values.passwords }}, key: UPCALL_NATS_SERVICES_PASSWORD } }
- name: UPCALL_REDIS_PASSWORD
  valueFrom: { secretKeyRef: { name: {{ .Values.passwords }}, key: UPCALL_REDIS_PASSWORD } }
- { name: UPCALL_REDIS_URL, value: {{ include "upcall.redisUrl" . | quote }} }
{{- if .Values.nats.tls.secret }}
- { name: UPCALL_NATS_TLS_CA, value: /tls/ca.crt }
{{- if .Values.nats.tls.verifyClients }}
- { name: UPCALL_NATS_TLS_CERT, value: /tls/tls.crt }
- { name: UPCALL_NATS_TLS_KEY, value: /tls/tls.key }
{{- end }}
{{- end }}
{{- end }}

{{/* What the services see of TLS: the CA, and a certificate of their own where the servers want one. */}}
{{- define "upcall.tlsVolume" -}}
name: tls
secret:
{{- if .Values.nats.tls.verifyClients }}
  secretName: {{ required "nats.tls.servicesSecret is needed where nats.tls.verifyClients is true" .Values.nats.tls.servicesSecret }}
{{- else }}
  secretName: {{ .Values.nats.tls.secret }}
  items: [{ key: ca.crt, path: ca.crt }]
{{- end }}
{{- end }}

{{- define "upcall.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "upcall.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* One pod of each on a node, and nodes of different zones first. */}}
{{- define "upcall.spread" -}}
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "upcall.pick" . | nindent 6 }}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "upcall.pick" . | nindent 6 }}
{{- end }}
