//! Makes a device with sectors accept requests that begin and end anywhere, like a file.
//!
//! Where a write covers only a part of a sector, at either end, it reads, changes and writes back
//! that sector, and nobody else writes meanwhile: two requests that share a sector do not undo each
//! other. Requests in whole sectors run at the same time. All memory is allocated when the device
//! is wrapped.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;
use stetfs_format::width::{must_fit, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_media::{Block, BlockDev, Cause, Class, MediaError, Op, Tag};

const READ: Tag = Tag::read(Class::Data);
const WRITE: Tag = Tag::new(Class::Data, Cause::Home);

/// A device that takes requests of any alignment. Discarded ranges must read as zeros, as they do
/// on a flash translation layer.
pub struct ByteDev {
    dev: Arc<dyn BlockDev>,
    size: u64,
    sector: u64,
    /// Buffer for a sector of which a part is asked for. Requests in whole sectors share the lock.
    edge: RwLock<Block>,
}

/// A piece of a request: whole sectors, or a part of one.
enum Piece {
    Whole(Range<u64>),
    /// The sector's offset, and the part of the request that is in it.
    Part(u64, Range<u64>),
}

impl ByteDev {
    /// Wraps a device.
    pub fn new(dev: Arc<dyn BlockDev>) -> Self {
        let sector = dev.sector_size();
        Self {
            size: dev.size(),
            sector: sector.into(),
            edge: RwLock::new(Block::zeroed(u32_as_usize(sector))),
            dev,
        }
    }

    /// The device.
    pub fn dev(&self) -> &Arc<dyn BlockDev> {
        &self.dev
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The device's sector in bytes.
    pub fn sector_size(&self) -> u32 {
        must_fit(self.sector)
    }

    /// Whether a request is one of whole sectors.
    fn is_whole(&self, range: &Range<u64>) -> bool {
        !range.is_empty()
            && range.start.is_multiple_of(self.sector)
            && range.end.is_multiple_of(self.sector)
    }

    /// Splits a request into at most three pieces.
    fn pieces(&self, range: &Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let Range { start, end } = *range;
        let sector = self.sector;
        let head_end = start.next_multiple_of(sector).min(end);
        let whole_end = (end - end % sector).max(head_end);
        let part = move |part: Range<u64>| Piece::Part(part.start - part.start % sector, part);
        let pieces = [
            (start < head_end).then(|| part(start..head_end)),
            (head_end < whole_end).then_some(Piece::Whole(head_end..whole_end)),
            (whole_end < end).then(|| part(whole_end..end)),
        ];
        pieces.into_iter().flatten()
    }

    fn range(&self, op: Op, offset: u64, len: u64) -> Result<Range<u64>, MediaError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(offset..end),
            _ => Err(MediaError::PastEnd {
                op,
                offset,
                len,
                size: self.size,
            }),
        }
    }

    /// Fills `out` with the newest content.
    ///
    /// # Errors
    /// The device's, or [`MediaError::PastEnd`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), MediaError> {
        let range = self.range(Op::Read, offset, usize_as_u64(out.len()))?;
        if self.is_whole(&range) {
            let _shared = self.edge.read();
            return self.dev.read_at(offset, out, READ);
        }
        let mut edge = self.edge.write();
        for piece in self.pieces(&range) {
            match piece {
                Piece::Whole(whole) => {
                    let out = &mut out[within(&whole, offset)];
                    self.dev.read_at(whole.start, out, READ)?;
                }
                Piece::Part(sector, part) => {
                    self.dev.read_at(sector, edge.bytes_mut(), READ)?;
                    out[within(&part, offset)]
                        .copy_from_slice(&edge.bytes()[within(&part, sector)]);
                }
            }
        }
        Ok(())
    }

    /// Writes `data`, which is durable after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The device's, or [`MediaError::PastEnd`].
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        let range = self.range(Op::Write, offset, usize_as_u64(data.len()))?;
        if self.is_whole(&range) {
            let _shared = self.edge.read();
            return self.dev.write_at(offset, data, WRITE);
        }
        let mut edge = self.edge.write();
        for piece in self.pieces(&range) {
            match piece {
                Piece::Whole(whole) => {
                    let data = &data[within(&whole, offset)];
                    self.dev.write_at(whole.start, data, WRITE)?;
                }
                Piece::Part(sector, part) => {
                    let data = &data[within(&part, offset)];
                    self.change(&mut edge, sector, &part, |old| old.copy_from_slice(data))?;
                }
            }
        }
        Ok(())
    }

    /// Writes `data` and returns when it is durable (a write with forced unit access).
    ///
    /// # Errors
    /// The device's, or [`MediaError::PastEnd`].
    pub fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        let range = self.range(Op::Write, offset, usize_as_u64(data.len()))?;
        if self.is_whole(&range) {
            let _shared = self.edge.read();
            return self.dev.write_durable(offset, &[data], WRITE);
        }
        self.write_at(offset, data)?;
        self.flush()
    }

    /// Makes a range read as zeros because nobody needs its content; see [`BlockDev::discard`].
    ///
    /// # Errors
    /// The device's, or [`MediaError::PastEnd`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.clear(offset, len, |dev, at, len| dev.discard(at, len))
    }

    /// Makes a range read as zeros, durably after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The device's, or [`MediaError::PastEnd`].
    pub fn write_zeros(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.clear(offset, len, |dev, at, len| dev.write_zeros(at, len, WRITE))
    }

    /// Makes every request that returned before this call durable.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&self) -> Result<(), MediaError> {
        self.dev.flush(Cause::Home)
    }

    fn clear(
        &self,
        offset: u64,
        len: u64,
        whole: impl Fn(&dyn BlockDev, u64, u64) -> Result<(), MediaError>,
    ) -> Result<(), MediaError> {
        let range = self.range(Op::Discard, offset, len)?;
        if self.is_whole(&range) {
            let _shared = self.edge.read();
            return whole(&*self.dev, offset, len);
        }
        let mut edge = self.edge.write();
        for piece in self.pieces(&range) {
            match piece {
                Piece::Whole(r) => whole(&*self.dev, r.start, r.end - r.start)?,
                Piece::Part(sector, part) => {
                    self.change(&mut edge, sector, &part, |old| old.fill(0))?;
                }
            }
        }
        Ok(())
    }

    /// Changes a part of a sector.
    fn change(
        &self,
        edge: &mut Block,
        sector: u64,
        part: &Range<u64>,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), MediaError> {
        self.dev.read_at(sector, edge.bytes_mut(), READ)?;
        change(&mut edge.bytes_mut()[within(part, sector)]);
        self.dev.write_at(sector, edge.bytes(), WRITE)
    }
}

