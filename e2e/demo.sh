#!/bin/bash
# The demo: Druid in the cluster, an Etcd of three members with backups in an S3 store, keys written, a task run, a tour.
set -euo pipefail
cd "$(dirname "$0")/.."
state=${DRUID_DEV_STATE:-/var/lib/druid-dev}
name=demo
k() { kubectl -n default "$@"; }
say() { printf '\n== %s\n' "$*"; }
now() { date +%s%3N; } # milliseconds
condition() { printf '{.status.conditions[?(@.type=="%s")].status}' "$1"; }

say "Install Druid with its helm chart"
e2e/install.sh

say "A store for backups"
e2e/cluster/stores.sh up s3
endpoint=$(cat "$state/stores/s3/endpoint") bucket=$(cat "$state/stores/s3/bucket")
k create secret generic $name-backup --from-file="$state/stores/s3/secret" --dry-run=client -o yaml | k apply -f - >/dev/null

say "An Etcd of three members"
k delete eot $name-snapshot --ignore-not-found >/dev/null
k delete etcd $name --ignore-not-found >/dev/null
k delete pvc -l app.kubernetes.io/part-of=$name --ignore-not-found >/dev/null
manifest=$(mktemp)
trap 'rm -f "$manifest"' EXIT
cat >"$manifest" <<YAML
apiVersion: druid.gardener.cloud/v1alpha1
kind: Etcd
metadata: {name: $name, namespace: default}
spec:
  labels: {app: $name}
  replicas: 3
  storageCapacity: 1Gi
  etcd: {}
  backup:
    store:
      provider: S3
      container: $bucket
      prefix: $name/$(date +%s)
      endpointOverride: $endpoint
      secretRef: {name: $name-backup}
    fullSnapshotSchedule: "0 */24 * * *"
    deltaSnapshotPeriod: 5s
YAML
cat "$manifest"
begin=$(now)
k apply -f "$manifest"
k wait etcd/$name --for=jsonpath="$(condition AllMembersReady)"=True --timeout=180s >/dev/null
k wait etcd/$name --for=condition=Ready --timeout=60s >/dev/null
took=$(($(now) - begin))
echo "three members are ready $((took / 1000)).$((took % 1000 / 100)) s after kubectl apply"

say "Write through it"
for i in $(seq 10); do
  k exec $name-0 -c etcd -- etcdctl put "/demo/key-$i" "value $i" >/dev/null
done
echo "10 keys written; one of them, read from another member:"
k exec $name-2 -c etcd -- etcdctl get /demo/key-7

say "A full snapshot on demand, as a task"
k apply -f - <<YAML
apiVersion: druid.gardener.cloud/v1alpha1
kind: EtcdOpsTask
metadata: {name: $name-snapshot}
spec:
  etcdName: $name
  config: {onDemandSnapshot: {type: full}}
YAML
k wait eot/$name-snapshot --for=jsonpath='{.status.state}'=Succeeded --timeout=60s >/dev/null
k exec $name-0 -c etcd -- etcdctl put /demo/after "the full snapshot" >/dev/null
k wait etcd/$name --for=condition=BackupReady --timeout=60s >/dev/null
until k get etcdmember -o jsonpath='{.items[*].status.snapshots.lastDelta.name}' | grep -q Incr-; do sleep 0.5; done

say "What is there now"
k get etcd,etcdmember,eot
echo
echo "in the store, below $(k get etcd $name -o jsonpath='{.spec.backup.store.prefix}')/v2/:"
leader=$(k get etcdmember -o jsonpath='{.items[?(@.status.role=="Leader")].metadata.name}')
port=8080 host=$leader.$name-peer.default.svc
tls=$(mktemp -d)
trap 'rm -rf "$manifest" "$tls"' EXIT
for key in ca.crt tls.crt tls.key; do
  k get secret $name-steward-client -o "jsonpath={.data.${key//./\\.}}" | base64 -d >"$tls/$key"
done
ip=$(k get pod "$leader" -o jsonpath='{.status.podIP}')
grpcurl -cacert "$tls/ca.crt" -cert "$tls/tls.crt" -key "$tls/tls.key" -authority "$host" \
  "$ip:$port" steward.v1.SnapshotsService/ListSnapshots | jq -r '.snapshots[] | "  v2/\(.name)  \(.sizeBytes) bytes"'

cat <<TOUR

== A short tour

  export KUBECONFIG=${KUBECONFIG:-$state/admin.kubeconfig} PATH=${DRUID_DEV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/druid-dev}/bin:\$PATH

  kubectl get etcd,etcdmember,eot -A            the clusters, their members, and the tasks
  kubectl describe etcd $name                   conditions with their reasons, and Events
  kubectl delete pod $name-1                    it comes back as the same member, with its data
  kubectl delete service $name-client           it is back in a moment
  kubectl exec $name-0 -c etcd -- etcdctl member list -w table
  kubectl apply -f examples/task-snapshot.yaml  another snapshot (name your Etcd in it)
  druidctl status                               the same at a glance

  ./run down                                    stop the cluster and remove all that it made
TOUR
