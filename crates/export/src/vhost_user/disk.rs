//! Requests of virtio-blk: what each does to the device, and its status (virtio 1.2, 5.2.6).

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stetfs_format::width::{must_fit_u32, u64_as_usize, usize_as_u64};
use stetfs_media::{Block, MediaError};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK,
    VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::config::{RANGE_SECTORS, RANGES, SECTOR};
use crate::ByteDev;

/// Bytes of data that are moved at once: a longer request goes in pieces.
const PIECE: usize = 1 << 20;
/// Bytes of a request's head: its type, a reserved word, its first sector.
const HEAD: usize = 16;
/// Bytes of a range of a discard: its first sector, sectors, flags.
const RANGE: usize = 16;

/// A request as the machine has laid it out in its memory.
pub(super) type Chain = DescriptorChain<Arc<GuestMemoryMmap>>;

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The device failed, or the request asks for what there is not.
    IoErr,
    /// There is no such request here.
    Unsupp,
}

/// The device as virtio-blk has it.
pub(super) struct Disk {
    pub(super) dev: Arc<ByteDev>,
    /// The serial number, filled up with zeros.
    id: [u8; 20],
    /// What the configuration says: a write is durable only behind a flush.
    is_write_back: AtomicBool,
    /// The machine knows flushes.
    has_flush: AtomicBool,
    /// Requests that were taken.
    pub(super) requests: AtomicU64,
    /// Requests that were none.
    pub(super) malformed: AtomicU64,
}

/// Room for the data of a request.
pub(super) fn room() -> Block {
    Block::zeroed(PIECE)
}

impl Disk {
    /// With a name that becomes the serial number.
    pub(super) fn new(dev: Arc<ByteDev>, name: &[u8]) -> Self {
        const { assert!(VIRTIO_BLK_ID_BYTES == 20) };
        let mut id = [0; 20];
        let len = name.len().min(id.len());
        id[..len].copy_from_slice(&name[..len]);
        Self {
            dev,
            id,
            is_write_back: AtomicBool::new(true),
            has_flush: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
        }
    }

    /// Another machine comes, which has said nothing yet.
    pub(super) fn reset(&self) {
        self.is_write_back.store(true, Ordering::SeqCst);
        self.has_flush.store(false, Ordering::Relaxed);
    }

    /// What the configuration says of the cache.
    pub(super) fn is_write_back(&self) -> bool {
        self.is_write_back.load(Ordering::SeqCst)
    }

    /// Turns the cache on, or off: then what was answered before is durable too.
    pub(super) fn set_write_back(&self, on: bool) -> Result<(), MediaError> {
        self.is_write_back.store(on, Ordering::SeqCst);
        if on { Ok(()) } else { self.dev.flush() }
    }

    /// The features that the machine's driver uses.
    pub(super) fn set_features(&self, features: u64) {
        let has_flush = features & (1 << VIRTIO_BLK_F_FLUSH) != 0;
        self.has_flush.store(has_flush, Ordering::Relaxed);
    }

    /// Whether a write must be durable when it is answered.
    fn is_write_through(&self) -> bool {
        !self.is_write_back() || !self.has_flush.load(Ordering::Relaxed)
    }

    /// Carries out a request and writes its status. Returns the bytes that were written to the
    /// machine's memory from the beginning of its buffers; `None` if the request has no place for
    /// a status, or buffers that are not in the memory.
    pub(super) fn answer(&self, chain: Chain, room: &mut Block) -> Option<u32> {
        let memory = chain.memory();
        let mut reader: Reader<'_> = chain.clone().reader(memory).ok()?;
        let mut writer: Writer<'_> = chain.clone().writer(memory).ok()?;
        let len = writer.available_bytes().checked_sub(1)?;
        let mut status = writer.split_at(len).ok()?;
        let done = self.carry_out(&mut reader, &mut writer, room.bytes_mut());
        let code = match done {
            Ok(()) => VIRTIO_BLK_S_OK,
            Err(Refused::IoErr) => VIRTIO_BLK_S_IOERR,
            Err(Refused::Unsupp) => VIRTIO_BLK_S_UNSUPP,
        };
        status.write_all(&[stetfs_format::width::low8(code)]).ok()?;
        let written = writer.bytes_written();
        Some(must_fit_u32(written + usize::from(written == len)))
    }

    fn carry_out(
        &self,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
        room: &mut [u8],
    ) -> Result<(), Refused> {
        let mut head = [0; HEAD];
        reader.read_exact(&mut head).map_err(|_| Refused::IoErr)?;
        let kind = u32::from_le_bytes(first(&head));
        let sector = u64::from_le_bytes(first(&head[8..]));
        match kind {
            VIRTIO_BLK_T_IN => self.read(sector, writer, room),
            VIRTIO_BLK_T_OUT => self.write(sector, reader, room),
            VIRTIO_BLK_T_FLUSH => told(self.dev.flush()),
            VIRTIO_BLK_T_GET_ID => {
                let len = writer.available_bytes().min(self.id.len());
                written(writer.write_all(&self.id[..len]))
            }
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => self.clear(kind, reader),
            _ => Err(Refused::Unsupp),
        }
    }