/// Converts a range of the device into a range of a buffer that begins at `base`.
fn within(range: &Range<u64>, base: u64) -> Range<usize> {
    u64_as_usize(range.start - base)..u64_as_usize(range.end - base)
}

/// The errno that users of a device get for its error.
pub fn errno(error: &MediaError) -> Errno {
    match error {
        MediaError::Io { source, .. } => *source,
        MediaError::PastEnd { .. } => Errno::NOSPC,
        MediaError::ReadOnly { .. } => Errno::ROFS,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use stetfs_media::RamDev;

    use super::*;

    /// Random requests against a plain list of bytes. The device in memory refuses requests that
    /// are not whole sectors.
    #[test]
    fn any_range_is_as_in_a_plain_file() {
        const SIZE: u64 = 1 << 15;
        let dev = ByteDev::new(Arc::new(RamDev::new(SIZE)));
        assert_eq!(dev.size(), SIZE);
        let mut model = vec![0u8; SIZE as usize];
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for n in 0..4000 {
            let offset = random(SIZE);
            let most = (SIZE - offset).min(1 << random(13));
            let len = random(most + 1);
            let range = offset as usize..(offset + len) as usize;
            match random(4) {
                0 => {
                    let data: Vec<u8> = (0..len).map(|i| (i + n) as u8 | 1).collect();
                    dev.write_at(offset, &data).unwrap();
                    model[range].copy_from_slice(&data);
                }
                1 => {
                    dev.discard(offset, len).unwrap();
                    model[range].fill(0);
                }
                2 => {
                    dev.write_zeros(offset, len).unwrap();
                    model[range].fill(0);
                }
                _ => {
                    let mut out = vec![0xee; len as usize];
                    dev.read_at(offset, &mut out).unwrap();
                    assert!(out == model[range], "request {n}: {offset} + {len}");
                }
            }
        }
        let past = |offset, len: u64| {
            let mut out = vec![0; len as usize];
            [
                dev.read_at(offset, &mut out),
                dev.write_at(offset, &out),
                dev.discard(offset, len),
            ]
        };
        for refused in past(SIZE - 1, 2).into_iter().chain(past(u64::MAX, 1)) {
            assert!(matches!(refused, Err(MediaError::PastEnd { .. })));
        }
    }
}
