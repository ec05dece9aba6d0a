#!/usr/bin/env bash
#SBATCH --job-name=training
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
#
# A training job, one task per GPU, whose telemetry goes to the agent of its node and from there to the gateway:
#
#   GATEWAY_ENDPOINT=http://gateway:4318 sbatch collector-config/slurm/job.sh python -m trainer train --config run.yaml
#
# from the folder that has collector-config. SIGTERM comes three minutes before the time limit: enough for a last
# checkpoint and for the telemetry to get out. Set OTEL_TRAINING_RUN_ID yourself when a run goes on in a second job, so
# that both are one run; the default is the id of this job.
set -euo pipefail

config=${COLLECTOR_CONFIG:-${SLURM_SUBMIT_DIR:?not inside a Slurm job}/collector-config}
export OTEL_TRAINING_RUN_ID=${OTEL_TRAINING_RUN_ID:-slurm-${SLURM_JOB_ID:?not inside a Slurm job}}

# Metrics take one road only. This is the road over OTLP; without `prometheus` in the list there is no scrape page.
export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318
export OTEL_METRICS_EXPORTER=otlp
export OTEL_TRACES_EXPORTER=otlp
export OTEL_METRIC_EXPORT_INTERVAL=15000

read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR MASTER_PORT=29500

agents=
# A cluster that runs the agent as a service on its nodes needs no GATEWAY_ENDPOINT here.
if [[ -n ${GATEWAY_ENDPOINT-} ]]; then
  srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --gpus=0 \
    "$config/slurm/agent.sh" "$config/agent.yaml" &
  agents=$!
fi

status=0
# Single quotes: each task reads its own rank.
# shellcheck disable=SC2016
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec "$@"' _ "$@" || status=$?

if [[ -n $agents ]]; then
  kill -TERM "$agents"
  wait "$agents" || true
fi
exit "$status"
