#!/bin/bash
# Bring druid's own images and plain etcd images to the cluster. What has not changed is skipped.
#
#   images.sh [NAME...]    default: all of them; druid: all of Druid's own
#
# localhost/druid/<program>:dev holds a program from cargo's target folder (build it first) and runs as
# user 65532; localhost/etcd:<minor> is like the usual etcd image: no user set. None has a shell.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
programs=(etcd-controller custodian compaction-controller opstask-controller etcd-steward)
(($#)) || set -- druid etcd:3.5 etcd:3.6 etcd:3.7
names=()
for name; do
  if [[ $name == druid ]]; then names+=("${programs[@]}"); else names+=("$name"); fi
done
set -- "${names[@]}"
certificates=/etc/ssl/certs/ca-certificates.crt
[[ -f $certificates ]] || die "install ca-certificates"

program() { # program NAME: its image
  local file=$built/$1
  [[ -f $file ]] || die "there is no $file: cargo build --workspace"
  if [[ $(readelf -lW "$file") == *INTERP* ]]; then die "$file is not a static program: see .cargo/config.toml"; fi
  IMAGE_USER=65532 IMAGE_STRIP=1 "$HERE/image.sh" "druid/$1:dev" "[\"/$1\"]" "$file=/$1" "$certificates=$certificates"
}

plain_etcd() { # plain_etcd MINOR
  "$HERE/image.sh" "etcd:$1" '["etcd"]' "$BIN/etcd-$1"/{etcd,etcdctl,etcdutl}=/usr/local/bin/
}

one() {
  case $1 in
    etcd:*) plain_etcd "${1#etcd:}" ;;
    *) program "$1" ;;
  esac
}

tools=()
for name; do
  if [[ $name == etcd:* ]]; then tools+=("etcd-${name#etcd:}"); else built=${built:-$(program_folder)}; fi
done
((!${#tools[@]})) || "$HERE/build.sh" "${tools[@]}"

jobs=()
for name; do one "$name" & jobs+=($!); done
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
((!${failed:-0})) || die "not every image is in the cluster"
