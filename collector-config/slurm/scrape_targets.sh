#!/usr/bin/env bash
# Tells Prometheus of the scrape pages of this Slurm job, by the file discovery of ../prometheus/scrape.yaml.
#
#   scrape_targets.sh add FOLDER RANKS_PER_NODE     at the start of the job
#   scrape_targets.sh remove FOLDER                 at its end
#
# FOLDER is the `targets` folder that Prometheus watches, on a file system that both see. The pages must be open to
# Prometheus: OTEL_EXPORTER_PROMETHEUS_HOST=0.0.0.0 in the job (no password: inside a closed network only).
set -euo pipefail

usage() {
  sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

action=${1-}
folder=${2:-}
[[ -n $folder ]] || usage
: "${SLURM_JOB_ID:?not inside a Slurm job}"
file=$folder/$SLURM_JOB_ID.json

case $action in
  add)
    ranks=${3:-}
    [[ $ranks =~ ^[1-9][0-9]*$ ]] || usage
    first_port=${OTEL_EXPORTER_PROMETHEUS_PORT:-9464}
    targets=$(
      scontrol show hostnames "${SLURM_JOB_NODELIST:?not inside a Slurm job}" | while read -r host; do
        for ((rank = 0; rank < ranks; rank++)); do
          printf '"%s:%d"\n' "$host" $((first_port + rank))
        done
      done | paste -sd,
    )
    # Under another name first: Prometheus never reads half a file.
    printf '[{"targets": [%s]}]\n' "$targets" >"$file.new"
    mv "$file.new" "$file"
    ;;
  remove) rm -f "$file" ;;
  *) usage ;;
esac
