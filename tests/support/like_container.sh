#!/usr/bin/env bash
# Runs COMMAND as in an ordinary container: root with the capabilities that container engines leave, so no namespaces and
# no mounts; and no /sys. Tests that need those must skip with their reason there:
#   tests/support/like_container.sh tests/run.sh
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: like_container.sh COMMAND..." >&2; exit 2; }
kept=chown,dac_override,fsetid,fowner,mknod,net_raw,setgid,setuid,setfcap,setpcap,net_bind_service,sys_chroot,kill,audit_write
# shellcheck disable=SC2016
exec unshare --mount sh -c 'umount -R /sys 2>/dev/null; kept=$1; shift
  exec setpriv --bounding-set="-all,+$(echo "$kept" | sed "s/,/,+/g")" --inh-caps=-all "$@"' sh "$kept" "$@"
