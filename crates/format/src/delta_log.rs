//! The NVRAM region of Delta Journaling: the records of Kim, Min, Eom, IEEE Trans. Consumer
//! Electronics 60(2), 2014, section III.D and figure 6, and those that close the paper's hole.
//!
//! The region begins as every region beside a volume does ([`nvm_pair`](crate::nvm_pair)) and has,
//! at byte [`GEOMETRY_OFFSET`], a [`RegionGeometry`]. The blocks in flight follow from byte
//! [`IN_FLIGHT_OFFSET`] on: a header, an [`InFlightEntry`] for each block, then, from a multiple of
//! 64 on, the blocks. The rest is the delta journal. It is a ring of transactions, each at a
//! multiple of 64 from its start:
//!
//! 1. a journal descriptor (JD): [`DESCRIPTOR_SIZE`] bytes, then its [`Tag`]s;
//! 2. the deltas, each begun with the [checksum](content_checksum) of the block that it leads to, 4
//!    bytes;
//! 3. at the next multiple of 8, the journal commit record (JC), [`COMMIT_SIZE`] bytes.
//!
//! A transaction is valid if and only if descriptor and commit record have the expected sequence
//! number, and the commit record has the checksum of everything before it. That checksum begins
//! with [`seed`](crate::private_log::seed) and is computed with [`TagFlags::HOME`] cleared in all
//! tags.
//!
//! All integers are little-endian.

use bitflags::bitflags;

use crate::checksum::{crc32c, crc64};
use crate::error::Corrupt;
use crate::layout::{Le16, Le32, Le64, layout, record};
use crate::num::{BlockNo, Tid};
use crate::width::{high32, low32, must_fit, u32_as_usize, u64_as_usize, usize_as_u64};

layout! {
    /// A transaction's descriptor.
    pub DJ_DESCRIPTOR_LAYOUT = "Delta journal descriptor", 16, {
        0x00 Le32, D_MAGIC = "jd_magic";
        0x04 Le32, D_TYPE = "jd_blocktype";
        0x08 Le32, D_SEQUENCE = "jd_sequence";
        0x0c Le32, D_TAGS = "jd_tags";
    }
}

layout! {
    /// What a transaction does to one block.
    pub DJ_TAG_LAYOUT = "Delta journal tag", 16, {
        0x00 Le32, T_HOME_LO = "jt_home_lo";
        0x04 Le16, T_HOME_HI = "jt_home_hi";
        0x06 Le16, T_FLAGS = "jt_flags";
        0x08 Le32, T_PLACE = "jt_place";
        0x0c Le32, T_LENGTH = "jt_length";
    }
}

layout! {
    /// What makes a transaction valid.
    pub DJ_COMMIT_LAYOUT = "Delta journal commit record", 32, {
        0x00 Le32, C_MAGIC = "jc_magic";
        0x04 Le32, C_TYPE = "jc_blocktype";
        0x08 Le32, C_SEQUENCE = "jc_sequence";
        0x0c Le32, C_NSEC = "jc_nsec";
        0x10 Le64, C_CHECKSUM = "jc_checksum";
        0x18 Le64, C_SEC = "jc_sec";
    }
}

layout! {
    /// Whether blocks are on their way home.
    pub DJ_IN_FLIGHT_LAYOUT = "Delta journal blocks in flight", 16, {
        0x00 Le64, F_STATE = "f_state";
        0x08 Le64, F_CHECKSUM = "f_checksum";
    }
}

/// Where the geometry lies.
pub const GEOMETRY_OFFSET: u64 = 128;
/// Where the blocks in flight begin.
pub const IN_FLIGHT_OFFSET: u64 = 4096;
/// Bytes of a descriptor without its tags.
pub const DESCRIPTOR_SIZE: usize = DJ_DESCRIPTOR_LAYOUT.size;
/// Bytes of a tag.
pub const TAG_SIZE: usize = DJ_TAG_LAYOUT.size;
/// Bytes of a commit record.
pub const COMMIT_SIZE: usize = DJ_COMMIT_LAYOUT.size;
/// Bytes before a delta: the checksum of the block that it leads to.
pub const DELTA_HEADER: usize = 4;

