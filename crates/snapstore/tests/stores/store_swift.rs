//! The contract on a Swift server. Its tokens come from a small Keystone here, which checks what it is asked and takes
//! them from the server's own login.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use jiff::{SignedDuration, Timestamp};
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector as _, HttpRequest, HttpResponse, ReqwestConnector},
};
use serde_json::{Value, json};
use snapstore::{Class, Environment, Provider, StoreConfig};
use tokio::task::JoinHandle;

use crate::{
    contract::{content, delta, follows_rotated_secrets, full, put, read},
    rig::Rig,
};

contract!({
    let keystone = Keystone::start().await;
    let config = keystone.config();
    (keystone, config)
});

struct Keystone {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    swift: String,
    password: String,
    http: HttpClient,
    logins: AtomicUsize,
    /// Tokens that the store will refuse.
    bad_tokens: AtomicUsize,
}

impl Drop for Keystone {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Keystone {
    async fn start() -> Self {
        let rig = Rig::swift();
        let shared = Arc::new(Shared {
            swift: rig.file("endpoint"),
            password: rig.file("secret/password"),
            http: ReqwestConnector::default()
                .connect(&ClientOptions::new().with_allow_http(true))
                .unwrap(),
            logins: AtomicUsize::new(0),
            bad_tokens: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/identity/v3/auth/tokens", post(tokens))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            shared,
            task,
        }
    }

    fn variables(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("OS_AUTH_URL", format!("http://{}/identity/v3", self.address)),
            ("OS_USERNAME", "backup".to_owned()),
            ("OS_PASSWORD", self.shared.password.clone()),
            ("OS_DOMAIN_NAME", "lab".to_owned()),
            ("OS_TENANT_NAME", "test".to_owned()),
            ("OS_REGION_NAME", "here".to_owned()),
        ])
    }

    fn config(&self) -> StoreConfig {
        let rig = Rig::swift();
        let config = rig.config();
        StoreConfig {
            endpoint: None,
            environment: Environment::from_iter(self.variables()),
            ..config
        }
    }
}

async fn tokens(State(shared): State<Arc<Shared>>, Json(request): Json<Value>) -> impl IntoResponse {
    shared.logins.fetch_add(1, Ordering::Relaxed);
    let domain = json!({ "name": "lab" });
    let by_password = json!({ "auth": {
        "identity": { "methods": ["password"], "password": {
            "user": { "name": "backup", "password": shared.password, "domain": domain },
        } },
        "scope": { "project": { "name": "test", "domain": domain } },
    } });
    let by_credential = json!({ "auth": { "identity": {
        "methods": ["application_credential"],
        "application_credential": { "id": "0af1", "secret": shared.password },
    } } });
    if request != by_password && request != by_credential {
        return Err((
            StatusCode::UNAUTHORIZED,
            r#"{"error":{"code":401,"title":"Unauthorized"}}"#,
        ));
    }
    let answer = shared.login().await;
    let header = |name| answer.headers()[name].to_str().unwrap().to_owned();
    let is_bad = shared
        .bad_tokens
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        .is_ok();
    let token = if is_bad {
        "expired".to_owned()
    } else {
        header("x-auth-token")
    };
    let elsewhere = json!({ "interface": "public", "region": "there", "url": "http://127.0.0.1:9/v1" });
    let internal = json!({ "interface": "internal", "region": "here", "url": "http://127.0.0.1:9/v1" });
    let public = json!({ "interface": "public", "region": "here", "url": header("x-storage-url") });
    let body = json!({ "token": {
        "expires_at": (Timestamp::now() + SignedDuration::from_hours(1)).to_string(),
        "catalog": [
            { "type": "identity", "endpoints": [] },
            { "type": "object-store", "endpoints": [elsewhere, internal, public] },
        ],
    } });
    Ok((StatusCode::CREATED, [("x-subject-token", token)], Json(body)))
}

impl Shared {
    async fn login(&self) -> HttpResponse {
        let mut request = HttpRequest::new(String::new().into());
        *request.uri_mut() = format!("{}/auth/v1.0", self.swift).parse().unwrap();
        request
            .headers_mut()
            .insert("x-auth-user", "test:backup".parse().unwrap());
        request
            .headers_mut()
            .insert("x-auth-key", self.password.parse().unwrap());
        self.http.execute(request).await.unwrap()
    }

