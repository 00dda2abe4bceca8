//! Groups of writes through a mount: F2FS's ioctls for atomic writes, and two of our own.
//!
//! SQLite knows F2FS's ioctls, if it was built with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`. Between
//! START and COMMIT, writes through the open file are staged. COMMIT makes them one durable
//! transaction. ABORT, or closing the file, also by dying, drops them. BEGIN is a START that
//! returns the group's name; with the name other open files JOIN. Any of them may commit or abort.
//! Closing one that joined leaves what it has staged in the group.
//!
//! The numbers and the feature bit are those of `linux/f2fs.h` and F2FS's `f2fs.h`. F2FS calls
//! ABORT `F2FS_IOC_ABORT_ATOMIC_WRITE`, and called it ABORT_VOLATILE_WRITE before. Our own are in
//! `crates/ffi/include/stetfs_ioctl.h`, with a type that Linux' list does not have
//! (`Documentation/userspace-api/ioctl/ioctl-number.rst`).
//!
//! Only a file whose writes come here as they are made can have a group: a file that is marked
//! atomic or was opened with O_DIRECT. Pages in the kernel's cache belong to all who have the file
//! open, and a writer through the cache writes whole pages later. So a file has either groups or
//! such writers ([`Hold`]).

mod requests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use stetfs_format::InodeNo;

use crate::backend::AtomicGroup;
use crate::errno::Outcome;
use crate::ioctl::numbers::{READ, WRITE, number};
use crate::opens::{Hold, How};
use crate::wire::abi;

const F2FS: u8 = 0xf5;
/// `F2FS_IOC_START_ATOMIC_WRITE`.
pub(crate) const START: u32 = number(0, F2FS, 1, 0);
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
pub(crate) const COMMIT: u32 = number(0, F2FS, 2, 0);
/// `F2FS_IOC_ABORT_ATOMIC_WRITE`.
pub(crate) const ABORT: u32 = number(0, F2FS, 5, 0);
/// `F2FS_IOC_GET_FEATURES`.
pub(crate) const GET_FEATURES: u32 = number(READ, F2FS, 12, 4);
/// `F2FS_FEATURE_ATOMIC_WRITE`.
const ATOMIC_WRITE: u32 = 0x0004;

pub(crate) const STETFS: u8 = 0xe7;
/// `STETFS_IOC_BEGIN_GROUP`.
pub(crate) const BEGIN: u32 = number(READ, STETFS, 1, 16);
/// `STETFS_IOC_JOIN_GROUP`.
pub(crate) const JOIN: u32 = number(WRITE, STETFS, 2, 16);

/// A group's name. It cannot be guessed, and everybody who knows it may join.
pub(crate) type Name = [u8; 16];

/// Draws a random name.
pub(crate) fn new_name() -> Outcome<Name> {
    let mut name = Name::default();
    rustix::rand::getrandom(&mut name, GetRandomFlags::empty())?;
    Ok(name)
}

/// A request to an open file that may have a group. It needs a [`Hold`] on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// `F2FS_IOC_GET_FEATURES`.
    Features,
    /// `F2FS_IOC_START_ATOMIC_WRITE`.
    Start,
    /// `STETFS_IOC_BEGIN_GROUP`: the same, and it returns the name.
    Begin,
    /// `STETFS_IOC_JOIN_GROUP`.
    Join(Name),
}

impl Ask {
    /// Decodes an ioctl; `None` for any other request.
    pub(crate) fn by_ioctl(cmd: u32, data: &[u8]) -> Option<Outcome<Self>> {
        Some(Ok(match cmd {
            GET_FEATURES => Self::Features,
            START => Self::Start,
            BEGIN => Self::Begin,
            JOIN => match data.first_chunk() {
                Some(name) => Self::Join(*name),
                None => return Some(Err(Errno::INVAL)),
            },
            _ => return None,
        }))
    }
}

/// Puts an ioctl's answer before these bytes.
fn ioctl_answer(told: Vec<u8>) -> Vec<u8> {
    [bytemuck::bytes_of(&abi::IoctlOut::default()), &told].concat()
}

/// A group that open files share, and the workers that serve them.
struct Shared {
    /// The name, once somebody has asked for it.
    name: OnceLock<Name>,
    state: Mutex<State>,
    /// Holds on the files that were in it, closed ones too.
    holds: Mutex<Vec<Hold>>,
}

impl Shared {
    /// Returns the answer for the open file that begins the group.
    fn told(&self, ask: Ask) -> Outcome<Vec<u8>> {
        match ask {
            Ask::Begin => Ok(self.name()?.to_vec()),
            _ => Ok(Vec::new()),
        }
    }

    fn name(&self) -> Outcome<Name> {
        match self.name.get() {
            Some(name) => Ok(*name),
            None => {
                let name = new_name()?;
                Ok(*self.name.get_or_init(|| name))
            }
        }
    }
}

enum State {
    Open(Box<dyn AtomicGroup>),
    /// Committed. A worker that found the group before then goes on without a group.
    Done,
    /// Aborted. Other open files in it get an error at their next request: what they wrote is gone.
    Lost,
}

