//! A log as a ring of bytes, in one or several pieces, in persistent memory or on a block device.
//!
//! Positions count bytes from the ring's start and never wrap. Transactions begin at multiples of a
//! cache line or of a sector.

use std::ops::Range;
use std::sync::Arc;

use smallvec::smallvec;
use stetfs_format::width::{must_fit, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{Tid, private_log};
use stetfs_media::pmem::{self, LINE};
use stetfs_media::{Block, BlockDev, Cause, Class, Dirty, Pmem, Run, Tag};
use stetfs_scheme::{Result, SchemeError};

const LOG: Tag = Tag::new(Class::Journal, Cause::Log);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

/// Bytes that a block device reads at a time: a multiple of every unit.
const PIECE: u64 = 64 << 10;

/// A medium of a ring of bytes.
pub(crate) trait Medium: Send + Sync {
    /// Returns the bytes of the smallest piece that is written. Records are multiples of it.
    fn unit(&self) -> u64;

    /// Returns its size in bytes.
    fn size(&self) -> u64;

    /// Returns the bytes that take hardly longer to read than a unit.
    fn piece(&self) -> u64;

    /// Fills `out` from byte `offset` on. Offset and length are multiples of [`unit`](Self::unit)
    /// if the medium needs that.
    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<()>;

    /// Writes `bytes`, at most a sector, at the start of the unit at `offset`; durable when it
    /// returns. Only the bytes in `changed`, whole words, differ from the old ones, unless nothing
    /// rests on those.
    fn rewrite(&self, offset: u64, bytes: &[u8], changed: Range<usize>, tag: Tag) -> Result<()>;
}

impl Medium for Arc<dyn Pmem> {
    fn unit(&self) -> u64 {
        LINE
    }

    fn size(&self) -> u64 {
        (**self).size()
    }

    fn piece(&self) -> u64 {
        LINE
    }

    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<()> {
        Ok((**self).load(offset, out, tag)?)
    }

    fn rewrite(&self, offset: u64, bytes: &[u8], changed: Range<usize>, tag: Tag) -> Result<()> {
        let at = offset + usize_as_u64(changed.start);
        match <[u8; 8]>::try_from(&bytes[changed.clone()]) {
            Ok(word) => {
                self.store_u64(at, u64::from_le_bytes(word), tag)?;
                self.flush(at, 8, tag)?;
            }
            Err(_) => self.store_nt(at, &bytes[changed], tag)?,
        }
        Ok(self.fence(tag.cause)?)
    }
}

impl Medium for Arc<dyn BlockDev> {
    fn unit(&self) -> u64 {
        self.sector_size().into()
    }

    fn size(&self) -> u64 {
        (**self).size()
    }

    fn piece(&self) -> u64 {
        match self.pmem() {
            Some(pmem) => pmem.piece(),
            None => PIECE,
        }
    }

    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<()> {
        Ok(self.read_at(offset, out, tag)?)
    }

    /// Writes whole sectors, which are never torn; in memory it stores as `Pmem` does.
    fn rewrite(&self, offset: u64, bytes: &[u8], changed: Range<usize>, tag: Tag) -> Result<()> {
        if let Some(pmem) = self.pmem() {
            return pmem.rewrite(offset, bytes, changed, tag);
        }
        let sector = u32_as_usize(self.sector_size());
        let mut whole = aligned(bytes.len());
        whole.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len().next_multiple_of(sector);
        Ok(self.write_durable(offset, &[&whole.bytes()[..len]], tag)?)
    }
}

/// Returns a block of at least `len` zeros, aligned for devices.
pub(crate) fn aligned(len: usize) -> Block {
    Block::zeroed(len.next_multiple_of(4096))
}

/// The most bytes of a ring: records have 32 bits for the number of a cache line.
const MOST: u64 = LINE << 32;

pub(crate) struct Ring<M> {
    pub(crate) medium: M,
    /// The unit of its transactions in bytes: that of the medium on which the log was made, which
    /// is a multiple of this medium's.
    pub(crate) unit: u64,
    /// Offset on the medium and length of each piece.
    pub(crate) pieces: Vec<(u64, u64)>,
    /// Its length in bytes.
    pub(crate) capacity: u64,
}

impl<M: Medium> Ring<M> {
    /// # Errors
    /// It has more cache lines than records can number.
    pub(crate) fn new(medium: M, pieces: Vec<(u64, u64)>) -> Result<Self> {
        let capacity: u64 = pieces.iter().map(|piece| piece.1).sum();
        if capacity > MOST {
            let why = format!("a log of bytes has at most {MOST} of them, not {capacity}");
            return Err(SchemeError::Unusable(why));
        }
        Ok(Self {
            unit: medium.unit(),
            medium,
            pieces,
            capacity,
        })
    }

    /// Yields the pieces of the `len` bytes at position `at`: offset on the medium, and range of
    /// the bytes.
    fn places(&self, at: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        let (mut at, mut done) = (at % self.capacity, 0);
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let mut before = 0;
            for &(offset, piece) in &self.pieces {
                if at < before + piece {
                    let n = (len - done).min(u64_as_usize(before + piece - at));
                    let place = (offset + at - before, done..done + n);
                    done += n;
                    at = (at + usize_as_u64(n)) % self.capacity;
                    return Some(place);
                }
                before += piece;
            }
            None
        })
    }

    /// Returns the number of the cache line at a position, as records name it.
    pub(crate) fn line(&self, at: u64) -> u32 {
        must_fit(at % self.capacity / LINE)
    }

    /// Returns the seed of the checksums of the transaction at a position, in a log of this volume
    /// and epoch.
    pub(crate) fn seed(&self, uuid: &[u8; 16], epoch: u64, at: u64, sequence: Tid) -> u64 {
        private_log::seed(uuid, epoch, self.line(at), sequence)
    }

    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        for (offset, range) in self.places(at, out.len()) {
            self.medium.load(offset, &mut out[range], RECOVERY)?;
        }
        Ok(())
    }
}

