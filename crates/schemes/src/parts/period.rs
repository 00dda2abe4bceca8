//! The option `checkpoint=`: the longest time between a commit and its checkpoint.

use std::time::{Duration, Instant};

use stetfs_scheme::{About, OptionAbout, Result, SchemeOptions};
use stetfs_sync::Mutex;

pub(crate) static CHECKPOINT_INTERVAL: OptionAbout = OptionAbout {
    name: "checkpoint",
    syntax: "SECONDS",
    default: "300",
    what: "the most time between a commit and its checkpoint",
};

pub(crate) struct Period {
    length: Duration,
    /// The time of the oldest commit that no checkpoint has taken in; `None`: there is none.
    oldest: Mutex<Option<Instant>>,
}

impl Period {
    /// Makes a period of the length that `checkpoint=` gives.
    pub(crate) fn of(about: &'static About, options: &SchemeOptions) -> Result<Self> {
        let seconds = options.value(&CHECKPOINT_INTERVAL).parse();
        let seconds = seconds.map_err(|_| options.wrong(about, &CHECKPOINT_INTERVAL))?;
        Ok(Self {
            length: Duration::from_secs(seconds),
            oldest: Mutex::new(None),
        })
    }

    /// Notes a commit.
    pub(crate) fn note_commit(&self) {
        self.oldest.lock().get_or_insert_with(Instant::now);
    }

    /// Notes the end of a checkpoint. Commits that it has not taken in came after `since`; `None`:
    /// there are none.
    pub(crate) fn note_checkpoint(&self, since: Option<Instant>) {
        *self.oldest.lock() = since;
    }

    /// True when the oldest commit has waited for the whole period.
    pub(crate) fn is_over(&self) -> bool {
        let oldest = self.oldest.lock();
        oldest.is_some_and(|since| since.elapsed() >= self.length)
    }
}
