#!/usr/bin/env bash
# Trains on a TPU slice of several hosts: requests it, copies this folder there.
#   TPU=mine ZONE=us-east5-b TYPE=v6e-64 VERSION=v2-alpha-tpuv6e CREATE=--spot \
#     SETUP="mountpoint -q /mnt || sudo mount -t nfs HOST:/share /mnt" \
#     launch/tpu_pod.sh --config=configs/electra_base.py --workdir=/mnt/base
# Like tpu_vm.sh, but CREATE has flags for `gcloud compute tpus queued-resources
# create`. All hosts need access to the workdir and to the rows (data.rows),
# which python -m truenegs_jax.prepare --config=... writes.
# Never run on a real TPU, only with a stand-in for gcloud (flags of SDK 528).
set -euo pipefail
: "${TPU:?Set it to a name.}" "${ZONE:?}" "${TYPE:?}" "${VERSION:?}"
: "${1:?Pass the flags of main.}"
read -ra create <<<"--node-id=$TPU --accelerator-type=$TYPE ${CREATE:-}"
tpu() { gcloud compute tpus "$@" --zone="$ZONE" --quiet; }
on_vm() { tpu tpu-vm ssh "$TPU" --worker=all --command="$1" </dev/null; }
queued() { tpu queued-resources "$1" "$TPU" "${@:2}"; }
state() { queued describe --format='value(state.state)' 2>/dev/null || :; }
dir=truenegs_jax
worker=$dir/launch/tpu_worker.sh
signals=0

# shellcheck disable=SC2329  # Traps call it.
pass_on() {  # SIGNAL, and the exit code if no run is active
  { [ -n "${!:-}" ] && kill -0 "$!" 2>/dev/null; } || exit "$2"
  signals=$((signals + 1))
  # The worker fails until main has started.
  on_vm "for i in {1..300}; do $worker $1 && break; sleep 1; done" || :
}
trap 'pass_on TERM 75' TERM HUP
trap 'pass_on INT 130' INT

archive=$(mktemp)
trap 'rm "$archive"' EXIT
tar -C "$(dirname "$0")/.." --exclude=./{.git,.venv,runs} -czf "$archive" .
printf -v flags ' %q' "${SETUP:-:}" "$@"
install_and_run() {
  tpu tpu-vm scp "$archive" "$TPU:code.tgz" --worker=all &&
    on_vm "mkdir -p $dir && tar xf code.tgz -C $dir && $worker start$flags"
}

while :; do
  while s=$(state) && [ "$s" != ACTIVE ]; do
    echo "$TPU: $s" >&2
    case $s in
      '') queued create "${create[@]}" --runtime-version="$VERSION" ;;
      SUSPENDED) queued delete --force ;;  # A preempted spot slice.
      FAILED) exit 1 ;;
      *) sleep "${POLL_SECS:-30}" ;;
    esac
  done
  set -m  # A terminal's Ctrl-C must not end the connection.
  install_and_run &
  set +m
  seen=-1  # A signal interrupts `wait`, which is then called again.
  until [ $seen = $signals ]; do
    seen=$signals code=0
    wait $! || code=$?
  done
  [ $signals = 0 ] || exit "$code"
  case $code:$(state) in
    75:* | [!0]*:SUSPEND*) ;;  # Saved or preempted: again.
    *) exit "$code" ;;
  esac
done