/// An open file's part in a group.
struct Member {
    group: Arc<Shared>,
    /// True: the group ends with this open file.
    has_begun: bool,
}

/// The groups of open files.
#[derive(Default)]
pub(crate) struct Groups {
    /// By inode and file handle. Lock this inside of a group's own lock, never around it.
    members: Mutex<HashMap<(InodeNo, u64), Member>>,
    /// Number of members. It is mostly 0, and reading it needs no lock.
    count: AtomicUsize,
    /// The number of the next open file.
    next: AtomicU64,
}

impl Groups {
    /// Makes a file handle that no other open file has.
    pub(crate) fn handle(&self, how: How) -> u64 {
        how.numbered(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of the next open file.
    pub(crate) fn next_handle(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Begins with this number.
    pub(crate) fn begin_with(&self, next: u64) {
        self.next.store(next, Ordering::Relaxed);
    }

    /// Returns whether any file is in a group.
    pub(crate) fn are_open(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn of(&self, ino: InodeNo, handle: u64) -> Option<Arc<Shared>> {
        if !self.are_open() {
            return None;
        }
        let members = self.members.lock();
        let member = members.get(&(ino, handle))?;
        Some(member.group.clone())
    }

    /// Returns whether writes through this open file are staged.
    pub(crate) fn has(&self, ino: InodeNo, handle: u64) -> bool {
        self.of(ino, handle).is_some()
    }

    fn named(&self, name: &Name) -> Option<Arc<Shared>> {
        let members = self.members.lock();
        let member = members
            .values()
            .find(|m| m.group.name.get() == Some(name))?;
        Some(member.group.clone())
    }

    /// Takes an open file out of this group. If it is in another group, it stays there.
    fn leave(&self, member: (InodeNo, u64), group: &Arc<Shared>) {
        self.change(|members| {
            let is_in_it = |found: &Member| Arc::ptr_eq(&found.group, group);
            if members.get(&member).is_some_and(is_in_it) {
                members.remove(&member);
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<(InodeNo, u64), Member>) -> T) -> T {
        let mut members = self.members.lock();
        let done = change(&mut members);
        self.count.store(members.len(), Ordering::Release);
        done
    }

    /// Carries out a request, with a hold on the file. Without a hold, since the file has writers
    /// through the page cache, the features are 0 and any other request fails.
    fn enter(
        &self,
        member: (InodeNo, u64),
        ask: Ask,
        group: Box<dyn AtomicGroup>,
        hold: Option<Hold>,
    ) -> Outcome<Vec<u8>> {
        match (ask, hold) {
            (Ask::Features, hold) => {
                let features = if hold.is_some() { ATOMIC_WRITE } else { 0 };
                Ok(features.to_ne_bytes().to_vec())
            }
            (_, None) => Err(Errno::BUSY),
            (Ask::Start | Ask::Begin, Some(hold)) => self.begin(member, group, hold).told(ask),
            (Ask::Join(name), Some(hold)) => self.join(member, hold, &name),
        }
    }

    fn begin(&self, at: (InodeNo, u64), group: Box<dyn AtomicGroup>, hold: Hold) -> Arc<Shared> {
        let group = Arc::new(Shared {
            name: OnceLock::new(),
            state: Mutex::new(State::Open(group)),
            holds: Mutex::new(vec![hold]),
        });
        self.change(|members| {
            let member = members.entry(at).or_insert(Member {
                group,
                has_begun: true,
            });
            member.group.clone()
        })
    }

    /// Joins the group of that name: writes through this open file are staged in it from now on.
    fn join(&self, at: (InodeNo, u64), hold: Hold, name: &Name) -> Outcome<Vec<u8>> {
        let group = self.named(name).ok_or(Errno::NOENT)?;
        // The group may end meanwhile; ending it takes this lock.
        let state = group.state.lock();
        if !matches!(*state, State::Open(_)) {
            return Err(Errno::NOENT);
        }
        self.change(|members| match members.entry(at) {
            Entry::Occupied(other) if Arc::ptr_eq(&other.get().group, &group) => Ok(Vec::new()),
            Entry::Occupied(_) => Err(Errno::BUSY),
            Entry::Vacant(place) => {
                group.holds.lock().push(hold);
                place.insert(Member {
                    group: group.clone(),
                    has_begun: false,
                });
                Ok(Vec::new())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_headers() {
        // From linux/f2fs.h, as the C compiler computes them on x86-64.
        assert_eq!((START, COMMIT, ABORT), (0xf501, 0xf502, 0xf505));
        assert_eq!(GET_FEATURES, 0x8004_f50c);
        // And from stetfs_ioctl.h.
        assert_eq!((BEGIN, JOIN), (0x8010_e701, 0x4010_e702));
    }

    #[test]
    fn handles_differ_and_say_how_a_file_was_opened() {
        let groups = Groups::default();
        let how = How::WRITES | How::DIRECT;
        let (a, b) = (groups.handle(how), groups.handle(how));
        assert_ne!(a, b);
        assert_eq!([a, b].map(How::from_bits_truncate), [how, how]);
    }
}
