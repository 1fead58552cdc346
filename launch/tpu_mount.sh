#!/usr/bin/env bash
# Mounts a disk or a share on a TPU host and gives it to the user, for SETUP of
# tpu_vm.sh and tpu_pod.sh.
#   tpu_mount.sh disk /mnt             the one disk that is not the boot disk
#   tpu_mount.sh /dev/sdb /mnt         another disk
#   tpu_mount.sh ADDRESS:/share /mnt   a share, such as Filestore's, by NFS
# A new disk gets a file system, ext4; one with any data is never formatted.
# Never run on a real TPU, only with stand-ins for these tools.
set -euo pipefail
source=$1 folder=$2
if mountpoint -q "$folder"; then exit; fi
case $source in
  *:*)
    for _ in {1..60}; do  # Others may hold apt's locks on a new VM.
      if command -v mount.nfs >/dev/null; then break; fi
      { sudo apt-get -qq update && sudo apt-get -qq install nfs-common; } || sleep 5
    done
    ;;
  disk)
    disks=''
    for disk in $(lsblk -dnpro NAME,TYPE | grep -v zram | sed -n 's/ disk$//p'); do
      # The boot disk is mounted, in parts.
      [ -n "$(lsblk -nro MOUNTPOINT "$disk")" ] || disks+=" $disk"
    done
    if [ "$(wc -w <<<"$disks")" != 1 ]; then
      echo "error: 'disk' stands for the one disk that is not mounted, but there" \
        "are:${disks:- none}. Attach one (CREATE=--data-disk=...) or pass one." >&2
      exit 2
    fi
    source=${disks# }
    ;;
esac
if [[ $source = /* ]]; then
  status=0
  sudo blkid -p "$source" || status=$?
  # 2: no file system and no partitions, or the disk cannot be read.
  if [ $status = 2 ] && sudo cmp -s -n 1048576 "$source" /dev/zero; then
    sudo mkfs.ext4 -q "$source"
  fi
fi
sudo mkdir -p "$folder"
sudo mount "$source" "$folder"
# The user of a VM that was created again may have another number. Files of a
# share may belong to others.
[ -O "$folder" ] || case $source in
  *:*) sudo chown --from=root "$(id -u)" "$folder" ;;
  *) sudo chown -R "$(id -u)" "$folder" ;;
esac
