//! The parts that the two examples share, [`template`](crate::template) and
//! [`shadow`](crate::shadow): a log in the journal area, and the map from its blocks to blocks of
//! the volume.
//!
//! Block 0 of the journal area stays JBD2's superblock, which has the length of the area. Block 1
//! has the header that says whose the log is ([`LogHeader`]). The mark of
//! [`PrivateLog`](stetfs_scheme::Mark::PrivateLog) in the volume's superblock sends a recovery
//! there. From block 2 on the scheme has one or several slots for a map, and behind them *places*:
//! blocks for content.
//!
//! A map, little-endian:
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0x00 | 8 | "stetMAP" and a zero |
//! | 0x08 | 8 | the map's generation |
//! | 0x10 | 4 | the number of transactions since the map was last empty |
//! | 0x14 | 4 | the number of entries, which follow from 0x20 on |
//! | 0x18 | 4 | zero |
//! | 0x1c | 4 | CRC-32C of all of this, begun with that of the volume's UUID, this field left out |
//!
//! An entry is 16 bytes: the home block (8), the log block with its content (4), the CRC-32C of the
//! content (4). A map counts if and only if its first word, its length and its checksum are right
//! and its generation is below 2^63. So a torn map does not count. Making a log overwrites the maps
//! of an earlier log in the slots.

use stetfs_format::bytes::{read_u32le, read_u64le, write_u32le, write_u64le};
use stetfs_format::checksum::crc32c;
use stetfs_format::jbd2::{JBD2_MAGIC, JournalSuperblock};
use stetfs_format::private_log::{LogHeader, Tail};
use stetfs_format::width::{must_fit_u32, u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt};
use stetfs_media::{Block, BlockRef, Cause, Class, Dirty, Tag};

use crate::parts::area::JournalArea;
use crate::parts::home::{Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{About, OpenArgs, RecoveryReport, Result, SchemeError, recovery_cases};

recovery_cases! {
    LEFT:
    UNMARKED "no mark in the superblock"
        => "a new log",
        "the volume is a plain one: what is in the journal area is left from earlier";
    NOT_OURS "the mark, and no header of this volume and scheme"
        => "error, nothing is written", "what is in the log cannot be told";
    READ_ONLY "the mark, and a device that may only be read"
        => "error", "home has not got the newest content";
    BAD_HOME "a map that names a block outside the volume or inside the journal"
        => "error, nothing is written", "no file system wrote that";
    BAD_COPY "a map, and a block that is not what it says"
        => "error, nothing is written",
        "the block was durable before the map, so it, or a newer map, was damaged later";
    WHOLE "a map, and all of its blocks"
        => "they are written home, flush, an empty map",
        "they are the newest versions, each once; home may have any part of them";
}

/// The first log block for the scheme.
pub(crate) const FIRST: u32 = 2;

const HEADER_BLOCK: u32 = 1;
const MAP_WORD: u64 = u64::from_le_bytes(*b"stetMAP\0");
const CHECKSUM_AT: usize = 0x1c;
const HEAD: usize = 0x20;
const ENTRY: usize = 16;

/// The bound of generations. No log gets there, so the next one can always be counted.
const MOST_GENERATIONS: u64 = 1 << 63;

/// Blocks that are written home at a time, which bounds the memory.
const BATCH: usize = 256;

/// The place of the content of a home block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) home: BlockNo,
    /// The log block.
    pub(crate) at: u32,
    /// The content's checksum.
    pub(crate) crc: u32,
}

/// The blocks that the log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) generation: u64,
    pub(crate) transactions: u32,
    pub(crate) entries: Vec<Entry>,
}

/// Returns the checksum of an entry's content.
pub(crate) fn content_crc(content: &[u8]) -> u32 {
    crc32c(!0, content)
}

pub(crate) struct MappedLog {
    pub(crate) area: JournalArea,
    /// The volume's size in blocks.
    blocks: u64,
    /// The seed of the checksums of maps.
    seed: u32,
}

impl MappedLog {
    /// Opens the log. Without the volume's mark the old content does not count, and the log gets a
    /// new header.
    pub(crate) fn open(about: &About, args: &OpenArgs) -> Result<Self> {
        if args.log.is_empty() {
            return Err(SchemeError::Unusable("the volume has no journal".into()));
        }
        let mut area = JournalArea::new(args.dev.clone(), args.block_size, args.log.clone());
        let mut raw = Block::zeroed(args.block_size.bytes());
        area.read(0, raw.bytes_mut())?;
        let jbd2 = JournalSuperblock::decode(raw.bytes(), args.block_size)?;
        area.set_log(FIRST, jbd2.log_end())?;
        area.read(HEADER_BLOCK, raw.bytes_mut())?;
        let found = LogHeader::decode(raw.bytes());
        if args.has_private_log {
            let header = found.inspect_err(|_| NOT_OURS.reached())?;
            check_owner(about, args, &header)?;
        } else {
            UNMARKED.reached();
            let epoch = found.map_or(1, |before| before.epoch.wrapping_add(1));
            if args.writable {
                begin(about, args, &area, epoch)?;
            }
        }
        Ok(Self {
            area,
            blocks: args.blocks,
            seed: crc32c(!0, &args.uuid),
        })
    }

