//! What a volume and the persistent memory beside it record about each other, so that neither is
//! used with an older copy of the other.
//!
//! The memory begins with a [`RegionHeader`] and has two slots for a [`RegionState`] at
//! [`STATE_OFFSETS`]; block 1 of the volume's journal area has two for a [`VolumeRecord`],
//! [`VolumeRecord::SIZE`] bytes each. In either place the newest intact slot counts, and the other
//! one is written next: a torn slot is as if it had not been written.
//!
//! Both record the number of the newest *checkpoint*, and the volume also the newest transaction at
//! that time. The number grows whenever blocks are brought home, and when the volume is mounted or
//! closed. A checkpoint makes durable, in this order: in the memory, that it begins; in the volume,
//! its number; in the memory, its number. Then the memory gives up what is home. So a volume and a
//! memory that belong together satisfy:
//! 1. volume and memory have the same UUID, scheme and epoch;
//! 2. the volume's number is the memory's, or one more in the middle of a checkpoint;
//! 3. the memory has the transaction that the volume knows of.
//!
//! An older volume breaks rule 2, an older memory rule 2 or 3: [`VolumeRecord::check`]. The volume
//! knows nothing of transactions that were committed after the last checkpoint.
//!
//! All integers are little-endian.

use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::layout::{Bytes, Le16, Le32, Le64, record};
use crate::num::Tid;
use crate::private_log::{LogHeader, Tail, put_scheme, scheme_of};
use crate::width::{low32, must_fit, u64_as_usize};

/// Where the slots for a region's state lie, each in a cache line of its own.
pub const STATE_OFFSETS: [u64; 2] = [512, 576];

/// Where the word lies that names a durable transaction ([`committed_word`]).
pub const COMMITTED_OFFSET: u64 = 640;

const VERSION: u32 = 2;
const REGION_MAGIC: [u8; 8] = *b"stetNVM\0";
const MAKING_MAGIC: [u8; 8] = *b"stetNEW\0";
const VOLUME_MAGIC: [u8; 8] = *b"stetVOL\0";

/// The first word of a region.
pub const REGION_WORD: u64 = u64::from_le_bytes(REGION_MAGIC);
/// The first word of a region that is being made: nothing in it counts.
pub const MAKING_WORD: u64 = u64::from_le_bytes(MAKING_MAGIC);

/// Whether something is in the memory that the volume needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairState {
    /// It is in use.
    Open,
    /// In use, and a checkpoint may be under way: the volume may have the next number already.
    Homing,
    /// Closed, with its content kept.
    Kept,
    /// Closed, and everything is home.
    Shut,
}

impl PairState {
    const ALL: [Self; 4] = [Self::Open, Self::Homing, Self::Kept, Self::Shut];

    fn word(self) -> u32 {
        u32::from_le_bytes(match self {
            Self::Open => *b"OPEN",
            Self::Homing => *b"HOME",
            Self::Kept => *b"KEPT",
            Self::Shut => *b"SHUT",
        })
    }

    fn from_word(word: u32) -> Result<Self, Corrupt> {
        let found = Self::ALL.into_iter().find(|state| state.word() == word);
        found.ok_or(Corrupt::NvmPair("a state that is none"))
    }
}

/// The word that names a durable transaction: its number, and in the upper half a checksum begun
/// with [`RegionHeader::seed`]. It is stored in one piece, after the transaction, without a fence
/// of its own. So after a power cut it may name an older transaction, but never one that is not
/// there.
pub fn committed_word(sequence: Tid, seed: u32) -> u64 {
    let crc = crc32c(seed, &sequence.0.to_le_bytes());
    u64::from(sequence.0) | u64::from(crc) << 32
}

/// Reads the transaction's number from that word.
///
/// # Errors
/// [`Corrupt::NvmPair`].
pub fn committed_of(word: u64, seed: u32) -> Result<Tid, Corrupt> {
    let sequence = Tid(low32(word));
    if committed_word(sequence, seed) == word {
        Ok(sequence)
    } else {
        Err(Corrupt::NvmPair(
            "the number of the newest transaction has a wrong checksum",
        ))
    }
}

