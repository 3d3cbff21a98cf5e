#!/bin/bash
# Put programs of cargo's target folder (build them first) beside the cluster's tools: programs.sh NAME...
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
(($#)) || die "usage: programs.sh NAME..."
built=$(program_folder)
mkdir -p "$BIN"
for name; do
  [[ -f $built/$name ]] || die "there is no $built/$name: cargo build --workspace --bins"
  strip -o "$BIN/.$name.new" "$built/$name"
  mv -f "$BIN/.$name.new" "$BIN/$name"
done
