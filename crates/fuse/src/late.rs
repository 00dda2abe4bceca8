//! Requests that wait for closes of which the server has not heard yet.
//!
//! The kernel tells the server of an open file's end (RELEASE) in the background: close(2) has
//! returned then, and what the program asks next may come here first. How long it takes depends on
//! what is in that queue before it, the pages of other files above all. So a request that a writer
//! through the page cache stands against waits here, with no worker, until the file's last one is
//! closed or [`BOUND`] is over.
//!
//! FLUSH, which comes before close(2) returns, would be no help: it comes for each descriptor of an
//! open file, and nothing says which of them was the last.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use stetfs_format::InodeNo;

use crate::opens::{Opens, Rest};

/// How long a request waits at most. Who writes the file still is told of no sooner.
const BOUND: Duration = Duration::from_secs(1);

/// Who waits until when.
struct Job {
    until: Instant,
    opens: Arc<Opens>,
    ino: InodeNo,
    number: u64,
}

/// One thread, started when it is first needed, that sends those home who have waited long enough.
#[derive(Default)]
pub(crate) struct Late {
    queue: OnceLock<mpsc::Sender<Job>>,
    next: AtomicU64,
}

impl Late {
    /// Does the rest when the file has no writers through the page cache any more, with a hold on
    /// it; or without one when that takes too long.
    pub(crate) fn when_closed(&self, opens: &Arc<Opens>, ino: InodeNo, rest: Rest) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        opens.when_held(ino, number, rest);
        let job = Job {
            until: Instant::now() + BOUND,
            opens: opens.clone(),
            ino,
            number,
        };
        if let Err(mpsc::SendError(job)) = self.queue.get_or_init(start).send(job) {
            job.opens.give_up(ino, number);
        }
    }
}

fn start() -> mpsc::Sender<Job> {
    let (send, jobs) = mpsc::channel::<Job>();
    // All wait equally long, so who came first is the first to go.
    let body = move || {
        for job in jobs {
            thread::sleep(job.until.saturating_duration_since(Instant::now()));
            job.opens.give_up(job.ino, job.number);
        }
    };
    if let Err(e) = thread::Builder::new().name("late".to_owned()).spawn(body) {
        tracing::error!("no thread to end a wait by: {e}");
    }
    send
}
