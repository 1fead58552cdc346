#!/bin/sh
# Installs packages in TARGET_VENV, default .venv, and prints what and how long:
#   launch/install.sh "truenegs_jax (1.4 GB)" -e .
# uv needs seconds. pip takes over where uv cannot, such as with an index that
# only the settings of pip name.
set -eu
what=$1
shift
echo "Installing $what"
start=$(date +%s)
set -- -q -c launch/constraints.txt "$@"
python=${TARGET_VENV:-.venv}/bin/python
.venv/bin/uv pip install --python "$python" "$@" 2> /dev/null ||
  "$python" -m pip --disable-pip-version-check install -q "$@"
echo "  in $(($(date +%s) - start)) s"
