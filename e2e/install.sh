#!/bin/bash
# Install Druid from its chart in the cluster under test, or bring it up to date.
# With DRUID_KUBECONFIG set, DRUID_VALUES names a file of chart values that say where the images are.
set -euo pipefail
cd "$(dirname "$0")/.."
values=${DRUID_VALUES:-e2e/cluster/values.yaml}
# helm leaves existing CRDs alone; new fields need them applied.
kubectl apply --server-side --force-conflicts -f deploy/helm/druid/crds >/dev/null
# The same tag may stand for a new image: its digest restarts the pods.
socket=${DRUID_DEV_STATE:-/var/lib/druid-dev}/node1/containerd.sock digest=none
if [[ -S $socket ]]; then
  digest=$(ctr -a "$socket" -n k8s.io images ls 2>/dev/null | awk '/druid\//{print $1, $3}' | sort | sha256sum | cut -c1-16)
fi
helm upgrade --install druid deploy/helm/druid --namespace druid-system --create-namespace \
  --values "$values" --set-string "podAnnotations.images=$digest" --wait --timeout 120s >/dev/null
kubectl -n druid-system get deployments
