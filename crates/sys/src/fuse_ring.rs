//! One request of FUSE at a time, by io_uring: one system call answers a request and waits for the
//! next.
//!
//! Source: Linux, `include/uapi/linux/fuse.h` (`struct fuse_uring_req_header`,
//! `fuse_uring_cmd_req`, `enum fuse_uring_cmd`) and
//! `Documentation/filesystems/fuse/fuse-io-uring.rst`; since Linux 6.14. A ring here has one entry,
//! of the queue of one processor: the kernel gives a request only to a ring that waits for one.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::io::Errno;

use crate::uring::{ended, enter, no_ring};

/// `FUSE_IO_URING_CMD_REGISTER`: an entry is there, and takes requests.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: its request is answered, and it takes the next.
const COMMIT_AND_FETCH: u32 = 2;

/// `FUSE_URING_IN_OUT_HEADER_SZ`, `FUSE_URING_OP_IN_OUT_SZ`: room for a request's or an answer's
/// header, and for the record behind a request's header, in bytes.
pub const HEADER_ROOM: usize = 128;

/// `struct fuse_uring_req_header`.
#[repr(C, align(8))]
struct Headers {
    in_out: [u8; HEADER_ROOM],
    op_in: [u8; HEADER_ROOM],
    flags: u64,
    commit_id: u64,
    payload_size: u32,
    padding: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Headers>() == 288);

/// `struct fuse_uring_cmd_req`.
fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

/// Memory that the kernel writes and reads while it has the entry.
struct Shared {
    headers: Headers,
    /// Words, so that records lie at their alignment.
    buffer: Vec<u64>,
    /// The headers, and the buffer behind its first `front` bytes.
    pieces: [libc::iovec; 2],
}

/// Who has the entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// We have it, and the kernel does not know of it yet.
    New,
    /// We have it; the request in it has this number.
    Ours { commit_id: u64 },
    /// The kernel has it.
    Kernels,
    /// We have it for ever: the connection is over.
    Over,
}

/// A ring with one entry. It belongs to the thread that made it.
pub struct FuseRing {
    ring: ManuallyDrop<IoUring<Entry128, cqueue::Entry>>,
    shared: ManuallyDrop<Box<Shared>>,
    device: OwnedFd,
    queue: u16,
    state: State,
}

/// The entry, with a request in it or an answer.
pub struct Slot<'a> {
    /// The request's header, then the answer's.
    pub in_out: &'a mut [u8; HEADER_ROOM],
    /// The record behind the request's header.
    pub op_in: &'a [u8; HEADER_ROOM],
    /// Free room in front, and the payload: the request's, then the answer's.
    pub buffer: &'a mut [u8],
    /// Bytes of the payload.
    pub payload_size: &'a mut u32,
}

/// Whether this process may have such rings; an error says why not.
pub fn try_ring() -> Result<(), Errno> {
    make().map(drop)
}

fn make() -> Result<IoUring<Entry128, cqueue::Entry>, Errno> {
    IoUring::<Entry128, cqueue::Entry>::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(1)
        .map_err(no_ring)
}

