//! The tables of docs/reference/metrics.md, made of what a process exposes. For the tests of the crates that have metrics:
//! each has its section, which it compares, or with `DRUID_GENERATE=1` writes.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use super::Metrics;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");

/// What is exposed of one metric.
#[derive(Debug, Default)]
struct Exposed {
    help: String,
    type_: String,
    name: String,
    labels: Vec<String>,
}

/// Compares a section of the reference with metrics of which every one must have a value.
///
/// # Panics
/// If they differ, if a metric is exposed without a series, or if the reference can't be read or written.
#[expect(clippy::panic, reason = "a check for tests")]
pub fn check(section: &str, metrics: &Metrics) {
    let table = table(metrics).unwrap_or_else(|problem| panic!("{section}: {problem}"));
    let told = fs::read_to_string(REFERENCE).unwrap_or_else(|error| panic!("{REFERENCE}: {error}"));
    let (begin, end) = (format!("<!-- metrics of {section} -->\n"), "<!-- end -->\n");
    let split = told.split_once(&begin).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(end)?;
        Some((before, old, after))
    });
    let Some((before, old, after)) = split else {
        panic!("{REFERENCE} has no section {begin:?} that ends with {end:?}");
    };
    if old == table {
        return;
    }
    assert!(
        std::env::var_os("DRUID_GENERATE").is_some(),
        "{REFERENCE} is out of date: run `just generate`. {section}:\n{table}"
    );
    let written = write_beside(
        Path::new(REFERENCE),
        &format!("{before}{begin}{table}{end}{after}"),
    );
    written.unwrap_or_else(|error| panic!("{REFERENCE}: {error}"));
}

fn write_beside(path: &Path, text: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

/// One row for each metric, by name.
fn table(metrics: &Metrics) -> Result<String, String> {
    let exposition = metrics.encode().map_err(|error| error.to_string())?;
    let exposed = parse(&exposition);
    for name in &metrics.registered().names {
        let has_series = exposed.get(name).is_some_and(|metric| !metric.name.is_empty());
        if !has_series {
            return Err(format!(
                "{name} has no series: the test that calls this has to set it"
            ));
        }
    }
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for metric in exposed.values() {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, type_, help, labels) = (&metric.name, &metric.type_, &metric.help, labels.join(", "));
        let _ = writeln!(table, "| `{name}` | {type_} | {labels} | {help} |");
    }
    Ok(table)
}

/// Reads OpenMetrics text as it is written here: the descriptions of a metric come right before its series.
fn parse(exposition: &str) -> BTreeMap<String, Exposed> {
    let mut all: BTreeMap<String, Exposed> = BTreeMap::new();
    let mut family = String::new();
    for line in exposition.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            name.clone_into(&mut family);
            help.trim_end_matches('.')
                .clone_into(&mut all.entry(family.clone()).or_default().help);
        } else if let Some((name, type_)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            type_.clone_into(&mut all.entry(name.to_owned()).or_default().type_);
        } else if !line.starts_with('#')
            && let Some(metric) = all.get_mut(&family)
        {
            add_series(metric, &family, line);
        }
    }
    all
}

fn add_series(metric: &mut Exposed, family: &str, line: &str) {
    let (series, _) = line.rsplit_once(' ').unwrap_or((line, ""));
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    // The parts of a histogram are told by its type.
    let name = if metric.type_ == "histogram" { family } else { name };
    name.clone_into(&mut metric.name);
    for label in labels.trim_end_matches('}').split("\",") {
        let label = label.split('=').next().unwrap_or_default();
        if !label.is_empty() && label != "le" && !metric.labels.iter().any(|known| known == label) {
            metric.labels.push(label.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::{counter::Counter, family::Family};

    use super::*;

    type Labels = [(&'static str, &'static str); 2];

    #[test]
    fn rows_tell_type_and_labels() {
        let metrics = Metrics::of_controller();
        metrics.reconciled("etcd", "ok", 1.0);
        let counters = Family::<Labels, Counter>::default();
        counters.get_or_create(&[("a", "x,y=\"z"), ("b", "{}")]).inc();
        metrics.register(|registry| registry.register("things", "Things that were seen", counters));
        let table = table(&metrics).unwrap();
        for row in [
            "| `etcddruid_reconcile_duration_seconds` | histogram | `controller` | Duration of reconciles |",
            "| `things_total` | counter | `a`, `b` | Things that were seen |",
        ] {
            assert!(table.contains(row), "{row} in\n{table}");
        }
    }

    /// Else it would be missing in the reference without anybody noticing.
    #[test]
    fn a_metric_without_series_is_a_mistake() {
        let metrics = Metrics::of_controller();
        assert!(table(&metrics).unwrap_err().contains("etcddruid_reconciles"));
    }
}
