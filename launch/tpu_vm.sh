#!/usr/bin/env bash
# Trains on one TPU VM: creates it if missing, copies this folder, installs.
#   1. gcloud auth login && gcloud config set project PROJECT &&
#        gcloud services enable compute.googleapis.com iam.googleapis.com \
#          storage.googleapis.com tpu.googleapis.com
#      gcloud storage buckets create gs://BUCKET --location=us-east5 \
#        --uniform-bucket-level-access --soft-delete-duration=0
#      gcloud iam service-accounts create truenegs
#      account=truenegs@PROJECT.iam.gserviceaccount.com
#      gcloud storage buckets add-iam-policy-binding gs://BUCKET \
#        --role=roles/storage.objectUser --member=serviceAccount:$account
#      export TPU=mine ZONE=us-east5-b TYPE=v6e-8 VERSION=v2-alpha-tpuv6e
#      export CREATE="--spot --service-account=$account"
#      export WORKDIR=gs://BUCKET/runs/base ROWS=gs://BUCKET/rows/base
#   2. launch/tpu_vm.sh prepare --config=electra_base
#   3. launch/tpu_vm.sh --config=electra_base
#   4. gcloud storage cp --recursive gs://BUCKET/runs/base/export .
#      gcloud compute tpus tpu-vm delete mine --zone=us-east5-b
# The project needs quota for the type, spot or not. docs/how_to/tpu.md explains
# the variables. A preempted spot VM is created again as soon as the zone has
# one, and continues. The VM is not deleted at the end and continues to cost
# money. For exit codes and signals see common.sh.
# Never run on a real TPU, only with a stand-in for gcloud (flags of SDK 528).

# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"
read -ra create <<<"--accelerator-type=$TYPE --version=$VERSION $CREATE"
describe() { tpu tpu-vm describe "$TPU" --format='value(state)'; }
PREEMPTED='^(PREEMPTED|TERMINATED|RE.*ING)$'
pauses=0
request() {
  local i status=0
  tpu tpu-vm create "$TPU" "${create[@]}" 2>&1 | tee "$work/log" >&2 ||
    status=$?
  [ $status != 0 ] || return 0
  # A used-up quota has the same code, 8, but does not pass by waiting.
  grep -q 'no more capacity' "$work/log" || exit $status
  pauses=$((pauses < 20 ? pauses + 1 : 20))
  for ((i = 0; i < pauses; i++)); do pause; done
}
before_start() {
  local s
  while s=$(state) && [ "$s" != READY ]; do
    echo "$TPU: ${s:-creating it}" >&2
    [ "$s" = unanswered ] || failures=0
    case $s in
      '') request ;;
      PREEMPTED | TERMINATED) tpu tpu-vm delete "$TPU" ;;
      *ING) pause ;;
      unanswered) pause_again ;;
      *) break ;;  # gcloud says why it cannot connect.
    esac
  done
  pauses=0 failures=0
}
run_main "$@"
