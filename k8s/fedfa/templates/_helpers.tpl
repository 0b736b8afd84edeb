{{- define "fedfa.fullname" -}}
{{- /* 39, "-trainer-" and a pool's name: 63 at most, as KEDA makes a label of it. */ -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 39 | trimSuffix "-" -}}
{{- end }}

{{- /* Labels of an object. Takes (dict "root" $ "component" "scheduler"). */ -}}
{{- define "fedfa.labels" -}}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: fedfa
{{ include "fedfa.selector" . }}
{{- end }}

{{- /* What selects a component's pods, for ever the same. */ -}}
{{- define "fedfa.selector" -}}
app.kubernetes.io/name: fedfa
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
fedfa/pool: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Takes (dict "root" $ "service" "trainer" "image" "whole reference or empty"). */ -}}
{{- define "fedfa.image" -}}
{{- if .image -}}
{{ .image }}
{{- else -}}
{{ .root.Values.image.registry }}/fedfa-{{ .service }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* FEDFA_ variables of a settings map, camelCase to UPPER_SNAKE; null and "" are left out.
Takes (dict "prefix" "FEDFA_" "settings" map). */ -}}
{{- define "fedfa.variables" -}}
{{- range $name, $value := .settings }}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
{{ $.prefix }}{{ $name | snakecase | upper }}: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fedfa.broker.host" -}}
{{- if eq .Values.broker.mode "external" -}}
{{ .Values.broker.host }}
{{- else -}}
{{ include "fedfa.fullname" . }}-broker.{{ .Release.Namespace }}.svc
{{- end -}}
{{- end }}

{{- define "fedfa.broker.port" -}}
{{- .Values.broker.port | default (ternary 5671 5672 .Values.broker.tls.enabled) -}}
{{- end }}

{{- define "fedfa.bucket.endpoint" -}}
{{- if eq .Values.bucket.mode "builtin" -}}
http://{{ include "fedfa.fullname" . }}-bucket.{{ .Release.Namespace }}.svc:8333
{{- else -}}
{{ .Values.bucket.endpoint }}
{{- end -}}
{{- end }}

{{- define "fedfa.bucket.port" -}}
{{- $url := urlParse (include "fedfa.bucket.endpoint" .) -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $port | default (ternary 80 443 (eq $url.scheme "http")) -}}
{{- end }}

{{- define "fedfa.usesTopology" -}}
{{- if or .Values.broker.topology.enabled (eq .Values.broker.mode "operator") }}true{{ end -}}
{{- end }}

