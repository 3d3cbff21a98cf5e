//! Listings that aren't what they say: an error at once, and never a short listing or an endless one.

use std::time::Duration;

use snapstore::{Class, Listing, Provider, Result};

use crate::{
    contract::full,
    stub::{Seen, Stub, answer, keystone, ok},
};

/// What a page of `v2/` holds and where it says that the listing goes on. The last one comes again and again.
type Page = String;

async fn list(provider: Provider, versioned: bool, pages: Vec<Page>) -> (Result<Listing>, usize) {
    let of_v2 = move |seen: &Seen| {
        let prefix = seen.value("prefix").unwrap_or_default();
        prefix.contains("v2")
    };
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let stub = Stub::start(move |seen, _| {
        if let Some(session) = keystone(seen) {
            return session;
        }
        if seen.asks("versioning") {
            let status = if versioned { "<Status>Enabled</Status>" } else { "" };
            return ok(format!(
                "<VersioningConfiguration>{status}</VersioningConfiguration>"
            ));
        }
        if seen.asks("object-lock") {
            return answer(
                404,
                &[],
                "<Error><Code>ObjectLockConfigurationNotFoundError</Code></Error>",
            );
        }
        if !of_v2(seen) {
            return ok(match provider {
                Provider::S3 if versioned => s3_versions(&[], "<IsTruncated>false</IsTruncated>"),
                Provider::S3 => s3(&[], "<IsTruncated>false</IsTruncated>"),
                Provider::Gcs => gcs(&[], ""),
                Provider::Azure => azure(&[], "<NextMarker/>"),
                _ => "[]".to_owned(),
            });
        }
        let turn = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        ok(pages[turn.min(pages.len() - 1)].clone())
    })
    .await;
    let store = stub.config(provider).open().unwrap();
    let listed = tokio::time::timeout(Duration::from_secs(20), store.list()).await;
    (listed.unwrap(), stub.seen().len())
}

/// Keys of full snapshots.
fn keys(revisions: &[i64]) -> Vec<String> {
    revisions
        .iter()
        .map(|revision| format!("p/v2/{}", full(*revision, 0)))
        .collect()
}

fn s3(revisions: &[i64], end: &str) -> Page {
    let contents = keys(revisions);
    let contents = contents
        .iter()
        .map(|key| format!("<Contents><Key>{key}</Key><Size>100</Size></Contents>"));
    format!(
        "<ListBucketResult>{}{end}</ListBucketResult>",
        contents.collect::<String>()
    )
}

fn s3_versions(revisions: &[i64], end: &str) -> Page {
    let versions = keys(revisions);
    let versions = versions
        .iter()
        .map(|key| format!("<Version><Key>{key}</Key><VersionId>1</VersionId><Size>100</Size></Version>"));
    format!(
        "<ListVersionsResult>{}{end}</ListVersionsResult>",
        versions.collect::<String>()
    )
}

fn s3_more(token: &str) -> String {
    format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>")
}

fn versions_more(key: &str) -> String {
    format!(
        "<IsTruncated>true</IsTruncated><NextKeyMarker>{key}</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker>"
    )
}

fn gcs(revisions: &[i64], token: &str) -> Page {
    let items = keys(revisions);
    let items: Vec<_> = items
        .iter()
        .map(|key| serde_json::json!({ "name": key, "size": "100" }))
        .collect();
    serde_json::json!({ "kind": "storage#objects", "items": items, "nextPageToken": token }).to_string()
}

fn azure(revisions: &[i64], end: &str) -> Page {
    let blobs = keys(revisions);
    let blobs = blobs.iter().map(|key| {
        format!(
            "<Blob><Name>{key}</Name><Properties><Content-Length>100</Content-Length></Properties></Blob>"
        )
    });
    let blobs = blobs.collect::<String>();
    format!(
        "\u{feff}<?xml version=\"1.0\"?><EnumerationResults><Blobs>{blobs}</Blobs>{end}</EnumerationResults>"
    )
}

fn azure_more(marker: &str) -> String {
    format!("<NextMarker>{marker}</NextMarker>")
}

fn swift(revisions: &[i64]) -> Page {
    let entries = keys(revisions);
    let entries: Vec<_> = entries
        .iter()
        .map(|key| serde_json::json!({ "name": key, "bytes": 100 }))
        .collect();
    serde_json::to_string(&entries).unwrap()
}

