# shellcheck shell=bash
# Runs a command with restarts; sourced by the launch scripts. After exit code
# 75 (saved, to be restarted) the command is started again; other codes are
# returned. SIGTERM and Ctrl-C are sent to the run once; it saves and ends the
# script: 75 or 130. A script may replace the three functions that are first.
set -euo pipefail
before_start() { :; }
is_preempted() { false; }
send_signal() { kill -s "$1" "$run"; }

run='' signals=0
# shellcheck disable=SC2329  # Traps call it.
pass_on() {  # SIGNAL, and the exit code if no run is active
  { [ -n "$run" ] && kill -0 "$run" 2>/dev/null; } || exit "$2"
  signals=$((signals + 1))
  send_signal "$1" || :
}
trap 'pass_on TERM 75' TERM HUP
trap 'pass_on INT 130' INT

fail() {  # MESSAGE
  echo "error: $1" >&2
  exit 2
}

run_once() {  # COMMAND...: sets `code`
  # The command gets its own process group. Otherwise it would receive a Ctrl-C
  # twice, from the terminal and from this script, and stop without saving.
  set -m
  "$@" &
  set +m
  run=$!
  local seen=-1  # A signal interrupts `wait`, which is then called again.
  until [ $seen = $signals ]; do
    seen=$signals code=0
    wait "$run" || code=$?
  done
}

run_to_its_end() {  # COMMAND...: sets `code`
  while :; do
    before_start
    run_once "$@"
    { [ "$code" != 0 ] && [ "$signals" = 0 ]; } || return 0
    [ "$code" = 75 ] || is_preempted || return 0
  done
}

run_main() {  # FLAG...
  run_flags "$@"
  exit "$code"
}
