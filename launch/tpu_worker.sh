#!/usr/bin/env bash
# Runs on each host of a TPU, started by tpu_vm.sh and tpu_pod.sh.
#   tpu_worker.sh start SETUP FLAG...  installs, runs SETUP and main FLAG...
#   tpu_worker.sh TERM                 signals that run; fails if there is none
# It installs Python 3.11, for which all versions are pinned, so that a VM that
# is created again during a run has the same versions.
# Never run on a real TPU, only with stand-ins for its Python.
set -euo pipefail
cd "$(dirname "$0")/.."
run=(-F ../run.pid -f truenegs_jax.main)  # That process, if it is still main.
[ "$1" = start ] || exec pkill -"$1" "${run[@]}"
# gcloud reconnects after a broken connection; its first run is still active.
if pkill -TERM "${run[@]}" 2>/dev/null; then
  while pgrep "${run[@]}" >/dev/null; do sleep 1; done
fi
python3 -m pip install -q --user uv
[ -d .venv ] || python3 -m uv venv -q --python 3.11
python3 -m uv pip install -q -c launch/constraints.txt -e '.[tpu]'
.venv/bin/python -m truenegs_jax.wordnet
bash -c "$2"
# Other hosts may still be installing.
export TRUENEGS_JOIN_SECS=${TRUENEGS_JOIN_SECS:-1200}
echo $$ >../run.pid
exec .venv/bin/python -m truenegs_jax.main "${@:3}"