fn crc_without(record: &[u8], at: usize) -> u32 {
    let crc = crc32c(!0, &record[..at]);
    crc32c(crc32c(crc, &[0; 4]), &record[at + 4..])
}

fn too_short(record: &'static str, needed: usize, found: usize) -> Corrupt {
    Corrupt::TooShort {
        record,
        needed,
        found,
    }
}

record! {
    /// Whose a region of memory is.
    pub REGION_HEADER_LAYOUT = "Region header", 64, {
        0x00 Bytes<8>, H_MAGIC = "h_magic";
        0x08 Le32, H_VERSION = "h_version";
        0x0c Le32, H_CHECKSUM = "h_checksum";
        0x10 Bytes<16>, H_SCHEME = "h_scheme";
    }

    /// Whose a region is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegionHeader from (raw) {
        /// The volume's UUID.
        0x20 Bytes<16>, uuid: [u8; 16] = "h_uuid";
        /// Another number each time the region is begun.
        0x30 Le64, epoch: u64 = "h_epoch";
    } {
        /// The scheme's name, at most 16 bytes.
        pub scheme: String = scheme_of(H_SCHEME.get(raw));
    }
}

impl RegionHeader {
    /// Bytes of the header.
    pub const SIZE: usize = REGION_HEADER_LAYOUT.size;

    /// Whether a region is still being made.
    pub fn is_making(raw: &[u8]) -> bool {
        raw.starts_with(&MAKING_MAGIC)
    }

    /// Reads and checks the header.
    ///
    /// # Errors
    /// [`Corrupt::TooShort`], [`Corrupt::NvmPair`], [`Corrupt::NvmPairVersion`].
    pub fn decode(raw: &[u8]) -> Result<Self, Corrupt> {
        let Some(raw) = raw.get(..Self::SIZE) else {
            let name = REGION_HEADER_LAYOUT.name;
            return Err(too_short(name, Self::SIZE, raw.len()));
        };
        // Up to version 1 a region began as the volume's log does.
        if LogHeader::is_one(raw) {
            return Err(Corrupt::NvmPairVersion(1));
        }
        if H_MAGIC.get(raw) != REGION_MAGIC {
            return Err(Corrupt::NvmPair("no header of a region"));
        }
        if H_CHECKSUM.get(raw) != crc_without(raw, H_CHECKSUM.0) {
            return Err(Corrupt::NvmPair(
                "the checksum of the region's header is wrong",
            ));
        }
        if H_VERSION.get(raw) != VERSION {
            return Err(Corrupt::NvmPairVersion(H_VERSION.get(raw)));
        }
        Ok(Self::read_fields(raw))
    }

    /// The header as bytes.
    ///
    /// # Panics
    /// When the scheme's name is longer than 16 bytes.
    pub fn encode(&self) -> [u8; REGION_HEADER_LAYOUT.size] {
        let mut raw = [0; REGION_HEADER_LAYOUT.size];
        H_MAGIC.put(&mut raw, REGION_MAGIC);
        H_VERSION.put(&mut raw, VERSION);
        H_SCHEME.put(&mut raw, put_scheme(&self.scheme));
        self.write_fields(&mut raw);
        let crc = crc_without(&raw, H_CHECKSUM.0);
        H_CHECKSUM.put(&mut raw, crc);
        raw
    }

    /// The seed of the region's checksums.
    pub fn seed(&self) -> u32 {
        crc32c(crc32c(!0, &self.uuid), &self.epoch.to_le_bytes())
    }
}

record! {
    /// The state of a region: which checkpoint it has reached, and whether it is in use.
    pub REGION_STATE_LAYOUT = "Region state", 32, {
        0x10 Le64, S_TAIL = "s_tail";
        0x18 Le32, S_STATE = "s_state";
        0x1c Le32, S_CHECKSUM = "s_checksum";
    }

