//! How soon calls follow each other.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::workload::session::Session;

/// How soon a call follows the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// At once.
    Full,
    /// Not sooner after the first call than in the recording. The time that the program took in
    /// between passes here too, so that commits by the clock have as much in them.
    Recorded,
}

/// When to make calls that were recorded with their times.
pub(super) struct Waits {
    /// The first call's time in the recording, and the session's time when it was made.
    began: Option<(Duration, u64)>,
}

impl Waits {
    pub(super) fn new(pace: Pace, first: Option<Duration>, session: &Session<'_>) -> Self {
        let first = first.filter(|_| pace == Pace::Recorded);
        Self {
            began: first.map(|first| (first, session.now_ns())),
        }
    }

    /// Waits until a call may be made.
    pub(super) fn wait(&self, at: Option<Duration>, session: &mut Session<'_>) -> Result<()> {
        let (Some((first, began_ns)), Some(at)) = (self.began, at) else {
            return Ok(());
        };
        let since = u64::try_from(at.saturating_sub(first).as_nanos())?;
        let due_ns = began_ns.saturating_add(since);
        session.pause(Duration::from_nanos(
            due_ns.saturating_sub(session.now_ns()),
        ))
    }
}