{{- define "fedfa.checks" -}}
{{- if not .Values.image.registry }}
{{- fail "image.registry: set the registry and folder that hold the images fedfa-aggregator, fedfa-scheduler, fedfa-trainer and fedfa-cli" }}
{{- end }}
{{- with .Values.broker }}
{{- if and (eq .mode "external") (not .host) }}
{{- fail "broker.host: set where RabbitMQ is, or broker.mode to operator or builtin" }}
{{- end }}
{{- if and (ne .mode "external") (or .host .port) }}
{{- fail (printf "broker.host (%q) and broker.port (%d): leave them out, broker.mode %s has its own" .host (int .port) .mode) }}
{{- end }}
{{- if and .existingSecret (or .username .password) }}
{{- fail "broker.existingSecret and broker.username/broker.password: set one of the two" }}
{{- end }}
{{- if ne (empty .username) (empty .password) }}
{{- fail "broker.username and broker.password: set both or neither" }}
{{- end }}
{{- if and (eq .mode "builtin") .existingSecret }}
{{- fail "broker.existingSecret: not with broker.mode builtin, which makes its own; set broker.username and broker.password to choose them" }}
{{- end }}
{{- if and (eq .mode "builtin") .tls.enabled }}
{{- fail "broker.tls.enabled: not with broker.mode builtin" }}
{{- end }}
{{- if and (eq .mode "operator") .tls.enabled (not .operator.tlsSecret) }}
{{- fail "broker.operator.tlsSecret: set the Secret with the servers' certificate, for broker.tls.enabled" }}
{{- end }}
{{- if and .topology.enabled (eq .mode "external") (not .topology.clusterName) }}
{{- fail "broker.topology.clusterName: set the RabbitmqCluster to make users in" }}
{{- end }}
{{- if and .topology.enabled (eq .mode "builtin") }}
{{- fail "broker.topology.enabled: not with broker.mode builtin, which no operator looks after" }}
{{- end }}
{{- if and (include "fedfa.usesTopology" $) (or .existingSecret .username) }}
{{- fail "broker.existingSecret, broker.username: not with broker.topology or broker.mode operator, which make a user for each service" }}
{{- end }}
{{- end }}
{{- with .Values.bucket }}
{{- if and .existingSecret (or .accessKey .secretKey) }}
{{- fail "bucket.existingSecret and bucket.accessKey/bucket.secretKey: set one of the two" }}
{{- end }}
{{- if ne (empty .accessKey) (empty .secretKey) }}
{{- fail "bucket.accessKey and bucket.secretKey: set both or neither" }}
{{- end }}
{{- if and (eq .mode "builtin") .existingSecret }}
{{- fail "bucket.existingSecret: not with bucket.mode builtin, which makes its own; set bucket.accessKey and bucket.secretKey to choose them" }}
{{- end }}
{{- if and (eq .mode "builtin") .endpoint }}
{{- fail "bucket.endpoint: not with bucket.mode builtin" }}
{{- end }}
{{- end }}
{{- $lease := float64 .Values.scheduler.settings.leaseTtlSeconds }}
{{- with .Values.scheduler.settings.poolDownAfterSeconds }}
{{- if lt (float64 .) $lease }}
{{- fail (printf "scheduler.settings.poolDownAfterSeconds: %v is less than leaseTtlSeconds, %v" . $lease) }}
{{- end }}
{{- end }}
{{- with .Values.broker.settings.reconnectMaxSeconds }}
{{- if gt (mulf 3 .) $lease }}
{{- fail (printf "broker.settings.reconnectMaxSeconds: %v is more than a third of scheduler.settings.leaseTtlSeconds, %v" . $lease) }}
{{- end }}
{{- end }}
{{- if and .Values.federation.id (not .Values.federation.spec) }}
{{- fail "federation.spec: set the spec of federation.id" }}
{{- end }}
{{- $names := list }}
{{- range $index, $pool := .Values.trainers.pools }}
{{- $where := printf "trainers.pools[%d] (%s)" $index $pool.name }}
{{- if has $pool.name $names }}
{{- fail (printf "%s: another pool has this name" $where) }}
{{- end }}
{{- $names = append $names $pool.name }}
{{- $all := include "fedfa.pool" (dict "root" $ "pool" $pool) | fromYaml }}
{{- if and $all.keda.enabled $all.hpa.enabled }}
{{- fail (printf "%s: keda.enabled and hpa.enabled: set one of the two" $where) }}
{{- end }}
{{- range list "keda" "hpa" }}
{{- $scaler := get $all . }}
{{- if and $scaler.enabled (gt (int $scaler.minReplicas) (int $scaler.maxReplicas)) }}
{{- fail (printf "%s: %s.minReplicas is greater than %s.maxReplicas" $where . .) }}
{{- end }}
{{- end }}
{{- if and $all.keda.enabled (eq $all.keda.trigger "prometheus") (not $all.keda.prometheusUrl) }}
{{- fail (printf "%s: keda.prometheusUrl: set it for the trigger prometheus" $where) }}
{{- end }}
{{- if and $all.keda.enabled (eq $all.keda.trigger "metrics-api") (gt (len $all.serves) 1) }}
{{- fail (printf "%s: keda.trigger: metrics-api counts one pool of clients, serves has %d; use prometheus" $where (len $all.serves)) }}
{{- end }}
{{- if lt (int $all.terminationGracePeriodSeconds) (add (int $all.settings.trainerGraceSeconds) 5 | int) }}
{{- fail (printf "%s: terminationGracePeriodSeconds: at least 5 more than settings.trainerGraceSeconds" $where) }}
{{- end }}
{{- if and $all.data.existingClaim $all.data.hostPath }}
{{- fail (printf "%s: data.existingClaim and data.hostPath: set one of the two" $where) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A trainer pool with what it leaves to the defaults, as YAML. Takes (dict "root" $ "pool" pool). */ -}}
{{- define "fedfa.pool" -}}
{{- $all := mergeOverwrite (deepCopy .root.Values.trainers.defaults) (deepCopy .pool) }}
{{- if not $all.serves }}{{ $_ := set $all "serves" (list .pool.name) }}{{ end }}
{{- toYaml $all }}
{{- end }}

{{- /* The variables that every process has: where it listens, what it logs, broker, bucket.
Takes (dict "root" $ "declare" bool). */ -}}
{{- define "fedfa.environment" -}}
{{- $values := .root.Values }}
FEDFA_HTTP_HOST: 0.0.0.0
FEDFA_HTTP_PORT: "8000"
{{- include "fedfa.variables" (dict "prefix" "FEDFA_" "settings" $values.settings) }}
{{- include "fedfa.connections" . }}
{{- end }}

