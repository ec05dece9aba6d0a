#!/usr/bin/env bash
# Runs the agent (../agent.yaml) on one node for as long as a job lasts, where the cluster has none as a service.
#
#   GATEWAY_ENDPOINT=http://gateway:4318 agent.sh PATH/TO/agent.yaml
#
# On SIGTERM it waits until everything is delivered, at most DRAIN_S seconds (default 60), and then ends. What is left
# stays in AGENT_QUEUE_DIR and is sent when an agent next runs on this node with the same folder.
set -euo pipefail

config=${1:?usage: agent.sh PATH/TO/agent.yaml}
: "${GATEWAY_ENDPOINT:?the base URL of the gateway, such as http://gateway:4318}"
export AGENT_QUEUE_DIR=${AGENT_QUEUE_DIR:-${TMPDIR:-/tmp}/otel-training-agent-$USER}
drain_s=${DRAIN_S:-60}

# Bytes in all queues, by the agent's own metrics; nothing when it does not answer.
queued() {
  curl --silent --fail --max-time 2 http://127.0.0.1:8888/metrics |
    awk '/^otelcol_exporter_queue_size/ { bytes += $NF } END { printf "%d", bytes }'
}

stop() {
  local deadline=$((SECONDS + drain_s)) left
  while ((SECONDS < deadline)) && left=$(queued) && [[ $left != 0 ]]; do
    sleep 1
  done
  kill -TERM "$agent" 2>/dev/null || true
}

otelcol-contrib --config="$config" &
agent=$!
trap stop TERM INT
# The first wait ends when a signal comes, the second when the agent has ended.
wait "$agent" || true
wait "$agent" 2>/dev/null || true