/// Whose, whether the bucket is versioned, what is wrong, and the pages.
type Lie = (Provider, bool, &'static str, Vec<Page>);

fn login() -> String {
    "<html><body>Please log in</body></html>".to_owned()
}

fn foreign(page: &str) -> String {
    page.replace("p/v2/", "q/v2/")
}

fn lies_of_s3() -> Vec<Lie> {
    let s = Provider::S3;
    let truncated = "<IsTruncated>true</IsTruncated>";
    let end = "<IsTruncated>false</IsTruncated>";
    vec![
        (s, false, "no token", vec![s3(&[1], truncated)]),
        (s, false, "empty token", vec![s3(&[1], &s3_more(""))]),
        (
            s,
            false,
            "no token on a later page",
            vec![s3(&[1], &s3_more("a")), s3(&[2], truncated)],
        ),
        (
            s,
            false,
            "the same token",
            vec![s3(&[1], &s3_more("a")), s3(&[2], &s3_more("a"))],
        ),
        (
            s,
            false,
            "an earlier token",
            vec![
                s3(&[1], &s3_more("a")),
                s3(&[2], &s3_more("b")),
                s3(&[3], &s3_more("a")),
            ],
        ),
        (
            s,
            false,
            "the same page",
            vec![s3(&[1], &s3_more("a")), s3(&[1], &s3_more("b"))],
        ),
        (
            s,
            false,
            "a page before",
            vec![s3(&[5], &s3_more("a")), s3(&[1], end)],
        ),
        (s, false, "no end", vec![s3(&[1], "")]),
        (s, false, "another document", vec![login()]),
        (s, false, "nothing", vec![String::new()]),
        (
            s,
            false,
            "half a document",
            vec![s3(&[1], end).replace("</ListBucketResult>", "")],
        ),
        (
            s,
            false,
            "no size",
            vec![s3(&[1], end).replace("<Size>100</Size>", "")],
        ),
        (s, false, "another prefix", vec![foreign(&s3(&[1], end))]),
        (s, true, "no marker", vec![s3_versions(&[1], truncated)]),
        (
            s,
            true,
            "the same marker",
            vec![
                s3_versions(&[1], &versions_more("k")),
                s3_versions(&[2], &versions_more("k")),
            ],
        ),
        (
            s,
            true,
            "a page before",
            vec![s3_versions(&[5], &versions_more("k")), s3_versions(&[1], end)],
        ),
        (s, true, "another document", vec![s3(&[1], end)]),
    ]
}

fn lies_of_others() -> Vec<Lie> {
    let (g, a, w) = (Provider::Gcs, Provider::Azure, Provider::Swift);
    vec![
        (g, false, "the same token", vec![gcs(&[1], "a"), gcs(&[2], "a")]),
        (g, false, "the same page", vec![gcs(&[1], "a"), gcs(&[1], "b")]),
        (g, false, "another document", vec!["{}".to_owned()]),
        (
            g,
            false,
            "half a document",
            vec![gcs(&[1], "").replace("\"}", "")],
        ),
        (g, false, "no size", vec![gcs(&[1], "").replace("100", "")]),
        (g, false, "another prefix", vec![foreign(&gcs(&[1], ""))]),
        (
            a,
            false,
            "the same marker",
            vec![azure(&[1], &azure_more("a")), azure(&[2], &azure_more("a"))],
        ),
        (
            a,
            false,
            "the same page",
            vec![azure(&[1], &azure_more("a")), azure(&[1], &azure_more("b"))],
        ),
        (a, false, "no end", vec![azure(&[1], "")]),
        (a, false, "another document", vec![login()]),
        (
            a,
            false,
            "no size",
            vec![azure(&[1], "<NextMarker/>").replace("<Content-Length>100</Content-Length>", "")],
        ),
        (
            a,
            false,
            "another prefix",
            vec![foreign(&azure(&[1], "<NextMarker/>"))],
        ),
        (w, false, "the same page", vec![swift(&[1])]),
        (
            w,
            false,
            "a page before",
            vec![swift(&[5]), swift(&[1]), swift(&[])],
        ),
        (w, false, "another document", vec!["{}".to_owned()]),
        (w, false, "another prefix", vec![foreign(&swift(&[1]))]),
    ]
}

#[tokio::test]
async fn a_listing_that_lies_is_an_error() {
    for (provider, versioned, what, pages) in lies_of_s3().into_iter().chain(lies_of_others()) {
        let (listed, requests) = list(provider, versioned, pages).await;
        let error = listed
            .map(|listing| listing.snapshots.len())
            .expect_err(&format!("{provider}, {what}"));
        assert_eq!(error.class(), Class::BadResponse, "{provider}, {what}: {error}");
        assert!(requests < 12, "{provider}, {what}: {requests} requests");
    }
}

#[tokio::test]
async fn a_listing_in_pages_is_whole() {
    let end = "<IsTruncated>false</IsTruncated>";
    for (provider, versioned, pages) in [
        (
            Provider::S3,
            false,
            vec![s3(&[1, 2], &s3_more("a")), s3(&[], &s3_more("b")), s3(&[3], end)],
        ),
        (
            Provider::S3,
            true,
            vec![
                s3_versions(&[1, 2], &versions_more("k")),
                s3_versions(&[2], &versions_more("l")),
                s3_versions(&[3], end),
            ],
        ),
        (
            Provider::Gcs,
            false,
            vec![gcs(&[1, 2], "a"), gcs(&[], "b"), gcs(&[3], "")],
        ),
        (
            Provider::Azure,
            false,
            vec![azure(&[1, 2], &azure_more("a")), azure(&[3], "<NextMarker />")],
        ),
        (
            Provider::Swift,
            false,
            vec![swift(&[1, 2]), swift(&[3]), swift(&[])],
        ),
    ] {
        let (listed, _) = list(provider, versioned, pages).await;
        let listing = listed.unwrap_or_else(|error| panic!("{provider}: {error}"));
        let revisions: Vec<_> = listing.snapshots.iter().map(|s| s.name.last_revision).collect();
        assert_eq!(revisions, [1, 2, 3], "{provider}");
    }
}
