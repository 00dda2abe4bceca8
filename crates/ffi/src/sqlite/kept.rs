//! Rollback journals that stay in memory, because a group of writes takes their place.
//!
//! SQLite writes the old pages to a rollback journal, syncs it, writes the new pages and syncs them
//! ("Atomic Commit In SQLite"). Where the new pages can be a group, which happens entirely or not
//! at all, only the connection that wrote the journal needs it, for a ROLLBACK. So the journal
//! stays in memory, without a sync, and the pages are staged. SQLite's pager does the same if it
//! was built with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`; Debian's was not.
//!
//! The journal is written after all, and durable before any of the pages:
//!
//! - when no group can begin, or the group can hold no more;
//! - when a super-journal joins the transaction with those of other databases, since their common
//!   commit is in the journals;
//! - on a mount, when the database is to become shorter while pages are staged: groups there hold
//!   writes only.
//!
//! When a change fails even so, the group is dropped at once: the database is as it was before the
//! transaction. SQLite then rolls back, perhaps much later (`PRAGMA locking_mode = EXCLUSIVE`), and
//! only writes what is there already.
#![forbid(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libsqlite3_sys as ffi;

use super::contract::{Failure, File, Files, Level, Opening, Result, as_the_file_below_does};

/// A journal, shared by its own file and the file of its database.
pub(super) type Slot = Arc<Mutex<Journal>>;

pub(super) enum Journal {
    /// It is not open, or it is an ordinary file.
    None,
    Kept(Kept),
    Written(Box<dyn File>),
}

/// A journal in memory.
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// Where it is written, if it must be.
    files: &'static dyn Files,
    how: Opening,
}

impl Journal {
    fn file(&mut self) -> Result<&mut dyn File> {
        match self {
            Self::Kept(kept) => Ok(kept),
            Self::Written(file) => Ok(&mut **file),
            Self::None => Err(Failure::Other),
        }
    }
}

fn lock(slot: &Slot) -> MutexGuard<'_, Journal> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

const PIECE: usize = 64 << 10;

impl Kept {
    fn write_out(&self) -> Result<Box<dyn File>> {
        let (mut file, _) = self.files.open(&self.how)?;
        match self.write_to(&mut *file) {
            Ok(()) => Ok(file),
            Err(e) => {
                // Half of a journal would be rolled back later, over what is committed by then.
                let _ = file.truncate(0);
                drop(file);
                let _ = self.files.delete(&self.how.path, true);
                Err(e)
            }
        }
    }

    fn write_to(&self, file: &mut dyn File) -> Result<()> {
        // An older journal may have left a longer file.
        file.truncate(0)?;
        // SQLite's own VFS takes less than 128 KiB at once.
        for (piece, at) in self.bytes.chunks(PIECE).zip((0..).step_by(PIECE)) {
            file.write(at, piece)?;
        }
        file.sync(ffi::SQLITE_SYNC_NORMAL)
    }
}

/// Which writes are staged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staged {
    Nobodys,
    /// Those of a transaction whose journal is in memory.
    Unjournaled,
    /// Those of a group that SQLite itself has asked for.
    Asked,
    /// None any more: a change has failed, and SQLite's rollback is all that comes before the next
    /// sync.
    Undone,
}

/// A database, whose rollback journal may stay in memory.
pub(super) struct Database {
    file: Box<dyn File>,
    journal: Slot,
    staged: Staged,
}

impl Database {
    pub(super) fn new(file: Box<dyn File>, journal: Slot) -> Self {
        Self {
            file,
            journal,
            staged: Staged::Nobodys,
        }
    }

    /// Drops what is staged if its journal was closed: SQLite gives up a failed transaction in this
    /// way. Without locks (`nolock=1`) nothing else tells.
    fn drop_abandoned(&mut self) {
        let has_journal = matches!(self.staged, Staged::Unjournaled | Staged::Undone);
        if has_journal && matches!(*lock(&self.journal), Journal::None) {
            self.abort_group();
        }
    }

    fn has_group(&self) -> bool {
        matches!(self.staged, Staged::Unjournaled | Staged::Asked)
    }

    /// Begins the transaction's group, if its journal is in memory.
    fn begin(&mut self) -> Result<()> {
        let is_kept = matches!(*lock(&self.journal), Journal::Kept(_));
        if self.staged == Staged::Nobodys && is_kept {
            self.file.begin_group()?;
            self.staged = Staged::Unjournaled;
        }
        Ok(())
    }

    /// Makes a change. If the group cannot hold it, writes the journal first.
    fn change(&mut self, change: impl Fn(&mut dyn File) -> Result<()>) -> Result<()> {
        match change(&mut *self.file) {
            Err(e) if self.staged == Staged::Unjournaled && e != Failure::Full => {
                self.write_journal()?;
                change(&mut *self.file)
            }
            changed => changed,
        }
    }

