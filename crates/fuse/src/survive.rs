//! Surviving the server's death (`-o survive`): the companion starts another server, which goes on
//! with the mount. Programs see a pause, and no error.
//!
//! A server that dies is to the volume as a loss of power: what was not committed is gone. The
//! kernel knows nothing of that. It has been told that files were made, written and renamed, and
//! keeps pages, names and open files. So the server writes a log of what it tells the kernel
//! (`log.rs`), in memory that the companion holds too. The next server reads it, and
//! 1. mounts the volume, with everything in use that the kernel has open;
//! 2. does all answered requests once more, in their order, that the volume has lost: with the same
//!    inode numbers, generations and times ([`stetfs::Fs::redo`]; `redo.rs`);
//! 3. makes that durable, begins a log of its own, and starts a companion of its own;
//! 4. has the kernel send once more what was not answered (FUSE_NOTIFY_RESEND).
//!
//! *What is sent once more* may have been carried out before, and be durable. Most requests leave
//! the same when they are done twice. The others have a record of their beginning, with what tells
//! whether they were done: the kernel has one change of names at a time under way in a directory,
//! and on such a mount a directory counts the changes of its names. And the server may have died
//! between the record of an answer and its sending; then the log has the answer.
//!
//! *What is not logged* is made durable before it is answered: flags, label, generation, and the
//! removing and inserting of ranges.
//!
//! *What dies with the server*: an open transaction (group, layer). While there is one, the mount
//! ends with its server, as any other. So it does if too many servers die within a minute.

mod answered;
mod before;
mod guard;
mod log;
mod records;
mod redo;
mod requests;
mod uses;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use log::{Log, Start};
use records::Begun;

pub(crate) use before::Before;
pub(crate) use guard::{Guard, Heir, Succeeded, Succession, now_ns};
pub(crate) use uses::Uses;

/// A server's part in surviving.
#[derive(Default)]
pub(crate) struct Survive {
    log: OnceLock<Arc<Log>>,
    guard: OnceLock<Guard>,
    /// What the log begins with.
    begins_with: Mutex<Start>,
    /// What the server before has left unanswered.
    unanswered: OnceLock<Unanswered>,
}

/// Requests that the kernel may send once more.
#[derive(Default)]
struct Unanswered {
    /// The answers that may not have been sent.
    answers: HashMap<u64, log::Answered>,
    /// Those that have begun.
    begun: HashMap<u64, Begun>,
}

impl Survive {
    pub(crate) fn answered(&self, unique: u64) -> Option<&log::Answered> {
        self.unanswered.get()?.answers.get(&unique)
    }

    fn begun(&self, unique: u64) -> Option<Begun> {
        self.unanswered.get()?.begun.get(&unique).copied()
    }

    /// Notes what is in use in a mount that another program has handed over.
    pub(crate) fn goes_on_with(&self, uses: Uses) {
        self.begins_with.lock().uses = uses;
    }

    /// Notes what is in use in the mount of a server that has died, and what was not answered. This
    /// server may die before it is asked again.
    fn goes_on_after(&self, uses: Uses, before: &Before) {
        let last = before.answers.len().saturating_sub(log::ANSWERS_KEPT);
        let answers = &before.answers[last..];
        let begun = before.begun.iter();
        *self.begins_with.lock() = Start {
            uses,
            begun: begun
                .map(|(unique, (begun, request))| {
                    (*unique, [bytemuck::bytes_of(begun), request].concat())
                })
                .collect(),
            answers: answers.to_vec(),
            is_bound: false,
        };
        let begun = before.begun.iter();
        let _ = self.unanswered.set(Unanswered {
            answers: answers.iter().cloned().collect(),
            begun: begun
                .map(|(unique, (begun, _))| (*unique, *begun))
                .collect(),
        });
    }

    /// Returns what is in use, for another program.
    pub(crate) fn uses(&self) -> Uses {
        let log = self.log.get();
        log.map_or_else(Uses::default, |log| log.with_uses(|uses| uses.clone()))
    }

    /// Returns when the last server of this mount has died, in nanoseconds since the system
    /// started.
    pub(crate) fn last_death_ns(&self) -> Option<u64> {
        self.guard.get().map(Guard::last_death_ns)
    }

    /// Returns how many servers of this mount have died.
    pub(crate) fn deaths(&self) -> u64 {
        self.guard.get().map_or(0, Guard::deaths)
    }

    /// Leaves the guard to another program, if there is one.
    pub(crate) fn leave_guard(
        &self,
        leave: impl FnOnce(&File) -> io::Result<u32>,
    ) -> io::Result<Option<u32>> {
        self.guard
            .get()
            .map(|guard| leave(guard.file()))
            .transpose()
    }

    /// Ends the log.
    pub(crate) fn end(&self) {
        if let Some(log) = self.log.get() {
            log.end();
        }
    }
}
