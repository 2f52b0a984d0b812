#!/usr/bin/env bash
# The README's promise, tried: a bare Debian 12 (debootstrap, minbase) in a root of its own, a fresh clone, and the two commands
# of the README, nothing else typed. By hand and weekly, and whenever a dependency changes; needs root, 6 GB and half
# an hour on two cores.
#   tests/fresh-machine.sh [--keep] [--dir DIR] [--only quickstart|tests|packages]
#   --keep   leave it where it is          --dir   where to make it (default: a new folder below $TMPDIR or /tmp)
#   --only   one of the two commands; "packages": only install what both need
# The package mirror and its keys are those of this machine's own apt configuration.
# Last line: "N passed, N failed, N skipped".
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

keep='' dir='' only=''
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=1 ;;
    --dir) dir=${2:?--dir needs a folder}; shift ;;
    --only) only=${2:?--only needs quickstart, tests or packages}; shift ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
[ "$(id -u)" = 0 ] || { echo "fresh-machine: needs root" >&2; exit 2; }
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; }

mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
  awk '$2 == "bookworm" && $3 == "main" { print $1; exit }')
[ -n "$mirror" ] || { echo "fresh-machine: this machine's apt knows no source of Debian bookworm main" >&2; exit 1; }

base=${dir:-${TMPDIR:-/tmp}}
mkdir -p "$base"
root=$(mktemp -d "$base/ddprun-fresh.XXXXXX")
# The mounts live in a namespace of their own and go with it; --one-file-system in case they did not.
clean() { if [ -n "$keep" ]; then echo "fresh-machine: kept: $root"; else rm -rf --one-file-system "$root"; fi; }
trap clean EXIT
trap 'exit 130' INT TERM

step() { # step NAME COMMAND...: says how long it took
  local name=$1 start=$SECONDS rc=0
  shift
  echo "=== $name"
  "$@" || rc=$?
  echo "=== $name: $([ $rc -eq 0 ] && echo ok || echo "FAILED ($rc)"), $((SECONDS - start)) s"
  return $rc
}

bootstrap() {
  local log=$root.log
  if ! debootstrap --variant=minbase bookworm "$root" "$mirror" >"$log" 2>&1; then tail -n 20 "$log"; rm -f "$log"; return 1; fi
  rm -f "$log"
  # The same sources, keys, proxies and certificates as here.
  rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
  mkdir -p "$root/etc/apt/sources.list.d" "$root/usr/share/keyrings" "$root/etc/ssl/certs"
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    # Only Debian's own: a bare machine has no third-party source.
    if [ -f "$file" ] && grep -qF "${mirror%/}" "$file"; then cp "$file" "$root$file"; fi
  done
  cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  rm -f "$root"/etc/apt/apt.conf.d/{01autoremove*,20packagekit,50appstream,*listchanges*}
  cp -r /etc/apt/trusted.gpg.d/. "$root/etc/apt/trusted.gpg.d/" 2>/dev/null || true
  cp /usr/share/keyrings/*.gpg "$root/usr/share/keyrings/" 2>/dev/null || true
  [ ! -f /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n' >"$root/etc/hosts"
}

clone() { git -c advice.detachedHead=false clone -q --no-hardlinks "$here" "$root/root/ddprun"; }

# Runs a command in the clone, as on a machine where nobody has set anything up.
inside() {
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child --propagation private bash -euc '
    root=$1; shift
    # A root of its own, not a mere chroot: in a chroot no further namespaces can be mounted.
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    cd "$root"
    mkdir -p .old
    pivot_root . .old
    umount -l /.old
    exec chroot . /usr/bin/env -i HOME=/root LANG=C.UTF-8 TERM=dumb \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} ${no_proxy:+no_proxy="$no_proxy"} \
      bash -c "cd /root/ddprun && exec \"\$@\"" bash "$@"
  ' bash "$root" "$@"
}

passed=0 failed=0 skipped=0
count() { if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }

step "bare Debian 12 from $mirror" bootstrap
step "fresh clone of $(git -C "$here" rev-parse --short HEAD)" clone
[ -z "$(git -C "$here" status --porcelain --untracked-files=no)" ] ||
  echo "fresh-machine: note: uncommitted changes of this working tree are not in the clone"

if [ "$only" = packages ]; then
  rc=0; step "packages" inside deploy/install-dependencies.sh build data test || rc=$?; count $rc
fi
if [ -z "$only" ] || [ "$only" = quickstart ]; then
  rc=0; step "deploy/quickstart.sh" inside deploy/quickstart.sh 2>&1 | tee "$root/root/quickstart.log" || rc=$?; count $rc
  rc=0; grep -qE 'validation accuracy [0-9]+\.[0-9]+ %' "$root/root/quickstart.log" || rc=$?; count $rc
fi
if [ -z "$only" ] || [ "$only" = tests ]; then
  rc=0; step "tests/run.sh" inside tests/run.sh 2>&1 | tee "$root/root/tests.log" || rc=$?
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$root/root/tests.log" | tail -n 1)
  if [ -n "$line" ]; then
    read -r p _ f _ s _ <<<"${line//,/}"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then failed=$((failed + 1)); fi
  else
    count 1
  fi
fi
echo "total $SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
