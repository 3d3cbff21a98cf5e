#!/bin/bash
# Start and stop an OpenStack Swift on loopback, one process for each of its servers and a single copy of all data.
#
#   swift-server.sh up|down
#
# What the tests need to know of it is in $STATE/stores/swift, one value per file, as for the servers of
# e2e/cluster/stores.sh. Swift comes from PyPI and memcached, where it keeps its tokens, from Debian: both into
# $CACHE/swift, once.
set -euo pipefail

CACHE=${DRUID_DEV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/druid-dev}
STATE=${DRUID_DEV_STATE:-/var/lib/druid-dev}
VERSION=2.38.3
PORT=8089
dir=$STATE/stores/swift
bin=$CACHE/swift/bin

install() {
  if [[ ! -x $bin/swift-proxy-server ]]; then
    python3 -m venv "$CACHE/swift"
    "$bin/pip" install -q "swift==$VERSION"
  fi
  if [[ ! -x $CACHE/swift/memcached/usr/bin/memcached ]]; then
    (cd "$CACHE/swift" && apt-get download -q memcached libevent-2.1-7 &&
      for package in memcached_*.deb libevent*.deb; do dpkg-deb -x "$package" memcached; done)
  fi
}

start_cache() {
  LD_LIBRARY_PATH=$(echo "$CACHE"/swift/memcached/usr/lib/*-linux-gnu) setsid "$CACHE/swift/memcached/usr/bin/memcached" \
    -l 127.0.0.1 -p $((PORT + 4)) -U 0 -u "$(id -un)" -P "$dir/etc/cache.pid" >"$dir/logs/cache" 2>&1 </dev/null &
  echo $! >"$dir/pids/cache"
}

servers=(account container object)

ring() { # ring NAME PORT: all partitions on the one device
  (cd "$dir/etc" && "$bin/swift-ring-builder" "$1.builder" create 2 1 1 &&
    "$bin/swift-ring-builder" "$1.builder" add "r1z1-127.0.0.1:$2/d1" 1 &&
    "$bin/swift-ring-builder" "$1.builder" rebalance) >/dev/null
}

backend_conf() { # backend_conf NAME PORT
  cat >"$dir/etc/$1-server.conf" <<EOF
[DEFAULT]
devices = $dir/data
mount_check = false
bind_ip = 127.0.0.1
bind_port = $2
workers = 0
user = $(id -un)
swift_dir = $dir/etc
[pipeline:main]
pipeline = $1-server
[app:$1-server]
use = egg:swift#$1
EOF
}

proxy_conf() {
  cat >"$dir/etc/proxy-server.conf" <<EOF
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $PORT
workers = 0
user = $(id -un)
swift_dir = $dir/etc
[pipeline:main]
pipeline = catch_errors cache listing_formats tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:$((PORT + 4))
[filter:tempauth]
use = egg:swift#tempauth
user_test_backup = $(cat "$dir/secret/password") .admin
[filter:slo]
use = egg:swift#slo
min_segment_size = 1
[filter:dlo]
use = egg:swift#dlo
EOF
}

start() { # start NAME: its pid goes to a file
  setsid "$bin/swift-$1-server" "$dir/etc/$1-server.conf" >"$dir/logs/$1" 2>&1 </dev/null &
  echo $! >"$dir/pids/$1"
}

token() { # sets token and url
  local headers
  headers=$(curl -sf -D - -o /dev/null "http://127.0.0.1:$PORT/auth/v1.0" \
    -H 'x-auth-user: test:backup' -H "x-auth-key: $(cat "$dir/secret/password")") || return
  token=$(sed -n 's/^x-auth-token: *//Ip' <<<"$headers" | tr -d '\r')
  url=$(sed -n 's/^x-storage-url: *//Ip' <<<"$headers" | tr -d '\r')
  curl -sf -X PUT "$url/$(cat "$dir/bucket")" -H "x-auth-token: $token" -H 'content-length: 0'
}

up() {
  install
  (umask 077 && mkdir -p "$dir"/{etc,data/d1,logs,pids,secret})
  [[ -f $dir/secret/password ]] || (umask 077 && openssl rand -hex 16 | tr -d '\n' >"$dir/secret/password")
  echo "http://127.0.0.1:$PORT" >"$dir/endpoint"
  echo backups >"$dir/bucket"
  printf '[swift-hash]\nswift_hash_path_suffix = dev\n[storage-policy:0]\nname = one\ndefault = yes\n' >"$dir/etc/swift.conf"
  export SWIFT_DIR=$dir/etc
  down_processes
  local at=$PORT
  for server in "${servers[@]}"; do
    at=$((at + 1))
    [[ -f $dir/etc/$server.ring.gz ]] || ring "$server" "$at"
    backend_conf "$server" "$at"
    start "$server"
  done
  start_cache
  proxy_conf
  start proxy
  for _ in {1..60}; do
    token 2>/dev/null && echo "swift: http://127.0.0.1:$PORT" && return
    sleep 0.5
  done
  echo "swift doesn't answer, see $dir/logs" >&2
  exit 1
}

down_processes() {
  local file pid
  for file in "$dir"/pids/*; do
    pid=$(cat "$file" 2>/dev/null) || continue
    grep -qs "$dir/etc" "/proc/$pid/cmdline" && kill "$pid"
    rm -f "$file"
  done
}

case ${1:-} in
  up) up ;;
  down) down_processes; rm -rf "$dir" ;;
  *) echo "usage: swift-server.sh up|down" >&2; exit 2 ;;
esac
