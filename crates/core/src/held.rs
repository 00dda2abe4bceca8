//! Removed inodes that a cache above still knows by number: a directory that is a program's working
//! directory, or a pipe that is open without this layer being told.
//!
//! Such a cache calls [`Held::begin`] once, and [`Held::forget`] for each inode that it forgets.
//! Until then, a removed inode counts as open. This excludes regular files, which are opened and
//! closed here anyway, and symbolic links, which are looked up by name.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashSet;
use stetfs_format::InodeNo;
use stetfs_sync::Mutex;

use crate::inode::{Inode, InodeState};

/// The held inodes.
#[derive(Default)]
pub(crate) struct Held {
    is_wanted: AtomicBool,
    /// The number of held inodes, readable without a lock.
    count: AtomicUsize,
    inodes: Mutex<HashSet<InodeNo>>,
}

impl Held {
    /// Holds removed inodes from now on.
    pub(crate) fn begin(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Holds an inode that has just lost its last name. Returns false if it need not be held. The
    /// caller has its lock for writing.
    pub(crate) fn hold(&self, inode: &Inode, st: &InodeState) -> bool {
        if !self.is_wanted.load(Ordering::Relaxed) || st.is_reg() || st.is_lnk() {
            return false;
        }
        let mut inodes = self.inodes.lock();
        if inodes.insert(inode.ino) {
            inode.opens.fetch_add(1, Ordering::Relaxed);
            self.count.store(inodes.len(), Ordering::Relaxed);
        }
        true
    }

    /// Returns whether an inode is held.
    pub(crate) fn has(&self, ino: InodeNo) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.inodes.lock().contains(&ino)
    }

    /// Holds an inode that another program has held. Its count of opens says so already.
    pub(crate) fn restore(&self, ino: InodeNo) {
        let mut inodes = self.inodes.lock();
        inodes.insert(ino);
        self.count.store(inodes.len(), Ordering::Relaxed);
    }

    /// Notes that the cache above has forgotten the inode. Returns true if it was held and must be
    /// released now. Takes no lock when nothing is held.
    #[must_use]
    pub(crate) fn forget(&self, ino: InodeNo) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut inodes = self.inodes.lock();
        let was_held = inodes.remove(&ino);
        self.count.store(inodes.len(), Ordering::Relaxed);
        was_held
    }
}
