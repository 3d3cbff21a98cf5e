#!/bin/bash
# Run a task of the project as on a machine that never built it: in a bare Debian or Ubuntu root, where only Rust, Go and
# what their clients have downloaded are at hand. It shows what the scripts need and don't install.
#
#   fresh.sh [--here] [--without PACKAGE]... [TASK...]    default: demo
#
# The last commit is cloned into the root. With --here it is this checkout instead, with its target folder and the cache of
# tools, so that nothing is built a second time; what was built before isn't tried then.
# --without takes a package off the list of `run`: the task should fail.
#
# Needs root, and mmdebstrap, which it installs. The dev cluster's addresses are fixed: no other one may run.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
cache=${DRUID_DEV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/druid-dev}
die() { echo "fresh.sh: $*" >&2; exit 1; }

here='' without=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --here) here=1 ;;
    --without) without+=("${2:?--without wants a package}"); shift ;;
    *) die "no such option: $1" ;;
  esac
  shift
done
(($#)) || set -- demo
[[ ! $here || ! ${without[*]} ]] || die "--without changes the list: it goes without --here"
[[ $EUID == 0 ]] || die "run this as root"
[[ ! -e /sys/class/net/druid0 ]] || die "a dev cluster runs on this machine: ./run down"
command -v mmdebstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null; }

# What is bound into the root, at the same paths: the toolchains, and what their clients have downloaded.
sysroot=$(rustc --print sysroot) goroot=$(go env GOROOT)
registry=${CARGO_HOME:-$HOME/.cargo}/registry modules=$(go env GOMODCACHE) objects=$(go env GOCACHE)
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
binds=("$sysroot" "$goroot" "$registry" "$modules")
if [[ $here ]]; then binds+=("$checkout" "$cache" "$target" "$objects"); fi
mkdir -p "${binds[@]}"

root=$(mktemp -d "${TMPDIR:-/var/tmp}/druid-fresh.XXXXXX")
chmod 755 "$root"
trap 'rm -rf --one-file-system "$root"' EXIT
begin=$SECONDS
mapfile -t sources < <(find /etc/apt -maxdepth 2 -name '*.list' -size +0 -o -maxdepth 2 -name '*.sources' | sort)
mmdebstrap --quiet --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" "${sources[@]}" >/dev/null
echo "fresh.sh: a bare root in $((SECONDS - begin)) s"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"

# Downloads go by the machine's certificates, also while the root has none of its own.
mkdir -p "$root/opt"
cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/opt/ca.crt"

if [[ ! $here ]]; then
  mkdir -p "$root$(dirname "$checkout")"
  git clone -q "$checkout" "$root$checkout"
  for package in "${without[@]}"; do
    sed -i "/^packages=(/,/)/ s/\\b$package\\b//" "$root$checkout/run"
    ! git -C "$root$checkout" diff --quiet || die "$package isn't on the list of ./run"
  done
fi

# Its own mounts and processes: all of them are gone when this ends, however it ends.
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child bash -c '
  set -euo pipefail
  root=$1 checkout=$2 binds=$3
  shift 3
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/run"
  while read -r dir; do
    mkdir -p "$root$dir"
    mount --bind "$dir" "$root$dir"
  done <<<"$binds"
  # Not only a chroot: who enters the namespace of a container that was made in one comes out at the real root.
  cd "$root"
  mkdir .host
  pivot_root . .host
  exec chroot . /bin/sh -c "umount -l /.host && rmdir /.host && exec /usr/bin/env -C \"\$@\"" sh "$checkout" "$@"
' bash "$root" "$checkout" "$(printf '%s\n' "${binds[@]}")" \
  -i HOME="$HOME" TERM="${TERM:-dumb}" LANG=C.UTF-8 SSL_CERT_FILE=/opt/ca.crt CARGO_HTTP_CAINFO=/opt/ca.crt \
  PATH="$sysroot/bin:$goroot/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
  CARGO_HOME="$(dirname "$registry")" GOMODCACHE="$modules" GOCACHE="$objects" GOFLAGS="$(go env GOFLAGS)" \
  ${here:+CARGO_TARGET_DIR="$target" DRUID_DEV_CACHE="$cache"} \
  bash -c 'trap "./run down >/dev/null" EXIT; ./run "$@"' bash "$@"
echo "fresh.sh: ./run $* ended well in a bare root after $((SECONDS - begin)) s"