impl FuseRing {
    /// Makes a ring with an entry in queue number `queue` of the connection of `device`. `payload`
    /// is the most bytes that any request or answer has behind its record. The buffer has `front`
    /// bytes before them, a multiple of 8.
    ///
    /// # Errors
    /// The kernel has no such rings, or this process may not have one.
    pub fn new(
        device: BorrowedFd<'_>,
        queue: u16,
        front: usize,
        payload: usize,
    ) -> Result<Self, Errno> {
        assert!(
            front.is_multiple_of(8),
            "where the rest begins, a record may begin"
        );
        let ring = make()?;
        let mut shared = Box::new(Shared {
            headers: Headers {
                in_out: [0; HEADER_ROOM],
                op_in: [0; HEADER_ROOM],
                flags: 0,
                commit_id: 0,
                payload_size: 0,
                padding: 0,
                reserved: 0,
            },
            buffer: vec![0; (front + payload).div_ceil(8)],
            pieces: [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; 2],
        });
        let rest = &mut shared.buffer[front / 8..];
        let rest = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: size_of_val(rest),
        };
        let headers = libc::iovec {
            iov_base: (&raw mut shared.headers).cast(),
            iov_len: size_of::<Headers>(),
        };
        shared.pieces = [headers, rest];
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            shared: ManuallyDrop::new(shared),
            device: device
                .try_clone_to_owned()
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::MFILE))?,
            queue,
            state: State::New,
        })
    }

    /// Answers the request in the entry, if there is one, with what the entry has now. Then waits
    /// for the next request, which [`slot`](Self::slot) returns. False when the connection is over.
    ///
    /// # Errors
    /// The kernel does not take the entry. A failure that leaves open whether the kernel has the
    /// entry ends the process.
    pub fn answer_and_wait(&mut self) -> Result<bool, Errno> {
        let (operation, commit_id) = match self.state {
            State::New => (REGISTER, 0),
            State::Ours { commit_id } => (COMMIT_AND_FETCH, commit_id),
            State::Kernels | State::Over => return Ok(false),
        };
        let pieces = &raw const self.shared.pieces;
        let address = u64::try_from(pieces.addr()).expect("addresses have 64 bits at most");
        let mut entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), operation)
            .cmd(command(commit_id, self.queue))
            .addr(Some(address))
            .build();
        pieces.expose_provenance();
        set_len(&mut entry, 2);
        // SAFETY: the entry points to `pieces`, and these to the headers and to the buffer. All of
        // it lies in a box that is not moved or freed while the kernel has the entry: `state` says
        // so until the command has ended, and `drop` leaves the memory to it then. Nothing here
        // gives out references meanwhile, because this call borrows `self` until it has ended. The
        // descriptor is ours.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has room for its one entry");
        self.state = State::Kernels;
        let result = self.wait();
        self.state = match result {
            Ok(()) => State::Ours {
                commit_id: self.shared.headers.commit_id,
            },
            Err(_) => State::Over,
        };
        match result {
            Ok(()) => Ok(true),
            Err(Errno::NOTCONN | Errno::NODEV | Errno::CONNABORTED | Errno::CANCELED) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns the entry, with the request that [`answer_and_wait`](Self::answer_and_wait) has
    /// waited for.
    ///
    /// # Panics
    /// There is no request.
    pub fn slot(&mut self) -> Slot<'_> {
        assert!(
            matches!(self.state, State::Ours { .. }),
            "no request is here"
        );
        let Shared {
            headers, buffer, ..
        } = &mut **self.shared;
        // SAFETY: bytes may be read and written as such, and the kernel does not have them.
        let (_, buffer, _) = unsafe { buffer.align_to_mut::<u8>() };
        Slot {
            in_out: &mut headers.in_out,
            op_in: &headers.op_in,
            buffer,
            payload_size: &mut headers.payload_size,
        }
    }

    /// Submits the pushed command and waits for its end.
    fn wait(&mut self) -> Result<(), Errno> {
        loop {
            enter(&self.ring, 1);
            if let Some(entry) = self.ring.completion().next() {
                return ended(&entry);
            }
        }
    }
}

impl Drop for FuseRing {
    fn drop(&mut self) {
        if self.state == State::Kernels {
            // A panic in between. The ring and its memory end with the process.
            return;
        }
        // SAFETY: neither is used again.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.shared);
        }
    }
}

/// Sets the field `len` of an entry, for which the crate has no setter: the number of pieces at the
/// address.
fn set_len(entry: &mut Entry128, len: u32) {
    /// Offset of `len` in `struct io_uring_sqe`, in bytes.
    const AT: usize = 24;
    const _: () = assert!(size_of::<Entry128>() == 128);
    // SAFETY: the entry has the layout of the kernel's struct, which is what it is passed as; the
    // field lies in it, at a multiple of its alignment.
    unsafe {
        (&raw mut *entry)
            .cast::<u8>()
            .add(AT)
            .cast::<u32>()
            .write(len)
    };
}
