#!/bin/sh
# Runs a command as a container runtime would: PID 1 of its own namespaces, another user without capabilities, a root
# that cannot be written, only the given folders. Root only; to be run by
#   unshare --mount --pid --uts --ipc --fork --kill-child --propagation private pod.sh NAME ROOT PROGRAMS HOSTS VOLUMES UID ENV COMMAND...
# ROOT: an empty folder. VOLUMES: a file with lines "FOLDER PATH" ("tmpfs PATH" for memory). ENV: a file, NAME=VALUE lines.
set -e
name=$1 root=$2 programs=$3 hosts=$4 volumes=$5 uid=$6 environment=$7
shift 7
hostname "$name"
mount -t tmpfs image "$root"
cd "$root"
mkdir -p usr etc proc dev opt/ddprun
for folder in /usr /etc; do
  mount --bind "$folder" ".$folder"
  mount -o remount,bind,ro ".$folder"
done
for link in bin sbin lib lib64; do ln -s "usr/$link" "$link"; done
mount --bind "$programs" opt/ddprun
mount -o remount,bind,ro opt/ddprun
mount --bind "$hosts" etc/hosts
for device in null zero urandom; do
  : >"dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
mount -t proc proc proc
while read -r what path; do
  mkdir -p ".$path"
  if [ "$what" = tmpfs ]; then mount -t tmpfs -o mode=1777 volume ".$path"; else mount --bind "$what" ".$path"; fi
done <"$volumes"
mount -o remount,ro image "$root"
set -- /usr/bin/setpriv --reuid="$uid" --regid="$uid" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
while read -r line; do set -- "$line" "$@"; done <"$environment"
exec chroot "$root" /usr/bin/env -i "$@"
