//! Requests that wait for a close that the server has not read yet.
//!
//! The kernel tells the server of an open file's end (RELEASE) in the background. close(2) has
//! returned by then, and the program's next request may arrive first. The delay depends on the
//! requests before it in the kernel's queue, above all the pages of other files. So a request that
//! may not run beside a writer through the page cache waits here, without a worker, until the
//! file's last such writer is closed or [`BOUND`] is over.
//!
//! FLUSH, which comes before close(2) returns, does not help: it comes for each descriptor of an
//! open file, and nothing says which was the last.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use stetfs_format::InodeNo;

use crate::opens::{Opens, Rest};

/// The longest wait of a request. If a writer stays, the request is refused only then.
const BOUND: Duration = Duration::from_secs(1);

/// A request that waits, and until when.
struct Job {
    until: Instant,
    opens: Arc<Opens>,
    ino: InodeNo,
    number: u64,
}

/// A thread, started when it is first needed, that ends the wait of requests that have waited long
/// enough.
#[derive(Default)]
pub(crate) struct Late {
    queue: OnceLock<mpsc::Sender<Job>>,
    next: AtomicU64,
}

impl Late {
    /// Calls `rest` with a hold on the file when it has no writers through the page cache any more;
    /// with `None` if that takes too long.
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
    // All wait equally long, so they end in the order in which they came.
    let body = move || {
        for job in jobs {
            thread::sleep(job.until.saturating_duration_since(Instant::now()));
            job.opens.give_up(job.ino, job.number);
        }
    };
    if let Err(e) = thread::Builder::new().name("late".to_owned()).spawn(body) {
        tracing::error!("no thread to end a wait: {e}");
    }
    send
}