/// The checksum of a block's content: the lower half of its CRC-64.
///
/// Not a CRC-32C: directory and extent blocks end in their own CRC-32C, and the CRC-32C of a
/// content with its CRC-32C behind it is a constant. It could not tell versions of such a block
/// apart.
pub fn content_checksum(content: &[u8]) -> u32 {
    low32(crc64(0, content))
}

/// Whether a block's content has that checksum, or the CRC-32C that was stored instead until
/// 2026-11-23.
pub fn is_content(content: &[u8], checksum: u32) -> bool {
    content_checksum(content) == checksum || crc32c(!0, content) == checksum
}

const MAGIC: u32 = 0x4a44_7473; // "stDJ"
const TYPE_DESCRIPTOR: u32 = 1;
const TYPE_COMMIT: u32 = 2;
/// The type that descriptors of transactions with data at home had until 2026-11-22; it means the
/// same.
const TYPE_DESCRIPTOR_DATA: u32 = 3;
const IN_FLIGHT_STATE: u32 = 0x4754_4c46; // "FLTG"
/// Bits of a block number in a tag's first word; the flags are above.
pub const HOME_BITS: u32 = 48;

record! {
    /// How a region is divided.
    pub DJ_GEOMETRY_LAYOUT = "Delta journal geometry", 32, {
        0x18 Le32, G_CHECKSUM = "g_checksum";
    }

    /// How a region is divided.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RegionGeometry from (raw) {
        /// Bytes of the region.
        0x00 Le64, size: u64 = "g_size";
        /// Bytes of the volume's blocks.
        0x08 Le32, block_size: u32 = "g_block_size";
        /// Blocks that can be in flight at once.
        0x0c Le32, in_flight: u32 = "g_in_flight";
        /// Where the ring begins, a multiple of 64; it goes to the end.
        0x10 Le64, ring: u64 = "g_ring";
    }
}

impl RegionGeometry {
    /// The smallest possible region, in blocks.
    pub const LEAST_BLOCKS: u64 = 16;

    /// Divides a region of `size` bytes: an eighth is for blocks in flight, but at most 1,024 of
    /// them.
    ///
    /// # Errors
    /// [`Corrupt::DeltaJournal`]: the region is too small.
    pub fn of(size: u64, block_size: u32) -> Result<Self, Corrupt> {
        let block = u64::from(block_size);
        if size < IN_FLIGHT_OFFSET + Self::LEAST_BLOCKS * block {
            return Err(Corrupt::DeltaJournal("the region is too small"));
        }
        let in_flight = must_fit((size / 8 / (block + usize_as_u64(TAG_SIZE))).clamp(2, 1024));
        Ok(Self {
            size,
            block_size,
            in_flight,
            ring: Self::blocks_at(in_flight) + u64::from(in_flight) * block,
        })
    }

    /// Where the blocks in flight lie.
    fn blocks_at(in_flight: u32) -> u64 {
        let table = usize_as_u64(DJ_IN_FLIGHT_LAYOUT.size)
            + u64::from(in_flight) * usize_as_u64(DJ_IN_FLIGHT_ENTRY_LAYOUT.size);
        IN_FLIGHT_OFFSET + table.next_multiple_of(64)
    }

