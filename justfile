# The tasks of the project. ./run TASK works on a fresh machine; `just TASK` does once the tools are there.

set shell := ["bash", "-euo", "pipefail", "-c"]

cache := env("DRUID_DEV_CACHE", env("XDG_CACHE_HOME", env("HOME") / ".cache") / "druid-dev")
export PATH := cache / "bin:" + env("PATH")
export KUBECONFIG := env("DRUID_KUBECONFIG", env("DRUID_DEV_STATE", "/var/lib/druid-dev") / "admin.kubeconfig")

cluster := "e2e/cluster"

[private]
default:
    @just --list --unsorted

# --- everything -----------------------------------------------------------------

# All that CI checks: style, lints, unit tests, then the tests that need a cluster
test: fmt-check shellcheck lint generate-check tools-ahead test-unit deny test-cluster shake-slice test-stores e2e helm-lint

# Builds what later steps need while scenarios wait. It fails where it is needed
[private]
tools-ahead:
    {{ cluster }}/build.sh etcd-3.5 etcd-3.5.16 etcd-3.6 etcd-3.7 linearizable
    nice -n 19 {{ cluster }}/build.sh cluster cargo-deny s3 gcs </dev/null >/dev/null 2>&1 &

# A cluster with Druid and an etcd cluster with backups on it, and a short tour
demo: programs (up "3") (images "druid etcd:3.6") stores
    e2e/demo.sh

# A task as on a machine that never built Druid: in a bare Debian root, with no more than Rust, Go and their download caches
fresh *args:
    e2e/fresh.sh {{ args }}

# --- Rust -----------------------------------------------------------------------

# Build all programs and libraries
build:
    cargo build --workspace

# Build the programs, and put druidctl beside the other tools
programs:
    cargo build --workspace --bins
    {{ cluster }}/programs.sh druidctl

# Tests that need nothing but this machine and etcd's binaries; arguments go to the tests. Scenarios mostly wait
test-unit *args:
    {{ cluster }}/build.sh etcd-3.5 etcd-3.5.16 etcd-3.6 etcd-3.7 linearizable
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 5 / 2))} \
      cargo test --workspace -- --skip cluster_ --skip store_s3 --skip store_gcs --skip store_azure --skip store_swift --skip e2e_ {{ args }}

# Tests of single crates against a real API server
test-cluster *args: up
    {{ cluster }}/build.sh etcd-3.6
    cargo test --workspace --tests -- cluster_ {{ args }}

# What all stores must do, on real servers: S3 and Google's; Azure's if there is npm, Swift if there are Python and apt
test-stores *args:
    #!/usr/bin/env bash
    set -euo pipefail
    servers=(s3 gcs) tests=(store_s3 store_gcs)
    if command -v npm >/dev/null; then
      servers+=(azurite) tests+=(store_azure)
    else
      echo "no npm: the tests of Azure are left out" >&2
    fi
    {{ cluster }}/stores.sh up "${servers[@]}"
    if crates/snapstore/tests/stores/swift-server.sh up; then
      tests+=(store_swift)
    else
      echo "no Swift, which needs Python with venv, and apt: its tests are left out" >&2
    fi
    cargo test --workspace --tests -- "${tests[@]}" {{ args }}

# Restore, compaction and full snapshot beside etcd's own tools, with so much data; `0.1 release`: a tenth, all optimized
bench-storage size="1" profile="dev":
    {{ cluster }}/build.sh etcd-3.6
    cargo bench --profile {{ profile }} --workspace --bench storage -- {{ size }}

# What takes minutes, on a quiet machine: long outages, large databases, much load. `drill load`: one of them
drill *names: build
    {{ cluster }}/build.sh etcd-3.5 etcd-3.6 etcd-3.7
    cargo test --workspace --test steward -- --ignored --nocapture --test-threads 1 {{ prepend("drill_", names) }}

# Break things at random, so many times, from a seed on, and prove that nothing acknowledged is lost; `shake 1 17`: seed 17 again
shake runs="20" seed=`date +%s` parallel="4": build
    {{ cluster }}/build.sh etcd-3.5 etcd-3.6 etcd-3.7 linearizable kube-apiserver
    SHAKE_RUNS={{ runs }} SHAKE_SEED={{ seed }} SHAKE_PARALLEL={{ parallel }} SHAKE_SECONDS=86400 \
      cargo test --workspace --test steward -- --ignored --nocapture --exact shaker::shaker

# The same from seed 1 on, in five minutes: those that have begun by then end
shake-slice: build
    {{ cluster }}/build.sh etcd-3.5 etcd-3.6 etcd-3.7 linearizable kube-apiserver
    SHAKE_SEED=1 SHAKE_PARALLEL=${SHAKE_PARALLEL:-$(nproc)} SHAKE_SECONDS=${SHAKE_SECONDS:-200} \
      cargo test --workspace --test steward -- --ignored --nocapture --exact shaker::shaker

# Whole scenarios: Druid in the cluster, as its users run it
e2e *args: build (up "3") images stores
    e2e/install.sh
    cargo test --workspace --tests -- e2e_ {{ args }}
    e2e/uninstall.sh

# Lints of all code, tests too
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Format all code
fmt:
    cargo fmt --all

# Is all code formatted?
fmt-check:
    cargo fmt --all -- --check

# Licences, sources and unwanted crates among the dependencies
deny:
    {{ cluster }}/build.sh cargo-deny
    cargo deny --locked check bans licenses sources

# Write the files that come from the code: CRDs, the API reference and the tables of metrics
generate:
    cargo run -q --bin crdgen
    DRUID_GENERATE=1 cargo test -q --workspace --lib -- --test-threads 1 metrics

# Are the generated files up to date?
generate-check:
    cargo run -q --bin crdgen -- --check

# --- the dev cluster ------------------------------------------------------------

# Start the dev cluster, or what is missing of it, with up to nine nodes
up *nodes:
    {{ cluster }}/up.sh {{ nodes }}

# Stop the dev cluster and its stores, and remove all that they hold
down:
    crates/snapstore/tests/stores/swift-server.sh down
    {{ cluster }}/down.sh

# Bring the images of Druid and etcd to the cluster
images *names:
    {{ cluster }}/images.sh {{ names }}

# Start object stores: s3, gcs, azurite
stores *names="s3":
    {{ cluster }}/stores.sh up {{ names }}

# Prove that the dev cluster works, with a plain etcd
cluster-smoke: up
    {{ cluster }}/smoke.sh

# --- other checks ---------------------------------------------------------------

# Lint the scripts
shellcheck:
    git ls-files -co --exclude-standard -- run '.ci/run' '*.sh' | xargs shellcheck

# Lint the helm chart
helm-lint:
    {{ cluster }}/build.sh cluster
    helm lint --strict deploy/helm/druid
    for off in etcd-controller custodian compaction-controller opstask-controller; do \
      helm template druid deploy/helm/druid --kube-version 1.36 --set controllers.$off.enabled=false | { ! grep -q "name: $off\$"; }; \
    done