    /// Returns the number of blocks of a map with `entries` entries.
    pub(crate) fn map_blocks(&self, entries: u32) -> u32 {
        let bytes = HEAD + u32_as_usize(entries) * ENTRY;
        self.area.block_size.touched(0, bytes)
    }

    /// Splits the log into `slots` slots for maps, of at most `most` blocks each, and places.
    /// Returns the blocks of a slot, and the places; one map has room for all of them.
    pub(crate) fn split(&self, slots: u32, most: u32) -> Result<(u32, std::ops::Range<u32>)> {
        let capacity = self.area.capacity();
        for slot in 1..=most {
            let room = must_fit_u32((self.area.block_size.bytes_of(slot) - HEAD) / ENTRY);
            let places = capacity.saturating_sub(slots * slot);
            if room >= places || slot == most {
                let first = FIRST + slots * slot;
                let places = places.min(room);
                if places >= 16 {
                    return Ok((slot, first..first + places));
                }
            }
        }
        let why = format!("it has {capacity} blocks, too few");
        Err(SchemeError::Unusable(why))
    }

    /// Reads the map at log block `at`; `None` if it does not count.
    pub(crate) fn read_map(&self, at: u32, slot: u32) -> Result<Option<Map>> {
        let size = self.area.block_size;
        let mut raw = vec![0; size.bytes()];
        self.area.read(at, &mut raw)?;
        let count = read_u32le(&raw, 0x14);
        let room = (size.bytes_of(slot) - HEAD) / ENTRY;
        let generation = read_u64le(&raw, 0x08);
        let is_one = read_u64le(&raw, 0) == MAP_WORD && generation < MOST_GENERATIONS;
        if !is_one || u32_as_usize(count) > room {
            return Ok(None);
        }
        let blocks = self.map_blocks(count);
        raw.resize(size.bytes_of(blocks), 0);
        for (i, block) in (0..).zip(raw.chunks_mut(size.bytes())).skip(1) {
            self.area.read(at + i, block)?;
        }
        let is_intact = read_u32le(&raw, CHECKSUM_AT) == self.map_crc(&raw, count);
        if !is_intact && !is_planted(Bug::UncheckedReplay) {
            return Ok(None);
        }
        let entry = |i: u32| {
            let at = HEAD + u32_as_usize(i) * ENTRY;
            Entry {
                home: BlockNo(read_u64le(&raw, at)),
                at: read_u32le(&raw, at + 8),
                crc: read_u32le(&raw, at + 12),
            }
        };
        Ok(Some(Map {
            generation,
            transactions: read_u32le(&raw, 0x10),
            entries: (0..count).map(entry).collect(),
        }))
    }

    /// Writes the map at log block `at`, durable when it returns. Its first block has the checksum,
    /// and is written when the rest of the map and the body that it vouches for are durable.
    pub(crate) fn write_map(&self, body: Dirty<'_>, at: u32, map: &Map) -> Result<()> {
        let raw = self.encode(map);
        let (head, rest) = raw.split_at(self.area.block_size.bytes());
        let tag = Tag::new(Class::Journal, Cause::Log);
        let rest = rest.chunks(self.area.block_size.bytes());
        let rest: Vec<_> = rest.map(|block| (tag, block)).collect();
        let durable = self.area.write_last(body, at + 1, &rest, Cause::Log)?;
        self.area.write_commit(durable, at, head)
    }

    /// Writes a map without entries, which vouches for nothing; durable when it returns.
    pub(crate) fn write_empty(&self, at: u32, generation: u64, cause: Cause) -> Result<()> {
        let map = Map {
            generation,
            ..Map::default()
        };
        self.area.write_record(at, &self.encode(&map), cause)
    }

