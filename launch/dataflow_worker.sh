#!/bin/sh
# Mounts the share of the rows and starts a worker of Beam; see dataflow.sh.
set -eu
mkdir -p "$TRUENEGS_CACHE"
# The locks of a preparation are held by the process that submits it.
mount -t nfs -o nolock "$SHARE" "$TRUENEGS_CACHE"
exec /opt/apache/beam/boot "$@"
