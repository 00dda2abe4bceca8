//! How long a commit waits for its checkpoint: what schemes do that checkpoint by time.

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
    /// When the oldest commit was made that is not checkpointed.
    oldest: Mutex<Option<Instant>>,
}

impl Period {
    /// As long as `checkpoint=` says.
    pub(crate) fn of(about: &'static About, options: &SchemeOptions) -> Result<Self> {
        let seconds = options.value(&CHECKPOINT_INTERVAL).parse();
        let seconds = seconds.map_err(|_| options.wrong(about, &CHECKPOINT_INTERVAL))?;
        Ok(Self {
            length: Duration::from_secs(seconds),
            oldest: Mutex::new(None),
        })
    }

    /// A commit was made.
    pub(crate) fn note_commit(&self) {
        self.oldest.lock().get_or_insert_with(Instant::now);
    }

    /// A checkpoint has ended; what is not checkpointed was committed after `since`, `None` if
    /// there is nothing.
    pub(crate) fn note_checkpoint(&self, since: Option<Instant>) {
        *self.oldest.lock() = since;
    }

    /// The oldest commit has waited long enough.
    pub(crate) fn is_over(&self) -> bool {
        let oldest = self.oldest.lock();
        oldest.is_some_and(|since| since.elapsed() >= self.length)
    }
}
