//! A log as a ring of bytes, of one piece or of several, in persistent memory or on a block device.
//!
//! Positions count from its start without end; transactions begin at multiples of a cache line or
//! of a sector.

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

/// What a block device reads at a time, in bytes: a multiple of every unit.
const PIECE: u64 = 64 << 10;

/// What a ring of bytes can lie on.
pub(crate) trait Medium: Send + Sync {
    /// Bytes of the smallest piece that is written: records are as many of them as they take.
    fn unit(&self) -> u64;

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Bytes that take hardly longer to read than a unit.
    fn piece(&self) -> u64;

    /// Fills `out` from byte `offset` on. Both are multiples of [`unit`](Self::unit) where the
    /// medium wants that.
    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<()>;

    /// Puts `bytes`, of at most a sector, at the beginning of the unit at `offset`; durable when it
    /// returns. Only the bytes in `changed`, whole words, differ from what is there, unless nothing
    /// rests on what is there.
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

    /// A sector, which is never torn; in memory as there.
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

/// So many zeros and perhaps some more, aligned as devices like it.
pub(crate) fn aligned(len: usize) -> Block {
    Block::zeroed(len.next_multiple_of(4096))
}

/// Bytes at most: records have 32 bits for the number of a cache line.
const MOST: u64 = LINE << 32;

pub(crate) struct Ring<M> {
    pub(crate) medium: M,
    /// Bytes of the unit that its transactions are multiples of: that of the medium where the log
    /// was made, and a multiple of this one's.
    pub(crate) unit: u64,
    /// Offset on the medium and length of each piece.
    pub(crate) pieces: Vec<(u64, u64)>,
    /// Bytes of it.
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

    /// Where `len` bytes from position `at` on lie: offset on the medium, and which of the bytes.
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

    /// The number of the cache line at a position, as records name it.
    pub(crate) fn line(&self, at: u64) -> u32 {
        must_fit(at % self.capacity / LINE)
    }

    /// What the checksums of the transaction at a position begin with, in a log of this volume and
    /// epoch.
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
    /// Where the word at a position lies.
    pub(crate) fn word_at(&self, at: u64) -> u64 {
        let (offset, _) = self.places(at, 8).next().expect("a word");
        offset
    }

    /// Stores a part of a body.
    pub(crate) fn write(&self, body: &mut pmem::Dirty<'_>, at: u64, bytes: &[u8]) -> Result<()> {
        for (offset, range) in self.places(at, bytes.len()) {
            body.store_nt(offset, &bytes[range], LOG)?;
        }
        Ok(())
    }

    /// Stores a record with a checksum over itself and the rest of its body; all of it is durable
    /// when it returns.
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
    /// What writes a record.
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

    /// As in memory, in whole sectors.
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
