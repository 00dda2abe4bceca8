//! The NVRAM region: its header, the ring of transactions, and the blocks in flight.
//!
//! Positions in the ring count bytes from its start and never wrap; they are multiples of a cache
//! line.

use std::sync::Arc;

use stetfs_format::delta_log::{
    GEOMETRY_OFFSET, HOME_BITS, IN_FLIGHT_OFFSET, InFlightEntry, RegionGeometry, TagFlags,
    decode_in_flight, encode_in_flight, in_flight_of, in_flight_table, in_flight_word,
};
use stetfs_format::nvm_pair::RegionHeader;
use stetfs_format::private_log::Tail;
use stetfs_format::width::{u16_as_u32, u32_as_u64, u32_as_usize};
use stetfs_format::{BlockSize, Tid};
use stetfs_media::pmem::LINE;
use stetfs_media::{Cause, Class, Pmem, Tag};

use crate::parts::owner::{self, LOST};
use crate::parts::ring::Ring;
use stetfs_scheme::{Result, SchemeError};

const CONTROL: Tag = Tag::new(Class::Journal, Cause::Control);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);
const IN_FLIGHT: Tag = Tag::new(Class::Journal, Cause::Checkpoint);

/// A block that the NVRAM keeps until it is home.
pub(super) struct Flight<'a> {
    pub(super) entry: InFlightEntry,
    pub(super) content: &'a [u8],
}

/// A block's tag in the ring: its position, and its first word.
#[derive(Clone, Copy)]
pub(super) struct TagWord {
    pub(super) at: u64,
    pub(super) word: u64,
}

pub(super) struct DeltaRegion {
    pub(super) ring: Ring<Arc<dyn Pmem>>,
    pub(super) geometry: RegionGeometry,
    uuid: [u8; 16],
    /// A number that differs each time the region is begun anew.
    epoch: u64,
    /// The seed of the checksums of single words.
    word_seed: u32,
}

/// The flag in a tag's first word that home has its version.
const HOME: u64 = u32_as_u64(u16_as_u32(TagFlags::HOME.bits())) << HOME_BITS;

impl DeltaRegion {
    pub(super) fn new(
        pmem: Arc<dyn Pmem>,
        block_size: BlockSize,
        header: &RegionHeader,
    ) -> Result<Self> {
        let geometry = RegionGeometry::of(pmem.size(), block_size.bytes_u32())?;
        Ok(Self {
            ring: Ring::new(pmem, vec![(geometry.ring, geometry.capacity())])?,
            geometry,
            uuid: header.uuid,
            epoch: header.epoch,
            word_seed: header.seed(),
        })
    }

    /// Returns the position that a tail names, if the region is divided as a new one would be.
    pub(super) fn checked_position(&self, tail: Tail) -> Result<u64> {
        let at = if self.is_divided_so()? {
            self.position(tail)
        } else {
            None
        };
        at.ok_or_else(|| {
            let shown = self.ring.medium.describe();
            SchemeError::Nvm(format!("{shown} has not the size that it had; {LOST}"))
        })
    }

    /// True when the region is divided as a new one would be.
    fn is_divided_so(&self) -> Result<bool> {
        let mut raw = [0; size_of_geometry()];
        self.ring.medium.load(GEOMETRY_OFFSET, &mut raw, RECOVERY)?;
        Ok(RegionGeometry::decode(&raw)? == self.geometry)
    }

    /// Stores the geometry, that no block is in flight, and the number before that of the first
    /// transaction. Durable after a fence.
    pub(super) fn prepare(&self, newest: Tid) -> Result<()> {
        self.note_committed(newest)?;
        self.store_word(IN_FLIGHT_OFFSET, 0, CONTROL)?;
        let geometry = self.geometry.encode();
        Ok(self
            .ring
            .medium
            .store_nt(GEOMETRY_OFFSET, &geometry, CONTROL)?)
    }

    /// Returns the tail for a position and a number.
    pub(super) fn tail(&self, at: u64, sequence: Tid) -> Tail {
        Tail {
            line: self.ring.line(at),
            sequence,
        }
    }

    /// Returns the position that a tail names; `None` if it is beyond the ring.
    fn position(&self, tail: Tail) -> Option<u64> {
        let at = u64::from(tail.line) * LINE;
        (at < self.ring.capacity).then_some(at)
    }