{{- define "fedfa.connections" -}}
{{- $values := .root.Values }}
FEDFA_SECRETS_DIR: /run/secrets/fedfa
FEDFA_AMQP_URL: {{ printf "%s://%s:%s/%s" (ternary "amqps" "amqp" $values.broker.tls.enabled) (include "fedfa.broker.host" .root) (include "fedfa.broker.port" .root) ($values.broker.vhost | urlquery | replace "+" "%20") | quote }}
FEDFA_AMQP_DECLARE: {{ .declare | quote }}
{{- include "fedfa.variables" (dict "prefix" "FEDFA_AMQP_" "settings" $values.broker.settings) }}
{{- with include "fedfa.bucket.endpoint" .root }}
FEDFA_S3_ENDPOINT: {{ . | quote }}
{{- end }}
FEDFA_S3_BUCKET: {{ $values.bucket.name | quote }}
FEDFA_S3_REGION: {{ $values.bucket.region | quote }}
{{- include "fedfa.variables" (dict "prefix" "FEDFA_S3_" "settings" $values.bucket.settings) }}
{{- if $values.broker.tls.caSecret }}
SSL_CERT_FILE: /run/authorities/broker/{{ $values.broker.tls.caKey }}
{{- end }}
{{- if $values.bucket.caSecret }}
AWS_CA_BUNDLE: /run/authorities/bucket/{{ $values.bucket.caKey }}
{{- end }}
{{- end }}

{{- /* Takes (dict "root" $ "user" "trainer-gpu" "brokerSecret" own "bucketSecret" own "dashboard" own, or none). */ -}}
{{- define "fedfa.secretVolumes" -}}
{{- include "fedfa.checks" .root }}
{{- $values := .root.Values }}
{{- $full := include "fedfa.fullname" .root }}
{{- $broker := .brokerSecret | default $values.broker.existingSecret }}
{{- $fromChart := not $broker }}
{{- if and (not $broker) (include "fedfa.usesTopology" .root) }}
{{- $broker = printf "%s-%s-user-credentials" $full .user }}
{{- else if and (not $broker) (or $values.broker.username (eq $values.broker.mode "builtin")) }}
{{- $broker = printf "%s-broker" $full }}
{{- end }}
{{- if not $broker }}
{{- fail (printf "broker.existingSecret: no broker user for %s; set a Secret, or broker.username and broker.password" .user) }}
{{- end }}
{{- $bucket := .bucketSecret | default $values.bucket.existingSecret }}
{{- $bucketFromChart := not $bucket }}
{{- if and (not $bucket) (or $values.bucket.accessKey (eq $values.bucket.mode "builtin")) }}
{{- $bucket = printf "%s-bucket" $full }}
{{- end }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ $broker | quote }}
          items:
            - key: {{ ternary "username" $values.broker.usernameKey $fromChart | quote }}
              path: FEDFA_AMQP_USERNAME
            - key: {{ ternary "password" $values.broker.passwordKey $fromChart | quote }}
              path: FEDFA_AMQP_PASSWORD
      {{- if $bucket }}
      - secret:
          name: {{ $bucket | quote }}
          items:
            - key: {{ ternary "accessKey" $values.bucket.accessKeyKey $bucketFromChart | quote }}
              path: FEDFA_S3_ACCESS_KEY
            - key: {{ ternary "secretKey" $values.bucket.secretKeyKey $bucketFromChart | quote }}
              path: FEDFA_S3_SECRET_KEY
      {{- end }}
      {{- with .dashboard }}
      {{- if .tokenSecret }}
      - secret:
          name: {{ .tokenSecret | quote }}
          items:
            - {key: {{ .tokenKey | quote }}, path: FEDFA_DASHBOARD_TOKEN}
      {{- end }}
      {{- end }}
{{- with $values.broker.tls.caSecret }}
- name: broker-authority
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $values.broker.tls.caKey | quote }}, path: {{ $values.broker.tls.caKey | quote }}}
{{- end }}
{{- with $values.bucket.caSecret }}
- name: bucket-authority
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $values.bucket.caKey | quote }}, path: {{ $values.bucket.caKey | quote }}}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{- define "fedfa.secretMounts" -}}
- {name: secrets, mountPath: /run/secrets/fedfa, readOnly: true}
{{- if .Values.broker.tls.caSecret }}
- {name: broker-authority, mountPath: /run/authorities/broker, readOnly: true}
{{- end }}
{{- if .Values.bucket.caSecret }}
- {name: bucket-authority, mountPath: /run/authorities/bucket, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "fedfa.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "fedfa.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* /healthz says only that the loop turns, so no outage of broker or bucket restarts who has started. Aggregator and
scheduler listen only once they have reached the bucket: at their start 300 s without it restart them. */ -}}
{{- define "fedfa.probes" -}}
ports:
  - {name: http, containerPort: 8000}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- define "fedfa.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "fedfa.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "fedfa.fullname" .root }}-{{ .component }}
  labels: {{- include "fedfa.labels" . | nindent 4 }}
  {{- with .annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}

{{- /* Aggregator and scheduler: the same but for what is passed.
Takes (dict "root" $ "component" "scheduler" "resources" map). */ -}}
{{- define "fedfa.service" -}}
{{- $own := get .root.Values .component }}
{{- $full := include "fedfa.fullname" .root }}
{{- $config := include "fedfa.serviceConfig" . }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $full }}-{{ .component }}
  labels: {{- include "fedfa.labels" . | nindent 4 }}
