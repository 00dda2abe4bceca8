//! The NVRAM region: who owns it, the ring of transactions, and the blocks in flight.
//!
//! Positions in the ring count from its start without end; they are multiples of a cache line.

use std::sync::Arc;

use smallvec::SmallVec;
use stetfs_format::delta_log::{
    COMMITTED_OFFSET, GEOMETRY_OFFSET, HOME_BITS, IN_FLIGHT_OFFSET, InFlightEntry, RegionGeometry,
    TagFlags, committed_of, committed_word, decode_in_flight, encode_in_flight, in_flight_of,
    in_flight_table, in_flight_word,
};
use stetfs_format::nvm_pair::RegionHeader;
use stetfs_format::private_log::Tail;
use stetfs_format::{Tid, private_log};
use stetfs_media::pmem::{Dirty, LINE};
use stetfs_media::{Cause, Class, Durable, Pmem, Tag};

use crate::parts::owner::LOST;
use stetfs_scheme::{Result, SchemeError};

const LOG: Tag = Tag::new(Class::Journal, Cause::Log);
const CONTROL: Tag = Tag::new(Class::Journal, Cause::Control);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);
const IN_FLIGHT: Tag = Tag::new(Class::Journal, Cause::Checkpoint);

/// A block that is kept until it is home.
pub(super) struct Flight<'a> {
    pub(super) entry: InFlightEntry,
    pub(super) content: &'a [u8],
}

/// A block's tag in the ring: where it is, and its first word.
#[derive(Clone, Copy)]
pub(super) struct TagWord {
    pub(super) at: u64,
    pub(super) word: u64,
}

pub(super) struct Region {
    pub(super) pmem: Arc<dyn Pmem>,
    pub(super) geometry: RegionGeometry,
    uuid: [u8; 16],
    /// Another number each time the region is begun anew.
    epoch: u64,
    /// What checksums of single words begin with.
    word_seed: u32,
}

impl Region {
    pub(super) fn new(
        pmem: Arc<dyn Pmem>,
        block_size: usize,
        header: &RegionHeader,
    ) -> Result<Self> {
        let geometry = RegionGeometry::of(pmem.size(), block_size as u32)?;
        Ok(Self {
            pmem,
            geometry,
            uuid: header.uuid,
            epoch: header.epoch,
            word_seed: header.seed(),
        })
    }

    /// The position that a tail names, in a region that is divided as it would be now.
    pub(super) fn checked_position(&self, tail: Tail) -> Result<u64> {
        let at = match self.is_divided_so()? {
            true => self.position(tail),
            false => None,
        };
        at.ok_or_else(|| {
            let shown = self.pmem.describe();
            SchemeError::Nvm(format!("{shown} has not the size that it had; {LOST}"))
        })
    }

    /// Whether it is divided as it would be now.
    fn is_divided_so(&self) -> Result<bool> {
        let mut raw = [0; size_of_geometry()];
        self.pmem.load(GEOMETRY_OFFSET, &mut raw, RECOVERY)?;
        Ok(RegionGeometry::decode(&raw)? == self.geometry)
    }

    /// Stores how it is divided, that nothing is in flight, and which transaction is before the
    /// first. Durable after a fence.
    pub(super) fn prepare(&self, newest: Tid) -> Result<()> {
        self.note_committed(newest)?;
        self.store_word(IN_FLIGHT_OFFSET, 0, CONTROL)?;
        let geometry = self.geometry.encode();
        Ok(self.pmem.store_nt(GEOMETRY_OFFSET, &geometry, CONTROL)?)
    }

    /// A position and a number as the ring's beginning.
    pub(super) fn tail(&self, at: u64, sequence: Tid) -> Tail {
        Tail {
            line: self.line(at),
            sequence,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.geometry.capacity()
    }

    /// The position that a tail names, if there is one.
    fn position(&self, tail: Tail) -> Option<u64> {
        let at = u64::from(tail.line) * LINE;
        (at < self.capacity()).then_some(at)
    }

    fn line(&self, at: u64) -> u32 {
        (at % self.capacity() / LINE) as u32
    }

    /// What checksums of the transaction at a position begin with.
    pub(super) fn seed(&self, at: u64, sequence: Tid) -> u64 {
        private_log::seed(&self.uuid, self.epoch, self.line(at), sequence)
    }

    /// Where `len` bytes of the ring from `at` on lie: at most in two pieces.
    fn places(&self, at: u64, len: usize) -> SmallVec<[(u64, std::ops::Range<usize>); 2]> {
        let at = at % self.capacity();
        let first = len.min((self.capacity() - at) as usize);
        let mut places = SmallVec::new();
        places.push((self.geometry.ring + at, 0..first));
        if first < len {
            places.push((self.geometry.ring, first..len));
        }
        places
    }

    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        for (offset, range) in self.places(at, out.len()) {
            self.pmem.load(offset, &mut out[range], RECOVERY)?;
        }
        Ok(())
    }

