//! A device that notes what is written to it, by kind. It tells the kind by the volume's layout and
//! by the bytes themselves, and asks no writer.
//!
//! On ext4, blocks of superblocks, descriptors, bitmaps and inode tables are known by their place.
//! Directories and nodes of extent trees are known by what `metadata_csum` puts into them, and a
//! block of the log by its descriptor. On XFS the log is where the superblock says, and metadata
//! have their magic numbers (xfsprogs, "XFS Algorithms & Data Structures").

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stetfs_format::jbd2::{BlockType, DescriptorBlock, Header, JournalSuperblock, LogFormat};
use stetfs_format::{
    BlockSize, GroupDesc, GroupNo, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};
use stetfs_media::{BlockDev, Cause, Class, Layer, MediaError, RamDev, Tag};

/// What was written of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Requests that began with this kind. A request that continues the one before counts with it:
    /// it does not matter how a file system or a block layer splits a range.
    pub requests: u64,
}

/// What a device was asked to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// By kind: `log/...` is in the log, by the class of its home, or one of the log's own records;
    /// `home/...` is where it belongs.
    pub kinds: BTreeMap<String, Written>,
    /// Cache flushes. A write with forced access counts as a write and a flush.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
}

impl Account {
    /// Everything that was written.
    pub fn total(&self) -> Written {
        self.of("")
    }

    /// Sums what was written of the kinds with this prefix.
    pub fn of(&self, prefix: &str) -> Written {
        let kinds = self
            .kinds
            .iter()
            .filter(|(kind, _)| kind.starts_with(prefix));
        kinds.fold(Written::default(), |sum, (_, written)| Written {
            bytes: sum.bytes + written.bytes,
            requests: sum.requests + written.requests,
        })
    }
}

/// Memory that notes what is written to it.
pub struct Recorder {
    below: RamDev,
    state: Mutex<State>,
}

struct State {
    layout: Layout,
    account: Account,
    /// Where the last write ended, if only writes came since.
    end: Option<u64>,
    /// The home of each block of the log that a descriptor has named and that is not written yet.
    named: HashMap<u64, u64>,
}

impl Recorder {
    /// Takes a device that holds a volume of ext4 or XFS.
    ///
    /// # Errors
    /// It holds no such volume.
    pub fn new(below: RamDev) -> Result<Arc<Self>> {
        let state = State {
            layout: Layout::read(&below)?,
            account: Account::default(),
            end: None,
            named: HashMap::new(),
        };
        Ok(Arc::new(Self {
            below,
            state: Mutex::new(state),
        }))
    }

    /// Returns the account since the last call.
    pub fn take(&self) -> Account {
        let mut state = self.state.lock();
        state.end = None;
        std::mem::take(&mut state.account)
    }
}

impl Layer for Recorder {
    fn below(&self) -> &dyn BlockDev {
        &self.below
    }

    /// True, as for a drive: a writer must ask for the flushes that it needs.
    fn volatile_cache(&self) -> bool {
        true
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        let mut at = offset;
        for part in parts {
            state.wrote(at, part);
            at += part.len() as u64;
        }
        self.below.write_vectored_at(offset, parts, tag)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        state.end = None;
        state.account.flushes += 1;
        self.below.flush(cause)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.state.lock().account.discards += 1;
        self.below.discard(offset, len)
    }
}

impl State {
    fn wrote(&mut self, offset: u64, bytes: &[u8]) {
        for piece in self.layout.block.pieces(offset, bytes.len()) {
            let (at, len) = (offset + piece.done as u64, piece.len);
            let kind = self.kind(piece.block, &bytes[piece.in_range()]);
            let written = self.account.kinds.entry(kind).or_default();
            written.bytes += len as u64;
            written.requests += u64::from(self.end != Some(at));
            self.end = Some(at + len as u64);
        }
    }

