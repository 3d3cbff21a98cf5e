#!/bin/bash
# Start and stop object stores for backups, on this machine.
#
#   stores.sh up s3|gcs|azurite...      stores.sh down [s3|gcs|azurite...]    default: all of them
#
# A store listens where the pods of the dev cluster reach it, else on loopback. What to know of it is in
# $STATE/stores/NAME, one value per file: endpoint, bucket, and in secret/ the keys of a backup secret:
#
#   kubectl create secret generic backup --from-file=/var/lib/druid-dev/stores/s3/secret
#
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
(($#)) || die "usage: stores.sh up|down NAME..."
action=$1
shift
random() { openssl rand -hex "$1"; }

listen_ip() {
  if [[ ${DRUID_STORE_IP:-} ]]; then
    echo "$DRUID_STORE_IP"
  elif [[ $(ip -o -4 addr show dev druid0 2>/dev/null || true) == *" $HOST_IP/"* ]]; then
    echo $HOST_IP
  else
    echo 127.0.0.1
  fi
}

# prepare NAME PORT PATH: the store's files; one that listens elsewhere is stopped. Sets dir, ip, port, endpoint.
prepare() {
  dir=$STATE/stores/$1 ip=$(listen_ip) port=$2
  endpoint=http://$ip:$port$3
  (umask 077 && mkdir -p "$dir"/{data,secret})
  [[ $(cat "$dir/endpoint" 2>/dev/null) == "$endpoint" ]] || stop "store-$1"
  echo "$endpoint" >"$dir/endpoint"
  echo backups >"$dir/bucket"
}

secret() { # secret KEY VALUE: written once
  [[ -f $dir/secret/$1 ]] || (umask 077 && printf %s "$2" >"$dir/secret/$1")
}

# --- S3: versions and object lock -------------------------------------------------
s3_bucket() { s3_curl GET "$1?location=" || s3_curl PUT "$@"; } # s3_bucket NAME [CURL_OPTION...]

up_s3() {
  "$HERE/build.sh" s3
  prepare s3 9000 ""
  secret accessKeyID "$(random 10)"
  secret secretAccessKey "$(random 20)"
  secret region us-east-1
  secret s3ForcePathStyle true
  echo locked >"$dir/locked-bucket"
  AWS_ACCESS_KEY_ID=$(cat "$dir/secret/accessKeyID") AWS_SECRET_ACCESS_KEY=$(cat "$dir/secret/secretAccessKey") \
    start store-s3 "$BIN/s3" -dir "$dir/data" -listen "$ip:$port"
  retry 60 curl -sf "$endpoint/healthz"
  retry 60 s3_bucket backups
  retry 60 s3_bucket locked -H 'x-amz-bucket-object-lock-enabled: true'
}

# --- Google Cloud Storage ---------------------------------------------------------
up_gcs() {
  "$HERE/build.sh" gcs
  prepare gcs 4443 ""
  [[ -f $dir/secret/serviceaccount.json ]] || secret serviceaccount.json "$(jq -n \
    --arg key "$(openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 2>/dev/null)" --arg id "$(random 20)" \
    '{type: "service_account", project_id: "druid-dev", private_key_id: $id, private_key: $key,
      client_email: "backup@druid-dev.iam.gserviceaccount.com", client_id: "1",
      auth_uri: "https://accounts.google.com/o/oauth2/auth", token_uri: "https://oauth2.googleapis.com/token"}')"
  start store-gcs "$BIN/gcs" -scheme http -host "$ip" -port "$port" -public-host "$ip:$port" \
    -backend filesystem -filesystem-root "$dir/data" -log-level warn
  retry 60 curl -sf "$endpoint/_internal/healthcheck"
  curl -sf "$endpoint/storage/v1/b/backups" >/dev/null || curl -sSf "$endpoint/storage/v1/b?project=druid-dev" \
    -H 'content-type: application/json' -d '{"name": "backups"}' >/dev/null
}

# --- Azure Blob Storage -----------------------------------------------------------
azure_container() { # azure_container NAME: make it, unless it is there
  local date to_sign key signature code
  date=$(LC_ALL=C date -u '+%a, %d %b %Y %H:%M:%S GMT')
  printf -v to_sign 'PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:%s\nx-ms-version:2021-12-02\n/%s/%s/%s\nrestype:container' \
    "$date" druiddev druiddev "$1"
  key=$(base64 -d "$dir/secret/storageKey" | od -An -v -tx1 | tr -d ' \n')
  signature=$(printf %s "$to_sign" | openssl dgst -sha256 -mac HMAC -macopt hexkey:"$key" -binary | base64)
  code=$(curl -sS -o /dev/null -w '%{http_code}' -X PUT "$endpoint/$1?restype=container" -H "x-ms-date: $date" \
    -H 'x-ms-version: 2021-12-02' -H 'content-length: 0' -H "Authorization: SharedKey druiddev:$signature")
  [[ $code == 201 || $code == 409 ]]
}

up_azurite() {
  "$HERE/build.sh" azurite
  prepare azurite 10000 /druiddev
  secret storageAccount druiddev
  secret storageKey "$(openssl rand -base64 64 | tr -d '\n')"
  AZURITE_ACCOUNTS=druiddev:$(cat "$dir/secret/storageKey") start store-azurite \
    node "$CACHE/azurite/node_modules/azurite/dist/src/blob/main.js" --blobHost "$ip" --blobPort "$port" \
    --location "$dir/data" --silent --disableTelemetry --disableProductStyleUrl --skipApiVersionCheck
  retry 120 azure_container backups
}

down() { # down NAME: with all that it holds
  stop "store-$1"
  rm -rf "$STATE/stores/$1"
}

case $action in
  up) claim_state ;;
  down)
    [[ -f $STATE/.druid-dev ]] || exit 0
    claim_state
    (($#)) || set -- s3 gcs azurite ;;
  *) die "usage: stores.sh up|down NAME..." ;;
esac
for store; do
  [[ $store == s3 || $store == gcs || $store == azurite ]] || die "no such store: $store"
  case $action in
    up) "up_$store" && say "$store: $(cat "$STATE/stores/$store/endpoint")" ;;
    down) down "$store" ;;
  esac
done