impl Ring<Arc<dyn Pmem>> {
    /// Returns the offset on the medium of the word at a position.
    pub(crate) fn word_at(&self, at: u64) -> u64 {
        let (offset, _) = self.places(at, 8).next().expect("a word");
        offset
    }

    /// Stores bytes as part of a body.
    pub(crate) fn write(&self, body: &mut pmem::Dirty<'_>, at: u64, bytes: &[u8]) -> Result<()> {
        for (offset, range) in self.places(at, bytes.len()) {
            body.store_nt(offset, &bytes[range], LOG)?;
        }
        Ok(())
    }

    /// Stores a record as the last part of a body for whose other parts it has checksums; all of it
    /// is durable when it returns.
    pub(crate) fn write_covering_commit(
        &self,
        mut body: pmem::Dirty<'_>,
        at: u64,
        record: &[u8],
    ) -> Result<()> {
        let mut rest = None;
        for place in self.places(at, record.len()) {
            if let Some((offset, range)) = rest.replace(place) {
                let range: Range<usize> = range;
                body.store_nt(offset, &record[range], LOG)?;
            }
        }
        let (offset, last) = rest.expect("a record is not empty");
        Ok(body.store_covering_commit(offset, &record[last], LOG)?)
    }
}

impl Ring<Arc<dyn BlockDev>> {
    /// Yields the requests that write a record.
    pub(crate) fn runs<'r>(&self, at: u64, record: &'r [u8]) -> impl Iterator<Item = Run<'r>> {
        self.places(at, record.len()).map(|(offset, range)| Run {
            offset,
            parts: smallvec![&record[range]],
            tag: LOG,
        })
    }

    /// Overwrites the unit at a position with zeros; durable when it returns.
    pub(crate) fn wipe_unit(&self, at: u64) -> Result<()> {
        let (offset, _) = self.places(at, 1).next().expect("a byte");
        let unit = u64_as_usize(self.unit);
        let zeros = aligned(unit);
        Ok(self
            .medium
            .write_durable(offset, &[&zeros.bytes()[..unit]], RECOVERY)?)
    }

    /// Writes a record as the last part of a body, in whole sectors: otherwise as in memory.
    pub(crate) fn write_covering_commit(
        &self,
        mut body: Dirty<'_>,
        at: u64,
        record: &[u8],
    ) -> Result<()> {
        let mut rest = None;
        for place in self.places(at, record.len()) {
            if let Some((offset, range)) = rest.replace(place) {
                let range: Range<usize> = range;
                body.write(offset, &[&record[range]], LOG)?;
            }
        }
        let (offset, last) = rest.expect("a record is not empty");
        Ok(body.write_covering_commit(offset, &[(LOG, &record[last])])?)
    }
}

#[cfg(test)]
mod tests {
    use stetfs_media::{Image, SimPmem};

    use super::*;

    #[test]
    fn every_line_of_the_longest_has_a_number() {
        let pmem: Arc<dyn Pmem> = Arc::new(SimPmem::new(Image::new(4096)));
        let ring = |len| Ring::new(pmem.clone(), vec![(0, LINE), (LINE, len)]);
        let longest = ring(MOST - LINE).expect("a log");
        assert_eq!(longest.line(MOST - 1), u32::MAX);
        let error = ring(MOST).err().expect("one line too many");
        assert!(matches!(error, SchemeError::Unusable(_)), "{error}");
    }
}