    fn kind(&mut self, block: u64, bytes: &[u8]) -> String {
        let Some(position) = self.layout.in_log(block) else {
            return format!("home/{}", self.layout.class(block, bytes).name());
        };
        let Some(ext4) = &mut self.layout.ext4 else {
            return "log/records".to_owned();
        };
        let record = Header::decode(bytes).and_then(|header| header.known_type());
        let record = match record {
            _ if position >= ext4.log_end => "fast commit",
            Some(BlockType::Descriptor) => {
                let tags = DescriptorBlock::decode(bytes, &ext4.format).map(|d| d.tags());
                let homes = tags.into_iter().flatten().filter_map(Result::ok);
                let homes: Vec<_> = homes.map(|tag| tag.block.0).collect();
                for (n, home) in (1..).zip(homes) {
                    let place = self.layout.log_block(position + n);
                    self.named.insert(place, home);
                }
                "descriptor"
            }
            Some(BlockType::Commit) => "commit",
            Some(BlockType::Revoke) => "revoke",
            Some(BlockType::SuperblockV1 | BlockType::SuperblockV2) => {
                // A mount may add features.
                if let Ok(head) = JournalSuperblock::decode(bytes, self.layout.block) {
                    *ext4 = Ext4::of(&head);
                }
                "journal superblock"
            }
            None => match self.named.remove(&block) {
                Some(home) => self.layout.class(home, bytes).name(),
                None => "not named",
            },
        };
        format!("log/{record}")
    }
}

/// Where things are on a volume.
struct Layout {
    block: BlockSize,
    /// The log, in its order.
    log: Vec<Range<u64>>,
    /// Blocks with a fixed use.
    fixed: Vec<(Range<u64>, Class)>,
    ext4: Option<Ext4>,
}

struct Ext4 {
    format: LogFormat,
    /// The log without the journal's superblock and the fast commits, in blocks of the journal.
    first: u64,
    log_end: u64,
}

impl Ext4 {
    fn of(head: &JournalSuperblock) -> Self {
        Self {
            format: head.log_format(),
            first: head.first.into(),
            log_end: head.log_end().into(),
        }
    }
}

const READ: Tag = Tag::read(Class::Superblock);

impl Layout {
    fn read(dev: &RamDev) -> Result<Self> {
        let mut start = [0; 4096];
        dev.read_at(0, &mut start, READ)?;
        match &start[..4] {
            b"XFSB" => Ok(Self::xfs(&start)),
            _ => Self::ext4(dev).context("the volume is neither ext4 nor XFS"),
        }
    }

    /// Reads `sb_blocksize`, `sb_logstart`, `sb_agblocks`, `sb_logblocks`, `sb_agblklog`. In
    /// `logstart` the group's number is above the bits of the block's number in the group.
    fn xfs(start: &[u8]) -> Self {
        let u32_at =
            |at: usize| u32::from_be_bytes(start[at..at + 4].try_into().unwrap_or_default());
        let logstart = u64::from(u32_at(48)) << 32 | u64::from(u32_at(52));
        let bits = start[124];
        let first = (logstart >> bits) * u64::from(u32_at(84)) + logstart % (1 << bits);
        let log = first..first + u64::from(u32_at(96));
        Self {
            block: BlockSize::of(u32_at(4) as usize),
            log: vec![log],
            fixed: Vec::new(),
            ext4: None,
        }
    }

