//! The thread that waits for the kernel to write or drop its pages of a file. No worker can wait
//! for that, since the kernel needs workers for it, and slots.
//!
//! The thread starts when it is first needed. It answers the requests that wait for it.
//!
//! *Slots.* The kernel limits its requests under way for which no call waits (`max_background`):
//! readahead, write-back, asynchronous direct reads and writes. It needs a slot to write a page, or
//! to read one that is to be dropped. An asynchronous direct write that waits here for pages to be
//! dropped has a slot, and keeps it until it is answered. If such writes held all slots, nothing
//! would ever end. So they hold at most half of them here; over io_uring fewer, since each keeps a
//! worker too. A direct write beyond that is answered at once, and its pages are dropped right
//! after the thread's present job.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use parking_lot::Mutex;
use stetfs_format::InodeNo;

use crate::attr::node;
use crate::wire::Notifier;
use crate::wire::abi::{InHeader, WriteIn};

/// Pages of a file that the kernel is to write and drop: `len` bytes from `offset` on; a `len` of 0
/// means all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) node: u64,
    pub(crate) offset: i64,
    pub(crate) len: i64,
}

impl Pages {
    /// All pages of a file.
    pub(crate) fn all(node: u64) -> Self {
        Self {
            node,
            offset: 0,
            len: 0,
        }
    }

    /// All pages of each of these files.
    pub(crate) fn of_files(files: impl IntoIterator<Item = InodeNo>) -> Vec<Self> {
        files.into_iter().map(node).map(Self::all).collect()
    }

    /// The pages of a direct write that wrote `size` bytes.
    pub(crate) fn written(header: &InHeader, from: &WriteIn, size: u32) -> Self {
        Self {
            node: header.nodeid,
            offset: from.offset.cast_signed(),
            len: i64::from(size),
        }
    }

    /// No pages: only the attributes.
    pub(crate) fn none(node: u64) -> Self {
        Self {
            node,
            offset: -1,
            len: 0,
        }
    }

    /// Returns a range that covers both; they are of one file.
    fn with(self, other: Self) -> Self {
        if other.offset < 0 {
            return self;
        }
        if self.offset < 0 {
            return other;
        }
        let end = |pages: Self| match pages.len {
            0 => i64::MAX,
            len => pages.offset.saturating_add(len),
        };
        let offset = self.offset.min(other.offset);
        let len = match end(self).max(end(other)) {
            i64::MAX => 0,
            end => end - offset,
        };
        Self {
            node: self.node,
            offset,
            len,
        }
    }
}

type Job = (Vec<Pages>, Box<dyn FnOnce() + Send>);

/// The thread and its queue.
pub(crate) struct Aside {
    queue: OnceLock<mpsc::Sender<Job>>,
    notifier: Arc<OnceLock<Notifier>>,
    /// Pages to be dropped for which nobody waits: one range for each file.
    owed: Arc<Mutex<HashMap<u64, Pages>>>,
    /// How many requests with a slot wait here (`taken`), and how many may (`places`).
    taken: Arc<AtomicUsize>,
    places: AtomicUsize,
}

/// The right of a request with a slot to wait here.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Aside {
    pub(crate) fn new(notifier: Arc<OnceLock<Notifier>>) -> Self {
        Self {
            queue: OnceLock::new(),
            notifier,
            owed: Arc::default(),
            taken: Arc::default(),
            places: AtomicUsize::new(0),
        }
    }

    /// Sets how many requests with a slot may wait.
    pub(crate) fn note_places(&self, places: usize) {
        self.places.store(places, Ordering::Relaxed);
    }

    /// Takes a place, without which no request with a slot may wait. `None`: too many wait.
    pub(crate) fn place(&self) -> Option<Place> {
        let max = self.places.load(Ordering::Relaxed);
        let take = |taken: usize| (taken < max).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()?;
        Some(Place(self.taken.clone()))
    }

    /// Has pages written and dropped soon. Nobody waits for it.
    pub(crate) fn soon(&self, pages: Vec<Pages>) {
        let was_empty = {
            let mut owed = self.owed.lock();
            let was_empty = owed.is_empty();
            for p in pages {
                owed.entry(p.node)
                    .and_modify(|all| *all = all.with(p))
                    .or_insert(p);
            }
            was_empty
        };
        if was_empty {
            self.after_pages(Vec::new(), || {});
        }
    }

    /// Has pages written and dropped, then calls `rest`. A request with a slot needs a [`Place`] to
    /// wait for it.
    pub(crate) fn after_pages(&self, pages: Vec<Pages>, rest: impl FnOnce() + Send + 'static) {
        let queue = self.queue.get_or_init(|| {
            let (send, jobs) = mpsc::channel::<Job>();
            let (notifier, owed) = (self.notifier.clone(), self.owed.clone());
            let body = move || {
                let drop_all = |pages: Vec<Pages>| {
                    let notifier = notifier.get();
                    for (notifier, p) in notifier.into_iter().cycle().zip(pages) {
                        notifier.content_changed(p.node, p.offset, p.len);
                    }
                };
                for (pages, rest) in jobs {
                    drop_all(pages);
                    rest();
                    let owed = std::mem::take(&mut *owed.lock());
                    drop_all(owed.into_values().collect());
                }
            };
            if let Err(e) = thread::Builder::new().name("aside".to_owned()).spawn(body) {
                tracing::error!("no thread for writing pages back: {e}");
            }
            send
        });
        if let Err(mpsc::SendError((_, rest))) = queue.send((pages, Box::new(rest))) {
            rest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_covers_all_that_is_owed_of_a_file() {
        let pages = |offset, len| Pages {
            node: 12,
            offset,
            len,
        };
        assert_eq!(pages(4096, 4096).with(pages(0, 512)), pages(0, 8192));
        assert_eq!(pages(0, 512).with(pages(4096, 4096)), pages(0, 8192));
        assert_eq!(pages(4096, 0).with(pages(8192, 512)), pages(4096, 0));
        assert_eq!(pages(8192, 512).with(Pages::all(12)), Pages::all(12));
        assert_eq!(Pages::none(12).with(pages(8192, 512)), pages(8192, 512));
        assert_eq!(pages(0, 512).with(Pages::none(12)), pages(0, 512));
        assert_eq!(pages(i64::MAX - 1, 512).with(pages(1, 1)), pages(1, 0));
    }

    #[test]
    fn as_many_wait_as_there_are_places() {
        let aside = Aside::new(Arc::default());
        aside.note_places(4);
        let (release, gate) = mpsc::channel::<()>();
        // Keep the thread busy, as if the kernel had no slot to write a page.
        aside.after_pages(Vec::new(), move || gate.recv().unwrap());
        let (tell, told) = mpsc::channel();
        let ask = |n| {
            let tell = tell.clone();
            let rest = move || tell.send(n).unwrap();
            match aside.place() {
                Some(place) => aside.after_pages(vec![Pages::all(n)], move || {
                    rest();
                    drop(place);
                }),
                None => rest(),
            }
        };
        (1..=6).for_each(ask);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [5, 6]);
        release.send(()).unwrap();
        let waited: Vec<_> = (0..4).map(|_| told.recv().unwrap()).collect();
        assert_eq!(waited, [1, 2, 3, 4]);
        // All have left, so there is a place again.
        let (done, end) = mpsc::channel();
        aside.after_pages(Vec::new(), move || done.send(()).unwrap());
        end.recv().unwrap();
        assert_eq!(aside.taken.load(Ordering::Relaxed), 0);
        ask(7);
        assert_eq!(told.recv(), Ok(7));
    }
}
