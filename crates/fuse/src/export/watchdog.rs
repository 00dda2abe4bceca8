//! Watches that requests make progress, and aborts the connection when they do not.
//!
//! A request that the server works on for too long is stuck. So is one that waits in the kernel
//! while the server answers none: then the server waits for memory in between. The second case is
//! seen only where the kernel tells it ([`Connection`]). Nothing is allocated until something is
//! stuck, in the kernel neither: to open a file takes memory, so another thread opens those that
//! are looked at, some time before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use stetfs_format::width::u32_as_usize;

use crate::connection::{Connection, Look};
use crate::session::end::{Event, SessionError, spawn};
use crate::system_log::{self, Severity};

/// The worker's count of its requests.
#[derive(Default)]
pub(super) struct Pulse {
    /// Requests begun.
    begun: AtomicU64,
    /// Requests answered.
    served: AtomicU64,
}

/// A request that the worker works on; dropping it counts it as answered.
pub(super) struct Busy<'a>(&'a Pulse);

impl Pulse {
    pub(super) fn begin(&self) -> Busy<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.begun.load(Ordering::Relaxed) != self.served()
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.served.fetch_add(1, Ordering::Relaxed);
    }
}

/// The watch. Dropping it ends the watch.
pub(super) struct Watch {
    _ends: mpsc::Sender<()>,
}

/// Looks that are at hand: enough for the time after which a request counts as stuck.
const LOOKS: u32 = 40;

/// Starts watching. If requests wait and none is answered for `limit`, tells the session and aborts
/// the connection.
pub(super) fn start(
    limit: Duration,
    pulse: Arc<Pulse>,
    connection: Arc<Connection>,
    tell: mpsc::Sender<Event>,
) -> Result<Watch, SessionError> {
    let longest = Duration::from_secs(1).max(limit / (LOOKS - 8));
    let step = (limit / 4).clamp(Duration::from_millis(10), longest);
    let (hold, looks) = mpsc::sync_channel(u32_as_usize(LOOKS));
    let (ends, ended) = mpsc::channel();
    let seen = connection.clone();
    spawn("watchdog-opens", move || {
        while let Some(look) = seen.look() {
            if hold.send(look).is_err() {
                break;
            }
        }
    })?;
    spawn("watchdog", move || {
        let has_waiting = || looks.try_recv().ok().and_then(Look::has_waiting) == Some(true);
        let mut served = pulse.served();
        let mut since = Instant::now();
        loop {
            if ended.recv_timeout(step) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let now = pulse.served();
            if now != served || !(pulse.is_busy() || has_waiting()) {
                served = now;
                since = Instant::now();
            } else if since.elapsed() >= limit {
                break;
            }
        }
        // Tell first, so that the end of the session is not taken for a wanted one.
        let _ = tell.send(Event::Stuck(limit));
        connection.abort();
        let message = format!(
            "{}: a request has been stuck for {} s, probably because memory is short; the \
                connection is aborted: users of the device get errors from now on; flushed data is \
                in the file",
            connection.dir().display(),
            since.elapsed().as_secs()
        );
        system_log::write(Severity::Error, &message);
        tracing::error!("{message}");
    })?;
    Ok(Watch { _ends: ends })
}