    /// The state of a region: which checkpoint it has reached, and whether it is in use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RegionState from (raw) {
        /// Grows with each state that is written.
        0x00 Le64, count: u64 = "s_count";
        /// The checkpoint whose number the volume has.
        0x08 Le64, checkpoint: u64 = "s_checkpoint";
    } {
        /// Where the scheme's log begins, if it has a log that moves.
        pub tail: Tail = Tail::from_word(S_TAIL.get(raw));
        /// Whether the memory holds something that the volume needs.
        pub state: PairState = PairState::Open;
    }
}

impl RegionState {
    /// Bytes of a state, and of a slot.
    pub const SIZE: usize = REGION_STATE_LAYOUT.size;

    /// Where the slot lies that it is written to.
    pub fn offset(&self) -> u64 {
        STATE_OFFSETS[u64_as_usize(self.count % 2)]
    }

    /// Reads a slot; `None` when it is torn or belongs to another region.
    fn decode(raw: &[u8; Self::SIZE], seed: u32) -> Option<Result<Self, Corrupt>> {
        if S_CHECKSUM.get(raw) != crc32c(seed, &raw[..S_CHECKSUM.0]) {
            return None;
        }
        Some(PairState::from_word(S_STATE.get(raw)).map(|state| Self {
            state,
            ..Self::read_fields(raw)
        }))
    }

    /// Returns the newer of the two slots.
    ///
    /// # Errors
    /// [`Corrupt::NvmPair`]: both are torn.
    pub fn newest(slots: &[[u8; Self::SIZE]; 2], seed: u32) -> Result<Self, Corrupt> {
        let whole: Result<Vec<Self>, Corrupt> = slots
            .iter()
            .filter_map(|raw| Self::decode(raw, seed))
            .collect();
        let newest = whole?.into_iter().max_by_key(|state| state.count);
        newest.ok_or(Corrupt::NvmPair("no state of the region is whole"))
    }

    /// The state as bytes.
    pub fn encode(&self, seed: u32) -> [u8; REGION_STATE_LAYOUT.size] {
        let mut raw = [0; REGION_STATE_LAYOUT.size];
        self.write_fields(&mut raw);
        S_TAIL.put(&mut raw, self.tail.to_word());
        S_STATE.put(&mut raw, self.state.word());
        let crc = crc32c(seed, &raw[..S_CHECKSUM.0]);
        S_CHECKSUM.put(&mut raw, crc);
        raw
    }
}

record! {
    /// Which memory a volume has beside it, and which checkpoint the volume has reached.
    pub VOLUME_RECORD_LAYOUT = "Volume record", 512, {
        0x00 Bytes<8>, V_MAGIC = "v_magic";
        0x08 Le32, V_VERSION = "v_version";
        0x0c Le32, V_CHECKSUM = "v_checksum";
        0x10 Bytes<16>, V_SCHEME = "v_scheme";
        0x58 Le32, V_STATE = "v_state";
        0x5c Le16, V_PATH_LENGTH = "v_path_length";
        0x60 Bytes<416>, V_PATH = "v_path";
    }

    /// Which memory a volume has beside it, and which checkpoint the volume has reached.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct VolumeRecord from (raw) {
        /// As in the [`RegionHeader`].
        0x20 Bytes<16>, uuid: [u8; 16] = "v_uuid";
        /// As in the [`RegionHeader`].
        0x30 Le64, epoch: u64 = "v_epoch";
        /// Grows with each checkpoint.
        0x38 Le64, checkpoint: u64 = "v_checkpoint";
        /// Grows with each record that is written.
        0x40 Le64, count: u64 = "v_count";
        /// Bytes of the memory.
        0x48 Le64, size: u64 = "v_size";
        /// The newest transaction that was durable when this was written.
        0x50 Le32, sequence: Tid = "v_sequence";
    } {
        /// As in the [`RegionHeader`].
        pub scheme: String = scheme_of(V_SCHEME.get(raw));
        /// Whether the memory holds something that the volume needs.
        pub state: PairState = PairState::Open;
        /// The last absolute path of the memory; empty when it had none, or one that is too long.
        /// It comes from an image: check what is there before you use it.
        pub path: Vec<u8> = Vec::new();
    }
}

