//! What the tests of the servers share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};

use stetfs_media::{BlockDev, Cause, Layer, MediaError, Op, RamDev, Tag};

use crate::ByteDev;

/// A device of which the test holds back the flushes, counts them, and lets reads fail.
#[derive(Clone)]
pub(crate) struct Held(Arc<Inner>);

struct Inner {
    below: RamDev,
    /// Flushes that may be done, and whoever waits for more.
    allowed: Mutex<u64>,
    changed: Condvar,
    begun: mpsc::SyncSender<()>,
    flushes: AtomicU64,
    fails: AtomicBool,
}

impl Held {
    /// Bytes of the device.
    pub(crate) const SIZE: u64 = 1 << 16;

    /// With a channel that tells of each flush that begins.
    pub(crate) fn new(allowed: u64) -> (Self, mpsc::Receiver<()>) {
        let (begun, is_begun) = mpsc::sync_channel(1 << 16);
        let inner = Inner {
            below: RamDev::new(Self::SIZE),
            allowed: Mutex::new(allowed),
            changed: Condvar::new(),
            begun,
            flushes: AtomicU64::new(0),
            fails: AtomicBool::new(false),
        };
        (Self(Arc::new(inner)), is_begun)
    }

    /// Lets one more flush be done.
    pub(crate) fn allow(&self) {
        *self.0.allowed.lock().unwrap() += 1;
        self.0.changed.notify_all();
    }

    /// How many were done.
    pub(crate) fn flushes(&self) -> u64 {
        self.0.flushes.load(Ordering::SeqCst)
    }

    /// Whether reads fail.
    pub(crate) fn set_failing(&self, on: bool) {
        self.0.fails.store(on, Ordering::SeqCst);
    }

    /// The device for a server.
    pub(crate) fn bytes(&self) -> Arc<ByteDev> {
        Arc::new(ByteDev::new(Arc::new(self.clone())))
    }
}

impl Layer for Held {
    fn below(&self) -> &dyn BlockDev {
        &self.0.below
    }

    fn read_at(&self, at: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(MediaError::Io {
                op: Op::Read,
                offset: at,
                len: out.len() as u64,
                source: rustix::io::Errno::IO,
            });
        }
        self.0.below.read_at(at, out, tag)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        let _ = self.0.begun.try_send(());
        let allowed = self.0.allowed.lock().unwrap();
        let mut allowed = self.0.changed.wait_while(allowed, |n| *n == 0).unwrap();
        *allowed -= 1;
        self.0.flushes.fetch_add(1, Ordering::SeqCst);
        self.0.below.flush(cause)
    }
}

/// Random numbers (xorshift), the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below this one.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}
