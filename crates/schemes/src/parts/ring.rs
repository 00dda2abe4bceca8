//! A log as a ring of bytes in persistent memory, of one piece or of several.
//!
//! Positions count from its start without end; transactions begin at multiples of a cache line.

use std::ops::Range;
use std::sync::Arc;

use stetfs_format::width::{must_fit, u64_as_usize, usize_as_u64};
use stetfs_format::{Tid, private_log};
use stetfs_media::pmem::{Dirty, LINE};
use stetfs_media::{Cause, Class, Pmem, Tag};
use stetfs_scheme::{Result, SchemeError};

const LOG: Tag = Tag::new(Class::Journal, Cause::Log);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

pub(crate) struct Ring {
    pub(crate) pmem: Arc<dyn Pmem>,
    /// Offset in the memory and length of each piece.
    pub(crate) pieces: Vec<(u64, u64)>,
    /// Bytes of it.
    pub(crate) capacity: u64,
}

impl Ring {
    /// Bytes at most: records have 32 bits for the number of a cache line.
    const MOST: u64 = LINE << 32;

    /// # Errors
    /// It has more cache lines than records can number.
    pub(crate) fn new(pmem: Arc<dyn Pmem>, pieces: Vec<(u64, u64)>) -> Result<Self> {
        let capacity: u64 = pieces.iter().map(|piece| piece.1).sum();
        if capacity > Self::MOST {
            let most = Self::MOST;
            let why = format!("a log in memory has at most {most} bytes, not {capacity}");
            return Err(SchemeError::Unusable(why));
        }
        Ok(Self {
            pmem,
            pieces,
            capacity,
        })
    }

    /// Where `len` bytes from position `at` on lie: offset in the memory, and which of the bytes.
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

    /// Where the word at a position lies.
    pub(crate) fn word_at(&self, at: u64) -> u64 {
        let (offset, _) = self.places(at, 8).next().expect("a word");
        offset
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
            self.pmem.load(offset, &mut out[range], RECOVERY)?;
        }
        Ok(())
    }

    /// Stores a part of a body.
    pub(crate) fn write(&self, body: &mut Dirty<'_>, at: u64, bytes: &[u8]) -> Result<()> {
        for (offset, range) in self.places(at, bytes.len()) {
            body.store_nt(offset, &bytes[range], LOG)?;
        }
        Ok(())
    }

    /// Stores a record with a checksum over itself and the rest of its body; all of it is durable
    /// when it returns.
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
                body.store_nt(offset, &record[range], LOG)?;
            }
        }
        let (offset, last) = rest.expect("a record is not empty");
        Ok(body.store_covering_commit(offset, &record[last], LOG)?)
    }
}

#[cfg(test)]
mod tests {
    use stetfs_media::{Image, SimPmem};

    use super::*;

    #[test]
    fn every_line_of_the_longest_has_a_number() {
        let pmem = Arc::new(SimPmem::new(Image::new(4096)));
        let ring = |len| Ring::new(pmem.clone(), vec![(0, LINE), (LINE, len)]);
        let longest = ring(Ring::MOST - LINE).expect("a log");
        assert_eq!(longest.line(Ring::MOST - 1), u32::MAX);
        let error = ring(Ring::MOST).err().expect("one line too many");
        assert!(matches!(error, SchemeError::Unusable(_)), "{error}");
    }
}
