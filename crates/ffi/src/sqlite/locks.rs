//! Locks and shared memory of databases that only connections of this process can reach.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libsqlite3_sys as ffi;
use stetfs_format::InodeNo;

use super::contract::{Failure, Level, Result};

/// One open file of a database, with its locks.
pub(super) struct Party {
    number: u64,
    shared: Arc<Database>,
    /// True if it has mapped the shared memory.
    is_mapped: bool,
}

/// What the connections of a database share.
#[derive(Default)]
struct Database {
    /// The levels of the files that have the database locked.
    levels: Mutex<HashMap<u64, Level>>,
    memory: Mutex<Memory>,
}

/// The shared memory of a write-ahead log.
#[derive(Default)]
struct Memory {
    regions: Vec<Box<[AtomicU64]>>,
    /// For each file that maps it: its shared and its exclusive locks, a bit for each slot.
    locks: HashMap<u64, (u32, u32)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open databases of a volume, by inode.
#[derive(Default)]
pub(super) struct Parties {
    databases: Mutex<HashMap<InodeNo, Weak<Database>>>,
    next: AtomicU64,
}

impl Parties {
    /// Adds a party for a file, which stays open as long as the party lives.
    pub(super) fn join(&self, ino: InodeNo) -> Party {
        let mut databases = lock(&self.databases);
        databases.retain(|_, database| database.strong_count() > 0);
        let found = databases.get(&ino).and_then(Weak::upgrade);
        let shared = found.unwrap_or_default();
        databases.insert(ino, Arc::downgrade(&shared));
        Party {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            shared,
            is_mapped: false,
        }
    }
}

impl Party {
    /// Locks the database. False: another party's lock forbids it. A party that waits for readers
    /// to go keeps new ones out.
    pub(super) fn lock(&self, level: Level) -> bool {
        let mut levels = lock(&self.shared.levels);
        let others = levels.iter().filter(|(number, _)| **number != self.number);
        let strongest = others.map(|(_, level)| *level).max().unwrap_or(Level::None);
        let is_free = match level {
            Level::None | Level::Shared => strongest < Level::Pending,
            Level::Reserved | Level::Pending | Level::Exclusive => strongest < Level::Reserved,
        };
        if !is_free {
            return false;
        }
        let gets = match level {
            Level::Exclusive if strongest > Level::None => Level::Pending,
            level => level,
        };
        levels.insert(self.number, gets);
        gets == level
    }

    pub(super) fn unlock(&self, level: Level) {
        let mut levels = lock(&self.shared.levels);
        match level {
            Level::None => drop(levels.remove(&self.number)),
            level => drop(levels.insert(self.number, level)),
        }
    }

    pub(super) fn is_reserved(&self) -> bool {
        let levels = lock(&self.shared.levels);
        levels.values().any(|level| *level >= Level::Reserved)
    }

    pub(super) fn map(&mut self, region: c_int, bytes: c_int, extend: bool) -> Result<*mut c_void> {
        let region = usize::try_from(region).map_err(|_| Failure::Other)?;
        let words = usize::try_from(bytes).map_err(|_| Failure::Other)? / size_of::<AtomicU64>();
        let mut memory = lock(&self.shared.memory);
        memory.locks.entry(self.number).or_default();
        self.is_mapped = true;
        if extend {
            while memory.regions.len() <= region {
                let new = std::iter::repeat_with(AtomicU64::default).take(words);
                memory.regions.push(new.collect());
            }
        }
        let found = memory.regions.get(region);
        Ok(found.map_or(null_mut(), |words| words.as_ptr().cast_mut().cast()))
    }

    /// Locks or unlocks slots of the shared memory. False: another party's lock forbids it.
    pub(super) fn lock_memory(&self, first: c_int, count: c_int, flags: c_int) -> bool {
        let mask = ((1_u32 << count) - 1) << first;
        let mut memory = lock(&self.shared.memory);
        let others = memory.locks.iter().filter(|(n, _)| **n != self.number);
        let (shared, exclusive) = others.fold((0, 0), |(s, e), (_, l)| (s | l.0, e | l.1));
        let mine = memory.locks.entry(self.number).or_default();
        if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            *mine = (mine.0 & !mask, mine.1 & !mask);
            return true;
        }
        let is_exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
        let in_the_way = if is_exclusive {
            shared | exclusive
        } else {
            exclusive
        };
        if in_the_way & mask != 0 {
            return false;
        }
        if is_exclusive {
            mine.1 |= mask;
        } else {
            mine.0 |= mask;
        }
        true
    }

    pub(super) fn barrier(&self) {
        fence(Ordering::SeqCst);
        drop(lock(&self.shared.memory));
    }

    /// Unmaps the shared memory. The last party frees it; the next connection makes it anew from
    /// the log.
    pub(super) fn unmap(&mut self) {
        if std::mem::take(&mut self.is_mapped) {
            let mut memory = lock(&self.shared.memory);
            memory.locks.remove(&self.number);
            if memory.locks.is_empty() {
                memory.regions.clear();
            }
        }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.unmap();
        self.unlock(Level::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writes_beside_readers_and_waits_for_them_in_the_end() {
        let volume = Parties::default();
        let parties: [_; 3] = std::array::from_fn(|_| volume.join(InodeNo(12)));
        let [a, b, c] = &parties;
        assert!(a.lock(Level::Shared) && b.lock(Level::Shared));
        assert!(a.lock(Level::Reserved) && b.is_reserved());
        assert!(c.lock(Level::Shared));
        assert!(!b.lock(Level::Reserved) && !b.lock(Level::Exclusive));
        c.unlock(Level::None);
        // While a reader is left, no new one gets in.
        assert!(!a.lock(Level::Exclusive));
        assert!(!c.lock(Level::Shared));
        b.unlock(Level::None);
        assert!(a.lock(Level::Exclusive));
        assert!(!b.lock(Level::Shared));
        a.unlock(Level::Shared);
        assert!(b.lock(Level::Shared) && !b.is_reserved());
        assert!(volume.join(InodeNo(13)).lock(Level::Exclusive));
    }

    #[test]
    fn memory_is_everybodys_and_its_locks_are_not() {
        const READ: c_int = ffi::SQLITE_SHM_LOCK | ffi::SQLITE_SHM_SHARED;
        const WRITE: c_int = ffi::SQLITE_SHM_LOCK | ffi::SQLITE_SHM_EXCLUSIVE;
        let volume = Parties::default();
        let (mut a, mut b) = (volume.join(InodeNo(12)), volume.join(InodeNo(12)));
        assert!(a.map(1, 32_768, false).unwrap().is_null());
        let first = a.map(1, 32_768, true).unwrap();
        assert!(!first.is_null());
        assert_eq!(b.map(1, 32_768, false).unwrap(), first);
        assert!(a.lock_memory(3, 1, READ) && b.lock_memory(3, 1, READ));
        assert!(!a.lock_memory(3, 1, WRITE) && a.lock_memory(4, 4, WRITE));
        assert!(!b.lock_memory(7, 1, READ));
        a.unmap();
        assert!(b.lock_memory(3, 5, WRITE));
        b.unmap();
        assert!(a.map(1, 32_768, false).unwrap().is_null());
    }
}
