//! What the steps of a check leave for each other, and what every step can do: read, claim, report.

use std::io::ErrorKind;

use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Geometry, GroupDesc, InodeNo, Place, Superblock};

use crate::claims::Claims;
use crate::finding::{Fault, Finding};
use crate::report::Report;
use crate::source::Source;

/// The findings of a check under way.
pub(crate) struct Found {
    pub(crate) kept: usize,
    pub(crate) report: Report,
}

impl Found {
    pub(crate) fn findings(&mut self) -> &mut [Finding] {
        &mut self.report.findings
    }

    pub(crate) fn push(&mut self, place: Place, fault: impl Into<Fault>) {
        self.report.found += 1;
        if self.report.findings.len() < self.kept {
            let fault = fault.into();
            self.report.findings.push(Finding {
                place,
                fault,
                path: None,
            });
        }
    }
}

/// Buffers that a checker keeps from check to check; their content belongs to one check.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) claims: Claims,
    pub(crate) groups: Vec<GroupDesc>,
    /// The index of each group's first inode in `records`; one more entry at the end.
    pub(crate) bases: Vec<u32>,
    pub(crate) records: Vec<Record>,
    /// Sorted by inode.
    pub(crate) dirs: Vec<Dir>,
    pub(crate) runs: Vec<Run>,
    pub(crate) orphan_runs: Vec<Run>,
    pub(crate) xattr_blocks: Vec<(BlockNo, InodeNo)>,
    pub(crate) journal: Option<JournalFile>,
    /// A part of an inode table.
    pub(crate) table: Vec<u8>,
    /// One node per level of a mapping.
    pub(crate) nodes: [Vec<u8>; 6],
    /// Scratch space for any block.
    pub(crate) block: Vec<u8>,
    pub(crate) names: Vec<NameAt>,
    pub(crate) htree: Vec<HtreeBlock>,
    /// The depth of the leaves according to the hash tree's root.
    pub(crate) htree_depth: u32,
    /// How much of the way from each directory to the root is known.
    pub(crate) ways: Vec<Way>,
}

/// The scan's knowledge of an inode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    /// `i_links_count`.
    pub(crate) links: u16,
    /// 0 if it is not in use; otherwise its type's code in directory entries, or [`Self::BAD`] or
    /// [`Self::RESERVED`].
    pub(crate) kind: u8,
    /// It has a hash tree.
    pub(crate) indexed: bool,
    /// Entries that name it.
    pub(crate) counted: u32,
}

impl Record {
    /// In use, but without a type that an entry could have.
    pub(crate) const BAD: u8 = 0x80;
    /// In use and reserved: directories need not name it.
    pub(crate) const RESERVED: u8 = 0x81;
    pub(crate) const DIRECTORY: u8 = stetfs_format::FileType::Directory.dirent_code();

    pub(crate) fn is_used(self) -> bool {
        self.kind != 0
    }
}

/// A directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dir {
    pub(crate) ino: InodeNo,
    /// The directory that names it; 0 until one is found.
    pub(crate) parent: InodeNo,
    /// The inode in its ".." entry.
    pub(crate) dotdot: InodeNo,
    /// The seed of its blocks' checksums.
    pub(crate) seed: u32,
    /// The index of its first run; its runs end where those of the next directory begin.
    pub(crate) first_run: usize,
    /// Number of its blocks, holes included.
    pub(crate) blocks: u64,
    pub(crate) indexed: bool,
}

/// Blocks of a directory or of the orphan file that are consecutive both in the file and on the
/// volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) pblk: BlockNo,
    pub(crate) lblk: u32,
    pub(crate) len: u32,
}

/// What a walk does with a file's blocks besides claiming them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    /// Notes them as blocks of a directory.
    Directory,
    /// Notes them as blocks of the orphan file.
    OrphanFile,
    /// They belong to the journal.
    Journal,
    /// They are in the list of bad blocks, a file without a type.
    BadBlocks,
}

/// The results of a walk over a file's map.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    /// Number of blocks claimed, those of the map included.
    pub(crate) blocks: u64,
    /// The logical block behind the last that is mapped.
    pub(crate) end: u64,
    /// The logical block behind the last that is mapped and written.
    pub(crate) written_end: u64,
    /// Number of logical blocks from 0 on without a hole.
    pub(crate) contiguous: u64,
    /// The block of logical block 0.
    pub(crate) first: Option<BlockNo>,
}