/// Which of a volume and a memory that do not belong together is too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The volume is an older copy.
    OlderVolume,
    /// The memory is an older copy.
    OlderMemory,
}

impl VolumeRecord {
    /// Bytes of a record, and of a slot.
    pub const SIZE: usize = VOLUME_RECORD_LAYOUT.size;

    /// The longest path that fits, in bytes.
    pub const MOST_PATH: usize = Bytes::<416>::SIZE;

    /// Whether a block begins with the record's magic; nothing else is checked.
    pub fn is_one(block: &[u8]) -> bool {
        block.starts_with(&VOLUME_MAGIC)
            || block
                .get(Self::SIZE..)
                .is_some_and(|b| b.starts_with(&VOLUME_MAGIC))
    }

    /// Where in the block it is written.
    pub fn offset(&self) -> usize {
        u64_as_usize(self.count % 2) * Self::SIZE
    }

    /// Returns the newest record in the block.
    ///
    /// # Errors
    /// What is wrong with both: [`Corrupt::TooShort`], [`Corrupt::NvmPair`],
    /// [`Corrupt::NvmPairVersion`].
    pub fn newest(block: &[u8]) -> Result<Self, Corrupt> {
        if block.len() < 2 * Self::SIZE {
            let name = VOLUME_RECORD_LAYOUT.name;
            return Err(too_short(name, 2 * Self::SIZE, block.len()));
        }
        if LogHeader::is_one(block) {
            return Err(Corrupt::NvmPairVersion(1));
        }
        let slots = block.chunks_exact(Self::SIZE).take(2).map(Self::decode);
        let (whole, broken): (Vec<_>, Vec<_>) = slots.partition(Result::is_ok);
        let newest = whole.into_iter().flatten().max_by_key(|r| r.count);
        match (newest, broken.into_iter().next()) {
            (Some(newest), _) => Ok(newest),
            (None, Some(Err(why))) => Err(why),
            (None, _) => Err(Corrupt::NvmPair("no record of the memory")),
        }
    }

    fn decode(raw: &[u8]) -> Result<Self, Corrupt> {
        if V_MAGIC.get(raw) != VOLUME_MAGIC {
            return Err(Corrupt::NvmPair("no record of the memory in the volume"));
        }
        if V_CHECKSUM.get(raw) != crc_without(raw, V_CHECKSUM.0) {
            return Err(Corrupt::NvmPair(
                "the checksum of the volume's record of its memory is wrong",
            ));
        }
        if V_VERSION.get(raw) != VERSION {
            return Err(Corrupt::NvmPairVersion(V_VERSION.get(raw)));
        }
        let path = V_PATH.get(raw);
        let Some(path) = path.get(..usize::from(V_PATH_LENGTH.get(raw))) else {
            return Err(Corrupt::NvmPair("the memory's path is too long"));
        };
        if path.contains(&0) || !(path.is_empty() || path[0] == b'/') {
            return Err(Corrupt::NvmPair("the memory's path cannot be one"));
        }
        Ok(Self {
            state: PairState::from_word(V_STATE.get(raw))?,
            path: path.to_vec(),
            ..Self::read_fields(raw)
        })
    }

    /// The record as bytes.
    ///
    /// # Panics
    /// When the scheme's name is longer than 16 bytes or the path than
    /// [`MOST_PATH`](Self::MOST_PATH).
    pub fn encode(&self) -> [u8; VOLUME_RECORD_LAYOUT.size] {
        let mut raw = [0; VOLUME_RECORD_LAYOUT.size];
        V_MAGIC.put(&mut raw, VOLUME_MAGIC);
        V_VERSION.put(&mut raw, VERSION);
        V_SCHEME.put(&mut raw, put_scheme(&self.scheme));
        self.write_fields(&mut raw);
        V_STATE.put(&mut raw, self.state.word());
        V_PATH_LENGTH.put(&mut raw, must_fit(self.path.len()));
        raw[V_PATH.0..V_PATH.0 + self.path.len()].copy_from_slice(&self.path);
        let crc = crc_without(&raw, V_CHECKSUM.0);
        V_CHECKSUM.put(&mut raw, crc);
        raw
    }

