//! The second way to the kernel: FUSE over io_uring.
//!
//! Each processor has a queue, and a request goes to the queue of the processor that it was made
//! on; the queue's workers run there too, so that nobody has to be woken on another processor. A
//! worker has one entry: the kernel hands a request to somebody who waits for one, and to nobody
//! who is busy. What the kernel does not send this way (FORGET, INTERRUPT) comes by the device.
//!
//! Source: Linux, `Documentation/filesystems/fuse/fuse-io-uring.rst`; since Linux 6.14, where the
//! parameter `enable_uring` of the module says so.

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

/// In front of the rest of a request: its header, and the record behind it.
const FRONT: usize = size_of::<InHeader>() + HEADER_ROOM;

/// A request of which the rest is no longer is copied; of a longer one the answer is.
const COPIED: usize = 4096;
/// Bytes at most of the answer to a long request: an ioctl's, which the kernel bounds.
const LONG_ANSWER: usize = 64 << 10;

/// How many queues the kernel has: one for each processor that there can be.
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

/// Workers of each queue, of about so many threads in all.
pub(crate) fn workers(threads: usize, queues: u16) -> usize {
    threads.div_ceil(usize::from(queues).max(1)).max(2)
}

/// How many requests of a mount may keep a worker waiting that need not: in whatever queue they
/// are, two workers are left there.
///
/// What is in a queue while all of its workers are busy goes to the next of them that answers, and
/// not to one who is started meanwhile (`fuse_uring_do_register`). So no queue may be left with
/// none that will answer.
pub(crate) fn may_wait(threads: usize) -> usize {
    workers(threads, queues().unwrap_or(1)).saturating_sub(2)
}

/// Whether it can be used here; if not, why.
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

/// How root makes mounts quicker; none where there is nothing to switch on, or the caller is not
/// root.
pub fn to_switch_on_io_uring() -> Option<String> {
    let is_off = is_switched_on() == Some(false) && rustix::process::geteuid().is_root();
    is_off.then(|| format!("requests would be served quicker over io_uring: echo Y > {PARAMETER}"))
}

/// What the kernel's module says; none: it does not know of it.
fn is_switched_on() -> Option<bool> {
    let parameter = fs::read_to_string(PARAMETER).ok()?;
    Some(matches!(parameter.trim(), "Y" | "1"))
}

/// Lets the thread run on this processor only, if that is there.
pub(crate) fn run_on(processor: u16) {
    let mut set = CpuSet::new();
    set.set(usize::from(processor));
    if let Err(e) = sched_setaffinity(None, &set) {
        tracing::debug!("processor {processor}: {e}");
    }
}

/// A worker's entry, and memory for what has no place in it.
pub(crate) struct Entry {
    ring: FuseRing,
    /// Of a short request the request, of a long one the answer.
    other: Vec<u64>,
}

/// What becomes of a request.
pub(crate) enum Done {
    /// So many bytes of the room are the answer, of which the first are room for a header.
    Answered(usize),
    /// There is none but this.
    Refused(Errno),
    /// Somebody else gives what stands behind the header.
    Later(mpsc::Receiver<Result<Vec<u8>, Errno>>),
}

impl Entry {
    /// An entry of a queue.
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

    /// Answers the request that is here, if one is, and waits for the next; false when the
    /// connection is over.
    ///
    /// # Errors
    /// The kernel does not take the entry.
    pub(crate) fn answer_and_wait(&mut self) -> Result<bool, Errno> {
        self.ring.answer_and_wait()
    }

    /// Has the request that is here dealt with: gets it, and room for the answer.
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
                // In one piece, as from the device.
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
            // Whoever was to answer may be gone.
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
