//! The HTTP face of the API: for people with curl, scripts, and clients of etcd-backup-restore, whose paths and answers
//! are kept. Errors are `application/problem+json`.

use std::time::Duration;

use axum::{
    Json, Router,
    body::HttpBody as _,
    extract::{Path, Query, Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use snapstore::{Kind, Layout, StoredSnapshot};
use steward_proto::v1::{Operation, OperationState, operation};
use tokio::sync::watch;

use super::{
    Api,
    actions::Refusal,
    operations::{Operations, is_done, wait},
};
use crate::backup::Marks;

/// All paths.
pub(super) fn routes(api: Api) -> Router {
    Router::new()
        .route("/healthz", get(|| async { Json(json!({"health": true})) }))
        .route("/member", get(member))
        // etcd-backup-restore takes GET for these as well, and clients use it.
        .route("/snapshot/full", post(full).get(full))
        .route("/snapshot/delta", post(delta).get(delta))
        .route("/snapshot/latest", get(latest))
        .route("/maintenance/defrag", post(defragment))
        .route("/maintenance/compact", post(compact))
        .route("/operations", get(operations))
        .route("/operations/{id}", get(operation_by_id).delete(cancel))
        .route("/config", get(config))
        .route("/metrics", get(metrics))
        .fallback(|| async {
            problem(
                StatusCode::NOT_FOUND,
                "NotFound",
                "no such path: see /member, /operations, /snapshot/… and /maintenance/…",
            )
        })
        .method_not_allowed_fallback(|| async {
            problem(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "this path doesn't take that method",
            )
        })
        .layer(middleware::from_fn(refuse_bodies))
        .with_state(api)
}

/// Parameters are in the query. Who sends them otherwise must hear of it, and not get an operation with the defaults.
async fn refuse_bodies(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    problem(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "InvalidArgument",
        "bodies aren't read: put the parameters into the query",
    )
}

/// Parameters of all operations; those that an operation doesn't have are refused by it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Parameters {
    r#final: bool,
    accept_fewer_keys: bool,
    r#async: bool,
    request_id: String,
    min_reclaimable_bytes: i64,
    revision: i64,
}

type Parsed = Result<Query<Parameters>, axum::extract::rejection::QueryRejection>;

/// The parameters; the idempotency key may be in a header instead.
fn parsed(parameters: Parsed, headers: &HeaderMap) -> Result<Parameters, Box<Response>> {
    let invalid = |what: &str| Box::new(problem(StatusCode::BAD_REQUEST, "InvalidArgument", what));
    let Query(mut parameters) = parameters.map_err(|error| invalid(&error.body_text()))?;
    if let Some(key) = headers.get("idempotency-key") {
        let key = key
            .to_str()
            .map_err(|_| invalid("Idempotency-Key: only visible ASCII characters are taken"))?;
        if !parameters.request_id.is_empty() && parameters.request_id != key {
            return Err(invalid("requestId: it differs from the header Idempotency-Key"));
        }
        key.clone_into(&mut parameters.request_id);
    }
    Ok(parameters)
}

async fn full(state: State<Api>, uri: Uri, headers: HeaderMap, parameters: Parsed) -> Response {
    take(state, &uri, &headers, parameters, Kind::Full).await
}

async fn delta(state: State<Api>, uri: Uri, headers: HeaderMap, parameters: Parsed) -> Response {
    take(state, &uri, &headers, parameters, Kind::Delta).await
}

async fn take(
    State(api): State<Api>,
    uri: &Uri,
    headers: &HeaderMap,
    parameters: Parsed,
    kind: Kind,
) -> Response {
    let parameters = match parsed(parameters, headers) {
        Ok(parameters) => parameters,
        Err(response) => return *response,
    };
    let marks = Marks {
        is_final: parameters.r#final,
        accepts_fewer_keys: parameters.accept_fewer_keys,
    };
    match api.start_snapshot(kind, marks, &parameters.request_id).await {
        Err(Refusal::NotOwner(Some(owner))) => redirect(&owner, uri),
        Err(refusal) => refused(&refusal),
        Ok(operation) => answer(operation, parameters.r#async, headers).await,
    }
}

/// The same request at the owner. The client follows with its method, its headers and its certificate.
fn redirect(owner: &str, uri: &Uri) -> Response {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let location = format!("{}{path}", owner.trim_end_matches('/'));
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response()
}

async fn defragment(State(api): State<Api>, headers: HeaderMap, parameters: Parsed) -> Response {
    match parsed(parameters, &headers) {
        Err(response) => *response,
        Ok(p) => match api.start_defragmentation(p.min_reclaimable_bytes, &p.request_id) {
            Ok(operation) => answer(operation, p.r#async, &headers).await,
            Err(refusal) => refused(&refusal),
        },
    }
}

async fn compact(State(api): State<Api>, headers: HeaderMap, parameters: Parsed) -> Response {
    match parsed(parameters, &headers) {
        Err(response) => *response,
        Ok(p) => match api.start_compaction(p.revision, &p.request_id) {
            Ok(operation) => answer(operation, p.r#async, &headers).await,
            Err(refusal) => refused(&refusal),
        },
    }
}

async fn latest(State(api): State<Api>) -> Response {
    let Some(backups) = &api.backups else {
        return refused(&Refusal::NoStore);
    };
    match backups.latest().await {
        Ok((full, deltas)) => {
            let deltas = (!deltas.is_empty()).then(|| deltas.iter().map(compatible).collect::<Vec<_>>());
            Json(json!({"fullSnapshot": full.as_ref().map(compatible), "deltaSnapshots": deltas}))
                .into_response()
        }
        Err(error) => problem(
            StatusCode::BAD_GATEWAY,
            error.reason(),
            &operator::reconcile::chain(&error),
        ),
    }
}

/// This member as the status of its EtcdMember tells it, also where there is no Kubernetes.
async fn member(State(api): State<Api>) -> Response {
    Json(api.status.read(Clone::clone)).into_response()
}

async fn operations(State(api): State<Api>) -> Response {
    let operations: Vec<_> = api.operations.list().iter().map(operation_json).collect();
    Json(json!({"operations": operations})).into_response()
}

/// At once, or with `Prefer: wait=SECONDS` when it is done.
async fn operation_by_id(State(api): State<Api>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let Some(operation) = api.operations.get(&id) else {
        return unknown(&id);
    };
    let patience = patience(false, &headers).unwrap_or_default();
    Json(operation_json(&wait(operation, Some(patience)).await)).into_response()
}

/// What the running etcd was started with: names of files, and no secret.
async fn config(State(api): State<Api>) -> Response {
    match api.running_config.text() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/yaml")], text).into_response(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "NotStarted",
            "etcd hasn't been started yet",
        ),
        Err(error) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "ConfigUnreadable",
            &error.to_string(),
        ),
    }
}

/// The same as on the port that needs no certificate.
async fn metrics(State(api): State<Api>) -> Response {
    operator::server::metrics(&api.registry)
}

async fn cancel(State(api): State<Api>, Path(id): Path<String>) -> Response {
    match Operations::cancel(&api.operations, &id) {
        Some(operation) => Json(operation_json(&operation)).into_response(),
        None => unknown(&id),
    }
}

/// How long a client waits for the outcome: RFC 7240's `respond-async` and `wait`, or the parameter `async`.
fn patience(asynchronous: bool, headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']))
        .map(str::trim);
    let mut patience = asynchronous.then_some(Duration::ZERO);
    for preference in preferences {
        let wait = preference
            .strip_prefix("wait=")
            .and_then(|seconds| seconds.parse().ok());
        match (preference, wait) {
            (_, Some(seconds)) => patience = Some(Duration::from_secs(seconds)),
            ("respond-async", None) => patience = patience.or(Some(Duration::ZERO)),
            _ => {}
        }
    }
    patience
}

/// Done by default; after a while, or at once, when the client prefers that.
async fn answer(operation: watch::Receiver<Operation>, asynchronous: bool, headers: &HeaderMap) -> Response {
    let operation = wait(operation, patience(asynchronous, headers)).await;
    if asynchronous || !is_done(&operation) {
        let location = [(header::LOCATION, format!("/operations/{}", operation.id))];
        return (StatusCode::ACCEPTED, location, Json(operation_json(&operation))).into_response();
    }
    match (&operation.error, &operation.result) {
        (Some(error), _) => {
            let status = if error.retryable {
                StatusCode::SERVICE_UNAVAILABLE
            } else {
                StatusCode::CONFLICT
            };
            problem(status, &error.reason, &error.message)
        }
        // As etcd-backup-restore answers: the snapshot, or null when there was nothing to save.
        (None, Some(operation::Result::Snapshot(result))) => {
            Json(result.snapshot.as_ref().map(snapshot_json)).into_response()
        }
        _ if operation.state() == OperationState::Cancelled => {
            let detail = format!("operation {} was cancelled", operation.id);
            problem(StatusCode::CONFLICT, "Cancelled", &detail)
        }
        _ => Json(operation_json(&operation)).into_response(),
    }
}

fn refused(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::Invalid(..) => StatusCode::BAD_REQUEST,
        Refusal::NoStore => StatusCode::CONFLICT,
        Refusal::NotOwner(_) | Refusal::Failing(..) => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem(status, refusal.reason(), &refusal.message())
}

fn unknown(id: &str) -> Response {
    problem(
        StatusCode::NOT_FOUND,
        "NotFound",
        &format!("no operation {id:?}: it is forgotten, or another steward's"),
    )
}

/// RFC 9457, with the reason that conditions and events would use.
pub(super) fn problem(status: StatusCode, reason: &str, detail: &str) -> Response {
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "reason": reason,
        "detail": detail,
    });
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        body.to_string(),
    )
        .into_response()
}