    /// Checks that a region of the same volume and epoch, with `newest` as its newest transaction,
    /// belongs together with this record.
    ///
    /// | volume | memory | they belong together if | since |
    /// |---|---|---|---|
    /// | open | open | same number; the memory has the volume's newest transaction | |
    /// | open | in a checkpoint | as above, or the volume's number is one more | it is first |
    /// | kept | kept | same number | |
    /// | kept | open | numbers differ by one, same newest transaction | see below |
    /// | open | kept | never | |
    /// | not closed | closed | never | the volume is closed first |
    ///
    /// The volume is kept before the memory, and the memory is opened before the volume.
    ///
    /// # Errors
    /// Which of the two is older.
    pub fn check(&self, region: &RegionState, newest: Tid) -> Result<(), Mismatch> {
        let (volume, memory) = (self.checkpoint, region.checkpoint);
        let is_cut = volume == memory.wrapping_add(1);
        let is_one = match (self.state, region.state) {
            (PairState::Open, PairState::Open) => {
                volume == memory && !self.sequence.is_after(newest)
            }
            (PairState::Open, PairState::Homing) => {
                (volume == memory || is_cut) && !self.sequence.is_after(newest)
            }
            (PairState::Kept, PairState::Kept) => volume == memory,
            (PairState::Kept, PairState::Open | PairState::Homing) => {
                (is_cut || memory == volume.wrapping_add(1)) && self.sequence == newest
            }
            _ => false,
        };
        if is_one {
            return Ok(());
        }
        let is_newer = memory > volume
            || newest.is_after(self.sequence) && self.state != PairState::Open
            || region.state == PairState::Shut;
        Err(if is_newer {
            Mismatch::OlderVolume
        } else {
            Mismatch::OlderMemory
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(checkpoint: u64, sequence: u32, state: PairState) -> VolumeRecord {
        VolumeRecord {
            scheme: "tinca".to_owned(),
            uuid: *b"0123456789abcdef",
            epoch: 77,
            checkpoint,
            count: checkpoint,
            sequence: Tid(sequence),
            state,
            size: 1 << 30,
            path: b"/var/lib/volume.nvm".to_vec(),
        }
    }

    fn region(checkpoint: u64, state: PairState) -> RegionState {
        RegionState {
            count: 3,
            checkpoint,
            tail: Tail::from_word(5),
            state,
        }
    }

    #[test]
    fn what_is_written_is_read_and_the_newest_counts() {
        let header = RegionHeader {
            scheme: "spindle".to_owned(),
            uuid: [7; 16],
            epoch: 9,
        };
        assert_eq!(RegionHeader::decode(&header.encode()), Ok(header.clone()));
        let mut block = [0; 1024];
        assert!(VolumeRecord::newest(&block).is_err());
        for checkpoint in [4, 5, 6] {
            let record = record(checkpoint, 1, PairState::Open);
            let at = record.offset();
            block[at..at + VolumeRecord::SIZE].copy_from_slice(&record.encode());
            assert_eq!(VolumeRecord::newest(&block), Ok(record));
        }
        // A torn one is as if it were not there.
        block[100] ^= 1;
        let before = VolumeRecord::newest(&block).expect("the one before");
        assert_eq!(before.checkpoint, 5);
        let (old, new) = (
            region(4, PairState::Open),
            RegionState {
                count: 4,
                ..region(5, PairState::Shut)
            },
        );
        let mut slots = [new.encode(1), old.encode(1)];
        assert_eq!(RegionState::newest(&slots, 1), Ok(new));
        assert!(RegionState::newest(&slots, 2).is_err());
        slots[0][9] ^= 4;
        assert_eq!(RegionState::newest(&slots, 1), Ok(old));
    }

    #[test]
    fn every_damaged_bit_is_noticed() {
        let header = RegionHeader {
            scheme: "dj".to_owned(),
            uuid: [7; 16],
            epoch: 9,
        };
        let (header, state) = (header.encode(), region(1, PairState::Open).encode(8));
        let record = record(1, 2, PairState::Kept).encode();
        for bit in 0..8 {
            for i in 0..header.len() {
                let mut raw = header;
                raw[i] ^= 1 << bit;
                assert!(RegionHeader::decode(&raw).is_err(), "byte {i}");
            }
            for i in 0..state.len() {
                let mut raw = state;
                raw[i] ^= 1 << bit;
                assert!(RegionState::decode(&raw, 8).is_none(), "byte {i}");
            }
            for i in 0..record.len() {
                let mut raw = record;
                raw[i] ^= 1 << bit;
                assert!(VolumeRecord::decode(&raw).is_err(), "byte {i}");
            }
        }
    }

    #[test]
    fn paths_are_bounded() {
        let mut raw = record(1, 2, PairState::Open);
        for path in [&b"relative"[..], b"/with\0zero"] {
            raw.path = path.to_vec();
            assert!(VolumeRecord::decode(&raw.encode()).is_err());
        }
        raw.path = vec![b'/'; VolumeRecord::MOST_PATH];
        assert!(VolumeRecord::decode(&raw.encode()).is_ok());
        let mut raw = raw.encode();
        V_PATH_LENGTH.put(&mut raw, VolumeRecord::MOST_PATH as u16 + 1);
        let crc = crc_without(&raw, V_CHECKSUM.0);
        V_CHECKSUM.put(&mut raw, crc);
        assert!(VolumeRecord::decode(&raw).is_err());
    }

    #[test]
    fn older_formats_are_refused_by_their_version() {
        let old = LogHeader {
            scheme: "dj".to_owned(),
            uuid: [1; 16],
            unit: 64,
            epoch: 1,
            is_closed: false,
            tail: Tail::from_word(0),
        };
        let mut block = [0; 1024];
        old.encode(&mut block);
        let version = Err(Corrupt::NvmPairVersion(1));
        assert_eq!(VolumeRecord::newest(&block).map(|_| ()), version);
        assert_eq!(RegionHeader::decode(&block).map(|_| ()), version);
    }

    #[test]
    fn only_pairs_of_one_time_go_together() {
        use Mismatch::{OlderMemory, OlderVolume};
        use PairState::{Homing, Kept, Open, Shut};
        for (volume, memory, newest, expected) in [
            (record(5, 9, Open), region(5, Open), 9, Ok(())),
            (record(5, 9, Open), region(5, Open), 12, Ok(())),
            (record(5, 9, Open), region(4, Homing), 9, Ok(())),
            (record(5, 9, Open), region(5, Homing), 9, Ok(())),
            (record(5, 9, Open), region(4, Open), 9, Err(OlderMemory)),
            (record(5, 9, Open), region(3, Homing), 9, Err(OlderMemory)),
            (record(5, 9, Open), region(6, Homing), 9, Err(OlderVolume)),
            (record(5, 9, Open), region(5, Open), 8, Err(OlderMemory)),
            (record(5, 9, Open), region(3, Open), 9, Err(OlderMemory)),
            (record(5, 9, Open), region(6, Open), 9, Err(OlderVolume)),
            (record(5, 9, Open), region(6, Shut), 9, Err(OlderVolume)),
            (record(5, 9, Open), region(5, Shut), 9, Err(OlderVolume)),
            (record(5, 9, Open), region(4, Kept), 9, Err(OlderMemory)),
            (record(5, 9, Open), region(6, Kept), 9, Err(OlderVolume)),
            (record(5, 9, Kept), region(5, Kept), 9, Ok(())),
            (record(5, 9, Kept), region(4, Open), 9, Ok(())),
            (record(5, 9, Kept), region(4, Open), 8, Err(OlderMemory)),
            (record(5, 9, Kept), region(6, Open), 9, Ok(())),
            (record(5, 9, Kept), region(6, Open), 10, Err(OlderVolume)),
        ] {
            let found = volume.check(&memory, Tid(newest));
            assert_eq!(found, expected, "{volume:?} {memory:?} {newest}");
        }
    }
}
