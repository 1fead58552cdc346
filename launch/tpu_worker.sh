#!/usr/bin/env bash
# Runs on each host of a TPU, started by tpu_vm.sh and tpu_pod.sh.
#   tpu_worker.sh start COMMAND FLAG...  sets up, installs, runs main or prepare
#   tpu_worker.sh TERM                   signals that run; fails if there is none
# It installs Python 3.12 and pinned packages, so that a VM that is created again
# during a run has the same versions.
# Never run on a real TPU, only with stand-ins for its Python.
set -euo pipefail
exec 3>&1 >&2  # Standard output is only for main's.
cd "$(dirname "$0")/.."
# That process, if it is still ours.
run=(-F ../run.pid -f 'truenegs_jax (main|prepare)')
[ "$1" = start ] || exec pkill -"$1" "${run[@]}"
SETUP=: EXTRAS=
# shellcheck source=/dev/null
[ ! -e ../variables ] || source ../variables
# gcloud starts this again after a broken connection, while the first run is
# still active: only the last start removes the file.
echo $$ >../starter
trap '[ "$(<../starter)" != $$ ] || rm -f ../variables' EXIT
if pkill -TERM "${run[@]}" 2>/dev/null; then
  while pgrep "${run[@]}" >/dev/null; do sleep 1; done
fi
bash -c "$SETUP"
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --user uv==0.13.9
[ -d .venv ] || python3 -m uv venv -q --python 3.12
python3 -m uv pip install -q -c launch/constraints.txt \
  -e ".[tpu,gcs${EXTRAS:+,$EXTRAS}]"
.venv/bin/python -m truenegs_jax wordnet
# Other hosts may still be installing.
export TRUENEGS_JOIN_SECS=${TRUENEGS_JOIN_SECS:-1200}
# No silent fallback to the CPU. One host prepares; jax on its TPU would wait for
# the others.
platforms=${JAX_PLATFORMS:-tpu,cpu}
[ "$2" = main ] || platforms=cpu
export JAX_PLATFORMS=$platforms
(
  echo "$BASHPID" >../run.pid
  exec .venv/bin/python -m truenegs_jax "$2" "${@:3}" >&3 3>&-
)
