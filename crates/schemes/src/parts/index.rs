//! The newest committed version of each block that is not home.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use stetfs_format::BlockNo;
use stetfs_format::width::usize_as_u64;
use stetfs_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The newest version of a block, as an index has it.
pub(crate) trait Indexed {
    /// True when home does not have it. A version that is home stays listed as long as the log has
    /// bytes of it.
    fn is_held(&self) -> bool {
        true
    }

    /// True when its content is in memory.
    fn is_here(&self) -> bool {
        self.is_held()
    }
}

pub(crate) struct Index<V> {
    versions: RwLock<Versions<V>>,
    /// The number of held versions, readable without the lock.
    held: AtomicUsize,
    /// The number of versions whose content is in memory, readable without the lock.
    here: AtomicUsize,
}

/// Versions by their homes.
pub(crate) struct Versions<V> {
    map: HashMap<BlockNo, V>,
    held: usize,
    here: usize,
}

impl<V: Indexed> Versions<V> {
    /// Counts a version that is added.
    fn count(&mut self, version: &V) {
        self.held += usize::from(version.is_held());
        self.here += usize::from(version.is_here());
    }

    /// Takes a version that is removed out of the counts.
    fn discount(&mut self, version: &V) {
        self.held -= usize::from(version.is_held());
        self.here -= usize::from(version.is_here());
    }
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Self {
            versions: RwLock::new(Versions {
                map: HashMap::new(),
                held: 0,
                here: 0,
            }),
            held: AtomicUsize::new(0),
            here: AtomicUsize::new(0),
        }
    }
}

impl<V: Indexed> Index<V> {
    /// Returns the number of held blocks.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Returns the number of blocks whose content is in memory.
    pub(crate) fn here(&self) -> usize {
        self.here.load(Relaxed)
    }

    /// Returns the result of `look` for a block's version, if that is held. No checkpoint ends
    /// during `look`, because after it the home may get another owner.
    pub(crate) fn find<T>(&self, block: BlockNo, look: impl FnOnce(&V) -> Option<T>) -> Option<T> {
        if self.held() == 0 {
            return None;
        }
        let versions = self.versions.read();
        versions
            .map
            .get(&block)
            .filter(|v| v.is_held())
            .and_then(look)
    }

    /// True when one of `count` blocks from `start` on may be held.
    pub(crate) fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        if self.held() == 0 {
            return false;
        }
        let versions = self.versions.read();
        let holds = |block| versions.map.get(&block).is_some_and(V::is_held);
        u64::from(count) > usize_as_u64(versions.map.len())
            || (0..u64::from(count)).any(|i| holds(start.plus(i)))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Versions<V>> {
        self.versions.read()
    }

    /// Locks the index for changes. The counts change when the guard is dropped.
    pub(crate) fn write(&self) -> Changing<'_, V> {
        Changing {
            versions: self.versions.write(),
            held: &self.held,
            here: &self.here,
        }
    }
}

impl<V> Deref for Versions<V> {
    type Target = HashMap<BlockNo, V>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

/// Versions that are being changed.
pub(crate) struct Changing<'a, V> {
    versions: RwLockWriteGuard<'a, Versions<V>>,
    held: &'a AtomicUsize,
    here: &'a AtomicUsize,
}

impl<V: Indexed> Changing<'_, V> {
    /// Gives a block another version; returns the one before.
    pub(crate) fn insert(&mut self, block: BlockNo, version: V) -> Option<V> {
        self.versions.count(&version);
        let before = self.versions.map.insert(block, version);
        self.forget(before)
    }

    /// Removes a block; returns its version.
    pub(crate) fn remove(&mut self, block: &BlockNo) -> Option<V> {
        let before = self.versions.map.remove(block);
        self.forget(before)
    }

    fn forget(&mut self, before: Option<V>) -> Option<V> {
        if let Some(before) = &before {
            self.versions.discount(before);
        }
        before
    }

    /// Changes a version, if there is one, and updates the counts.
    pub(crate) fn change(&mut self, block: &BlockNo, change: impl FnOnce(&mut V)) {
        let versions = &mut *self.versions;
        if let Some(version) = versions.map.get_mut(block) {
            let was = (version.is_held(), version.is_here());
            change(version);
            let is = (version.is_held(), version.is_here());
            versions.held = versions.held + usize::from(is.0) - usize::from(was.0);
            versions.here = versions.here + usize::from(is.1) - usize::from(was.1);
        }
    }

    /// Changes the version of a block, or a new one if there is none.
    pub(crate) fn change_or_insert(
        &mut self,
        block: BlockNo,
        new: impl FnOnce() -> V,
        change: impl FnOnce(&mut V),
    ) {
        if !self.versions.map.contains_key(&block) {
            self.insert(block, new());
        }
        self.change(&block, change);
    }
}

impl<V> Deref for Changing<'_, V> {
    type Target = HashMap<BlockNo, V>;

    fn deref(&self) -> &Self::Target {
        &self.versions.map
    }
}

impl<V> Drop for Changing<'_, V> {
    fn drop(&mut self) {
        self.held.store(self.versions.held, Relaxed);
        self.here.store(self.versions.here, Relaxed);
    }
}
