//! The second way to the kernel: FUSE over io_uring.
//!
//! Each processor has a queue. A request goes to the queue of the processor that it was made on,
//! and the queue's workers run there too, so that no processor has to be woken. Each worker has one
//! entry: the kernel hands a request to a worker that waits for one, never to a busy one. Requests
//! that the kernel does not send this way (FORGET, INTERRUPT) come by the device.
//!
//! Source: Linux, `Documentation/filesystems/fuse/fuse-io-uring.rst`. Since Linux 6.14, if the
//! module's parameter `enable_uring` allows it.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use stetfs_format::width::{must_fit_u32, u32_as_usize};
use stetfs_sys::fuse_ring::{FuseRing, HEADER_ROOM, Slot};

use super::abi::{InHeader, MIN_READ_BUFFER, OutHeader};
use super::answer::{HEADER, refusal};
use super::channel::{Channel, largest_data};
use super::request::{BAD, Request};

/// The parameter of the kernel's module that allows it.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Bytes before the rest of a request: its header, and the record behind it.
const FRONT: usize = size_of::<InHeader>() + HEADER_ROOM;

/// The longest rest of a request, in bytes, that is copied out of the entry's buffer. For a longer
/// one the answer is copied instead.
const COPIED: usize = 4096;
/// The longest answer to a long request, in bytes: an ioctl's, which the kernel bounds.
const LONG_ANSWER: usize = 64 << 10;

/// Returns how many queues the kernel has: one for each possible processor.
///
/// # Errors
/// The kernel does not say.
pub(crate) fn queues() -> io::Result<u16> {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = possible.trim().rsplit([',', '-']).next();
    let last: Option<u16> = last.and_then(|last| last.parse().ok());
    let count = last.and_then(|last| last.checked_add(1));
    count.ok_or_else(|| io::Error::other(format!("possible processors: {possible}")))
}

/// Returns the number of workers for each queue, for about `threads` in all.
pub(crate) fn workers(threads: usize, queues: u16) -> usize {
    threads.div_ceil(usize::from(queues).max(1)).max(2)
}

/// Returns how many requests of a mount may keep a worker waiting if they need not: then two
/// workers are left in their queue, whichever that is.
///
/// A request that comes while all workers of its queue are busy goes to the next of them that
/// answers, and not to a worker that is started meanwhile (`fuse_uring_do_register`). So every
/// queue must keep a worker that will answer.
pub(crate) fn may_wait(threads: usize) -> usize {
    workers(threads, queues().unwrap_or(1)).saturating_sub(2)
}

/// Succeeds if io_uring can be used here; otherwise says why not.
pub(crate) fn is_available() -> Result<(), String> {
    match is_switched_on() {
        None => Err("this kernel has no FUSE over io_uring (Linux 6.14 has)".to_owned()),
        Some(true) => {
            let ring = stetfs_sys::fuse_ring::try_ring();
            ring.map_err(|e| format!("io_uring: {}", io::Error::from(e)))
        }
        Some(false) => Err(format!(
            "FUSE over io_uring is switched off; root switches it on for new mounts: \
                echo Y > {PARAMETER}"
        )),
    }
}

/// Returns how root makes mounts quicker; `None` if there is nothing to switch on, or the caller is
/// not root.
pub fn to_switch_on_io_uring() -> Option<String> {
    let is_off = is_switched_on() == Some(false) && rustix::process::geteuid().is_root();
    is_off.then(|| format!("requests would be served quicker over io_uring: echo Y > {PARAMETER}"))
}

/// Returns what the kernel's module says; `None` if it does not know io_uring.
fn is_switched_on() -> Option<bool> {
    let parameter = fs::read_to_string(PARAMETER).ok()?;
    Some(matches!(parameter.trim(), "Y" | "1"))
}

/// Lets the thread run on this processor only, if it exists.
pub(crate) fn run_on(processor: u16) {
    let mut set = CpuSet::new();
    set.set(usize::from(processor));
    if let Err(e) = sched_setaffinity(None, &set) {
        tracing::debug!("processor {processor}: {e}");
    }
}