/// A stored snapshot in the fields of etcd-backup-restore; the spelling of one of them is its own.
fn compatible(stored: &StoredSnapshot) -> Value {
    let name = &stored.name;
    let dir = match &stored.layout {
        Layout::V1 { dir } => dir.as_str(),
        Layout::V2 => "",
    };
    json!({
        "createdOn": name.created_on.to_string(),
        "immutabilityExpriyTime": stored.object.immutable_until.map(|time| time.to_string()),
        "versionID": stored.object.version,
        "kind": name.kind.as_str(),
        "snapDir": dir,
        "snapName": name.to_string(),
        "compressionSuffix": name.compression.suffix(),
        "startRevision": name.start_revision,
        "lastRevision": name.last_revision,
        "isChunk": false,
        "isFinal": name.is_final,
    })
}

fn snapshot_json(snapshot: &steward_proto::v1::Snapshot) -> Value {
    let parsed: Option<snapstore::SnapshotName> = snapshot.name.parse().ok();
    json!({
        "createdOn": parsed.as_ref().map(|name| name.created_on.to_string()),
        "kind": parsed.as_ref().map(|name| name.kind.as_str()),
        "snapDir": "",
        "snapName": snapshot.name,
        "compressionSuffix": parsed.as_ref().map(|name| name.compression.suffix()),
        "startRevision": snapshot.start_revision,
        "lastRevision": snapshot.end_revision,
        "sizeBytes": snapshot.size_bytes,
        "isChunk": false,
        "isFinal": snapshot.r#final,
    })
}

