#!/usr/bin/env bash
# Mounts a share, such as Filestore's, by NFS on a TPU host and gives it to the
# user, for SETUP of tpu_vm.sh and tpu_pod.sh where runs are in no bucket.
#   tpu_mount.sh ADDRESS:/share /mnt
# Never run on a real TPU, only with stand-ins for these tools.
set -euo pipefail
share=$1 folder=$2
if mountpoint -q "$folder"; then exit; fi
for _ in {1..60}; do  # Others may hold apt's locks on a new VM.
  if command -v mount.nfs >/dev/null; then break; fi
  { sudo apt-get -qq update && sudo apt-get -qq install nfs-common; } || sleep 5
done
sudo mkdir -p "$folder"
sudo mount "$share" "$folder"
[ -O "$folder" ] || sudo chown --from=root "$(id -u)" "$folder"
