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
test: fmt-check shellcheck lint generate-check test-unit deny test-cluster e2e helm-lint

# A cluster with Druid and an etcd cluster with backups on it, and a short tour
demo: build (up "3") images stores
    e2e/demo.sh

# --- Rust -----------------------------------------------------------------------

# Build all programs
build:
    cargo build --workspace

# Tests that need nothing but this machine and etcd's binaries; arguments go to the tests
test-unit *args:
    cargo test --workspace -- --skip cluster_ --skip store_s3 --skip store_gcs --skip store_azure --skip store_swift --skip e2e_ {{ args }}

# Tests of single crates against a real API server and real stores
test-cluster *args: up stores
    cargo test --workspace --tests -- cluster_ store_s3 {{ args }}

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

# Write the files that come from the code: CRDs and the API reference
generate:
    cargo run -q -p api --bin crdgen

# Are the generated files up to date?
generate-check:
    cargo run -q -p api --bin crdgen -- --check

# --- the dev cluster ------------------------------------------------------------

# Start the dev cluster, or what is missing of it, with up to nine nodes
up *nodes:
    {{ cluster }}/build.sh
    {{ cluster }}/up.sh {{ nodes }}

# Stop the dev cluster and its stores, and remove all that they hold
down:
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
