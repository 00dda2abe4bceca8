//! Where the journal of the ext4 volume on the device lies, and how its records look.

use stetfs_format::jbd2::{JournalSuperblock, LogFormat};
use stetfs_format::width::{low32, u32_as_usize};
use stetfs_format::{BlockNo, BlockSize, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock, Tid};
use stetfs_media::{Block, BlockDev, Class, Tag};
use stetfs_scheme::LogExtent;

/// The parts of the superblock that say whether it is the same volume, with its journal at the same
/// place.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    uuid: [u8; 16],
    mkfs_time: u64,
    blocks: u64,
    block: BlockSize,
    journal_inum: u32,
}

impl Identity {
    /// From the bytes of a superblock.
    pub(crate) fn decode(raw: &[u8]) -> Option<Self> {
        Superblock::decode(raw).ok().map(|sb| Self::of(&sb))
    }

    fn of(sb: &Superblock) -> Self {
        Self {
            uuid: sb.uuid,
            mkfs_time: sb.mkfs_time,
            blocks: sb.blocks_count,
            block: sb.block,
            journal_inum: sb.journal_inum,
        }
    }
}

/// The log of a volume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) identity: Identity,
    pub(crate) block: BlockSize,
    /// Blocks of the volume.
    pub(crate) blocks: u64,
    pub(crate) format: LogFormat,
    /// The log without the journal's superblock and the fast commits.
    first: u32,
    end: u32,
    /// The extents in the order of the log, each with the number of its first block there.
    extents: Vec<(u32, LogExtent)>,
}

/// Where recovery would begin.
pub(crate) type Start = Option<(u32, Tid)>;

impl Log {
    /// Finds the journal of the volume on `dev`; `None` when there is no volume, or its journal
    /// cannot be followed.
    pub(crate) fn find(dev: &dyn BlockDev) -> Option<(Self, Start)> {
        let mut raw = [0; SUPERBLOCK_SIZE];
        dev.read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, Tag::read(Class::Superblock))
            .ok()?;
        let sb = Superblock::decode(&raw).ok()?;
        if sb.journal_inum == 0
            || !sb
                .block_size()
                .is_multiple_of(u32_as_usize(dev.sector_size()))
        {
            return None;
        }
        let mut next = 0u32;
        let extents = stetfs::journal_extents(dev, &sb).ok()?;
        let numbered = extents.into_iter().map(|extent| {
            let at = next;
            next = at.checked_add(extent.len)?;
            Some((at, extent))
        });
        let extents: Vec<(u32, LogExtent)> = numbered.collect::<Option<_>>()?;
        let head = extents.first()?.1.start;
        let mut raw = Block::zeroed(sb.block_size());
        dev.read_at(
            sb.block.start_of(head),
            raw.bytes_mut(),
            Tag::read(Class::Journal),
        )
        .ok()?;
        let mut log = Self {
            identity: Identity::of(&sb),
            block: sb.block,
            blocks: sb.blocks_count,
            format: JournalSuperblock::decode(raw.bytes(), sb.block)
                .ok()?
                .log_format(),
            first: 0,
            end: 0,
            extents,
        };
        let start = log.set_head(raw.bytes())?;
        Some((log, start))
    }

    /// Takes over what the journal's superblock says; `None` when it is invalid or has no use.
    pub(crate) fn set_head(&mut self, raw: &[u8]) -> Option<Start> {
        let head = JournalSuperblock::decode(raw, self.block).ok()?;
        let len = self.extents.last().map_or(0, |(at, e)| at + e.len);
        if head.log_end() > len {
            return None;
        }
        self.format = head.log_format();
        (self.first, self.end) = (head.first, head.log_end());
        Some((head.start != 0).then_some((head.start, head.sequence)))
    }

    /// The extents, each with the number of its first block in the journal.
    pub(crate) fn extents(&self) -> &[(u32, LogExtent)] {
        &self.extents
    }

    /// Blocks of the log without the journal's superblock and the fast commits.
    pub(crate) fn capacity(&self) -> u32 {
        self.end - self.first
    }

    /// Returns the number in the journal of a block of the volume; 0 is the journal's superblock.
    pub(crate) fn number(&self, block: u64) -> Option<u32> {
        self.extents.iter().find_map(|(at, extent)| {
            let inside = block.checked_sub(extent.start.0)?;
            (inside < u64::from(extent.len)).then(|| at + low32(inside))
        })
    }

    /// Whether a block of the journal, by its number, is one of the log.
    pub(crate) fn is_in_log(&self, at: u32) -> bool {
        (self.first..self.end).contains(&at)
    }

    /// Returns where a block of the journal lies in the volume.
    pub(crate) fn place(&self, at: u32) -> BlockNo {
        let n = self.extents.partition_point(|(first, _)| *first <= at);
        let (first, extent) = self.extents[n - 1];
        extent.start.plus((at - first).into())
    }

    /// Returns the block of the log `n` behind `at`, around the end.
    pub(crate) fn step(&self, at: u32, n: u32) -> u32 {
        let next = u64::from(at - self.first) + u64::from(n);
        self.first + low32(next % u64::from(self.capacity()))
    }
}
