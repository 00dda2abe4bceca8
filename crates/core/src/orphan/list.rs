//! The chain of orphans in memory. It is doubly linked, so that any orphan can leave it.

use hashbrown::HashMap;
use stetfs_format::InodeNo;
use stetfs_sync::Mutex;

/// The orphans of a volume.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(super) list: Mutex<List>,
}

#[derive(Default)]
pub(super) struct List {
    pub(super) links: HashMap<InodeNo, Link>,
    pub(super) newest: Option<InodeNo>,
}

#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) newer: Option<InodeNo>,
    pub(super) older: Option<InodeNo>,
}

impl List {
    pub(super) fn push(&mut self, ino: InodeNo) {
        let older = self.newest.replace(ino);
        if let Some(link) = older.and_then(|older| self.links.get_mut(&older)) {
            link.newer = Some(ino);
        }
        self.links.insert(ino, Link { newer: None, older });
    }

    /// Returns the next older orphan.
    pub(super) fn older(&self, ino: InodeNo) -> Option<InodeNo> {
        self.links.get(&ino)?.older
    }

    pub(super) fn remove(&mut self, ino: InodeNo) {
        let Some(link) = self.links.remove(&ino) else {
            return;
        };
        if let Some(older) = link.older.and_then(|older| self.links.get_mut(&older)) {
            older.newer = link.newer;
        }
        match link.newer.and_then(|newer| self.links.get_mut(&newer)) {
            Some(newer) => newer.older = link.older,
            None => self.newest = link.older,
        }
    }
}
