//! What cannot be done by a worker: waiting for the kernel to write or drop its pages of a file,
//! for which it needs workers.
//!
//! One thread, started when it is first needed. A request that waits here is answered by it.

use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use crate::wire::Notifier;

/// Pages of a file that the kernel is to write, and to drop: from a byte on, so many or all (0).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pages {
    pub(crate) node: u64,
    pub(crate) offset: i64,
    pub(crate) len: i64,
}

impl Pages {
    /// All of a file.
    pub(crate) fn all(node: u64) -> Self {
        Self {
            node,
            offset: 0,
            len: 0,
        }
    }
}

type Job = (Vec<Pages>, Box<dyn FnOnce() + Send>);

/// The thread's desk.
#[derive(Default)]
pub(crate) struct Aside {
    queue: OnceLock<mpsc::Sender<Job>>,
}

impl Aside {
    /// Has pages written and dropped, then does the rest.
    pub(crate) fn after_pages(
        &self,
        pages: Vec<Pages>,
        notifier: &Arc<OnceLock<Notifier>>,
        rest: impl FnOnce() + Send + 'static,
    ) {
        let queue = self.queue.get_or_init(|| {
            let (send, jobs) = mpsc::channel::<Job>();
            let notifier = notifier.clone();
            let body = move || {
                for (pages, rest) in jobs {
                    let notifier = notifier.get();
                    for (notifier, p) in notifier.into_iter().cycle().zip(pages) {
                        notifier.content_changed(p.node, p.offset, p.len);
                    }
                    rest();
                }
            };
            if let Err(e) = thread::Builder::new().name("aside".to_owned()).spawn(body) {
                tracing::error!("no thread to have pages written by: {e}");
            }
            send
        });
        if let Err(mpsc::SendError((_, rest))) = queue.send((pages, Box::new(rest))) {
            rest();
        }
    }
}