data: {{- $config | nindent 2 }}
---
{{ include "fedfa.serviceAccount" (merge (dict "annotations" $own.serviceAccountAnnotations) .) }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $full }}-{{ .component }}
  labels: {{- include "fedfa.labels" . | nindent 4 }}
spec:
  replicas: {{ $own.replicas }}
  strategy: {type: Recreate}
  selector:
    matchLabels: {{- include "fedfa.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "fedfa.labels" . | nindent 8 }}
      annotations:
        checksum/config: {{ sha256sum $config }}
        {{- with .root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $full }}-{{ .component }}
      automountServiceAccountToken: false
      {{- include "fedfa.podSecurity" .root | nindent 6 }}
      {{- include "fedfa.placement" $own | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "fedfa.image" (dict "root" .root "service" .component "image" $own.image) }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- include "fedfa.containerSecurity" .root | nindent 10 }}
          envFrom:
            - configMapRef: {name: {{ $full }}-{{ .component }}}
          {{- include "fedfa.probes" .root | nindent 10 }}
          resources: {{- toYaml .resources | nindent 12 }}
          volumeMounts: {{- include "fedfa.secretMounts" .root | nindent 12 }}
      volumes:
        {{- include "fedfa.secretVolumes" (dict "root" .root "user" .component "brokerSecret" $own.brokerSecret "bucketSecret" $own.bucketSecret "dashboard" $own.dashboard) | nindent 8 }}
{{- end }}

{{- define "fedfa.serviceConfig" -}}
{{- $own := get .root.Values .component }}
{{- include "fedfa.environment" (dict "root" .root "declare" true) | trim }}
{{- include "fedfa.variables" (dict "prefix" "FEDFA_" "settings" $own.settings) }}
{{- end }}

{{- /* Egress to DNS, broker and bucket, the rules that every process needs. */ -}}
{{- define "fedfa.egress" -}}
{{- $values := .Values }}
{{- $root := . }}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports:
    - {port: {{ include "fedfa.broker.port" . }}, protocol: TCP}
  {{- if ne $values.broker.mode "external" }}
  to:
    - podSelector:
        matchLabels: {{- include (printf "fedfa.broker.%sPods" $values.broker.mode) . | nindent 10 }}
  {{- else if $values.networkPolicy.broker }}
  to: {{- toYaml $values.networkPolicy.broker | nindent 4 }}
  {{- end }}
- ports:
    - {port: {{ include "fedfa.bucket.port" . }}, protocol: TCP}
  {{- if eq $values.bucket.mode "builtin" }}
  to:
    - podSelector:
        matchLabels: {{- include "fedfa.selector" (dict "root" . "component" "bucket") | nindent 10 }}
  {{- else if $values.networkPolicy.bucket }}
  to: {{- toYaml $values.networkPolicy.bucket | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "fedfa.broker.builtinPods" -}}
{{ include "fedfa.selector" (dict "root" . "component" "broker") }}
{{- end }}

{{- define "fedfa.broker.operatorPods" -}}
app.kubernetes.io/name: {{ include "fedfa.fullname" . }}-broker
app.kubernetes.io/component: rabbitmq
{{- end }}

{{- /* Takes (dict "root" $ "component" name "ingress" list-of-peers "port" http "extra" egress). */ -}}
{{- define "fedfa.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "fedfa.fullname" .root }}-{{ .component }}
  labels: {{- include "fedfa.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "fedfa.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- if .closed }}
  ingress: []
  {{- else }}
  ingress:
    - ports:
        - {port: http, protocol: TCP}
      from:
        {{- if .peers }}
        {{- toYaml .peers | nindent 8 }}
        {{- else }}
        - namespaceSelector: {}
        {{- end }}
  {{- end }}
  egress:
    {{- include "fedfa.egress" .root | nindent 4 }}
    {{- range list .root.Values.networkPolicy.egress .extra }}
    {{- with . }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- end }}
{{- end }}