    /// Where the content of the `n`th block in flight lies.
    pub fn block_at(&self, n: usize) -> u64 {
        Self::blocks_at(self.in_flight) + usize_as_u64(n) * u64::from(self.block_size)
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> u64 {
        (self.size - self.ring) / 64 * 64
    }

    /// Reads the geometry.
    ///
    /// # Errors
    /// [`Corrupt::DeltaJournal`].
    pub fn decode(raw: &[u8; DJ_GEOMETRY_LAYOUT.size]) -> Result<Self, Corrupt> {
        let raw = &raw[..];
        if G_CHECKSUM.get(raw) != crc32c(!0, &raw[..G_CHECKSUM.0]) {
            return Err(Corrupt::DeltaJournal("the geometry's checksum is wrong"));
        }
        let found = Self::read_fields(raw);
        match Self::of(found.size, found.block_size) {
            Ok(expected) if expected == found => Ok(found),
            _ => Err(Corrupt::DeltaJournal("the geometry cannot be")),
        }
    }

    /// The geometry as bytes.
    pub fn encode(&self) -> [u8; DJ_GEOMETRY_LAYOUT.size] {
        let mut raw = [0; DJ_GEOMETRY_LAYOUT.size];
        self.write_fields(&mut raw);
        let crc = crc32c(!0, &raw[..G_CHECKSUM.0]);
        G_CHECKSUM.put(&mut raw, crc);
        raw
    }
}

bitflags! {
    /// What a tag says about its block, beside the compressor's number in [`TagFlags::COMPRESSOR`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TagFlags: u16 {
        /// TYPE_NON_DELTA: the whole block is in the device's journal.
        const NON_DELTA = 1;
        /// The block was freed: what earlier transactions logged of it must not be replayed.
        const REVOKE = 2;
        /// Home has this version: neither this tag nor earlier ones of the block are needed. It is
        /// set later, in one store. The checksum does not cover it; instead it has three bits that
        /// are only ever set together.
        const HOME = 0x34;
        /// The block begins with the magic number of JBD2, and the device's journal has zeros in
        /// its place.
        const ESCAPE = 8;
        /// The compressor.
        const COMPRESSOR = 0xff00;
    }
}

/// What a transaction does to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The block.
    pub home: BlockNo,
    /// What the tag says about it.
    pub flags: TagFlags,
    /// TYPE_DELTA: where the delta begins, in bytes from the descriptor's start. TYPE_NON_DELTA:
    /// the journal's block.
    pub place: u32,
    /// TYPE_DELTA: bytes of the delta. TYPE_NON_DELTA: the [checksum](content_checksum) of the
    /// block.
    pub length: u32,
}

impl Tag {
    /// Reads a tag.
    pub fn decode(raw: &[u8]) -> Self {
        let home = u64::from(T_HOME_LO.get(raw)) | u64::from(T_HOME_HI.get(raw)) << 32;
        Self {
            home: BlockNo(home),
            flags: TagFlags::from_bits_retain(T_FLAGS.get(raw)),
            place: T_PLACE.get(raw),
            length: T_LENGTH.get(raw),
        }
    }

    /// The tag as bytes.
    pub fn encode(&self) -> [u8; TAG_SIZE] {
        let mut raw = [0; TAG_SIZE];
        raw[..8].copy_from_slice(&self.word().to_le_bytes());
        T_PLACE.put(&mut raw, self.place);
        T_LENGTH.put(&mut raw, self.length);
        raw
    }

    /// The tag's first word, which changes in one store.
    ///
    /// # Panics
    /// The block number has more than 48 bits.
    pub fn word(&self) -> u64 {
        assert_eq!(self.home.0 >> HOME_BITS, 0, "ext4 has 48 bits");
        self.home.0 | u64::from(self.flags.bits()) << HOME_BITS
    }

    /// Whether home has this version.
    ///
    /// # Errors
    /// [`Corrupt::DeltaJournal`]: only some of the three bits are set.
    pub fn is_home(&self) -> Result<bool, Corrupt> {
        match self.flags & TagFlags::HOME {
            TagFlags::HOME => Ok(true),
            none if none.is_empty() => Ok(false),
            _ => Err(Corrupt::DeltaJournal("a tag's flags are damaged")),
        }
    }

    /// The compressor's number.
    pub fn compressor(&self) -> u8 {
        let [_, compressor] = self.flags.bits().to_le_bytes();
        compressor
    }
}

/// A transaction as bytes: what the writer fills and the reader takes apart.
#[derive(Clone, Debug, Default)]
pub struct Record(pub Vec<u8>);

impl Record {
    /// Bytes of a transaction with `tags` tags and `deltas` bytes of deltas, padded to whole cache
    /// lines.
    pub fn length(tags: usize, deltas: usize) -> u64 {
        let body = DESCRIPTOR_SIZE + tags * TAG_SIZE + deltas;
        usize_as_u64((body.next_multiple_of(8) + COMMIT_SIZE).next_multiple_of(64))
    }

