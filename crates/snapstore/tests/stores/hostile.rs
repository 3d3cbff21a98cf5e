//! Refusals that name what to change, checksums, sizes, and answers without end.

use axum::{body::Body as Answer, response::Response};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use md5::{Digest as _, Md5};
use snapstore::{Body, Class, Object, Provider};

use crate::{
    contract::{content, full},
    stub::{Seen, Stub, answer, ok},
};

const LARGE: usize = (9 << 20) + 5;

/// As much of S3 as an upload needs.
fn s3(seen: &Seen, all: &[Seen]) -> Response {
    match seen.method.as_str() {
        "POST" if seen.asks("uploads") => {
            ok("<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        }
        "POST" => ok("<CompleteMultipartUploadResult/>"),
        "HEAD" => {
            let token = all.iter().find_map(|seen| seen.header("x-amz-meta-upload-token"));
            let puts = || all.iter().filter(|seen| seen.method == "PUT");
            let size = puts().map(|seen| seen.body.len()).sum::<usize>().to_string();
            // Of what was put in one request, that is its MD5.
            let md5 = puts().next().map(|seen| hex::encode(Md5::digest(&seen.body)));
            let etag = format!("\"{}\"", md5.unwrap_or_default());
            answer(
                200,
                &[
                    ("x-amz-meta-upload-token", token.unwrap_or("")),
                    ("content-length", &size),
                    ("etag", &etag),
                ],
                "",
            )
        }
        _ => answer(200, &[("etag", "\"e\"")], ""),
    }
}

/// The server checks what arrives, by one sum or the other.
#[tokio::test]
async fn content_has_a_checksum() {
    for (fields, with_sha256) in [
        (&[][..], true),
        (&[("requestChecksumCalculation", "when_required")], false),
    ] {
        for size in [1000, LARGE] {
            let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let all = std::sync::Arc::clone(&log);
            let stub = Stub::start(move |seen, _| {
                let mut all = all.lock().unwrap();
                all.push(seen.clone());
                s3(seen, &all)
            })
            .await;
            let store = stub.config_with(Provider::S3, fields).open().unwrap();
            store
                .put_object("x", Body::from_bytes(content(size)))
                .await
                .unwrap();
            let puts: Vec<_> = stub
                .seen()
                .into_iter()
                .filter(|seen| seen.method == "PUT")
                .collect();
            assert_eq!(puts.len(), if size == LARGE { 2 } else { 1 });
            for put in puts {
                let md5 = BASE64_STANDARD.encode(Md5::digest(&put.body));
                let expected = (!with_sha256).then_some(md5.as_str());
                assert_eq!(put.header("content-md5"), expected);
                assert_eq!(put.header("x-amz-checksum-sha256").is_some(), with_sha256);
                assert!(put.header("authorization").unwrap().contains("AKIDEXAMPLE"));
            }
        }
    }
}

/// Status, headers, body, and what becomes of them: the class, and words of the message.
type Refusal = (
    u16,
    &'static [(&'static str, &'static str)],
    String,
    Class,
    &'static str,
);

/// What is to be changed is in the message, however little the server says.
#[tokio::test]
async fn refusals_name_what_to_change() {
    let error =
        |code: &str, message: &str| format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    let setting = "`requestChecksumCalculation` to `when_required`";
    let cases: Vec<Refusal> = vec![
        (
            501,
            &[],
            error("NotImplemented", "A header you provided implies functionality"),
            Class::Unsupported,
            setting,
        ),
        (
            400,
            &[],
            error("InvalidArgument", "unsupported x-amz-checksum-sha256"),
            Class::Other,
            setting,
        ),
        (
            400,
            &[],
            error("InvalidRequest", "bad value"),
            Class::Other,
            setting,
        ),
        (400, &[], String::new(), Class::Other, setting),
        (
            400,
            &[],
            String::new(),
            Class::Other,
            "the region (now us-east-1)",
        ),
        (
            400,
            &[("x-amz-bucket-region", "eu-west-1")],
            String::new(),
            Class::InvalidConfig,
            "lies in region eu-west-1, and us-east-1 is configured",
        ),
        (
            301,
            &[],
            String::new(),
            Class::InvalidConfig,
            "the region (now us-east-1)",
        ),
        (
            301,
            &[("x-amz-bucket-region", "eu-west-1")],
            String::new(),
            Class::InvalidConfig,
            "lies in region eu-west-1",
        ),
    ];
    for (status, headers, body, class, words) in cases {
        let stub = Stub::start(move |seen, _| {
            // HEAD: nothing is there.
            if seen.method == "HEAD" {
                return answer(404, &[], "");
            }
            answer(status, headers, body.clone())
        })
        .await;
        let store = stub.config(Provider::S3).open().unwrap();
        let error = store
            .put_object("x", Body::from_bytes(content(10)))
            .await
            .unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// The clock that differs is measured by the answer's date. Trying again at once would be of no use.
#[tokio::test]
async fn a_wrong_clock_is_named() {
    let date = Timestamp::now() - SignedDuration::from_mins(62);
    let date = jiff::fmt::rfc2822::DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&date)
        .unwrap();
    let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>";
    for (provider, body) in [(Provider::S3, skewed), (Provider::S3, ""), (Provider::Azure, "")] {
        let date = date.clone();
        let stub = Stub::start(move |_, _| {
            answer(
                403,
                &[("date", &date), ("x-ms-error-code", "AuthenticationFailed")],
                body,
            )
        })
        .await;
        let store = stub.config(provider).open().unwrap();
        let error = store
            .put_object("x", Body::from_bytes(content(10)))
            .await
            .unwrap_err();
        assert_eq!(
            (error.class(), error.reason()),
            (Class::ClockSkewed, "ClockSkewed"),
            "{error}"
        );
        let measured = ["1h 1m", "1h 2m"]
            .iter()
            .any(|time| error.to_string().contains(time));
        assert!(
            measured && error.to_string().contains("ahead of the store's"),
            "{error}"
        );
        assert_eq!(stub.seen().len(), 1);
    }
}

fn object(size: u64) -> Object {
    Object {
        key: format!("p/v2/{}", full(1, 0)),
        size,
        etag: None,
        last_modified: None,
        version: None,
        immutable_until: None,
    }
}

/// Before the first byte: what is read has the size that was listed.
#[tokio::test]
async fn sizes_are_those_that_were_listed() {
    for provider in [Provider::S3, Provider::Gcs, Provider::Azure, Provider::Swift] {
        for listed in [10, 99, 101, 1000] {
            let stub = Stub::start(|seen, _| {
                crate::stub::keystone(seen).unwrap_or_else(|| {
                    let headers = [
                        ("etag", "\"e\""),
                        ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
                    ];
                    if seen.header("range").is_none() {
                        return answer(200, &headers, content(100));
                    }
                    let range = [headers[0], headers[1], ("content-range", "bytes 0-4/100")];
                    answer(206, &range, content(5))
                })
            })
            .await;
            let store = stub.config(provider).open().unwrap();
            for range in [None, Some(0..5)] {
                let error = store
                    .get(&object(listed), range.clone())
                    .await
                    .map(drop)
                    .unwrap_err();
                assert_eq!(error.class(), Class::Corrupt, "{provider}, {range:?}: {error}");
                let expected = format!("listed with {listed} bytes, the store has 100");
                assert!(error.to_string().contains(&expected), "{error}");
                let read = store.get(&object(100), range.clone()).await.unwrap();
                let read: Vec<Bytes> = read.try_collect().await.unwrap();
                assert_eq!(read.concat().len(), range.map_or(100, |_| 5), "{provider}");
            }
        }
    }
}

/// Neither an error nor a listing is read for ever.
#[tokio::test]
async fn answers_without_end_are_cut() {
    let endless = || {
        let piece = Bytes::from(vec![b' '; 1 << 20]);
        Answer::from_stream(stream::repeat(piece).map(Ok::<_, std::io::Error>))
    };
    for provider in [Provider::S3, Provider::Gcs, Provider::Azure, Provider::Swift] {
        for (status, class) in [(403, Class::AccessDenied), (200, Class::BadResponse)] {
            let stub = Stub::start(move |seen, _| {
                crate::stub::keystone(seen).unwrap_or_else(|| {
                    if seen.asks("versioning") {
                        ok("<VersioningConfiguration/>")
                    } else {
                        answer(status, &[], endless())
                    }
                })
            })
            .await;
            let error = stub.config(provider).open().unwrap().list().await.unwrap_err();
            assert_eq!(error.class(), class, "{provider} {status}: {error}");
        }
    }
}
