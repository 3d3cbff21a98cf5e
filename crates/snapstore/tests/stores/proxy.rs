//! A proxy on loopback that stands before a real server and does wrong on purpose. Signatures hold: the server sees the
//! address that the client signed.

use std::{
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
use futures::{StreamExt as _, stream};
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector as _, HttpRequest, ReqwestConnector},
};
use tokio::task::JoinHandle;

/// What becomes of one request.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// It passes.
    None,
    /// The server doesn't get it.
    Answer(u16, &'static str),
    /// The same, with a wish to wait so many seconds.
    AnswerLater(u16, u32),
    /// The server gets it, the client gets another answer.
    LoseAnswer,
    /// The answer breaks off after so many bytes.
    CutAnswer(usize),
    /// No answer.
    Hang,
}

/// Decides by what is asked and by how many requests of the same kind were seen before.
pub(crate) type Plan = Box<dyn Fn(&Method, &Uri, usize) -> Fault + Send + Sync>;

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    upstream: String,
    http: HttpClient,
    plan: Plan,
    seen: Mutex<Vec<(Method, Uri)>>,
}

impl Proxy {
    pub(crate) async fn start(
        upstream: &str,
        plan: impl Fn(&Method, &Uri, usize) -> Fault + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            http: ReqwestConnector::default()
                .connect(&ClientOptions::new().with_allow_http(true))
                .unwrap(),
            plan: Box::new(plan),
            seen: Mutex::default(),
        });
        let router = Router::new().fallback(pass).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            shared,
            task,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests of a method so far.
    pub(crate) fn count(&self, method: &Method) -> usize {
        self.shared
            .seen
            .lock()
            .unwrap()
            .iter()
            .filter(|(seen, _)| seen == method)
            .count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let before = {
        let mut seen = shared.seen.lock().unwrap();
        let before = seen.iter().filter(|(method, _)| *method == parts.method).count();
        seen.push((parts.method.clone(), parts.uri.clone()));
        before
    };
    let fault = (shared.plan)(&parts.method, &parts.uri, before);
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    match fault {
        Fault::Answer(status, text) => answer(status, text),
        Fault::AnswerLater(status, seconds) => {
            let mut response = answer(status, "");
            response.headers_mut().insert("retry-after", seconds.into());
            response
        }
        Fault::Hang => {
            tokio::time::sleep(Duration::from_hours(1)).await;
            answer(500, "")
        }
        fault => {
            let (status, headers, body) = shared
                .forward(parts.method, &parts.uri, parts.headers, body)
                .await;
            let mut response = Response::new(match fault {
                Fault::LoseAnswer => return answer(503, ""),
                Fault::CutAnswer(at) => cut(&body, at),
                _ => Body::from(body),
            });
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        }
    }
}

impl Shared {
    async fn forward(
        &self,
        method: Method,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> (StatusCode, HeaderMap, Bytes) {
        let mut request = HttpRequest::new(body.into());
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{uri}", self.upstream).parse().unwrap();
        *request.headers_mut() = headers;
        let response = self.http.execute(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, body.bytes().await.unwrap())
    }
}

fn answer(status: u16, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// The beginning of a body whose length was announced as a whole.
fn cut(body: &Bytes, at: usize) -> Body {
    let start = body.slice(..at.min(body.len()));
    let broken = stream::once(async {
        // What was sent must have left before the connection breaks.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(std::io::Error::other("cut"))
    });
    Body::from_stream(stream::iter([Ok(start)]).chain(broken))
}
