//! An S3 server over a folder, for faults that no real one shows when it is asked to: it keeps half of an upload and says
//! otherwise, fails, or lists less than it has. It does what a steward asks for; signatures aren't checked.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::SystemTime,
};

use anyhow::Context as _;
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, response::Builder},
    response::{IntoResponse as _, Response},
};
use futures::stream;
use jiff::Timestamp;
use md5::{Digest as _, Md5};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::rig::Rig;

const BUCKET: &str = "backups";
const TOKEN: HeaderName = HeaderName::from_static("x-amz-meta-upload-token");

/// What becomes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// They are answered as they should be.
    None,
    /// Half of an upload is kept, and the answer is 500.
    HalfAndError,
    /// The same of a server that knows no conditions: each try overwrites.
    HalfAndErrorAgain,
    /// Half of it is kept, and the answer is 200.
    HalfAndSuccess,
    /// The same, and what is told of the object afterwards is that all of it is there.
    HalfButAllIsTold,
    /// Half of it is kept, and it can't be deleted.
    HalfForGood,
    /// All answers are 503.
    Unavailable,
    /// The connection ends amid what is read.
    ShortBody,
    /// Half of a listing, which says that it goes on, and not where.
    EndlessListing,
    /// What was stored since the fault began isn't listed.
    StaleListing,
}

impl Fault {
    /// Whether half of an upload is kept.
    pub(crate) fn tears(self) -> bool {
        matches!(
            self,
            Self::HalfAndError
                | Self::HalfAndErrorAgain
                | Self::HalfAndSuccess
                | Self::HalfButAllIsTold
                | Self::HalfForGood
        )
    }
}

/// The server, until it is dropped.
pub(crate) struct Stub {
    shared: Arc<Shared>,
    pub(crate) port: u16,
    credentials: TempDir,
    task: JoinHandle<()>,
}

struct Shared {
    /// Keys are paths below it.
    folder: PathBuf,
    state: Mutex<Inner>,
}

struct Inner {
    fault: Fault,
    since: SystemTime,
    /// How many uploads had it.
    torn: usize,
    metadata: BTreeMap<String, Metadata>,
}

/// Of an object.
#[derive(Clone, Default)]
struct Metadata {
    /// The token that it came with.
    token: Option<HeaderValue>,
    /// Its size and entity tag, if these aren't told as they are.
    told: Option<(usize, String)>,
}

impl Stub {
    /// Serves the rig's store.
    pub(crate) async fn start(folder: &Path) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            state: Mutex::new(Inner {
                fault: Fault::None,
                since: SystemTime::now(),
                torn: 0,
                metadata: BTreeMap::new(),
            }),
        });
        let credentials = tempfile::tempdir()?;
        for (name, value) in [
            ("accessKeyID", "some-id"),
            ("secretAccessKey", "some-key"),
            ("region", "us-east-1"),
            ("s3ForcePathStyle", "true"),
        ] {
            fs::write(credentials.path().join(name), value)?;
        }
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self {
            shared,
            port,
            credentials,
            task,
        })
    }

    /// A rig whose store is this server, over the folder that is otherwise its store.
    pub(crate) async fn serve(rig: &mut Rig, mut backup: Value) -> anyhow::Result<Self> {
        let stub = Self::start(&rig.store()).await?;
        backup["store"] = stub.store();
        rig.change_backup(backup)?;
        for member in &mut rig.members {
            member.set_env("AWS_APPLICATION_CREDENTIALS", stub.credentials());
        }
        Ok(stub)
    }

    /// `spec.backup.store`.
    pub(crate) fn store(&self) -> Value {
        Self::store_at(self.port)
    }

    /// The same of a server that is reached by another port.
    pub(crate) fn store_at(port: u16) -> Value {
        let endpoint = format!("http://127.0.0.1:{port}");
        json!({"provider": "S3", "container": BUCKET, "prefix": "", "endpointOverride": endpoint})
    }

    pub(crate) fn credentials(&self) -> String {
        self.credentials.path().to_string_lossy().into_owned()
    }

    /// From now on.
    pub(crate) fn set(&self, fault: Fault) {
        if let Ok(mut state) = self.shared.state.lock() {
            (state.fault, state.since, state.torn) = (fault, SystemTime::now(), 0);
        }
    }

    /// How many uploads had the present fault.
    pub(crate) fn torn(&self) -> usize {
        self.shared.state.lock().map_or(0, |state| state.torn)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    // Of a connection that ends amid an upload nothing is kept.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let answered = shared.answer(&parts.method, &parts.uri, &parts.headers, &body);
    answered.unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response())
}

impl Shared {
    fn answer(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> anyhow::Result<Response> {
        let key = uri.path().trim_start_matches('/');
        let key = key
            .strip_prefix(BUCKET)
            .context("another bucket")?
            .trim_start_matches('/');
        let query = uri.query().unwrap_or_default();
        if self.state()?.fault == Fault::Unavailable {
            let document = "<Error><Code>SlowDown</Code></Error>";
            return Ok((StatusCode::SERVICE_UNAVAILABLE, document).into_response());
        }
        if key.is_empty() {
            return self.of_bucket(query);
        }
        match *method {
            Method::PUT => self.put(key, headers, body),
            Method::DELETE => self.delete(key),
            _ => self.read(key, headers, *method == Method::HEAD),
        }
    }

    fn of_bucket(&self, query: &str) -> anyhow::Result<Response> {
        let has = |name: &str| query.split('&').any(|part| part.split('=').next() == Some(name));
        if has("list-type") {
            let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix="));
            return Ok(self
                .list(&prefix.unwrap_or_default().replace("%2F", "/"))?
                .into_response());
        }
        let document = if has("uploads") {
            "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
        } else {
            "<VersioningConfiguration/>"
        };
        Ok(document.into_response())
    }

    fn state(&self) -> anyhow::Result<MutexGuard<'_, Inner>> {
        self.state.lock().ok().context("the state")
    }