    /// Begins a transaction with `tags` tags, which are all zeros.
    pub fn begin(&mut self, sequence: Tid, tags: usize) {
        self.0.clear();
        self.0.resize(DESCRIPTOR_SIZE + tags * TAG_SIZE, 0);
        D_MAGIC.put(&mut self.0, MAGIC);
        D_TYPE.put(&mut self.0, TYPE_DESCRIPTOR);
        D_SEQUENCE.put(&mut self.0, sequence.0);
        D_TAGS.put(&mut self.0, must_fit(tags));
    }

    /// Where the `n`th tag lies.
    pub fn tag_at(n: usize) -> usize {
        DESCRIPTOR_SIZE + n * TAG_SIZE
    }

    /// Sets the `n`th tag.
    pub fn set_tag(&mut self, n: usize, tag: &Tag) {
        let at = Self::tag_at(n);
        self.0[at..at + TAG_SIZE].copy_from_slice(&tag.encode());
    }

    /// Ends the transaction with the commit record; `seed` is that of its position.
    pub fn seal(&mut self, sequence: Tid, seed: u64, time: (u64, u32)) {
        let body = self.0.len().next_multiple_of(8);
        self.0.resize(body, 0);
        let checksum = crc64(seed, &self.0);
        self.0.resize((body + COMMIT_SIZE).next_multiple_of(64), 0);
        let commit = &mut self.0[body..];
        C_MAGIC.put(commit, MAGIC);
        C_TYPE.put(commit, TYPE_COMMIT);
        C_SEQUENCE.put(commit, sequence.0);
        C_NSEC.put(commit, time.1);
        C_CHECKSUM.put(commit, checksum);
        C_SEC.put(commit, time.0);
    }
}

/// Returns the number of tags that a descriptor says it has. `None` when it is not the descriptor
/// of transaction `sequence`, or has more tags than `most` bytes hold.
pub fn descriptor_tags(raw: &[u8; DESCRIPTOR_SIZE], sequence: Tid, most: u64) -> Option<usize> {
    let raw = &raw[..];
    let is_one = D_MAGIC.get(raw) == MAGIC
        && matches!(D_TYPE.get(raw), TYPE_DESCRIPTOR | TYPE_DESCRIPTOR_DATA)
        && D_SEQUENCE.get(raw) == sequence.0;
    let tags = D_TAGS.get(raw);
    let fits = u64::from(tags) * usize_as_u64(TAG_SIZE)
        + usize_as_u64(DESCRIPTOR_SIZE + COMMIT_SIZE)
        <= most;
    (is_one && fits).then_some(u32_as_usize(tags))
}

/// Returns where the deltas that these tags name end and the commit record begins, in bytes from
/// the descriptor's start. `None` when a tag names a place that does not fit `most` bytes.
pub fn body_end(tags: &[Tag], most: u64) -> Option<usize> {
    let first = usize_as_u64(DESCRIPTOR_SIZE + tags.len() * TAG_SIZE);
    let mut end = first;
    for tag in tags {
        if tag.flags.intersects(TagFlags::NON_DELTA | TagFlags::REVOKE) {
            continue;
        }
        let (from, len) = (u64::from(tag.place), u64::from(tag.length));
        if from < first || len < usize_as_u64(DELTA_HEADER) {
            return None;
        }
        end = end.max(from + len);
    }
    let end = end.next_multiple_of(8);
    (end + usize_as_u64(COMMIT_SIZE) <= most).then_some(u64_as_usize(end))
}

/// Whether the commit record at `end` of `record` belongs to transaction `sequence` and has the
/// checksum of everything before it.
pub fn is_committed(record: &[u8], end: usize, tags: usize, sequence: Tid, seed: u64) -> bool {
    let commit = &record[end..end + COMMIT_SIZE];
    if C_MAGIC.get(commit) != MAGIC
        || C_TYPE.get(commit) != TYPE_COMMIT
        || C_SEQUENCE.get(commit) != sequence.0
    {
        return false;
    }
    let mut as_written = record[..end].to_vec();
    let [home, _] = TagFlags::HOME.bits().to_le_bytes();
    for n in 0..tags {
        // The flags' low byte is the seventh of the tag.
        as_written[Record::tag_at(n) + T_FLAGS.0] &= !home;
    }
    C_CHECKSUM.get(commit) == crc64(seed, &as_written)
}

