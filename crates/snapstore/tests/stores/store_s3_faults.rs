//! What a sick store, or what stands before it, does to us: an S3 server behind a proxy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::http::{Method, Uri};
use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use snapstore::{Body, Class, Retry, SnapStore, StoreConfig};

use crate::{
    contract::{content, full, put, read},
    proxy::{Fault, Proxy},
    rig::Rig,
};

const LARGE: usize = (17 << 20) + 5;

async fn store_with(
    plan: impl Fn(&Method, &Uri, usize) -> Fault + Send + Sync + 'static,
) -> (Proxy, Arc<dyn SnapStore>) {
    let rig = Rig::s3();
    let proxy = Proxy::start(&rig.file("endpoint"), plan).await;
    let retry = Retry {
        attempts: 4,
        first_wait: Duration::from_millis(20),
        longest_wait: Duration::from_millis(1500),
        budget: Duration::from_secs(20),
        ..Retry::default()
    };
    let store = StoreConfig {
        endpoint: Some(proxy.endpoint()),
        retry,
        ..rig.config()
    }
    .open()
    .unwrap();
    (proxy, store)
}

fn query(uri: &Uri) -> &str {
    uri.query().unwrap_or_default()
}

/// Each request fails three times before it passes.
#[tokio::test]
async fn passing_faults_pass() {
    let fault = |before: usize| match before % 4 {
        0 => Fault::Answer(503, "<Error><Code>SlowDown</Code></Error>"),
        1 => Fault::Answer(500, ""),
        2 => Fault::AnswerLater(429, 0),
        _ => Fault::None,
    };
    let (proxy, store) = store_with(move |_, _, before| fault(before)).await;
    let stored = put(&*store, &full(1, 0), content(1000)).await;
    assert!(
        read(&*store, &stored.object).await == content(1000),
        "content differs"
    );
    assert_eq!(store.list().await.unwrap().snapshots.len(), 1);
    store.delete(&stored.object).await.unwrap();
    assert_eq!(proxy.count(&Method::DELETE), 4);
}

/// What doesn't pass is tried a bounded number of times and then named; what can't pass is tried once.
#[tokio::test]
async fn lasting_faults_are_named() {
    for (status, body, class, tries) in [
        (503, "", Class::Unavailable, 4),
        (503, "<Error><Code>SlowDown</Code></Error>", Class::Throttled, 4),
        (
            413,
            "<html>413 Request Entity Too Large</html>",
            Class::PayloadRejected,
            1,
        ),
        (
            403,
            "<Error><Code>AccessDenied</Code></Error>",
            Class::AccessDenied,
            1,
        ),
        (
            400,
            "<Error><Code>EntityTooLarge</Code></Error>",
            Class::PayloadRejected,
            1,
        ),
        (400, "<Error><Code>BadDigest</Code></Error>", Class::Corrupt, 4),
    ] {
        let plan = move |method: &Method, _: &Uri, _| match *method {
            Method::PUT => Fault::Answer(status, body),
            _ => Fault::None,
        };
        let (proxy, store) = store_with(plan).await;
        let error = store
            .put(&full(1, 0), Body::from_bytes(content(1000)))
            .await
            .unwrap_err();
        assert_eq!(
            (error.class(), proxy.count(&Method::PUT)),
            (class, tries),
            "{error}"
        );
        assert_eq!(
            error.is_retryable(),
            matches!(class, Class::Unavailable | Class::Throttled)
        );
        assert_eq!(store.list().await.unwrap().snapshots, []);
    }
}

/// A part that can't be sent ends the upload and leaves no parts behind.
#[tokio::test]
async fn failed_parts_are_dropped() {
    let plan = |_: &Method, uri: &Uri, _| match query(uri) {
        query if query.contains("partNumber=2") => Fault::Answer(413, ""),
        _ => Fault::None,
    };
    let (_proxy, store) = store_with(plan).await;
    let error = store
        .put(&full(1, 0), Body::from_bytes(content(LARGE)))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::PayloadRejected, "{error}");
    assert_eq!(store.list().await.unwrap().snapshots, []);
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    assert_eq!(store.abort_stale_uploads(later).await.unwrap(), 0);
}