    /// The device's bytes that a request is about.
    fn offset(&self, sector: u64, len: u64) -> Result<u64, Refused> {
        let offset = sector.checked_mul(SECTOR).ok_or(Refused::IoErr)?;
        let end = offset.checked_add(len).ok_or(Refused::IoErr)?;
        let is_whole = len.is_multiple_of(SECTOR) && end <= self.dev.size();
        is_whole.then_some(offset).ok_or(Refused::IoErr)
    }

    fn read(&self, sector: u64, out: &mut Writer<'_>, room: &mut [u8]) -> Result<(), Refused> {
        let len = usize_as_u64(out.available_bytes());
        let offset = self.offset(sector, len)?;
        for (at, len) in pieces(offset, len, room.len()) {
            let piece = &mut room[..len];
            told(self.dev.read_at(at, piece))?;
            written(out.write_all(piece))?;
        }
        Ok(())
    }

    fn write(&self, sector: u64, data: &mut Reader<'_>, room: &mut [u8]) -> Result<(), Refused> {
        self.must_be_writable()?;
        let len = usize_as_u64(data.available_bytes());
        let offset = self.offset(sector, len)?;
        let is_through = self.is_write_through();
        for (at, len) in pieces(offset, len, room.len()) {
            let piece = &mut room[..len];
            data.read_exact(piece).map_err(|_| Refused::IoErr)?;
            told(if is_through {
                self.dev.write_durable(at, piece)
            } else {
                self.dev.write_at(at, piece)
            })?;
        }
        if !is_through {
            // The cache may have been turned off meanwhile, by a flush that did not cover this.
            self.flush_if_through()?;
        }
        Ok(())
    }

    /// Discards or zeroes ranges.
    fn clear(&self, kind: u32, reader: &mut Reader<'_>) -> Result<(), Refused> {
        self.must_be_writable()?;
        let mut ranges = [0; RANGES * RANGE];
        let len = reader.available_bytes();
        let ranges = ranges.get_mut(..len).ok_or(Refused::IoErr)?;
        reader.read_exact(ranges).map_err(|_| Refused::IoErr)?;
        let (ranges, odd) = ranges.as_chunks::<RANGE>();
        if ranges.is_empty() || !odd.is_empty() {
            return Err(Refused::IoErr);
        }
        let is_discard = kind == VIRTIO_BLK_T_DISCARD;
        for range in ranges {
            let (offset, len) = self.range(range, is_discard)?;
            let cleared = if is_discard {
                self.dev.discard(offset, len)
            } else {
                self.dev.write_zeros(offset, len)
            };
            match cleared {
                // It is a hint.
                Err(MediaError::Unsupported { .. }) if is_discard => {}
                cleared => told(cleared)?,
            }
        }
        self.flush_if_through()
    }

    fn flush_if_through(&self) -> Result<(), Refused> {
        if self.is_write_through() {
            told(self.dev.flush())
        } else {
            Ok(())
        }
    }

    /// Offset and length in bytes of a range.
    fn range(&self, range: &[u8; RANGE], is_discard: bool) -> Result<(u64, u64), Refused> {
        let sector = u64::from_le_bytes(first(range));
        let sectors = u32::from_le_bytes(first(&range[8..]));
        let flags = u32::from_le_bytes(first(&range[12..]));
        // Zeroing may unmap; a discard says nothing of it.
        let known = if is_discard {
            0
        } else {
            VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP
        };
        if flags & !known != 0 {
            return Err(Refused::Unsupp);
        }
        if sectors > RANGE_SECTORS {
            return Err(Refused::IoErr);
        }
        let len = u64::from(sectors) * SECTOR;
        Ok((self.offset(sector, len)?, len))
    }

    fn must_be_writable(&self) -> Result<(), Refused> {
        let is_read_only = self.dev.dev().read_only();
        if is_read_only {
            Err(Refused::IoErr)
        } else {
            Ok(())
        }
    }
}

/// The first bytes of a record that is longer.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("within the record")
}

/// The parts of a request: where each begins, and its length.
fn pieces(offset: u64, len: u64, most: usize) -> impl Iterator<Item = (u64, usize)> {
    let step = usize_as_u64(most);
    let at = (0..len).step_by(most);
    at.map(move |at| (offset + at, u64_as_usize(step.min(len - at))))
}

/// The device's error as the machine gets it.
fn told(done: Result<(), MediaError>) -> Result<(), Refused> {
    done.map_err(|error| {
        tracing::error!("{error}");
        match error {
            MediaError::Unsupported { .. } => Refused::Unsupp,
            _ => Refused::IoErr,
        }
    })
}

fn written(done: std::io::Result<()>) -> Result<(), Refused> {
    done.map_err(|_| Refused::IoErr)
}