    /// Encodes a map as whole blocks.
    fn encode(&self, map: &Map) -> Vec<u8> {
        let count = must_fit_u32(map.entries.len());
        let mut raw = vec![0; self.area.block_size.bytes_of(self.map_blocks(count))];
        write_u64le(&mut raw, 0, MAP_WORD);
        write_u64le(&mut raw, 0x08, map.generation);
        write_u32le(&mut raw, 0x10, map.transactions);
        write_u32le(&mut raw, 0x14, count);
        for (i, entry) in map.entries.iter().enumerate() {
            let at = HEAD + i * ENTRY;
            write_u64le(&mut raw, at, entry.home.0);
            write_u32le(&mut raw, at + 8, entry.at);
            write_u32le(&mut raw, at + 12, entry.crc);
        }
        let crc = self.map_crc(&raw, count);
        write_u32le(&mut raw, CHECKSUM_AT, crc);
        raw
    }

    fn map_crc(&self, raw: &[u8], count: u32) -> u32 {
        let crc = crc32c(self.seed, &raw[..CHECKSUM_AT]);
        crc32c(crc, &raw[HEAD..HEAD + u32_as_usize(count) * ENTRY])
    }

    /// Writes all blocks that the map names home; durable when it returns. Before it writes, it
    /// checks that all homes are possible and all contents fit their checksums.
    pub(crate) fn replay(&self, map: &Map) -> Result<RecoveryReport> {
        for entry in &map.entries {
            if entry.home.0 >= self.blocks || self.area.contains(entry.home) {
                BAD_HOME.reached();
                return Err(Corrupt::JournalTagBlock(entry.home).into());
            }
            self.content(entry)?;
        }
        WHOLE.reached();
        let (dev, size) = (&*self.area.dev, self.area.block_size);
        for batch in map.entries.chunks(BATCH) {
            let contents = batch.iter().map(|entry| self.content(entry));
            let contents = contents.collect::<Result<Vec<_>>>()?;
            let writes = batch.iter().zip(&contents).map(|(entry, content)| Write {
                home: entry.home,
                class: Class::Journal,
                content,
            });
            write_home(dev, size, Cause::Recovery, writes.collect())?;
        }
        dev.flush(Cause::Recovery)?;
        Ok(RecoveryReport {
            was_needed: true,
            transactions: map.transactions,
            blocks: usize_as_u64(map.entries.len()),
            ..RecoveryReport::default()
        })
    }

    /// Reads and checks the content of an entry.
    fn content(&self, entry: &Entry) -> Result<BlockRef> {
        let mut content = Block::zeroed(self.area.block_size.bytes());
        self.area.read(entry.at, content.bytes_mut())?;
        if content_crc(content.bytes()) != entry.crc {
            let (home, at) = (entry.home, entry.at);
            BAD_COPY.reached();
            let why = format!("the copy of block {home} in log block {at} is damaged");
            return Err(SchemeError::Unusable(why));
        }
        Ok(content.into())
    }

    /// Clears the blocks of the log that begin like a record of JBD2, maps and places up to `end`,
    /// so that its recovery never takes them for one; durable when it returns.
    pub(crate) fn wipe(&self, end: u32) -> Result<()> {
        let (size, tag) = (
            self.area.block_size,
            Tag::new(Class::Journal, Cause::Control),
        );
        let (mut raw, zeros) = (vec![0; size.bytes()], vec![0; size.bytes()]);
        for at in FIRST..end {
            self.area.read(at, &mut raw)?;
            if raw.starts_with(&JBD2_MAGIC.to_be_bytes()) {
                self.area.dev.write_at(self.area.offset(at)?, &zeros, tag)?;
            }
        }
        Ok(self.area.dev.flush(Cause::Control)?)
    }
}

/// Writes the header, which says whose the log is; durable when it returns.
fn begin(about: &About, args: &OpenArgs, area: &JournalArea, epoch: u64) -> Result<()> {
    let header = LogHeader {
        scheme: about.name.to_owned(),
        uuid: args.uuid,
        unit: args.block_size.bytes_u32(),
        epoch,
        is_closed: false,
        tail: Tail::from_word(0),
    };
    let mut raw = vec![0; args.block_size.bytes()];
    header.encode(&mut raw);
    area.write_record(HEADER_BLOCK, &raw, Cause::Control)
}

/// Checks that the log belongs to this scheme and volume, and may be recovered.
fn check_owner(about: &About, args: &OpenArgs, header: &LogHeader) -> Result<()> {
    let is_ours = header.uuid == args.uuid && header.scheme == about.name;
    match is_ours {
        true if args.writable => return Ok(()),
        true => READ_ONLY.reached(),
        false => NOT_OURS.reached(),
    }
    let why = match () {
        () if header.uuid != args.uuid => "its log belongs to another volume".to_owned(),
        () if header.scheme != about.name => {
            format!("its log was written by scheme {}", header.scheme)
        }
        () => "it must be replayed, which needs a writable volume".to_owned(),
    };
    Err(SchemeError::Unusable(why))
}
