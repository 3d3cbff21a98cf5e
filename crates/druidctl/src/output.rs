//! How answers are printed: plain columns for people, JSON and YAML for programs.

use std::io::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde::Serialize;

use crate::CtlError;

/// How to print an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl Format {
    /// The answer as JSON, or else as YAML.
    pub fn encode<T: Serialize>(self, answer: &T) -> Result<String, CtlError> {
        if self == Self::Json {
            let json = serde_json::to_string_pretty(answer);
            return json
                .map(|text| text + "\n")
                .map_err(|error| CtlError::Output(Box::new(error)));
        }
        serde_saphyr::to_string(answer).map_err(|error| CtlError::Output(Box::new(error)))
    }
}

/// Columns without borders, as kubectl prints them. Cells are never broken into lines.
pub fn columns(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(head.iter().copied());
    table.add_rows(rows);
    let last = head.len().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if index == last { 0 } else { 3 }));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Prints on standard output. A reader that has gone away is no error.
pub fn print(text: &str) -> Result<(), CtlError> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CtlError::Output(Box::new(error)))
        }
        _ => Ok(()),
    }
}

/// Tells something beside the answer, on standard error.
pub fn note(text: &str) {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A span of time in one unit, two where one would be coarse: `45s`, `12m`, `5h`, `3d`.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_have_no_borders() {
        let rows = vec![
            vec!["main".to_owned(), "True".to_owned()],
            vec!["a-longer-name".to_owned(), String::new()],
        ];
        assert_eq!(
            columns(&["NAME", "QUORATE"], rows),
            "NAME            QUORATE\nmain            True\na-longer-name\n"
        );
    }

    #[test]
    fn ages_are_short() {
        let now = Timestamp::from_second(10_000_000).unwrap();
        for (seconds, want) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7199, "119m"),
            (7200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            let since = Timestamp::from_second(10_000_000 - seconds).unwrap();
            assert_eq!(age(since, now), want);
        }
    }
}
