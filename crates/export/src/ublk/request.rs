//! What each request does to the device (`UBLK_IO_OP_*`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_media::MediaError;
use stetfs_sys::ublk::{Descriptor, data_offset};

use crate::{ByteDev, errno};

/// The unit of sectors in requests, in bytes.
pub(super) const SECTOR: u64 = 512;
/// Bytes of data of a request at most.
pub(super) const ROOM: usize = 1 << 20;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DISCARD: u32 = 3;
const WRITE_ZEROES: u32 = 5;
/// The bits of `op_flags` that say what is asked for.
const OP: u32 = 0xff;
/// `UBLK_IO_F_FUA`: it must be durable when it is answered.
const FUA: u32 = 1 << 13;

/// The data of requests, by their tags.
pub(super) trait Data {
    /// Gets what a write brings.
    fn take(&self, tag: u16, out: &mut [u8]) -> io::Result<()>;

    /// Gives what a read is to have.
    fn give(&self, tag: u16, data: &[u8]) -> io::Result<()>;
}

impl Data for File {
    fn take(&self, tag: u16, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, data_offset(tag))
    }

    fn give(&self, tag: u16, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, data_offset(tag))
    }
}

/// Carries a request out. Returns what the driver is to be answered: bytes, or minus an errno.
pub(super) fn carry_out(
    dev: &ByteDev,
    data: &impl Data,
    tag: u16,
    request: &Descriptor,
    room: &mut [u8],
) -> i32 {
    match attempt(dev, data, tag, request, room) {
        Ok(bytes) => i32::try_from(bytes).expect("a request has at most 1 MiB"),
        Err(error) => -error.raw_os_error(),
    }
}

fn attempt(
    dev: &ByteDev,
    data: &impl Data,
    tag: u16,
    request: &Descriptor,
    room: &mut [u8],
) -> Result<usize, Errno> {
    let own = |error: io::Error| {
        tracing::error!("ublk: the data of a request: {error}");
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    };
    let told = |done: Result<(), MediaError>| {
        done.map_err(|error| {
            tracing::error!("{error}");
            errno(&error)
        })
    };
    let op = request.op_flags & OP;
    if op == FLUSH {
        // It names no place.
        return told(dev.flush()).map(|()| 0);
    }
    let offset = request.first_sector.checked_mul(SECTOR);
    let offset = offset.ok_or(Errno::INVAL)?;
    let len = u64::from(request.sectors) * SECTOR;
    let is_durable = request.op_flags & FUA != 0;
    let most = usize_as_u64(room.len());
    if matches!(op, READ | WRITE) && len > most {
        return Err(Errno::INVAL);
    }
    let room = &mut room[..u64_as_usize(len.min(most))];
    match op {
        READ => {
            told(dev.read_at(offset, room))?;
            data.give(tag, room).map_err(own)?;
            return Ok(room.len());
        }
        WRITE => {
            data.take(tag, room).map_err(own)?;
            told(if is_durable {
                dev.write_durable(offset, room)
            } else {
                dev.write_at(offset, room)
            })?;
            return Ok(room.len());
        }
        // It is a hint.
        DISCARD => match dev.discard(offset, len) {
            Err(MediaError::Unsupported { .. }) => {}
            done => told(done)?,
        },
        WRITE_ZEROES => told(dev.write_zeros(offset, len))?,
        _ => return Err(Errno::OPNOTSUPP),
    }
    if is_durable {
        told(dev.flush())?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::testing::Held;

    /// The data of one request.
    struct One(RefCell<Vec<u8>>);

    impl Data for One {
        fn take(&self, tag: u16, out: &mut [u8]) -> io::Result<()> {
            assert_eq!(tag, 7);
            out.copy_from_slice(&self.0.borrow()[..out.len()]);
            Ok(())
        }

        fn give(&self, tag: u16, data: &[u8]) -> io::Result<()> {
            assert_eq!(tag, 7);
            *self.0.borrow_mut() = data.to_vec();
            Ok(())
        }
    }

    fn ask(dev: &ByteDev, op_flags: u32, first_sector: u64, data: &mut Vec<u8>, len: usize) -> i32 {
        let request = Descriptor {
            op_flags,
            sectors: u32::try_from(len / 512).unwrap(),
            first_sector,
            address: 0,
        };
        let one = One(RefCell::new(std::mem::take(data)));
        let mut room = vec![0; 4096];
        let answer = carry_out(dev, &one, 7, &request, &mut room);
        *data = one.0.into_inner();
        answer
    }

    #[test]
    fn each_request_does_what_it_says() {
        let (held, _begun) = Held::new(u64::MAX);
        let dev = held.bytes();
        let mut data = vec![0xa5; 4096];
        assert_eq!(ask(&dev, WRITE, 8, &mut data, 4096), 4096);
        assert_eq!(held.flushes(), 0);
        let mut found = Vec::new();
        assert_eq!(ask(&dev, READ, 8, &mut found, 4096), 4096);
        assert_eq!(found, vec![0xa5; 4096]);
        // Whoever asks for durable data gets no answer before it is.
        assert_eq!(ask(&dev, WRITE | FUA, 9, &mut vec![0x5a; 512], 512), 512);
        assert_eq!(held.flushes(), 1);
        assert_eq!(ask(&dev, FLUSH, u64::MAX, &mut Vec::new(), 0), 0);
        assert_eq!(held.flushes(), 2);
        assert_eq!(ask(&dev, WRITE_ZEROES | FUA, 10, &mut Vec::new(), 1024), 0);
        assert_eq!(held.flushes(), 3);
        assert_eq!(ask(&dev, READ, 8, &mut found, 4096), 4096);
        let expected = [
            vec![0xa5; 512],
            vec![0x5a; 512],
            vec![0; 1024],
            vec![0xa5; 2048],
        ];
        assert_eq!(found, expected.concat());
        assert!(ask(&dev, DISCARD, 8, &mut Vec::new(), 4096) <= 0);
    }

    #[test]
    fn what_cannot_be_done_is_an_errno() {
        let (held, _begun) = Held::new(u64::MAX);
        let dev = held.bytes();
        let mut data = vec![0; 8192];
        let end = Held::SIZE / 512;
        assert_eq!(
            ask(&dev, WRITE, end, &mut data, 512),
            -Errno::NOSPC.raw_os_error()
        );
        // More than there is room for, a request that does not exist, a number that overflows.
        for (op, first, len) in [(READ, 0, 8192), (99, 0, 512), (READ, u64::MAX / 256, 512)] {
            assert!(ask(&dev, op, first, &mut data, len) < 0, "{op} at {first}");
        }
        held.set_failing(true);
        assert_eq!(
            ask(&dev, READ, 0, &mut data, 512),
            -Errno::IO.raw_os_error()
        );
    }
}
