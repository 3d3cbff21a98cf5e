//! Credential files as etcd-backup-restore reads them: a folder with one file per field, or one JSON file with the
//! same fields.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::{
    config::StoreConfig,
    error::{Class, Error, Result},
};

/// Where a store's credential fields lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Folder(PathBuf),
    Json(PathBuf),
}

impl Place {
    /// Named by `<role prefix><variable>` (a folder) or `<role prefix><variable>_JSON` (a file). The file wins.
    pub(crate) fn find(config: &StoreConfig, variable: &str) -> Option<Self> {
        let json = config
            .env(&format!("{variable}_JSON"))
            .map(|path| Self::Json(path.into()));
        json.or_else(|| config.env(variable).map(|path| Self::Folder(path.into())))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Folder(path) | Self::Json(path) => path,
        }
    }

    /// Reads all fields. A JSON file within the folder wins over the other files of the folder.
    pub(crate) fn read(&self) -> Result<Fields> {
        let path = self.path();
        let failed = |detail: String| {
            let action = format!("read store credentials at {}", path.display());
            Error::new(Class::CredentialsUnavailable, action, detail)
        };
        let fields = match self {
            Self::Json(file) => read_json(file).map_err(failed)?,
            Self::Folder(folder) => {
                let files = files(folder).map_err(|e| failed(e.to_string()))?;
                match files
                    .iter()
                    .find(|file| file.extension().is_some_and(|e| e == "json"))
                {
                    Some(json) => read_json(json).map_err(failed)?,
                    None => read_each(&files).map_err(failed)?,
                }
            }
        };
        Ok(Fields {
            fields,
            place: path.to_owned(),
        })
    }
}

/// Named secret texts.
pub(crate) struct Fields {
    fields: BTreeMap<String, String>,
    place: PathBuf,
}

impl Fields {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.fields
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    pub(crate) fn require(&self, name: &str) -> Result<&str> {
        self.get(name).ok_or_else(|| {
            let action = format!("read store credentials at {}", self.place.display());
            Error::new(
                Class::CredentialsUnavailable,
                action,
                format!("field {name} is missing"),
            )
        })
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        is_true(self.get(name))
    }

    /// The file that holds a field, if the fields come from a folder.
    pub(crate) fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.place.join(name)).filter(|path| path.is_file())
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.fields.keys()).finish()
    }
}

/// As Go's `strconv.ParseBool`.
pub(crate) fn is_true(value: Option<&str>) -> bool {
    matches!(value, Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// Regular files of a folder; the links and folders by which a projected volume is swapped begin with two dots.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with("..") && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn read_each(files: &[PathBuf]) -> Result<BTreeMap<String, String>, String> {
    let mut fields = BTreeMap::new();
    for file in files {
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        // A field that isn't text isn't one of ours.
        let Ok(value) = String::from_utf8(fs::read(file).map_err(|e| format!("{name}: {e}"))?) else {
            continue;
        };
        fields.insert(name.to_owned(), value.trim_end().to_owned());
    }
    Ok(fields)
}

/// Serde's messages may quote the content, so that only the position is told.
fn read_json(file: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = fs::read(file).map_err(|e| e.to_string())?;
    let json: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text)
        .map_err(|e| format!("not a JSON object, see line {} column {}", e.line(), e.column()))?;
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text.trim_end().to_owned(),
        other => other.to_string(),
    };
    Ok(json
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .collect())
}
