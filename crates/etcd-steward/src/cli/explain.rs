//! `explain`: what retention would do, and why. Nothing is deleted.

use std::{
    io::{self, Write},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use snapstore::retention::{self, Action, KeepFulls, Policy, Rule};

use super::{
    Exit, duration,
    error::CliError,
    output::{Output, Report, columns, write_table},
    store::StoreArgs,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub(super) output: Output,
    /// Which full snapshots are kept.
    #[arg(long, value_enum, default_value_t = PolicyName::LimitBased)]
    garbage_collection_policy: PolicyName,
    /// How many full snapshots LimitBased keeps.
    #[arg(long, value_name = "N", default_value_t = 7)]
    max_backups: u32,
    /// How long the deltas of older full snapshots are kept, for example 12h.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    delta_snapshot_retention_period: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PolicyName {
    #[value(name = "Exponential", alias = "exponential")]
    Exponential,
    #[value(name = "LimitBased", alias = "limitbased")]
    LimitBased,
}

impl Args {
    fn policy(&self) -> Policy {
        Policy {
            fulls: match self.garbage_collection_policy {
                PolicyName::Exponential => KeepFulls::Exponential,
                PolicyName::LimitBased => KeepFulls::LimitBased {
                    max_backups: self.max_backups,
                },
            },
            delta_retention: SignedDuration::try_from(self.delta_snapshot_retention_period)
                .unwrap_or(SignedDuration::MAX),
            ..Policy::default()
        }
    }
}

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let store = args.store.open()?;
    let listing = store.list().await?;
    let decisions = retention::plan(&listing, &args.policy(), |_| true, Timestamp::now());
    let objects = decisions.iter().map(|decision| Decision {
        key: decision.object.key.clone(),
        name: decision.name.map(ToString::to_string),
        action: decision.action,
        rule: decision.rule,
        reason: decision.rule.to_string(),
        until: decision.until,
    });
    args.output.print(&Explained {
        store: store.location().to_owned(),
        objects: objects.collect(),
    })?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Explained {
    store: String,
    objects: Vec<Decision>,
}

#[derive(Serialize)]
struct Decision {
    key: String,
    /// Null if it is no snapshot.
    name: Option<String>,
    /// `keep`, `delete` or `locked`.
    action: Action,
    /// Stable word for the rule.
    rule: Rule,
    reason: String,
    /// When it may go; null: unknown, or not by time.
    until: Option<Timestamp>,
}

impl Report for Explained {
    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = columns(&["OBJECT", "ACTION", "UNTIL", "REASON"]);
        for decision in &self.objects {
            let action = match decision.action {
                Action::Keep => "keep",
                Action::Delete => "delete",
                Action::Locked => "locked",
            };
            let until = decision.until.map(|until| until.to_string());
            table.add_row([
                decision.name.as_ref().unwrap_or(&decision.key),
                action,
                until.as_deref().unwrap_or("-"),
                decision.reason.as_str(),
            ]);
        }
        write_table(&table, out)
    }
}