    /// Returns the seed of the checksums of the transaction at a position.
    pub(super) fn seed(&self, at: u64, sequence: Tid) -> u64 {
        self.ring.seed(&self.uuid, self.epoch, at, sequence)
    }

    /// Notes that a transaction is durable: see [`owner::note_committed`].
    pub(super) fn note_committed(&self, sequence: Tid) -> Result<()> {
        owner::note_committed(&*self.ring.medium, self.word_seed, sequence)
    }

    /// Returns the newest transaction that is noted as durable; later ones may be durable too.
    pub(super) fn committed(&self) -> Result<Tid> {
        owner::committed(&*self.ring.medium, self.word_seed)
    }

    /// Sets the flag in tags that home has their versions; durable when it returns.
    pub(super) fn note_home(&self, tags: impl Iterator<Item = TagWord>) -> Result<()> {
        for TagWord { at, word } in tags {
            self.store_word(self.ring.word_at(at), word | HOME, IN_FLIGHT)?;
        }
        Ok(self.ring.medium.fence(Cause::Checkpoint)?)
    }

    /// Clears that flag in tags; durable when it returns.
    pub(super) fn forget_home(&self, tags: &[TagWord]) -> Result<()> {
        if tags.is_empty() {
            return Ok(());
        }
        for TagWord { at, word } in tags {
            self.store_word(self.ring.word_at(*at), word & !HOME, RECOVERY)?;
        }
        Ok(self.ring.medium.fence(Cause::Recovery)?)
    }

    /// Keeps blocks until they are home, in place of those that were kept before; durable when it
    /// returns.
    pub(super) fn keep(&self, flights: &[Flight<'_>]) -> Result<()> {
        self.forget_kept()?;
        let entries: Vec<InFlightEntry> = flights.iter().map(|flight| flight.entry).collect();
        let table = encode_in_flight(&entries, self.seed(0, Tid(0)));
        // The first word, the state, is stored last.
        self.ring
            .medium
            .store_nt(IN_FLIGHT_OFFSET + 8, &table[8..], IN_FLIGHT)?;
        for (n, flight) in flights.iter().enumerate() {
            let at = self.geometry.block_at(n);
            self.ring.medium.store_nt(at, flight.content, IN_FLIGHT)?;
        }
        self.ring.medium.fence(Cause::Checkpoint)?;
        self.store_word(IN_FLIGHT_OFFSET, in_flight_word(flights.len()), IN_FLIGHT)?;
        Ok(self.ring.medium.fence(Cause::Checkpoint)?)
    }

    /// Gives up the kept blocks; durable when it returns.
    pub(super) fn forget_kept(&self) -> Result<()> {
        if self.ring.medium.load_u64(IN_FLIGHT_OFFSET, IN_FLIGHT)? == 0 {
            return Ok(());
        }
        self.store_word(IN_FLIGHT_OFFSET, 0, IN_FLIGHT)?;
        Ok(self.ring.medium.fence(Cause::Checkpoint)?)
    }

    /// Returns the kept blocks, with their contents.
    pub(super) fn kept(&self) -> Result<Vec<(InFlightEntry, Vec<u8>)>> {
        let word = self.ring.medium.load_u64(IN_FLIGHT_OFFSET, RECOVERY)?;
        let count = in_flight_of(word, self.geometry.in_flight)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut table = vec![0; in_flight_table(count)];
        self.ring
            .medium
            .load(IN_FLIGHT_OFFSET, &mut table, RECOVERY)?;
        let entries = decode_in_flight(&table, self.seed(0, Tid(0)))?;
        let mut kept = Vec::with_capacity(count);
        for (n, entry) in entries.into_iter().enumerate() {
            let mut content = vec![0; u32_as_usize(self.geometry.block_size)];
            self.ring
                .medium
                .load(self.geometry.block_at(n), &mut content, RECOVERY)?;
            kept.push((entry, content));
        }
        Ok(kept)
    }

    fn store_word(&self, offset: u64, word: u64, tag: Tag) -> Result<()> {
        self.ring.medium.store_u64(offset, word, tag)?;
        Ok(self.ring.medium.flush(offset, 8, tag)?)
    }
}

const fn size_of_geometry() -> usize {
    stetfs_format::delta_log::DJ_GEOMETRY_LAYOUT.size
}