    fn ext4(dev: &RamDev) -> Result<Self> {
        let mut raw = [0; SUPERBLOCK_SIZE];
        dev.read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, READ)?;
        let sb = Superblock::decode(&raw)?;
        let extents = stetfs::journal_extents(dev, &sb)?;
        let log: Vec<_> = extents
            .iter()
            .map(|e| e.start.0..e.start.0 + u64::from(e.len))
            .collect();
        ensure!(!log.is_empty(), "there is no journal");
        let block = sb.block;
        let mut head = vec![0; block.bytes()];
        dev.read_at(block.offset_of(log[0].start), &mut head, READ)?;
        let journal = JournalSuperblock::decode(&head, block)?;
        let geometry = sb.geometry();
        let mut fixed = Vec::new();
        for g in (0..geometry.groups_count).map(GroupNo) {
            let first = geometry.group_first_block(g).0;
            let copies = u64::from(geometry.base_meta_blocks(g));
            if copies > 0 {
                fixed.push((first..first + 1, Class::Superblock));
                fixed.push((first + 1..first + copies, Class::GroupDesc));
            }
            let (at, byte) = geometry.desc_position(g);
            let mut descs = vec![0; block.bytes()];
            dev.read_at(block.start_of(at), &mut descs, READ)?;
            let desc = GroupDesc::decode(&descs[byte..], g, geometry)?;
            let table = u64::from(geometry.inodes_per_group) * u64::from(geometry.inode_size);
            let one = |at: u64| at..at + 1;
            fixed.push((one(desc.block_bitmap.0), Class::BlockBitmap));
            fixed.push((one(desc.inode_bitmap.0), Class::InodeBitmap));
            let first = desc.inode_table.0;
            let blocks = first..first + block.blocks_for(table);
            fixed.push((blocks, Class::InodeTable));
        }
        Ok(Self {
            block,
            log,
            fixed,
            ext4: Some(Ext4::of(&journal)),
        })
    }

    /// Returns the number in the journal of one of its blocks.
    fn in_log(&self, block: u64) -> Option<u64> {
        let mut before = 0;
        for range in &self.log {
            if range.contains(&block) {
                return Some(before + block - range.start);
            }
            before += range.end - range.start;
        }
        None
    }

    /// Returns the block of the device at a number in the journal, which begins again behind its
    /// end.
    fn log_block(&self, mut number: u64) -> u64 {
        if let Some(ext4) = &self.ext4
            && number >= ext4.log_end
        {
            number = ext4.first + number - ext4.log_end;
        }
        for range in &self.log {
            match range.end - range.start {
                len if number < len => return range.start + number,
                len => number -= len,
            }
        }
        u64::MAX
    }

    fn class(&self, block: u64, bytes: &[u8]) -> Class {
        if self.ext4.is_none() {
            return xfs_class(bytes);
        }
        let fixed = self.fixed.iter().find(|(range, _)| range.contains(&block));
        match fixed {
            Some((_, class)) => *class,
            // In the log, zeros replace the magic of a block that begins like a record.
            None if bytes.starts_with(&[0x0a, 0xf3]) => Class::Mapping,
            None if bytes.starts_with(&[0, 0, 2, 0xea]) => Class::Xattr,
            None if is_directory(bytes, self.block.bytes()) => Class::Directory,
            None => Class::Data,
        }
    }
}

/// Whether a block belongs to a directory. A leaf ends with a record for its checksum, of 12 bytes
/// with the file type 0xDE (`ext4_dir_entry_tail`). The root of a hash tree begins with the entries
/// `.` and `..`; its other nodes with an entry without a name that takes the whole block
/// (`fake_dirent`).
fn is_directory(bytes: &[u8], block: usize) -> bool {
    let is_whole = bytes.len() == block;
    let root = || bytes[8..].starts_with(b".\0\0\0") && bytes[20..].starts_with(b"..\0\0");
    let fake = || bytes[..8] == [0, 0, 0, 0, (block & 0xff) as u8, (block >> 8) as u8, 0, 0];
    let tail = || bytes[block - 12..].starts_with(&[0, 0, 0, 0, 12, 0, 0, 0xde]);
    is_whole && (tail() || root() || (fake() && bytes[8..].iter().any(|byte| *byte != 0)))
}

/// Returns the class of a block of XFS, version 5.
fn xfs_class(bytes: &[u8]) -> Class {
    let starts = |magics: &[&[u8]]| magics.iter().any(|magic| bytes.starts_with(magic));
    match () {
        () if starts(&[b"XFSB"]) => Class::Superblock,
        () if starts(&[b"XAGF", b"XAGI", b"XAFL"]) => Class::GroupDesc,
        () if starts(&[b"AB3B", b"AB3C", b"RMB3", b"R3FC"]) => Class::BlockBitmap,
        () if starts(&[b"IAB3", b"FIB3"]) => Class::InodeBitmap,
        () if starts(&[b"IN"]) => Class::InodeTable,
        () if starts(&[b"BMA3"]) => Class::Mapping,
        () if starts(&[b"XDB3", b"XDD3", b"XDF3"]) => Class::Directory,
        // `xfs_da3_blkinfo`: the magic follows two pointers.
        () if bytes.len() > 10 && matches!(bytes[8..10], [0x3d, 0xf1 | 0xff] | [0x3e, 0xbe]) => {
            Class::Directory
        }
        () => Class::Data,
    }
}