    /// A request to the store without our client.
    async fn call(&self, method: &str, path: &str, headers: &[(&'static str, &str)], body: &'static str) {
        let login = self.login().await;
        let mut request = HttpRequest::new(body.to_owned().into());
        *request.method_mut() = method.parse().unwrap();
        let storage_url = login.headers()["x-storage-url"].to_str().unwrap();
        *request.uri_mut() = format!("{storage_url}/{path}").parse().unwrap();
        request
            .headers_mut()
            .insert("x-auth-token", login.headers()["x-auth-token"].clone());
        request.headers_mut().insert("content-length", body.len().into());
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let answer = self.http.execute(request).await.unwrap();
        assert!(
            answer.status().is_success(),
            "{method} {path}: {}",
            answer.status()
        );
    }
}

/// Objects in segments are one: their size is the whole, and deleting them leaves nothing. Also those that
/// etcd-backup-restore made, with another kind of manifest.
#[tokio::test]
async fn manifests_are_whole_objects() {
    let keystone = Keystone::start().await;
    let config = keystone.config();
    let store = config.open().unwrap();
    put(&*store, &full(7, 0), content((17 << 20) + 3)).await;
    let other = format!("{}/v2/{}", config.prefix, delta(8, 9, 0));
    let other = format!("{}/{other}", config.container);
    for (number, body) in ["first, ", "second"].into_iter().enumerate() {
        keystone
            .shared
            .call("PUT", &format!("{other}/{number:010}"), &[], body)
            .await;
    }
    keystone
        .shared
        .call("PUT", &other, &[("x-object-manifest", &format!("{other}/"))], "")
        .await;
    keystone
        .shared
        .call(
            "PUT",
            &format!("{}-2/0000000000", other.trim_end_matches(".gz")),
            &[],
            "x",
        )
        .await;

    let listing = store.list().await.unwrap();
    assert_eq!(
        listing
            .snapshots
            .iter()
            .map(|s| s.object.size)
            .collect::<Vec<_>>(),
        [(17 << 20) + 3, 13]
    );
    assert_eq!(read(&*store, &listing.snapshots[1].object).await, "first, second");
    assert_eq!((listing.chunks.len(), listing.unparsable.len()), (0, 1));
    for snapshot in &listing.snapshots {
        store.delete(&snapshot.object).await.unwrap();
    }
    let listing = store.list().await.unwrap();
    assert_eq!(
        (
            listing.snapshots.len(),
            listing.chunks.len(),
            listing.unparsable.len()
        ),
        (0, 0, 1)
    );
}

/// A token is used until the store refuses it, and then renewed once.
#[tokio::test]
async fn tokens_are_renewed() {
    let keystone = Keystone::start().await;
    let store = keystone.config().open().unwrap();
    keystone.shared.bad_tokens.store(1, Ordering::Relaxed);
    for revision in 1..4 {
        put(&*store, &full(revision, 0), content(10)).await;
    }
    assert_eq!(keystone.shared.logins.load(Ordering::Relaxed), 2);
    keystone.shared.bad_tokens.store(100, Ordering::Relaxed);
    let store = keystone.config().open().unwrap();
    assert_eq!(store.list().await.unwrap_err().class(), Class::AccessDenied);
}

/// Application credentials in files, also new ones, and what is wrong with wrong ones.
#[tokio::test]
async fn reads_credential_files() {
    let keystone = Keystone::start().await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &str| std::fs::write(folder.path().join(name), value).unwrap();
    write("authURL", &format!("http://{}/identity", keystone.address));
    write("region", "here");
    write("applicationCredentialID", "0af1");
    write("applicationCredentialSecret", &keystone.shared.password);
    let variable = [(
        "OPENSTACK_APPLICATION_CREDENTIALS",
        folder.path().to_str().unwrap(),
    )];
    let config = StoreConfig {
        environment: Environment::from_iter(variable),
        ..keystone.config()
    };
    config.open().unwrap().list().await.unwrap();
    let secret = folder.path().join("applicationCredentialSecret");
    follows_rotated_secrets(&config, &secret, "not yet valid").await;
    write("applicationCredentialSecret", &keystone.shared.password);
    for (name, value, class) in [
        ("region", "nowhere", Class::InvalidConfig),
        ("applicationCredentialSecret", "wrong", Class::AccessDenied),
    ] {
        write(name, value);
        let error = config.open().unwrap().list().await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
    }
    let refused = StoreConfig {
        allow_http: false,
        ..config
    }
    .open()
    .unwrap_err();
    assert_eq!(refused.class(), Class::InvalidConfig);
    assert_eq!("openstack".parse::<Provider>().unwrap(), Provider::Swift);
}
