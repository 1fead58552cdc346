#!/usr/bin/env bash
# Trains on a TPU slice of several hosts: requests it, copies this folder there.
#   1. gcloud auth login && gcloud config set project PROJECT &&
#        gcloud services enable tpu.googleapis.com file.googleapis.com &&
#        gcloud filestore instances create rows --zone=us-east5-b \
#          --tier=BASIC_SSD --file-share=name=share,capacity=2560GB \
#          --network=name=default
#      gcloud filestore instances describe rows --zone=us-east5-b \
#        --format='value(networks[0].ipAddresses[0])'  # prints its ADDRESS
#      export TPU=mine ZONE=us-east5-b TYPE=v6e-64 VERSION=v2-alpha-tpuv6e
#      export CREATE=--spot SETUP="launch/tpu_mount.sh ADDRESS:/share /mnt"
#      export VARS=TRUENEGS_CACHE=/mnt/cache
#   2. launch/tpu_pod.sh prepare --config=configs/electra_base.py \
#        --config.data.rows=/mnt/rows
#   3. launch/tpu_pod.sh --config=configs/electra_base.py \
#        --config.data.rows=/mnt/rows --workdir=/mnt/base
#   4. gcloud compute tpus tpu-vm scp --recurse mine:/mnt/base/export . \
#        --zone=us-east5-b --worker=0
#      gcloud compute tpus queued-resources delete mine --zone=us-east5-b --force
# Like tpu_vm.sh, but CREATE has flags for `gcloud compute tpus queued-resources
# create`. All hosts need access to the workdir and to the rows. A study:
#   launch/tpu_pod.sh study --config=study_small --workdir=/mnt/study
# Never run on a real TPU, only with a stand-in for gcloud (flags of SDK 528).

# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"
read -ra create <<<"--node-id=$TPU --accelerator-type=$TYPE ${CREATE:-}"
queued() { tpu queued-resources "$1" "$TPU" "${@:2}"; }
state() { queued describe --format='value(state.state)' 2>/dev/null || :; }
is_preempted() { [[ $(state) = SUSPEND* ]]; }
before_start() {
  local s
  while s=$(state) && [ "$s" != ACTIVE ]; do
    echo "$TPU: ${s:-requesting it}" >&2
    case $s in
      '') queued create "${create[@]}" --runtime-version="$VERSION" >&2 ;;
      SUSPENDED) queued delete --force ;;  # A preempted spot slice.
      FAILED) queued describe >&2; exit 1 ;;  # It says why.
      *) pause ;;
    esac
  done
}
run_main "$@"