    /// Drops the group after a failure, since SQLite then gives up the transaction. A change
    /// outside of the group is protected by a journal that was written.
    fn or_undo(&mut self, done: Result<()>) -> Result<()> {
        if done.is_err() && self.staged != Staged::Asked {
            self.abort_group();
            if matches!(*lock(&self.journal), Journal::Kept(_)) {
                self.staged = Staged::Undone;
            }
        }
        done
    }

    /// Writes the journal, then commits the group: from now on the journal protects the
    /// transaction.
    fn write_journal(&mut self) -> Result<()> {
        let mut journal = lock(&self.journal);
        let Journal::Kept(kept) = &*journal else {
            return Err(Failure::Other);
        };
        let written = kept.write_out()?;
        *journal = Journal::Written(written);
        drop(journal);
        self.commit_group()
    }
}

impl File for Database {
    as_the_file_below_does!();

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.drop_abandoned();
        self.file.read(offset, out)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.drop_abandoned();
        let begun = self.begin().or_else(|_| self.write_journal());
        let written = begun.and_then(|()| self.change(|file| file.write(offset, bytes)));
        self.or_undo(written)
    }

    /// Shortens the database, in the transaction's group if there is one. SQLite also cuts off what
    /// it no longer needs when the transaction is over; that is in no group.
    fn truncate(&mut self, size: u64) -> Result<()> {
        self.drop_abandoned();
        if self.staged != Staged::Unjournaled {
            return self.file.truncate(size);
        }
        let cut = self.change(|file| file.truncate(size));
        self.or_undo(cut)
    }

    fn sync(&mut self, flags: c_int) -> Result<()> {
        self.end_transaction(false)?;
        self.file.sync(flags)
    }

    fn size(&mut self) -> Result<u64> {
        self.drop_abandoned();
        self.file.size()
    }

    /// Drops what was not committed before the lock goes.
    fn unlock(&mut self, level: Level) -> Result<()> {
        if level <= Level::Shared {
            self.abort_group();
        }
        self.file.unlock(level)
    }

    fn can_group(&mut self) -> bool {
        self.file.can_group()
    }

    fn begin_group(&mut self) -> Result<()> {
        if self.has_group() {
            return Err(Failure::Other);
        }
        self.file.begin_group()?;
        self.staged = Staged::Asked;
        Ok(())
    }

    fn commit_group(&mut self) -> Result<()> {
        if self.has_group() {
            self.file.commit_group()?;
            self.staged = Staged::Nobodys;
        }
        Ok(())
    }

    fn abort_group(&mut self) {
        if self.has_group() {
            self.file.abort_group();
        }
        self.staged = Staged::Nobodys;
    }

    fn end_transaction(&mut self, is_one_of_several: bool) -> Result<()> {
        self.drop_abandoned();
        let ended = match (self.staged, is_one_of_several) {
            (Staged::Unjournaled, true) => self.write_journal(),
            (Staged::Unjournaled, false) => self.commit_group(),
            (Staged::Undone, _) => {
                self.staged = Staged::Nobodys;
                return Ok(());
            }
            (Staged::Nobodys | Staged::Asked, _) => return Ok(()),
        };
        self.or_undo(ended)
    }
}

/// The file of a journal that is in memory, or was.
pub(super) struct JournalFile(Slot);

impl JournalFile {
    pub(super) fn keep(slot: &Slot, files: &'static dyn Files, how: Opening) -> Self {
        *lock(slot) = Journal::Kept(Kept {
            bytes: Vec::new(),
            files,
            how,
        });
        Self(slot.clone())
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        *lock(&self.0) = Journal::None;
    }
}

impl File for JournalFile {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        lock(&self.0).file()?.read(offset, out)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        lock(&self.0).file()?.write(offset, bytes)
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        lock(&self.0).file()?.truncate(size)
    }

    fn sync(&mut self, flags: c_int) -> Result<()> {
        lock(&self.0).file()?.sync(flags)
    }

    fn size(&mut self) -> Result<u64> {
        lock(&self.0).file()?.size()
    }

    fn characteristics(&mut self) -> c_int {
        0
    }
}

fn place(offset: u64) -> Result<usize> {
    usize::try_from(offset).map_err(|_| Failure::Other)
}

impl File for Kept {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let there = self.bytes.get(place(offset)?..).unwrap_or_default();
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }

    fn write(&mut self, offset: u64, new: &[u8]) -> Result<()> {
        let at = place(offset)?;
        let end = at.checked_add(new.len()).ok_or(Failure::Other)?;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(new);
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        self.bytes.resize(place(size)?, 0);
        Ok(())
    }

    /// Does nothing: a journal that a crash could make necessary is written to its file.
    fn sync(&mut self, _flags: c_int) -> Result<()> {
        Ok(())
    }

    fn size(&mut self) -> Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn characteristics(&mut self) -> c_int {
        0
    }
}
