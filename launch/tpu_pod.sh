#!/usr/bin/env bash
# Trains on a TPU slice of several hosts: requests it, copies this folder there.
#   1. as in tpu_vm.sh, with TYPE=v6e-64
#   2. launch/tpu_pod.sh prepare --config=electra_base
#   3. launch/tpu_pod.sh --config=electra_base
#   4. gcloud storage cp --recursive gs://BUCKET/runs/base/export .
#      gcloud compute tpus queued-resources delete mine --zone=us-east5-b --force
# CREATE has flags for `gcloud compute tpus queued-resources create`. The hosts
# share nothing but the bucket. Never run on a real TPU, only with a stand-in for
# gcloud (flags of SDK 528).

# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"
read -ra create <<<"--node-id=$TPU --accelerator-type=$TYPE $CREATE"
queued() { tpu queued-resources "$1" "$TPU" "${@:2}"; }
describe() { queued describe --format='value(state.state)'; }
PREEMPTED='^SUSPEND'
before_start() {
  local s
  while s=$(state) && [ "$s" != ACTIVE ]; do
    echo "$TPU: ${s:-requesting it}" >&2
    [ "$s" = unanswered ] || failures=0
    case $s in
      '') queued create "${create[@]}" --runtime-version="$VERSION" >&2 ;;
      SUSPENDED) queued delete --force ;;  # A preempted spot slice.
      FAILED) queued describe >&2; exit 1 ;;  # It says why.
      unanswered) pause_again ;;
      *) pause ;;
    esac
  done
  failures=0
}
run_main "$@"
