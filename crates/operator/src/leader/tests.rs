//! The election against a small Lease store behind the kube client, on paused time: real clusters can't be made to
//! lose races or to pause for exactly as long as a lease.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// One Lease with the API server's rules: create once, replace only at the right resource version.
#[derive(Debug, Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    down: Arc<Mutex<bool>>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "lab")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.unwrap();
        if *self.down.lock().unwrap() {
            return reply(StatusCode::FORBIDDEN, &json!({}));
        }
        let mut lease = self.lease.lock().unwrap();
        let version = lease
            .as_ref()
            .map(|l| l["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
        match (method, version) {
            (Method::GET, None) => reply(StatusCode::NOT_FOUND, &json!({})),
            (Method::GET, Some(_)) => reply(StatusCode::OK, lease.as_ref().unwrap()),
            (Method::POST, Some(_)) => reply(StatusCode::CONFLICT, &json!({})),
            (Method::POST, None) => {
                let mut new: Value = serde_json::from_slice(&body).unwrap();
                new["metadata"]["resourceVersion"] = json!("1");
                reply(StatusCode::OK, lease.insert(new))
            }
            (Method::PUT, Some(version)) => {
                let mut new: Value = serde_json::from_slice(&body).unwrap();
                if new["metadata"]["resourceVersion"] != json!(version) {
                    return reply(StatusCode::CONFLICT, &json!({}));
                }
                new["metadata"]["resourceVersion"] = json!((version.parse::<u64>().unwrap() + 1).to_string());
                reply(StatusCode::OK, lease.insert(new))
            }
            (method, _) => panic!("unexpected {method}"),
        }
    }

    fn holder(&self) -> String {
        let lease = self.lease.lock().unwrap();
        lease.as_ref().unwrap()["spec"]["holderIdentity"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

fn reply(status: StatusCode, body: &Value) -> Response<Body> {
    let body = if status.is_success() {
        body.clone()
    } else {
        let reason = status.canonical_reason().unwrap_or_default().replace(' ', "");
        json!({"kind": "Status", "status": "Failure", "code": status.as_u16(), "reason": reason, "message": ""})
    };
    Response::builder()
        .status(status)
        .body(Body::from(serde_json::to_vec(&body).unwrap()))
        .unwrap()
}

struct Replica {
    fence: Fence,
    leading: watch::Receiver<bool>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), LostLease>>,
}

fn replica(server: &Server, identity: &str) -> Replica {
    let fence = Fence::shut();
    let config = LeaderElection::default();
    let elector = Elector::new(server.client(), "lab", "druid", identity, &config, fence.clone());
    let leading = elector.leading();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(elector.run(shutdown.clone()));
    Replica {
        fence,
        leading,
        shutdown,
        task,
    }
}

async fn seconds(n: u64) {
    for _ in 0..n * 10 {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_other_takes_over_after_a_release() {
    let server = Server::default();
    let a = replica(&server, "a");
    seconds(1).await;
    let b = replica(&server, "b");
    seconds(60).await;
    assert!(*a.leading.borrow() && a.fence.is_open());
    assert!(!*b.leading.borrow() && !b.fence.is_open());

    a.shutdown.cancel();
    a.task.await.unwrap().unwrap();
    assert!(!a.fence.is_open());
    seconds(3).await;
    assert!(*b.leading.borrow());
    assert_eq!(server.holder(), "b");
}

/// A crashed holder can't release: the other waits for the lease duration that it saw pass itself.
#[tokio::test(start_paused = true)]
async fn takes_over_from_a_dead_holder_only_after_the_lease_duration() {
    let server = Server::default();
    let a = replica(&server, "a");
    seconds(1).await;
    a.task.abort();
    let b = replica(&server, "b");
    seconds(14).await;
    assert!(!*b.leading.borrow());
    seconds(5).await;
    assert!(*b.leading.borrow());
}

/// While the API server is away the holder stops by itself before anyone else may take over.
#[tokio::test(start_paused = true)]
async fn stops_when_it_cannot_renew() {
    let server = Server::default();
    let a = replica(&server, "a");
    seconds(1).await;
    assert!(a.fence.is_open());
    *server.down.lock().unwrap() = true;
    seconds(11).await;
    assert!(!a.fence.is_open());
    seconds(3).await;
    assert!(a.task.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn stops_when_the_lease_was_stolen() {
    let server = Server::default();
    let a = replica(&server, "a");
    seconds(1).await;
    server.lease.lock().unwrap().as_mut().unwrap()["spec"]["holderIdentity"] = json!("thief");
    seconds(3).await;
    assert!(!a.fence.is_open());
    assert!(a.task.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn of_two_that_start_at_once_one_leads() {
    let server = Server::default();
    let (a, b) = (replica(&server, "a"), replica(&server, "b"));
    seconds(5).await;
    assert!(*a.leading.borrow() ^ *b.leading.borrow());
}
