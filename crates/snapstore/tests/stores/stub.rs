//! A server on loopback that answers as a test says, and remembers what it was asked: for lies that no real store can
//! be brought to.

use std::{
    fs,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, Uri},
    response::Response,
};
use snapstore::{Environment, MinimumRate, Provider, Retry, StoreConfig};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// A request that has come.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    /// Whether the query has a parameter of this name.
    pub(crate) fn asks(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let query = self.uri.query().unwrap_or_default();
        let mut fields = query
            .split('&')
            .map(|field| field.split_once('=').unwrap_or((field, "")));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Gets the request and the number of those before it.
type Answer = Box<dyn Fn(&Seen, usize) -> Response + Send + Sync>;

pub(crate) struct Stub {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    secrets: TempDir,
}

struct Shared {
    answer: Answer,
    seen: Mutex<Vec<Seen>>,
}

impl Stub {
    pub(crate) async fn start(answer: impl Fn(&Seen, usize) -> Response + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            seen: Mutex::default(),
        });
        let router = Router::new().fallback(take).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            shared,
            task,
            secrets: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// A store on it, of bucket `b` with prefix `p`.
    pub(crate) fn config(&self, provider: Provider) -> StoreConfig {
        self.config_with(provider, &[])
    }

    /// The same with more fields in its secret.
    pub(crate) fn config_with(&self, provider: Provider, fields: &[(&str, &str)]) -> StoreConfig {
        let auth = self.endpoint();
        let (variable, common): (_, &[(&str, &str)]) = match provider {
            Provider::Azure => (
                "AZURE_APPLICATION_CREDENTIALS_JSON",
                &[("storageAccount", "a"), ("storageKey", "c2VjcmV0")],
            ),
            Provider::Swift => (
                "OPENSTACK_APPLICATION_CREDENTIALS_JSON",
                &[
                    ("authURL", &auth),
                    ("username", "u"),
                    ("password", "word"),
                    ("domainName", "d"),
                    ("tenantName", "t"),
                ],
            ),
            _ => (
                "AWS_APPLICATION_CREDENTIALS_JSON",
                &[
                    ("accessKeyID", "AKIDEXAMPLE"),
                    ("secretAccessKey", "secret"),
                    ("region", "us-east-1"),
                    ("s3ForcePathStyle", "true"),
                ],
            ),
        };
        let fields: serde_json::Map<_, _> = common
            .iter()
            .chain(fields)
            .map(|(name, value)| ((*name).to_owned(), (*value).into()))
            .collect();
        let file = self.secrets.path().join(provider.as_str());
        fs::write(&file, serde_json::to_vec(&fields).unwrap()).unwrap();
        StoreConfig {
            endpoint: Some(self.endpoint()),
            allow_http: true,
            environment: Environment::from_iter([(variable, file.to_str().unwrap())]),
            retry: Retry {
                attempts: 2,
                first_wait: Duration::from_millis(10),
                longest_wait: Duration::from_millis(50),
                budget: Duration::from_secs(20),
                rate: MinimumRate::default(),
            },
            ..StoreConfig::new(provider, "b", "p")
        }
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let seen = Seen {
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        body: axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default(),
    };
    let before = {
        let mut all = shared.seen.lock().unwrap();
        all.push(seen.clone());
        all.len() - 1
    };
    (shared.answer)(&seen, before)
}

pub(crate) fn answer(status: u16, headers: &[(&'static str, &str)], body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

pub(crate) fn ok(body: impl Into<Body>) -> Response {
    answer(200, &[], body)
}

/// A session of Keystone, if that is what is asked.
pub(crate) fn keystone(seen: &Seen) -> Option<Response> {
    let catalog = serde_json::json!([{ "type": "object-store", "endpoints":
        [{ "interface": "public", "region": "r", "url": "http://127.0.0.1:9/unused" }] }]);
    let token = serde_json::json!({ "token": { "expires_at": "2999-01-01T00:00:00Z", "catalog": catalog } });
    let answered = answer(201, &[("x-subject-token", "session")], token.to_string());
    seen.uri.path().ends_with("/v3/auth/tokens").then_some(answered)
}
