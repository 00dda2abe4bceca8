//! Removed inodes that a cache above this one still knows by number: a directory that is somebody's
//! working directory, a pipe that is open without this layer being told.
//!
//! Such a cache says that it wants this ([`Held::begin`]) and when it has forgotten an inode. Until
//! then a removed one counts as open. Regular files are opened and closed here in any case, and
//! symbolic links are looked at by their names.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashSet;
use stetfs_format::InodeNo;
use stetfs_sync::Mutex;

use crate::inode::{Inode, InodeState};

/// Which inodes those are.
#[derive(Default)]
pub(crate) struct Held {
    is_wanted: AtomicBool,
    /// How many there are, to be asked without a lock.
    count: AtomicUsize,
    inodes: Mutex<HashSet<InodeNo>>,
}

impl Held {
    /// From now on removed inodes are held.
    pub(crate) fn begin(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Holds an inode that has just lost its last name, if that is wanted. The caller has its lock
    /// for writing.
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

    /// The cache above has forgotten the inode; whether it was held, and is to be released now.
    /// Free if it was not.
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