fn operation_json(operation: &Operation) -> Value {
    let state = match operation.state() {
        OperationState::Unspecified | OperationState::Pending => "Pending",
        OperationState::Running => "Running",
        OperationState::Succeeded => "Succeeded",
        OperationState::Failed => "Failed",
        OperationState::Cancelled => "Cancelled",
    };
    let time = |time: Option<prost_types::Timestamp>| {
        let time = time.and_then(|time| std::time::SystemTime::try_from(time).ok());
        time.and_then(|time| jiff::Timestamp::try_from(time).ok())
            .map(|time| time.to_string())
    };
    let result = match &operation.result {
        Some(operation::Result::Snapshot(result)) => {
            json!({"skipped": result.skipped, "snapshot": result.snapshot.as_ref().map(snapshot_json)})
        }
        Some(operation::Result::Compact(result)) => json!({"revision": result.revision}),
        Some(operation::Result::Defragment(result)) => {
            let members = result.members.iter().map(|member| {
                json!({
                    "member": member.member,
                    "dbSizeBeforeBytes": member.db_size_before_bytes,
                    "dbSizeAfterBytes": member.db_size_after_bytes,
                    "skipped": member.skipped,
                    "reason": member.reason,
                })
            });
            json!({"members": members.collect::<Vec<_>>()})
        }
        None => Value::Null,
    };
    json!({
        "id": operation.id,
        "type": operation.r#type,
        "state": state,
        "createTime": time(operation.create_time),
        "endTime": time(operation.end_time),
        "progress": operation.progress.as_ref().map(|progress| json!({
            "message": progress.message, "done": progress.done, "total": progress.total, "unit": progress.unit,
        })),
        "error": operation.error.as_ref().map(|error| json!({
            "reason": error.reason, "message": error.message, "retryable": error.retryable,
        })),
        "result": result,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A redirected client must get what it asked for: an asynchronous call, its key, the final mark.
    #[test]
    fn a_redirect_keeps_the_whole_request() {
        for path in [
            "/snapshot/full?final=true&async=true&requestId=a%20b",
            "/snapshot/delta?requestId=7",
            "/snapshot/full",
        ] {
            let response = redirect("https://owner:8080", &path.parse().unwrap());
            assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
            assert_eq!(
                response.headers()[header::LOCATION],
                format!("https://owner:8080{path}")
            );
        }
    }

    #[test]
    fn preferences_are_heeded() {
        let seconds = |value: &'static str, asynchronous| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", value.parse().unwrap());
            patience(asynchronous, &headers).map(|patience| patience.as_secs())
        };
        assert_eq!(seconds("handling=strict", false), None);
        assert_eq!(seconds("respond-async", false), Some(0));
        assert_eq!(seconds("respond-async, wait=10", false), Some(10));
        assert_eq!(seconds("wait=10, respond-async", false), Some(10));
        assert_eq!(seconds("handling=strict", true), Some(0));
    }
}
