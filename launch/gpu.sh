#!/usr/bin/env bash
# Trains on all GPUs of this machine; one process drives them all.
#   launch/gpu.sh --config=configs/electra_small.py --workdir=runs/small
# All arguments are passed to main. After exit code 75 (saved, to be restarted)
# the same command is started again; other exit codes are returned. SIGTERM and
# Ctrl-C are sent to the run once; it saves and ends this script: 75 or 130.
#   PYTHON: the Python to run, default python. Install its packages once:
#     pip install -c launch/constraints.txt '.[gpu]'
#   Use Python 3.12 or later: the jax of older versions is slow on GPUs.
# Never run on real GPUs, only with main on a CPU and with a stand-in for main.
set -euo pipefail
# By default jax allocates only 75 % of the memory, for shared GPUs.
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.9}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda}  # No silent fallback to the CPU.

signals=0
# shellcheck disable=SC2329  # Traps call it.
pass_on() {  # SIGNAL, and the exit code if no run is active
  { [ -n "${!:-}" ] && kill -0 "$!" 2>/dev/null; } || exit "$2"
  signals=$((signals + 1))
  kill -s "$1" "$!" || :
}
trap 'pass_on TERM 75' TERM HUP
trap 'pass_on INT 130' INT

code=75
while [ "$code" = 75 ] && [ "$signals" = 0 ]; do
  # The run gets its own process group. Otherwise it would receive a Ctrl-C
  # twice, from the terminal and from this script, and stop without saving.
  set -m
  "${PYTHON:-python}" -m truenegs_jax.main "$@" &
  set +m
  seen=-1  # A signal interrupts `wait`, which is then called again.
  until [ $seen = $signals ]; do
    seen=$signals code=0
    wait $! || code=$?
  done
done
exit "$code"