record! {
    /// A block in flight.
    pub DJ_IN_FLIGHT_ENTRY_LAYOUT = "Delta journal block in flight", 16, {}

    /// A block on its way home.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InFlightEntry from (raw) {
        /// Where it goes.
        0x00 Le64, home: BlockNo = "e_home";
        /// The transaction whose version it is.
        0x08 Le32, sequence: Tid = "e_sequence";
        /// The [checksum](content_checksum) of its content.
        0x0c Le32, checksum: u32 = "e_checksum";
    }
}

/// The table of blocks in flight, as the bytes from [`IN_FLIGHT_OFFSET`] on. The state word in it
/// is 0: it is stored later, in one store.
pub fn encode_in_flight(entries: &[InFlightEntry], seed: u64) -> Vec<u8> {
    let size = DJ_IN_FLIGHT_ENTRY_LAYOUT.size;
    let mut raw = vec![0; DJ_IN_FLIGHT_LAYOUT.size + entries.len() * size];
    for (entry, raw) in entries
        .iter()
        .zip(raw[DJ_IN_FLIGHT_LAYOUT.size..].chunks_exact_mut(size))
    {
        entry.write_fields(raw);
    }
    let checksum = crc64(seed, &raw[DJ_IN_FLIGHT_LAYOUT.size..]);
    F_CHECKSUM.put(&mut raw, checksum);
    raw
}

/// The state word when `blocks` blocks are in flight.
pub fn in_flight_word(blocks: usize) -> u64 {
    match blocks {
        0 => 0,
        n => usize_as_u64(n) | u64::from(IN_FLIGHT_STATE) << 32,
    }
}

/// How many blocks a state word says are in flight, at most `most`.
///
/// # Errors
/// [`Corrupt::DeltaJournal`].
pub fn in_flight_of(word: u64, most: u32) -> Result<usize, Corrupt> {
    let count = low32(word);
    match high32(word) {
        0 if count == 0 => Ok(0),
        IN_FLIGHT_STATE if (1..=most).contains(&count) => Ok(u32_as_usize(count)),
        _ => Err(Corrupt::DeltaJournal(
            "the state of the blocks in flight cannot be",
        )),
    }
}

/// Bytes of the table of `blocks` blocks in flight, its header included.
pub fn in_flight_table(blocks: usize) -> usize {
    DJ_IN_FLIGHT_LAYOUT.size + blocks * DJ_IN_FLIGHT_ENTRY_LAYOUT.size
}

/// Reads the table.
///
/// # Errors
/// [`Corrupt::DeltaJournal`]: its checksum is wrong.
pub fn decode_in_flight(raw: &[u8], seed: u64) -> Result<Vec<InFlightEntry>, Corrupt> {
    let (header, table) = raw.split_at(DJ_IN_FLIGHT_LAYOUT.size);
    if F_CHECKSUM.get(header) != crc64(seed, table) {
        return Err(Corrupt::DeltaJournal(
            "the checksum of the blocks in flight is wrong",
        ));
    }
    let entries = table.chunks_exact(DJ_IN_FLIGHT_ENTRY_LAYOUT.size);
    Ok(entries.map(InFlightEntry::read_fields).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block that ends in its own CRC-32C, as directory and extent blocks do.
    fn sealed(fill: u8) -> Vec<u8> {
        let mut block = vec![fill; 1020];
        let seal = crc32c(0x1234, &block);
        block.extend(seal.to_le_bytes());
        block
    }

    #[test]
    fn a_version_of_a_sealed_block_is_not_another() {
        let [old, new] = [sealed(1), sealed(2)];
        assert_eq!(crc32c(!0, &old), crc32c(!0, &new), "what is wrong with it");
        assert!(is_content(&new, content_checksum(&new)));
        assert!(!is_content(&old, content_checksum(&new)));
        assert!(
            is_content(&new, crc32c(!0, &new)),
            "as it was written before"
        );
    }
}
