//! The one error of this crate: a semantic class that conditions and exit codes are made of, what was being done to
//! which object, and the server's own words. Never holds a secret.

use std::{error::Error as StdError, fmt};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller has to act differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The store knows the caller and refuses, or doesn't accept the credentials.
    AccessDenied,
    /// No credentials could be had: files missing, incomplete or unreadable, no ambient identity.
    CredentialsUnavailable,
    /// The object isn't there.
    NotFound,
    /// The bucket, container or folder isn't there. Nothing is known about the snapshots in it.
    BucketNotFound,
    /// An object of that name exists already; it was left as it is.
    AlreadyExists,
    /// The object may not be deleted or overwritten yet (object lock, retention policy, legal hold).
    Locked,
    /// No answer: name resolution, connection, TLS, time limit or a cut stream.
    Unreachable,
    /// The store answers that it can't serve now.
    Unavailable,
    /// The store asks to slow down.
    Throttled,
    /// Bytes come or go, but slower than any working connection.
    TooSlow,
    /// The store refuses requests because its clock and ours differ too much.
    ClockSkewed,
    /// The answer isn't what the protocol promises. Nothing is known about what was asked.
    BadResponse,
    /// The payload is too large or its form isn't accepted, or the disk is full.
    PayloadRejected,
    /// The content isn't what was announced: size, checksum or hash trailer differ.
    Corrupt,
    /// No final snapshot came within the time that was given for it.
    NoFinalSnapshot,
    /// What was to be uploaded couldn't be read to its end, or its owner withdrew it.
    SourceFailed,
    /// The configuration can't work as it is.
    InvalidConfig,
    /// The store doesn't offer this operation.
    Unsupported,
    /// Anything else; the detail says what.
    Other,
}

impl Class {
    /// Stable CamelCase word for conditions, events and metric labels.
    pub fn reason(self) -> &'static str {
        match self {
            Self::AccessDenied => "AccessDenied",
            Self::CredentialsUnavailable => "CredentialsUnavailable",
            Self::NotFound => "NotFound",
            Self::BucketNotFound => "BucketNotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Locked => "Locked",
            Self::Unreachable => "StoreUnreachable",
            Self::Unavailable => "StoreUnavailable",
            Self::Throttled => "Throttled",
            Self::TooSlow => "StoreTooSlow",
            Self::ClockSkewed => "ClockSkewed",
            Self::BadResponse => "BadResponse",
            Self::PayloadRejected => "PayloadRejected",
            Self::Corrupt => "Corrupt",
            Self::NoFinalSnapshot => "NoFinalSnapshot",
            Self::SourceFailed => "SourceFailed",
            Self::InvalidConfig => "InvalidConfig",
            Self::Unsupported => "Unsupported",
            Self::Other => "StoreError",
        }
    }

    /// True when the same call may succeed later without anybody changing anything.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::Unavailable | Self::Throttled | Self::TooSlow | Self::ClockSkewed
        )
    }

    fn text(self) -> &'static str {
        match self {
            Self::AccessDenied => "access denied",
            Self::CredentialsUnavailable => "no usable credentials",
            Self::NotFound => "object not found",
            Self::BucketNotFound => "bucket or container not found",
            Self::AlreadyExists => "object exists already",
            Self::Locked => "object is locked",
            Self::Unreachable => "store unreachable",
            Self::Unavailable => "store unavailable",
            Self::Throttled => "throttled by the store",
            Self::TooSlow => "the store is too slow",
            Self::ClockSkewed => "clocks differ",
            Self::BadResponse => "the answer breaks the protocol",
            Self::PayloadRejected => "payload rejected",
            Self::Corrupt => "content is not what was announced",
            Self::NoFinalSnapshot => "no final snapshot",
            Self::SourceFailed => "source of the upload failed",
            Self::InvalidConfig => "invalid store configuration",
            Self::Unsupported => "not supported by the store",
            Self::Other => "store error",
        }
    }
}

/// A failed store operation.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    class: Class,
    /// What was attempted, in the form "list s3://bucket/prefix".
    action: String,
    detail: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn new(class: Class, action: impl Into<String>, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            class,
            action: action.into(),
            detail: detail.into(),
            source: None,
        }))
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// For calls that aren't about an object that must exist: what isn't found is the bucket.
    #[must_use]
    pub(crate) fn of_bucket(mut self) -> Self {
        if self.0.class == Class::NotFound {
            self.0.class = Class::BucketNotFound;
        }
        self
    }

    /// The cause, if there is one of type `E`, else the error as it is.
    pub(crate) fn into_source<E: StdError + 'static>(mut self) -> Result<E, Self> {
        match self.0.source.take().map(<dyn StdError + Send + Sync>::downcast) {
            Some(Ok(source)) => Ok(*source),
            Some(Err(source)) => Err(self.with_source(source)),
            None => Err(self),
        }
    }

    pub fn class(&self) -> Class {
        self.0.class
    }

    /// See [`Class::reason`].
    pub fn reason(&self) -> &'static str {
        self.0.class.reason()
    }

    /// See [`Class::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.0.class.is_retryable()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            class,
            action,
            detail,
            ..
        } = &*self.0;
        write!(f, "failed to {action}: {}", class.text())?;
        if detail.is_empty() {
            Ok(())
        } else {
            write!(f, ": {detail}")
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        let kind = match error.class() {
            Class::AccessDenied | Class::Locked => ErrorKind::PermissionDenied,
            Class::NotFound | Class::BucketNotFound => ErrorKind::NotFound,
            Class::AlreadyExists => ErrorKind::AlreadyExists,
            Class::Corrupt => ErrorKind::InvalidData,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
