#!/bin/bash
# Prove that uninstalling the chart leaves custom resources, clusters, volumes and backups as they are, and that what is
# installed again takes them over. Druid must be installed; it is afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "uninstall.sh: $*" >&2; exit 1; }
namespace=e2e-uninstall-$$
k() { kubectl -n "$namespace" "$@"; }
ready() { k wait etcd/kept --for=condition=AllMembersReady --timeout=120s >/dev/null; }

kubectl create namespace "$namespace" >/dev/null
k apply -f - >/dev/null <<'YAML'
apiVersion: druid.gardener.cloud/v1alpha1
kind: Etcd
metadata: {name: kept}
spec: {replicas: 1}
YAML
ready
k exec kept-0 -c etcd -- etcdctl put uninstall kept >/dev/null
before=$(k get etcd,pod,pvc,etcdmember -o jsonpath='{.items[*].metadata.uid}')

helm uninstall druid --namespace druid-system --wait >/dev/null
after=$(k get etcd,pod,pvc,etcdmember -o jsonpath='{.items[*].metadata.uid}')
[[ $before == "$after" ]] || fail "other objects are there after the chart was uninstalled: $before, then $after"
value=$(k exec kept-0 -c etcd -- etcdctl get uninstall --print-value-only)
[[ $value == kept ]] || fail "the key is '$value' after the chart was uninstalled"

e2e/install.sh >/dev/null
k delete service kept-client >/dev/null
for _ in {1..60}; do
  if k get service kept-client >/dev/null 2>&1; then back=1 && break; fi
  sleep 1
done
[[ ${back:-} ]] || fail "Druid that was installed again doesn't look after the Etcd"
ready
[[ $(k get pod/kept-0 -o jsonpath='{.metadata.uid}') == "$(cut -d' ' -f2 <<<"$before")" ]] || fail "the pod was replaced"
kubectl delete namespace "$namespace" --wait=false >/dev/null
echo "uninstall.sh: ok, custom resources, pods, volumes and data outlast the chart"