/// When the answer to the request that made the object is lost, its repetition finds an object: ours.
#[tokio::test]
async fn lost_answers_are_found_again() {
    let is_last = |method: &Method, uri: &Uri| match *method {
        Method::PUT => !query(uri).contains("partNumber"),
        Method::POST => query(uri).contains("uploadId"),
        _ => false,
    };
    for size in [1000, LARGE] {
        let lost = AtomicUsize::new(0);
        let plan = move |method: &Method, uri: &Uri, _| {
            if is_last(method, uri) && lost.fetch_add(1, Ordering::Relaxed) == 0 {
                Fault::LoseAnswer
            } else {
                Fault::None
            }
        };
        let (_proxy, store) = store_with(plan).await;
        let stored = put(&*store, &full(1, 0), content(size)).await;
        assert!(
            read(&*store, &stored.object).await == content(size),
            "content differs"
        );
        let error = store
            .put(&full(1, 0), Body::from_bytes(content(size)))
            .await
            .unwrap_err();
        assert_eq!(error.class(), Class::AlreadyExists, "{error}");
    }
}

/// S3 may find out that it can't complete an upload after it has answered "200 OK".
#[tokio::test]
async fn errors_with_status_200_are_errors() {
    let failure = "<Error><Code>InternalError</Code><Message>try again</Message></Error>";
    for (failures, expected) in [(2, Ok(())), (100, Err(Class::Unavailable))] {
        let seen = AtomicUsize::new(0);
        let plan = move |method: &Method, uri: &Uri, _| {
            let completes = *method == Method::POST && query(uri).contains("uploadId");
            if completes && seen.fetch_add(1, Ordering::Relaxed) < failures {
                Fault::Answer(200, failure)
            } else {
                Fault::None
            }
        };
        let (_proxy, store) = store_with(plan).await;
        let result = store.put(&full(1, 0), Body::from_bytes(content(LARGE))).await;
        assert_eq!(result.map(drop).map_err(|e| e.class()), expected);
        assert_eq!(
            store.list().await.unwrap().snapshots.len(),
            usize::from(expected.is_ok())
        );
    }
}

/// A read goes on where its connection broke; if it never gets further it fails, and never looks complete.
#[tokio::test]
async fn broken_reads_go_on() {
    let is_object = |method: &Method, uri: &Uri| *method == Method::GET && uri.path().contains("/v2/");
    let plan = move |method: &Method, uri: &Uri, before: usize| match before {
        0..3 if is_object(method, uri) => Fault::CutAnswer(5 << 20),
        _ => Fault::None,
    };
    let (proxy, store) = store_with(plan).await;
    let stored = put(&*store, &full(1, 0), content(LARGE)).await;
    assert!(
        read(&*store, &stored.object).await == content(LARGE),
        "content differs"
    );
    assert_eq!(proxy.count(&Method::GET), 4);

    let plan = move |method: &Method, uri: &Uri, _| {
        if is_object(method, uri) {
            Fault::CutAnswer(0)
        } else {
            Fault::None
        }
    };
    let (_proxy, store) = store_with(plan).await;
    let stored = put(&*store, &full(1, 0), content(1000)).await;
    let parts: snapstore::Result<Vec<Bytes>> = match store.get(&stored.object, None).await {
        Ok(stream) => stream.try_collect().await,
        Err(error) => Err(error),
    };
    let error = parts.unwrap_err();
    assert_eq!(error.class(), Class::Unreachable, "{error}");
}

/// However slow the store is, no more than a few parts of the source are held.
#[tokio::test]
async fn memory_is_bounded() {
    const PIECE: usize = 1 << 20;
    let plan = |method: &Method, _: &Uri, _| {
        if *method == Method::PUT {
            Fault::Hang
        } else {
            Fault::None
        }
    };
    let (_proxy, store) = store_with(plan).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let source = stream::repeat_with(move || {
        counter.fetch_add(PIECE, Ordering::Relaxed);
        Ok(Bytes::from(vec![7; PIECE]))
    });
    let name = full(1, 0);
    let upload = store.put(&name, Body::from_stream(source, None));
    tokio::time::timeout(Duration::from_secs(2), upload)
        .await
        .unwrap_err();
    let taken = taken.load(Ordering::Relaxed);
    assert!((32 << 20..=48 << 20).contains(&taken), "{taken} bytes taken");
}