    fn list(&self, prefix: &str) -> anyhow::Result<String> {
        let folder = self.folder.join(prefix);
        let state = self.state()?;
        let mut objects = Vec::new();
        if folder.exists() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let meta = entry.metadata()?;
                let name = entry.file_name().to_string_lossy().into_owned();
                objects.push((name, meta.len(), meta.modified()?));
            }
        }
        objects.sort();
        if state.fault == Fault::StaleListing {
            objects.retain(|(_, _, modified)| *modified < state.since);
        }
        let endless = state.fault == Fault::EndlessListing;
        if endless {
            objects.truncate(objects.len() / 2);
        }
        let mut text = format!("<ListBucketResult><IsTruncated>{endless}</IsTruncated>");
        for (name, size, modified) in objects {
            let modified = Timestamp::try_from(modified)?;
            write!(
                text,
                "<Contents><Key>{prefix}{name}</Key><Size>{size}</Size><LastModified>{modified}</LastModified></Contents>",
            )?;
        }
        Ok(text + "</ListBucketResult>")
    }

    fn put(&self, key: &str, headers: &HeaderMap, body: &Bytes) -> anyhow::Result<Response> {
        let path = self.folder.join(key);
        let mut state = self.state()?;
        // Manifests aren't torn: without its manifest a snapshot wouldn't be looked at.
        let torn = state.fault.tears() && !key.contains("Manifest-");
        let fault = if torn { state.fault } else { Fault::None };
        if path.exists() && headers.contains_key("if-none-match") && fault != Fault::HalfAndErrorAgain {
            return Ok(StatusCode::PRECONDITION_FAILED.into_response());
        }
        state.torn += usize::from(torn);
        let kept = match fault {
            Fault::None => &body[..],
            _ => &body[..body.len() / 2],
        };
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(&path, kept)?;
        let told = (fault == Fault::HalfButAllIsTold).then(|| (body.len(), etag(body)));
        let token = headers.get(TOKEN).cloned();
        state.metadata.insert(key.to_owned(), Metadata { token, told });
        Ok(match fault {
            Fault::HalfAndError | Fault::HalfAndErrorAgain => {
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
            _ => StatusCode::OK.into_response(),
        })
    }

    fn delete(&self, key: &str) -> anyhow::Result<Response> {
        let state = self.state()?;
        if state.fault == Fault::HalfForGood {
            let document = "<Error><Code>AccessDenied</Code></Error>";
            return Ok((StatusCode::FORBIDDEN, document).into_response());
        }
        let path = self.folder.join(key);
        if path.exists() {
            fs::remove_file(path)?;
        }
        Ok(StatusCode::NO_CONTENT.into_response())
    }

    fn read(&self, key: &str, headers: &HeaderMap, is_head: bool) -> anyhow::Result<Response> {
        let path = self.folder.join(key);
        if !path.exists() {
            return Ok((StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response());
        }
        let content = fs::read(&path)?;
        let modified = Timestamp::try_from(fs::metadata(&path)?.modified()?)?;
        let Metadata { token, told } = self.state()?.metadata.get(key).cloned().unwrap_or_default();
        let (size, tag) = match told {
            Some(told) if is_head => told,
            _ => (content.len(), etag(&content)),
        };
        let range = headers.get("range").and_then(|range| range.to_str().ok());
        let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let mut response = Response::builder().header("etag", tag).header(
            "last-modified",
            jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&modified)?,
        );
        if let Some(token) = token {
            response = response.header(TOKEN, token);
        }
        if is_head {
            return Ok(response.header("content-length", size).body(Body::empty())?);
        }
        let Some((from, to)) = range else {
            return self.body(response, content);
        };
        let from: usize = from.parse()?;
        let end = to
            .parse::<usize>()
            .map_or(content.len(), |to| (to + 1).min(content.len()));
        let response = response.status(StatusCode::PARTIAL_CONTENT).header(
            "content-range",
            format!("bytes {from}-{}/{}", end - 1, content.len()),
        );
        self.body(response, content[from..end].to_vec())
    }

    /// An answer with content, of which half may be missing.
    fn body(&self, response: Builder, content: Vec<u8>) -> anyhow::Result<Response> {
        if self.state()?.fault != Fault::ShortBody {
            return Ok(response.body(Body::from(content))?);
        }
        let half = Bytes::copy_from_slice(&content[..content.len() / 2]);
        let ends = stream::iter([Ok(half), Err(io::Error::from(io::ErrorKind::ConnectionReset))]);
        let response = response.header("content-length", content.len());
        Ok(response.body(Body::from_stream(ends))?)
    }
}

fn etag(content: &[u8]) -> String {
    format!("\"{}\"", hex::encode(Md5::digest(content)))
}