/// The scan's knowledge of the journal's file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalFile {
    pub(crate) ino: InodeNo,
    pub(crate) first: Option<BlockNo>,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Number of logical blocks from 0 on without a hole.
    pub(crate) contiguous: u64,
    pub(crate) is_in_use: bool,
}

/// The kind of a block in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Entries up to the checksum.
    Leaf,
    /// The root of a hash tree: only `.` and `..`.
    Root,
    /// A node of a hash tree: no entries.
    Node,
}

/// The lowest and the highest hash of the names in a leaf of a hash tree.
#[derive(Clone, Copy)]
pub(crate) struct HashRange {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl std::fmt::Debug for HashRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#010x}..={:#010x}", self.min, self.max)
    }
}

/// A name's place, to read it again if another name has the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameAt {
    pub(crate) hash: u64,
    pub(crate) lblk: u32,
    pub(crate) offset: u16,
}

/// What is known of a block in an indexed directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HtreeBlock {
    pub(crate) kind: BlockKind,
    pub(crate) references: u8,
    /// It is the first block of its node.
    pub(crate) is_first: bool,
    /// It is the last block of its node.
    pub(crate) is_last: bool,
    /// The next pair in its node says that names of the same hash continue there.
    pub(crate) goes_on: bool,
    pub(crate) parent: u32,
    /// The range of hashes that it holds.
    pub(crate) held: HashRange,
    /// The range of hashes that it may hold.
    pub(crate) allowed: HashRange,
}

/// How much is known of a directory's way to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Unknown,
    /// It is on the way that is being followed now.
    OnIt,
    /// It leads to the root, or a finding reports that it does not.
    Known,
}

/// A check under way.
pub(crate) struct Check<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) g: Geometry,
    pub(crate) sb: Superblock,
    pub(crate) found: &'a mut Found,
    pub(crate) s: &'a mut Buffers,
}

impl Check<'_> {
    /// Reads whole blocks into `out` from `block` on. Returns false, with a finding, if the source
    /// fails.
    pub(crate) fn read(&mut self, block: BlockNo, out: &mut [u8]) -> bool {
        let count = self.g.block.block_of(usize_as_u64(out.len()));
        let is_inside = block
            .0
            .checked_add(count)
            .is_some_and(|end| end <= self.g.blocks_count);
        let result = if is_inside {
            self.source.read(self.g.block.start_of(block), out)
        } else {
            Err(ErrorKind::UnexpectedEof.into())
        };
        if let Err(error) = &result {
            self.push(Place::Block(block), Fault::Unreadable(error.kind()));
        }
        result.is_ok()
    }

    pub(crate) fn push(&mut self, place: Place, fault: impl Into<Fault>) {
        self.found.push(place, fault);
    }

    /// Claims blocks that lie inside the volume. Returns false, with a finding, if one of them was
    /// already claimed.
    pub(crate) fn claim(&mut self, place: Place, start: BlockNo, count: u64) -> bool {
        let was_overwhelmed = self.s.claims.overwhelmed();
        let Some(repeated) = self.s.claims.claim(start, count) else {
            return true;
        };
        let (first, count) = (repeated.first, repeated.count);
        self.push(place, Fault::ClaimedTwice { first, count });
        if !was_overwhelmed && self.s.claims.overwhelmed() {
            self.push(Place::Superblock, Fault::EndlessClaims);
        }
        false
    }

    /// Returns the record of an inode; `None` if the number does not exist or the group's
    /// descriptor says that it was never used.
    pub(crate) fn record(&mut self, ino: InodeNo) -> Option<&mut Record> {
        if !self.g.is_valid_inode(ino) {
            return None;
        }
        let (group, index) = self.g.group_of_inode(ino);
        let group = group.index();
        let (start, end) = (self.s.bases[group], self.s.bases[group + 1]);
        let at = start.checked_add(index).filter(|&at| at < end)?;
        Some(&mut self.s.records[u32_as_usize(at)])
    }

    pub(crate) fn dir_index(&self, ino: InodeNo) -> Option<usize> {
        self.s.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }
}
