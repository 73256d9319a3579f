{{- define "hourbell.labels" -}}
app.kubernetes.io/name: hourbell
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "hourbell.selector" -}}
app.kubernetes.io/name: hourbell
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* What all pods have in common. */}}
{{- define "hourbell.pod" -}}
automountServiceAccountToken: false
# The variables that a Service named hourbell adds to pods look like settings.
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: secrets
    secret:
      secretName: {{ .root.Values.secretName }}
      defaultMode: 0440
{{- end }}

{{- define "hourbell.container" -}}
image: {{ .image | default (printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion)) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
env:
  - {name: HOURBELL_ADMIN_KEY_FILE, value: /run/hourbell/admin-key}
  - {name: HOURBELL_DATABASE_URL_FILE, value: /run/hourbell/database-url}
  - {name: HOURBELL_SECRET_KEYS_FILE, value: /run/hourbell/secret-keys}
  {{- range $name, $value := .root.Values.settings }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
volumeMounts:
  - name: secrets
    mountPath: /run/hourbell
    readOnly: true
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* A Deployment of one role: .component, .args, .replicas, .grace, .resources, .root; .image for the worker of an app. */}}
{{- define "hourbell.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  labels: {{ include "hourbell.labels" . | nindent 4 }}
spec:
  {{- if hasKey . "replicas" }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels: {{ include "hourbell.selector" . | nindent 6 }}
  strategy:
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  template:
    metadata:
      labels: {{ include "hourbell.labels" . | nindent 8 }}
    spec:
      {{- include "hourbell.pod" . | nindent 6 }}
      # After SIGTERM: the drain, seconds to clean up, and the connections of the database.
      terminationGracePeriodSeconds: {{ .grace }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{ include "hourbell.selector" . | nindent 14 }}
      containers:
        - name: hourbell
          {{- include "hourbell.container" . | nindent 10 }}
          args: {{ toJson .args }}
          ports:
            - name: http
              containerPort: 8080
          # The process, not the database: a restart mends no database. Until it has started, nothing answers.
          startupProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 3
          {{- if eq .component "api" }}
          lifecycle:
            preStop: # until the Service sends no new requests here
              exec:
                command: [sleep, "5"]
          {{- end }}
          resources: {{ toYaml (.resources | default dict) | nindent 12 }}
{{- end }}

{{/* At most one pod of a component is evicted at a time. */}}
{{- define "hourbell.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  labels: {{ include "hourbell.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{ include "hourbell.selector" . | nindent 6 }}
{{- end }}
