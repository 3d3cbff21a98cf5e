//! What is printed.

use std::fmt;

use serde_json::json;

use crate::measure::Usage;

/// The figures of one size.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) size: f64,
    pub(crate) db_bytes: u64,
    /// `etcdutl snapshot restore`.
    pub(crate) yardstick: Usage,
    pub(crate) restore: Usage,
    pub(crate) compact: Usage,
    /// `etcdctl snapshot save` and pigz.
    pub(crate) save: Usage,
    pub(crate) snapshot: Usage,
    /// Restore and compaction of a chain with a very large delta and a very large transaction.
    pub(crate) large: [Usage; 2],
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            yardstick,
            restore,
            compact,
            save,
            snapshot,
            large: [large_restore, large_compact],
            ..
        } = self;
        let db_mib = self.db_bytes >> 20;
        writeln!(f, "database of {db_mib} MiB, size {}", self.size)?;
        writeln!(
            f,
            "{:<36} {:>8} {:>8} {:>9} {:>6}",
            "", "wall s", "CPU s", "RSS MiB", "ratio"
        )?;
        for (name, usage, peer) in [
            ("etcdutl snapshot restore", yardstick, yardstick),
            ("restore", restore, yardstick),
            ("compact", compact, yardstick),
            ("etcdctl snapshot save, pigz", save, save),
            ("snapshot --once", snapshot, save),
        ] {
            line(f, name, usage, Some(ratio(usage, peer)))?;
        }
        line(f, "restore, large delta and transaction", large_restore, None)?;
        line(f, "compact, large delta and transaction", large_compact, None)?;
        let figures = |usage: &Usage, peer: &Usage| {
            json!({
                "ratio": rounded(ratio(usage, peer)),
                "rss_mib": rounded(usage.rss_mib),
                "wall_s": rounded(usage.wall_s),
                "cpu_s": rounded(usage.cpu_s),
            })
        };
        let summary = json!({
            "size": self.size,
            "db_mib": db_mib,
            "restore": figures(restore, yardstick),
            "compact": figures(compact, yardstick),
            "full_snapshot": figures(snapshot, save),
            "large": {
                "restore_rss_mib": rounded(large_restore.rss_mib),
                "compact_rss_mib": rounded(large_compact.rss_mib),
            },
        });
        write!(f, "{summary}")
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, usage: &Usage, ratio: Option<f64>) -> fmt::Result {
    let Usage {
        wall_s,
        cpu_s,
        rss_mib,
    } = usage;
    write!(f, "{name:<36} {wall_s:>8.2} {cpu_s:>8.2} {rss_mib:>9.1}")?;
    match ratio {
        Some(ratio) => writeln!(f, " {ratio:>6.2}"),
        None => writeln!(f),
    }
}

fn ratio(usage: &Usage, peer: &Usage) -> f64 {
    usage.wall_s / peer.wall_s
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
