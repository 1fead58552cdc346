#!/usr/bin/env bash
# Trains on one TPU VM: creates it if missing, copies this folder, installs.
#   TPU=mine ZONE=us-east5-b TYPE=v6e-8 VERSION=v2-alpha-tpuv6e \
#     CREATE="--spot --data-disk=source=DISK,mode=read-write" \
#     SETUP="mountpoint -q /mnt || sudo mount /dev/sdb /mnt" \
#     launch/tpu_vm.sh --config=configs/electra_base.py --workdir=/mnt/base
# All arguments are passed to main. CREATE has more flags for `gcloud compute
# tpus tpu-vm create`; SETUP is a command that runs on the VM before each start.
# A preempted spot VM loses its boot disk and is created again. After exit code
# 75 the same command is started again; other codes are returned. SIGTERM and
# Ctrl-C are sent to the run once, and it saves. The VM is not deleted and
# continues to cost money.
# Never run on a real TPU, only with a stand-in for gcloud (flags of SDK 528).
set -euo pipefail
: "${TPU:?Set it to a name.}" "${ZONE:?}" "${TYPE:?}" "${VERSION:?}"
: "${1:?Pass the flags of main.}"
read -ra create <<<"--accelerator-type=$TYPE --version=$VERSION ${CREATE:-}"
tpu() { gcloud compute tpus tpu-vm "$@" --zone="$ZONE" --quiet; }
on_vm() { tpu ssh "$TPU" --worker=all --command="$1" </dev/null; }
state() { tpu describe "$TPU" --format='value(state)' 2>/dev/null || :; }
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
  tpu scp "$archive" "$TPU:code.tgz" --worker=all &&
    on_vm "mkdir -p $dir && tar xf code.tgz -C $dir && $worker start$flags"
}

while :; do
  case $(state) in
    PREEMPTED | TERMINATED) tpu delete "$TPU" ;;
  esac
  [ -n "$(state)" ] || tpu create "$TPU" "${create[@]}"
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
    75:* | [!0]*:PREEMPTED | [!0]*:TERMINATED) ;;  # Saved or preempted: again.
    *) exit "$code" ;;
  esac
done
