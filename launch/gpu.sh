#!/usr/bin/env bash
# Trains on all GPUs of this machine; one process drives them all.
#   launch/gpu.sh --config=configs/electra_small.py --workdir=runs/small
# All arguments go to main. Exit code 75 (saved, wants the same command again)
# starts it again; any other is passed on. SIGTERM and Ctrl-C reach the run
# once, it saves, and this ends with its code: 75 or 130.
#   PYTHON: the Python to run, default python. It needs, once,
#     pip install -c launch/constraints.txt '.[gpu]'
#   with Python 3.12 or later: older ones have a jax that is slow on GPUs.
# Not run on real GPUs: with main on a CPU, and with a stand-in for main.
set -euo pipefail
# jax takes 75 % of the memory if it is not told that the GPU is ours alone.
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.9}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda}  # Never the CPU, silently.

signals=0
# shellcheck disable=SC2329  # Traps call it.
pass_on() {  # SIGNAL, and the exit code if there is nothing to stop
  { [ -n "${!:-}" ] && kill -0 "$!" 2>/dev/null; } || exit "$2"
  signals=$((signals + 1))
  kill -s "$1" "$!" || :
}
trap 'pass_on TERM 75' TERM HUP
trap 'pass_on INT 130' INT

code=75
while [ "$code" = 75 ] && [ "$signals" = 0 ]; do
  # A process group of its own: a terminal's Ctrl-C would reach the run twice,
  # from the terminal and from us, and the second one stops it without saving.
  set -m
  "${PYTHON:-python}" -m truenegs_jax.main "$@" &
  set +m
  seen=-1  # A signal ends `wait` early.
  until [ $seen = $signals ]; do seen=$signals code=0; wait $! || code=$?; done
done
exit "$code"
