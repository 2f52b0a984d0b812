#!/bin/bash
# Plays a pod with podman out of an image that is made here, and waits for its only container.
#   unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private podman_play.sh WORK PROGRAMS POD.YAML
# In namespaces of its own, since netavark changes the network it is in and crun takes no mixture of control groups.
# Everything that podman keeps lies in WORK. Prints the container's output; the exit code is the container's; 77: podman cannot
# start anything here.
set -euo pipefail
work=$1 programs=$2 pod=$3
export CONTAINERS_STORAGE_CONF=$work/storage.conf CONTAINERS_CONF=$work/containers.conf
cat >"$CONTAINERS_STORAGE_CONF" <<CONF
[storage]
driver = "vfs"
runroot = "$work/run"
graphroot = "$work/graph"
CONF
cat >"$CONTAINERS_CONF" <<CONF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "crun"
events_logger = "none"
CONF
root=$work/root
mkdir -p "$root"/{usr/local/bin,tmp,proc,dev,sys,etc,config,checkpoints,run,var/tmp}
# podman knows no fsGroup: a volume that is new is as the image's folder is.
chown 10001:10001 "$root/checkpoints"
chmod 1777 "$root/tmp"
cp "$programs/ddprun" "$programs/trainer" "$root/usr/local/bin/"
while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done < <(ldd "$programs/ddprun" "$programs/trainer" | grep -o '/[^ ]*\.so[^ ]*' | sort -u)
ip link set lo up
umount /sys/fs/cgroup/unified 2>/dev/null || true
{ tar -C "$root" -c . | podman import - localhost/ddprun:test && podman kube play --network=none "$pod"; } >"$work/play.log" 2>&1 ||
  { cat "$work/play.log" >&2; exit 77; }
container=$(podman ps --all --noheading --format '{{.Names}}' --filter name=-ddprun)
code=$(podman wait "$container")
podman logs "$container" 2>&1
id=$(podman pod ps --noheading --no-trunc --format '{{.Id}}')
podman pod rm --all --force >/dev/null 2>&1 || true
find /sys/fs/cgroup/*/libpod_parent/"$id" -depth -type d -exec rmdir {} \; 2>/dev/null || true
rmdir /sys/fs/cgroup/*/libpod_parent /sys/fs/cgroup/libpod_parent 2>/dev/null || true # where nobody else has pods
exit "$code"
