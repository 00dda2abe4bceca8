//! Many writes to one file in one system call, by io_uring.
//!
//! Every write has ended when the call returns, with or without success. So the call only borrows
//! the memory that it writes from.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};
use rustix::io::{Errno, ReadWriteFlags};

use crate::uring::{enter, no_ring};

/// One write: its offset, and the pieces of memory that are written there one after the other.
pub type Write<'a> = (u64, &'a [IoSlice<'a>]);

/// A ring, used by one caller at a time.
pub struct Ring {
    ring: IoUring,
}

impl Ring {
    /// Writes under way at a time: enough to keep any device busy.
    pub const DEPTH: u16 = 64;

    /// Makes a ring; an error where the kernel has none or this process may not have one.
    pub fn new() -> Result<Self, Errno> {
        IoUring::new(Self::DEPTH.into())
            .map(|ring| Self { ring })
            .map_err(no_ring)
    }

    /// Does all `writes`, in any order, and waits for their ends. `ended` is called for each write
    /// with the number of bytes written, or the error. As with `pwritev2`, a write may be short and
    /// has at most `UIO_MAXIOV` (1024) pieces; with [`DSYNC`](ReadWriteFlags::DSYNC) in `how` it is
    /// durable when it has ended.
    pub fn write_all(
        &mut self,
        file: BorrowedFd<'_>,
        writes: &[Write<'_>],
        how: ReadWriteFlags,
        mut ended: impl FnMut(usize, Result<usize, Errno>),
    ) {
        let flags = i32::try_from(how.bits()).expect("flags that the kernel knows");
        for (chunk_at, chunk) in writes.chunks(Self::DEPTH.into()).enumerate() {
            for (i, (offset, pieces)) in (0..).zip(chunk) {
                // The kernel refuses more than UIO_MAXIOV.
                let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
                // IoSlice is guaranteed to have the layout of iovec.
                let entry =
                    opcode::Writev::new(types::Fd(file.as_raw_fd()), pieces.as_ptr().cast(), count)
                        .offset(*offset)
                        .rw_flags(flags)
                        .build()
                        .user_data(i);
                // SAFETY: the entry points to `pieces`, which this call borrows until `finish`
                // below has seen the end of every write of the chunk; the descriptor is borrowed as
                // long. A write only reads that memory.
                let pushed = unsafe { self.ring.submission().push(&entry) };
                assert!(
                    pushed.is_ok(),
                    "the ring is empty before each chunk and has room for it"
                );
            }
            let first = chunk_at * usize::from(Self::DEPTH);
            self.finish(chunk.len(), |i, result| ended(first + i, result));
        }
    }

    /// Submits the pushed writes and waits until all `n` have ended.
    fn finish(&mut self, n: usize, mut ended: impl FnMut(usize, Result<usize, Errno>)) {
        let mut left = n;
        while left > 0 {
            enter(&self.ring, left);
            for entry in self.ring.completion() {
                let result = usize::try_from(entry.result())
                    .map_err(|_| Errno::from_raw_os_error(-entry.result()));
                let i = usize::try_from(entry.user_data()).expect("what was pushed");
                ended(i, result);
                left -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file() -> std::fs::File {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC);
        fd.expect("memory").into()
    }

    #[test]
    fn more_writes_than_the_ring_holds_all_arrive() {
        let Ok(mut ring) = Ring::new() else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let file = file();
        let n = usize::from(Ring::DEPTH) * 2 + 7;
        let bytes: Vec<[u8; 512]> = (0..n).map(|i| [i as u8; 512]).collect();
        let halves: Vec<[IoSlice<'_>; 2]> = bytes
            .iter()
            .map(|b| [IoSlice::new(&b[..100]), IoSlice::new(&b[100..])])
            .collect();
        let writes: Vec<Write<'_>> = (0..n)
            .map(|i| (((n - 1 - i) * 512) as u64, &halves[i][..]))
            .collect();
        let mut seen = vec![false; n];
        ring.write_all(
            file.as_fd(),
            &writes,
            ReadWriteFlags::empty(),
            |i, result| {
                assert_eq!(result, Ok(512));
                assert!(!std::mem::replace(&mut seen[i], true), "twice: {i}");
            },
        );
        assert!(seen.iter().all(|&s| s));
        for (i, expected) in bytes.iter().enumerate() {
            let mut found = [0; 512];
            file.read_exact_at(&mut found, ((n - 1 - i) * 512) as u64)
                .expect("it is there");
            assert_eq!(found, *expected);
        }
    }

    #[test]
    fn each_error_is_told_of_its_write() {
        let Ok(mut ring) = Ring::new() else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let file = file();
        let byte = [IoSlice::new(&[1])];
        let writes: [Write<'_>; 3] = [(0, &byte), (u64::MAX >> 1, &byte), (2, &byte)];
        let mut results = [Ok(0); 3];
        ring.write_all(
            file.as_fd(),
            &writes,
            ReadWriteFlags::empty(),
            |i, result| results[i] = result,
        );
        assert_eq!((results[0], results[2]), (Ok(1), Ok(1)));
        assert!(results[1].is_err());
    }
}
