#!/bin/bash
# Prove that the S3 server does what backups rely on: conditional puts, multipart uploads, versions, object lock.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
[[ -f $STATE/stores/s3/endpoint ]] || die "there is no S3 server: run stores.sh up s3 first"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix=smoke-$(openssl rand -hex 4)

# expect STATUS METHOD PATH [CURL_OPTION...]: the answer's body is in $tmp/body then, its headers in $tmp/headers
expect() {
  local status
  status=$(s3_curl "${@:2}" -o "$tmp/body" -D "$tmp/headers" -w '%{http_code}' 2>/dev/null || true)
  [[ $status == "$1" ]] || die "$2 $3: expected $1, got $status: $(cat "$tmp/body")"
}
header() { sed -n "s/^$1: *\(.*\)\r$/\1/Ip" "$tmp/headers"; }
element() { sed -n "s/.*<$1>\([^<]*\)<.*/\1/p" "$tmp/body"; }
part() { # part KEY UPLOAD_ID NUMBER FILE: upload it, print its XML
  expect 200 PUT "$1?partNumber=$3&uploadId=$2" -T "$4"
  echo "<Part><PartNumber>$3</PartNumber><ETag>$(header etag)</ETag></Part>"
}
complete() { # complete STATUS KEY [CURL_OPTION...]: a multipart upload of two parts
  local id
  expect 200 POST "$2?uploads=" -d ''
  id=$(element UploadId)
  { echo '<CompleteMultipartUpload>'; part "$2" "$id" 1 "$tmp/first"; part "$2" "$id" 2 "$tmp/last"
    echo '</CompleteMultipartUpload>'; } >"$tmp/parts"
  expect "$1" POST "$2?uploadId=$id" --data-binary "@$tmp/parts" "${@:3}"
}

key=backups/$prefix/conditional
expect 200 PUT "$key" -d one -H 'if-none-match: *'
expect 412 PUT "$key" -d two -H 'if-none-match: *'
expect 412 PUT "$key" -d two -H 'if-match: "00000000000000000000000000000000"'
expect 200 GET "$key"
[[ $(cat "$tmp/body") == one ]] || die "a refused put has changed the object"
say "conditional put: an object that exists is not overwritten"

head -c 5M /dev/urandom >"$tmp/first"
echo end >"$tmp/last"
complete 200 "backups/$prefix/multipart" -H 'if-none-match: *'
expect 200 GET "backups/$prefix/multipart"
cat "$tmp/first" "$tmp/last" | cmp - "$tmp/body"
complete 412 "$key" -H 'if-none-match: *'
say "multipart upload: whole, and conditional too"

key=locked/$prefix/versions
expect 200 PUT "$key" -d one
first=$(header x-amz-version-id)
expect 200 PUT "$key" -d two
expect 204 DELETE "$key"
expect 404 GET "$key"
expect 200 GET "$key?versionId=$first"
[[ $(cat "$tmp/body") == one ]] || die "version $first is not what was put"
expect 200 GET "locked?prefix=$prefix&versions="
grep -q DeleteMarker "$tmp/body" || die "no delete marker among the versions: $(cat "$tmp/body")"
say "versions: an overwritten and deleted object is still there"

key=locked/$prefix/locked
expect 200 PUT "$key" -d kept -H 'x-amz-object-lock-mode: COMPLIANCE' \
  -H "x-amz-object-lock-retain-until-date: $(date -u -d '+20 seconds' +%FT%TZ)"
version=$(header x-amz-version-id)
expect 403 DELETE "$key?versionId=$version"
expect 200 HEAD "$key?versionId=$version" -I
[[ $(header x-amz-object-lock-mode) == COMPLIANCE ]] || die "the lock is not shown"
say "object lock: a locked version cannot be deleted"