    /// Stores a transaction, whose commit record has a checksum over all of it; durable when it
    /// returns. What it vouches for on the device, if anything, is durable already.
    pub(super) fn write_transaction(
        &self,
        on_device: Option<Durable<'_>>,
        at: u64,
        record: &[u8],
    ) -> Result<()> {
        // It was for this that the device was flushed.
        let _vouched_for = on_device;
        let mut body = Dirty::in_memory(&*self.pmem);
        let mut places = self.places(at, record.len());
        let (offset, last) = places.pop().expect("a record is not empty");
        for (offset, range) in places {
            body.store_nt(offset, &record[range], LOG)?;
        }
        Ok(body.store_covering_commit(offset, &record[last], LOG)?)
    }

    /// Notes that a transaction is durable, so that if it is found damaged it is not taken for one
    /// in flight. Durable some time, at the latest with the next fence.
    pub(super) fn note_committed(&self, sequence: Tid) -> Result<()> {
        let word = committed_word(sequence, self.word_seed);
        let word = word.to_le_bytes();
        Ok(self.pmem.store_nt(COMMITTED_OFFSET, &word, LOG)?)
    }

    /// A transaction that was durable, the newest or an earlier one.
    pub(super) fn committed(&self) -> Result<Tid> {
        let word = self.pmem.load_u64(COMMITTED_OFFSET, RECOVERY)?;
        Ok(committed_of(word, self.word_seed)?)
    }

    /// Notes in tags that home has their versions; durable when it returns.
    pub(super) fn note_home(&self, tags: impl Iterator<Item = TagWord>) -> Result<()> {
        for TagWord { at, word } in tags {
            let (offset, _) = self.places(at, 8)[0].clone();
            let home = u64::from(TagFlags::HOME.bits()) << HOME_BITS;
            self.store_word(offset, word | home, IN_FLIGHT)?;
        }
        Ok(self.pmem.fence(Cause::Checkpoint)?)
    }

    /// Keeps blocks until they are home; durable when it returns. Those that were kept before are
    /// not any more.
    pub(super) fn keep(&self, flights: &[Flight<'_>]) -> Result<()> {
        self.forget_kept()?;
        let entries: Vec<InFlightEntry> = flights.iter().map(|flight| flight.entry).collect();
        let table = encode_in_flight(&entries, self.seed(0, Tid(0)));
        // The state, its first word, comes last.
        self.pmem
            .store_nt(IN_FLIGHT_OFFSET + 8, &table[8..], IN_FLIGHT)?;
        for (n, flight) in flights.iter().enumerate() {
            let at = self.geometry.block_at(n);
            self.pmem.store_nt(at, flight.content, IN_FLIGHT)?;
        }
        self.pmem.fence(Cause::Checkpoint)?;
        self.store_word(IN_FLIGHT_OFFSET, in_flight_word(flights.len()), IN_FLIGHT)?;
        Ok(self.pmem.fence(Cause::Checkpoint)?)
    }

    /// Nothing is kept any more; durable when it returns.
    pub(super) fn forget_kept(&self) -> Result<()> {
        if self.pmem.load_u64(IN_FLIGHT_OFFSET, IN_FLIGHT)? == 0 {
            return Ok(());
        }
        self.store_word(IN_FLIGHT_OFFSET, 0, IN_FLIGHT)?;
        Ok(self.pmem.fence(Cause::Checkpoint)?)
    }

    /// The blocks that are kept, with their contents.
    pub(super) fn kept(&self) -> Result<Vec<(InFlightEntry, Vec<u8>)>> {
        let word = self.pmem.load_u64(IN_FLIGHT_OFFSET, RECOVERY)?;
        let count = in_flight_of(word, self.geometry.in_flight)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut table = vec![0; in_flight_table(count)];
        self.pmem.load(IN_FLIGHT_OFFSET, &mut table, RECOVERY)?;
        let entries = decode_in_flight(&table, self.seed(0, Tid(0)))?;
        let mut kept = Vec::with_capacity(count);
        for (n, entry) in entries.into_iter().enumerate() {
            let mut content = vec![0; self.geometry.block_size as usize];
            self.pmem
                .load(self.geometry.block_at(n), &mut content, RECOVERY)?;
            kept.push((entry, content));
        }
        Ok(kept)
    }

    fn store_word(&self, offset: u64, word: u64, tag: Tag) -> Result<()> {
        self.pmem.store_u64(offset, word, tag)?;
        Ok(self.pmem.flush(offset, 8, tag)?)
    }
}

const fn size_of_geometry() -> usize {
    stetfs_format::delta_log::DJ_GEOMETRY_LAYOUT.size
}
