//! What a request of ours carries is for the host that it was made for.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use snapstore::{Body, Class, Error, Object, Provider, SnapStore};

use crate::{
    contract::{content, full},
    stub::{Stub, answer, keystone, ok},
};

const KEY: &str = "0123456789abcdef0123456789abcdef";

fn object() -> Object {
    Object {
        key: format!("p/v2/{}", full(1, 0)),
        size: 10,
        etag: None,
        last_modified: None,
        version: None,
        immutable_until: None,
    }
}

/// Everything that is asked of a store, which all fails.
async fn errors(store: &Arc<dyn SnapStore>) -> Vec<Error> {
    let put = |content: Bytes| store.put_object("x", Body::from_bytes(content));
    let read = async { store.get(&object(), None).await?.try_collect::<Vec<_>>().await };
    vec![
        store.list().await.map(drop).unwrap_err(),
        put(content(10)).await.map(drop).unwrap_err(),
        put(content(9 << 20)).await.map(drop).unwrap_err(),
        read.await.map(drop).unwrap_err(),
        store.delete(&object()).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let other = Stub::start(|_, _| ok("")).await;
    for provider in [Provider::S3, Provider::Gcs, Provider::Azure, Provider::Swift] {
        for status in [301, 302, 303, 307, 308] {
            let location = format!("{}/b/key?token=secret", other.endpoint());
            let stub = Stub::start(move |seen, _| {
                keystone(seen).unwrap_or_else(|| answer(status, &[("location", &location)], ""))
            })
            .await;
            let fields = if provider == Provider::S3 {
                &[("sseCustomerKey", KEY)][..]
            } else {
                &[]
            };
            let store = stub.config_with(provider, fields).open().unwrap();
            for error in errors(&store).await {
                let text = error.to_string();
                assert_eq!(error.class(), Class::InvalidConfig, "{provider} {status}: {text}");
                assert!(
                    text.contains("redirects to 127.0.0.1, which isn't followed"),
                    "{text}"
                );
                assert!(!text.contains("token=secret"), "{text}");
            }
        }
    }
    assert_eq!(other.seen().len(), 0, "{:?}", other.seen());
}

/// Nor where the password goes.
#[tokio::test]
async fn no_password_follows_a_redirect() {
    let other = Stub::start(|_, _| ok("")).await;
    let location = format!("{}/v3/auth/tokens", other.endpoint());
    let stub = Stub::start(move |_, _| answer(307, &[("location", &location)], "")).await;
    let store = stub.config(Provider::Swift).open().unwrap();
    for error in errors(&store).await {
        assert_eq!(error.class(), Class::InvalidConfig, "{error}");
    }
    assert_eq!(other.seen().len(), 0);
}

/// Google's uploads go to an address that the store names.
#[tokio::test]
async fn a_session_stays_with_its_store() {
    let other = Stub::start(|_, _| ok("")).await;
    let location = format!("{}/upload", other.endpoint());
    let stub = Stub::start(move |_, _| answer(200, &[("location", &location)], "{}")).await;
    let store = stub.config(Provider::Gcs).open().unwrap();
    let error = store
        .put_object("x", Body::from_bytes(content(9 << 20)))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::InvalidConfig, "{error}");
    assert_eq!(other.seen().len(), 0);
}