/// A worker's entry, and memory for what has no room in it.
pub(crate) struct Entry {
    ring: FuseRing,
    /// For a short request, the request; for a long one, the answer.
    other: Vec<u64>,
}

/// The outcome of a request.
pub(crate) enum Done {
    /// The answer is this many bytes of the room, with room for a header before it.
    Answered(usize),
    /// The answer is only this errno.
    Refused(Errno),
    /// Another thread sends the bytes behind the header.
    Later(mpsc::Receiver<Result<Vec<u8>, Errno>>),
}

impl Entry {
    /// Makes an entry of a queue.
    ///
    /// # Errors
    /// The kernel has none for this process.
    pub(crate) fn new(channel: &Channel, queue: u16, max_request: u32) -> Result<Self, Errno> {
        let payload = largest_data(max_request).max(MIN_READ_BUFFER);
        Ok(Self {
            ring: FuseRing::new(channel.as_fd(), queue, FRONT, payload)?,
            other: vec![0; (FRONT + COPIED).max(LONG_ANSWER) / 8],
        })
    }

    /// Answers the present request, if there is one, and waits for the next. False: the connection
    /// is over.
    ///
    /// # Errors
    /// The kernel does not take the entry.
    pub(crate) fn answer_and_wait(&mut self) -> Result<bool, Errno> {
        self.ring.answer_and_wait()
    }

    /// Passes the present request, and room for the answer, to `deal`.
    pub(crate) fn deal(&mut self, deal: impl FnOnce(&Request<'_>, &mut [u8]) -> Done) {
        let Slot {
            in_out,
            op_in,
            buffer,
            payload_size,
        } = self.ring.slot();
        let other: &mut [u8] = bytemuck::cast_slice_mut(&mut self.other);
        let header: InHeader = bytemuck::pod_read_unaligned(&in_out[..size_of::<InHeader>()]);
        let rest = u32_as_usize(*payload_size);
        let record = u32_as_usize(header.len)
            .checked_sub(size_of::<InHeader>() + rest)
            .filter(|record| *record <= HEADER_ROOM && FRONT + rest <= buffer.len());
        let done = match record {
            None => {
                tracing::error!(
                    "from the kernel: a request of {} bytes with {rest} behind its record",
                    header.len
                );
                Done::Refused(BAD)
            }
            Some(record) => {
                let (whole, room) = if rest > COPIED {
                    (&mut *buffer, &mut *other)
                } else {
                    other[FRONT..][..rest].copy_from_slice(&buffer[FRONT..][..rest]);
                    (&mut *other, &mut buffer[FRONT - HEADER..])
                };
                // Put it together in one piece, as it comes from the device.
                let start = HEADER_ROOM - record;
                let (head, op) = whole[start..FRONT].split_at_mut(size_of::<InHeader>());
                head.copy_from_slice(bytemuck::bytes_of(&header));
                op.copy_from_slice(&op_in[..record]);
                match Request::decode(&whole[start..FRONT + rest]) {
                    Ok(request) => deal(&request, room),
                    Err(e) => {
                        tracing::error!("from the kernel: {e}");
                        Done::Refused(BAD)
                    }
                }
            }
        };
        let body = &mut buffer[FRONT..];
        let made = match done {
            Done::Answered(len) => {
                let len = len - HEADER;
                if rest > COPIED {
                    body[..len].copy_from_slice(&other[HEADER..][..len]);
                }
                Ok(len)
            }
            Done::Refused(errno) => Err(errno),
            // The thread that was to answer may be gone.
            Done::Later(answer) => answer.recv().unwrap_or(Err(Errno::IO)).map(|answer| {
                body[..answer.len()].copy_from_slice(&answer);
                answer.len()
            }),
        };
        let out = match made {
            Ok(len) => OutHeader {
                len: must_fit_u32(HEADER + len),
                error: 0,
                unique: header.unique,
            },
            Err(errno) => refusal(header.unique, errno),
        };
        in_out[..HEADER].copy_from_slice(bytemuck::bytes_of(&out));
        *payload_size = out.len - must_fit_u32(HEADER);
    }
}
