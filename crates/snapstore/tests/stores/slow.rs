//! Slow stores: a working connection is waited for, one that only seems to work isn't.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::{Router, body::Body as Answer, extract::Request, response::Response};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use snapstore::{Body, Class, MinimumRate, Object, Provider, StoreConfig};
use tokio::time::sleep;

use crate::{
    contract::{content, full},
    stub::{Stub, answer},
};

const RATE: MinimumRate = MinimumRate {
    bytes: 10_000,
    within: Duration::from_millis(500),
};

fn with_rate(config: StoreConfig, rate: MinimumRate) -> StoreConfig {
    let mut config = config;
    config.retry.rate = rate;
    config
}

/// An answer that comes in pieces, with pauses.
fn dripping(content: &[u8], piece: usize, pause: Duration) -> Answer {
    let pieces: Vec<_> = content.chunks(piece).map(Bytes::copy_from_slice).collect();
    Answer::from_stream(stream::iter(pieces).then(move |piece| async move {
        sleep(pause).await;
        Ok::<_, Infallible>(piece)
    }))
}

async fn read(provider: Provider, piece: usize, pause: Duration, size: usize) -> snapstore::Result<usize> {
    let stub = Stub::start(move |seen, _| {
        crate::stub::keystone(seen).unwrap_or_else(|| {
            // Goes on where it is asked to.
            let from = seen.header("range").map_or(0, |range| {
                let from = range.trim_start_matches("bytes=").split('-').next();
                from.unwrap().parse::<usize>().unwrap()
            });
            let body = dripping(&content(size)[from..], piece, pause);
            let (left, range) = (
                (size - from).to_string(),
                format!("bytes {from}-{}/{size}", size - 1),
            );
            let mut headers = vec![("etag", "\"e\""), ("content-length", left.as_str())];
            headers.push(("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"));
            headers.extend((from > 0).then_some(("content-range", range.as_str())));
            answer(if from > 0 { 206 } else { 200 }, &headers, body)
        })
    })
    .await;
    let store = with_rate(stub.config(provider), RATE).open().unwrap();
    let object = Object {
        key: format!("p/v2/{}", full(1, 0)),
        size: size as u64,
        etag: None,
        last_modified: None,
        version: None,
        immutable_until: None,
    };
    let read: Vec<Bytes> = store.get(&object, None).await?.try_collect().await?;
    assert!(read.concat() == content(size), "content differs");
    Ok(size)
}

#[tokio::test]
async fn a_trickle_is_given_up() {
    for provider in [Provider::S3, Provider::Gcs, Provider::Azure, Provider::Swift] {
        let begun = Instant::now();
        let error = read(provider, 1, Duration::from_millis(50), 5000)
            .await
            .unwrap_err();
        assert_eq!(
            (error.class(), error.reason()),
            (Class::TooSlow, "StoreTooSlow"),
            "{provider}: {error}"
        );
        assert!(
            error.is_retryable() && error.to_string().contains("of 5000: given up"),
            "{error}"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{provider}: {:?}",
            begun.elapsed()
        );
    }
}

#[tokio::test]
async fn a_slow_connection_is_waited_for() {
    for provider in [Provider::S3, Provider::Gcs, Provider::Azure, Provider::Swift] {
        // 2.5 s, at twice the limit.
        let size = read(provider, 2000, Duration::from_millis(50), 100_000)
            .await
            .unwrap();
        assert_eq!(size, 100_000);
    }
}

/// A server that takes so many bytes of a request at a time, and then answers as S3 does.
async fn taking(piece: usize, pause: Duration) -> (Stub, String) {
    let stub = Stub::start(|_, _| answer(404, &[], "")).await;
    let take = move |request: Request| async move {
        let (parts, body) = request.into_parts();
        let mut stream = body.into_data_stream();
        let mut taken = 0;
        while let Some(Ok(bytes)) = stream.next().await {
            taken += bytes.len();
            if taken >= piece {
                taken = 0;
                sleep(pause).await;
            }
        }
        let length = UPLOADED.to_string();
        match parts.method.as_str() {
            "HEAD" => answer(
                200,
                &[("content-length", &length), ("x-amz-meta-upload-token", "?")],
                "",
            ),
            _ => Response::new(Answer::empty()),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(take)).await });
    (stub, endpoint)
}

const UPLOADED: usize = (8 << 20) - 1;

/// Returns the class of the failure. One that comes to its end finds an object that isn't ours.
async fn upload(piece: usize, pause: Duration, rate: MinimumRate) -> (Class, Duration) {
    let (stub, endpoint) = taking(piece, pause).await;
    let mut config = with_rate(stub.config(Provider::S3), rate);
    (config.endpoint, config.retry.attempts) = (Some(endpoint), 1);
    let begun = Instant::now();
    let put = config.open().unwrap();
    let error = put
        .put_object("x", Body::from_bytes(content(UPLOADED)))
        .await
        .unwrap_err();
    (error.class(), begun.elapsed())
}

#[tokio::test]
async fn an_upload_goes_on_while_it_proceeds() {
    let rate = MinimumRate {
        bytes: 100_000,
        within: Duration::from_millis(600),
    };
    // 8 MiB in pieces of 256 KiB or more, which takes much longer than the limit of silence.
    let (class, took) = upload(256 << 10, Duration::from_millis(100), rate).await;
    assert_ne!(class, Class::TooSlow);
    assert!(took > rate.within * 2, "{took:?}");
}

#[tokio::test]
async fn an_upload_that_stands_still_is_given_up() {
    let rate = MinimumRate {
        bytes: 1 << 20,
        within: Duration::from_millis(600),
    };
    let (class, took) = upload(1, Duration::from_mins(1), rate).await;
    assert_eq!(class, Class::TooSlow);
    assert!(took < Duration::from_secs(6), "{took:?}");
}
