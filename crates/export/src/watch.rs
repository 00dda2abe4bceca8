//! Tells when a device stops answering. Whoever waits for it at a socket only sees that nothing
//! comes, and cannot tell a slow medium from a server that hangs.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use stetfs_format::width::usize_as_u64;
use stetfs_media::{BlockDev, Cause, Layer, MediaError, Op, Tag};

/// A device whose requests are timed.
pub struct Watched {
    below: Arc<dyn BlockDev>,
    seen: Arc<Seen>,
}

/// The thread that looks at the requests of a [`Watched`] device. It ends when this is dropped.
pub struct Watch {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    state: Mutex<State>,
    /// The watch is over.
    over: Condvar,
}

#[derive(Default)]
struct State {
    /// By the order in which they began.
    under_way: BTreeMap<u64, Request>,
    begun: u64,
    is_over: bool,
}

struct Request {
    op: Op,
    offset: u64,
    len: u64,
    since: Instant,
    /// It was said that it takes long.
    is_told: bool,
}

impl Watched {
    /// Times the requests of a device, and tells by the log which has no answer for `patience`.
    ///
    /// # Errors
    /// There is no thread.
    pub fn new(below: Arc<dyn BlockDev>, patience: Duration) -> io::Result<(Self, Watch)> {
        let seen = Arc::new(Seen::default());
        let (looking, name) = (seen.clone(), below.describe());
        let thread = thread::Builder::new().name("watchdog".to_owned());
        let thread = thread.spawn(move || looking.look(&name, patience))?;
        let watch = Watch {
            seen: seen.clone(),
            thread: Some(thread),
        };
        Ok((Self { below, seen }, watch))
    }

    fn timed<T>(&self, op: Op, offset: u64, len: u64, request: impl FnOnce() -> T) -> T {
        let number = {
            let mut state = self.seen.state.lock();
            state.begun += 1;
            let number = state.begun;
            let request = Request {
                op,
                offset,
                len,
                since: Instant::now(),
                is_told: false,
            };
            state.under_way.insert(number, request);
            number
        };
        let done = request();
        let request = self.seen.state.lock().under_way.remove(&number);
        if let Some(request) = request.filter(|request| request.is_told) {
            let (name, waited) = (self.below.describe(), request.since.elapsed().as_secs());
            tracing::warn!("{name}: answered after {waited} s");
        }
        done
    }
}

impl Seen {
    /// Looks until the watch is over.
    fn look(&self, name: &str, patience: Duration) {
        let mut state = self.state.lock();
        while !state.is_over {
            // The oldest is the one that everybody waits for.
            let oldest = state.under_way.values_mut().next();
            let wait = match oldest {
                Some(request) if request.since.elapsed() >= patience => {
                    if !request.is_told {
                        tell(name, request);
                        request.is_told = true;
                    }
                    patience
                }
                Some(request) => patience.saturating_sub(request.since.elapsed()),
                None => patience,
            };
            self.over.wait_for(&mut state, wait);
        }
    }
}

fn tell(name: &str, request: &Request) {
    let Request {
        op, offset, len, ..
    } = request;
    let what = match op {
        Op::Flush => "a flush".to_owned(),
        op => format!("a {op} of {len} bytes at {offset}"),
    };
    let waited = request.since.elapsed().as_secs();
    tracing::error!(
        "{name}: no answer to {what} for {waited} s; whoever uses the device waits. Look at the \
            medium below it (dmesg)"
    );
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.seen.state.lock().is_over = true;
        self.seen.over.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Layer for Watched {
    fn below(&self) -> &dyn BlockDev {
        &*self.below
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let len = usize_as_u64(out.len());
        self.timed(Op::Read, offset, len, || {
            self.below.read_at(offset, out, tag)
        })
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = parts.iter().map(|part| usize_as_u64(part.len())).sum();
        let write = || self.below.write_vectored_at(offset, parts, tag);
        self.timed(Op::Write, offset, len, write)
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = parts.iter().map(|part| usize_as_u64(part.len())).sum();
        let write = || self.below.write_durable(offset, parts, tag);
        self.timed(Op::Write, offset, len, write)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.timed(Op::Flush, 0, 0, || self.below.flush(cause))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.timed(Op::Discard, offset, len, || self.below.discard(offset, len))
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        let zero = || self.below.write_zeros(offset, len, tag);
        self.timed(Op::Write, offset, len, zero)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use stetfs_media::RamDev;

    use super::*;

    /// A device whose flush waits for the test.
    struct Stuck(RamDev, Mutex<mpsc::Receiver<()>>);

    impl Layer for Stuck {
        fn below(&self) -> &dyn BlockDev {
            &self.0
        }

        fn flush(&self, cause: Cause) -> Result<(), MediaError> {
            self.1.lock().recv().unwrap();
            self.0.flush(cause)
        }
    }

    #[test]
    fn a_request_without_an_answer_is_told_once() {
        let (answer, waits) = mpsc::channel();
        let stuck = Arc::new(Stuck(RamDev::new(1 << 16), Mutex::new(waits)));
        let (watched, watch) = Watched::new(stuck, Duration::from_millis(20)).unwrap();
        let told = || {
            let state = watched.seen.state.lock();
            let told = state.under_way.values().filter(|request| request.is_told);
            let found: Vec<_> = told.map(|request| request.op).collect();
            found
        };
        thread::scope(|scope| {
            let flush = scope.spawn(|| BlockDev::flush(&watched, Cause::Home));
            while told().is_empty() {
                // What is answered at once is not told.
                let mut out = [0; 512];
                let tag = Tag::read(stetfs_media::Class::Data);
                BlockDev::read_at(&watched, 0, &mut out, tag).unwrap();
            }
            assert_eq!(told(), [Op::Flush]);
            answer.send(()).unwrap();
            flush.join().unwrap().unwrap();
        });
        assert!(watched.seen.state.lock().under_way.is_empty());
        drop(watch);
    }
}
