#!/usr/bin/env bash
# The part of tpu_vm.sh and tpu_pod.sh that runs on each host of the TPU.
#   tpu_worker.sh start SETUP FLAG...  installs, runs SETUP and main FLAG...
#   tpu_worker.sh TERM                 signals that run; fails if there is none
# It looks for the Python with which all versions are pinned: a VM made again in
# the middle of a run must not bring others.
# Not run on a real TPU: only with stand-ins for its Python.
set -euo pipefail
cd "$(dirname "$0")/.."
run=(-F ../run.pid -f truenegs_jax.main)  # This process, if it still is main.
[ "$1" = start ] || exec pkill -"$1" "${run[@]}"
# gcloud connects again when a connection breaks; the run it had is still here.
if pkill -TERM "${run[@]}" 2>/dev/null; then
  while pgrep "${run[@]}" >/dev/null; do sleep 1; done
fi
python3 -m pip install -q --user uv
[ -d .venv ] || python3 -m uv venv -q --python 3.11
python3 -m uv pip install -q -c launch/constraints.txt -e '.[tpu]'
launch/wordnet.sh
bash -c "$2"
# The other hosts may still be installing.
export TRUENEGS_JOIN_SECS=${TRUENEGS_JOIN_SECS:-1200}
echo $$ >../run.pid
exec .venv/bin/python -m truenegs_jax.main "${@:3}"
