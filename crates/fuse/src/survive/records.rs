//! What the log's records say.

use std::io;

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use stetfs::{Changed, Past};
use stetfs_format::width::{must_fit_u32, u32_as_usize};
use stetfs_format::{InodeNo, Time};

use super::log::{Kind, Record};

/// A request begins that cannot simply be carried out twice. The request follows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct Begun {
    pub(super) unique: u64,
    /// What tells whether it was carried out: for a change of names the directory's version, for
    /// one of contents the file's size, for one of an attribute whether there is one.
    pub(super) before: u64,
    /// The inode that it removes, if the kernel may know that afterwards; or 0.
    pub(super) victim: u32,
    pub(super) victim_generation: u32,
}

/// A request has ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct Done {
    unique: u64,
    /// As in [`Begun`].
    before: u64,
    at_sec: i64,
    at_nsec: u32,
    /// 0: it has succeeded.
    errno: i32,
    /// The inode that it made, and its generation; or 0.
    made: u32,
    made_generation: u32,
    /// The inode that it removed and that the kernel may know still; or 0.
    held: u32,
    held_generation: u32,
    /// The number of [`OneChanged`]; they follow, then the answer, then the request.
    changed: u32,
    /// Bytes of the answer.
    answer: u32,
}

/// An inode that a request has changed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct OneChanged {
    version: u64,
    ino: u32,
    generation: u32,
    /// 1: [`version`](Self::version) says something.
    has_version: u32,
    zero: u32,
}

/// A file is about to be closed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct Released {
    pub(super) handle: u64,
    pub(super) ino: u32,
    pub(super) generation: u32,
}

/// The kernel has dropped an inode that was removed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct Forgot {
    pub(super) ino: u32,
    pub(super) generation: u32,
}

/// A request that has ended: what is known of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended<'a> {
    pub(super) unique: u64,
    pub(super) before: u64,
    pub(super) past: Past,
    /// The inode that it removed and that the kernel may know still, and its generation.
    pub(super) held: Option<(InodeNo, u32)>,
    pub(super) request: &'a [u8],
}

impl Ended<'_> {
    /// Calls `write` with the parts of the record of a request that has succeeded with an answer.
    pub(super) fn parts<T>(&self, answer: &[u8], write: impl FnOnce(&[&[u8]]) -> T) -> T {
        let numbers = |file: Option<(InodeNo, u32)>| file.map_or((0, 0), |(ino, of)| (ino.0, of));
        let (made, made_generation) = numbers(self.past.made);
        let (held, held_generation) = numbers(self.held);
        let done = Done {
            unique: self.unique,
            before: self.before,
            at_sec: self.past.at.sec,
            at_nsec: self.past.at.nsec,
            errno: 0,
            made,
            made_generation,
            held,
            held_generation,
            changed: must_fit_u32(self.past.changed.len()),
            answer: must_fit_u32(answer.len()),
        };
        let changed: SmallVec<[OneChanged; 2]> = self.past.changed.iter().map(encode).collect();
        write(&[
            bytemuck::bytes_of(&done),
            bytemuck::cast_slice(&changed),
            answer,
            self.request,
        ])
    }
}

/// Returns the record of a request that has ended and need not be done once more, with this errno;
/// 0: it has succeeded.
pub(super) fn answered(unique: u64, errno: i32) -> impl Pod {
    Done {
        unique,
        errno,
        ..Done::default()
    }
}

fn encode(changed: &Changed) -> OneChanged {
    OneChanged {
        version: changed.version.unwrap_or(0),
        ino: changed.ino.0,
        generation: changed.generation,
        has_version: changed.version.is_some().into(),
        zero: 0,
    }
}

fn decode(one: &OneChanged) -> Changed {
    Changed {
        ino: InodeNo(one.ino),
        generation: one.generation,
        version: (one.has_version == 1).then_some(one.version),
    }
}

/// Takes a record from the beginning of bytes.
pub(super) fn take<'a, T: Pod>(bytes: &mut &'a [u8]) -> Option<T> {
    let (record, rest): (&'a [u8], _) = bytes.split_at_checked(size_of::<T>())?;
    *bytes = rest;
    Some(bytemuck::pod_read_unaligned(record))
}

/// What a record of the log says.
pub(super) enum Event<'a> {
    /// A half goes on where the other one has ended.
    Start,
    /// A request begins: with its bytes.
    Began(Begun, &'a [u8]),
    /// A request has ended, with its answer or an errno.
    Done(Ended<'a>, Result<&'a [u8], i32>),
    Released(Released),
    Forgot(Forgot),
    /// Everything before the record of this number is durable.
    Synced(u64),
    /// Whether a transaction is open.
    Bound(bool),
}

/// Reads a record.
///
/// # Errors
/// It is not whole.
pub(super) fn event(record: &Record) -> io::Result<Event<'_>> {
    let mut bytes = &record.bytes[..];
    let event = match record.kind {
        Kind::Start => Some(Event::Start),
        Kind::Began => take(&mut bytes).map(|begun| Event::Began(begun, bytes)),
        Kind::Done => ended(bytes).map(|(ended, answer)| Event::Done(ended, answer)),
        Kind::Released => take(&mut bytes).map(Event::Released),
        Kind::Forgot => take(&mut bytes).map(Event::Forgot),
        Kind::Synced => take(&mut bytes).map(Event::Synced),
        Kind::Bound => bytes.first().map(|is_bound| Event::Bound(*is_bound == 1)),
    };
    event.ok_or_else(cut)
}

/// The error of a record that is not whole.
pub(super) fn cut() -> io::Error {
    let why = "a record of the log is not whole";
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Reads the record of a request that has ended: what is known of it, and its answer. `None`: it is
/// not whole.
fn ended(mut bytes: &[u8]) -> Option<(Ended<'_>, Result<&[u8], i32>)> {
    let done: Done = take(&mut bytes)?;
    let mut changed = SmallVec::new();
    for _ in 0..done.changed {
        changed.push(decode(&take(&mut bytes)?));
    }
    let (answer, request) = bytes.split_at_checked(u32_as_usize(done.answer))?;
    let file = |ino, generation| (ino != 0).then_some((InodeNo(ino), generation));
    let ended = Ended {
        unique: done.unique,
        before: done.before,
        past: Past {
            at: Time {
                sec: done.at_sec,
                nsec: done.at_nsec,
            },
            made: file(done.made, done.made_generation),
            changed,
        },
        held: file(done.held, done.held_generation),
        request,
    };
    let answer = if done.errno == 0 {
        Ok(answer)
    } else {
        Err(done.errno)
    };
    Some((ended, answer))
}
