//! What the steps of a check leave for each other, and what each can do: read, claim, report.

use std::io::ErrorKind;

use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Geometry, GroupDesc, InodeNo, Place, Superblock};

use crate::claims::Claims;
use crate::finding::{Fault, Finding};
use crate::report::Report;
use crate::source::Source;

/// Where findings go.
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

/// What is kept from check to check: contents are of one check only.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) claims: Claims,
    pub(crate) groups: Vec<GroupDesc>,
    /// For each group the index of its first inode in `records`; one more at the end.
    pub(crate) bases: Vec<u32>,
    pub(crate) records: Vec<Record>,
    /// By rising inode.
    pub(crate) dirs: Vec<Dir>,
    pub(crate) runs: Vec<Run>,
    pub(crate) orphan_runs: Vec<Run>,
    pub(crate) xattr_blocks: Vec<(BlockNo, InodeNo)>,
    pub(crate) journal: Option<JournalFile>,
    /// A part of an inode table.
    pub(crate) table: Vec<u8>,
    /// A node of a mapping a level.
    pub(crate) nodes: [Vec<u8>; 6],
    /// Anything else.
    pub(crate) block: Vec<u8>,
    pub(crate) names: Vec<NameAt>,
    pub(crate) htree: Vec<HtreeBlock>,
    /// The depth of its leaves, by its root.
    pub(crate) htree_depth: u32,
    /// How far the way of each directory to the root is known.
    pub(crate) ways: Vec<Way>,
}

/// What is known of an inode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    /// `i_links_count`.
    pub(crate) links: u16,
    /// In use: 0 no, otherwise the code of the type in directory entries or [`Self::BAD`].
    pub(crate) kind: u8,
    /// It has a hash tree.
    pub(crate) indexed: bool,
    /// Entries that name it.
    pub(crate) counted: u32,
}

impl Record {
    /// In use, but of no type that an entry could have.
    pub(crate) const BAD: u8 = 0x80;
    /// In use and reserved: not looked for in directories.
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
    /// The directory that names it; 0 as long as none was found.
    pub(crate) parent: InodeNo,
    /// What its ".." says.
    pub(crate) dotdot: InodeNo,
    /// Of its blocks' checksums.
    pub(crate) seed: u32,
    /// The first of its runs; they end where those of the next directory begin.
    pub(crate) first_run: usize,
    /// Blocks of it, holes included.
    pub(crate) blocks: u64,
    pub(crate) indexed: bool,
}

/// Blocks of a directory or of the orphan file that follow each other in both orders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) pblk: BlockNo,
    pub(crate) lblk: u32,
    pub(crate) len: u32,
}

/// What becomes of a file's blocks beyond being claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    /// They are looked at as a directory's.
    Directory,
    /// They are looked at as the orphan file's.
    OrphanFile,
    /// They are the journal's.
    Journal,
    /// The list of bad blocks, a file of no type.
    BadBlocks,
}

/// What a walk over a file's map found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    /// Blocks taken, those of the map included.
    pub(crate) blocks: u64,
    /// The logical block behind the last that is mapped.
    pub(crate) end: u64,
    /// The logical block behind the last that is mapped and written.
    pub(crate) written_end: u64,
    /// Logical blocks from 0 on without a hole.
    pub(crate) contiguous: u64,
    /// Where logical block 0 is.
    pub(crate) first: Option<BlockNo>,
}

/// What the scan of the inodes knows of the journal's file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalFile {
    pub(crate) ino: InodeNo,
    pub(crate) first: Option<BlockNo>,
    /// Bytes of it.
    pub(crate) size: u64,
    /// Logical blocks from 0 on without a hole.
    pub(crate) contiguous: u64,
    pub(crate) is_in_use: bool,
}

/// What a block of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Entries up to the checksum.
    Leaf,
    /// The root of a hash tree: only `.` and `..`.
    Root,
    /// A node of a hash tree: no entries.
    Node,
}

/// Names in a leaf of a hash tree: the lowest and the highest hash.
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

/// A name, to find it again when another has its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameAt {
    pub(crate) hash: u64,
    pub(crate) lblk: u32,
    pub(crate) offset: u16,
}

/// What is known of a block of an indexed directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HtreeBlock {
    pub(crate) kind: BlockKind,
    pub(crate) references: u8,
    /// The first of its node.
    pub(crate) is_first: bool,
    /// The last of its node.
    pub(crate) is_last: bool,
    /// The pair behind its own says that names go on there.
    pub(crate) goes_on: bool,
    pub(crate) parent: u32,
    /// What it holds.
    pub(crate) held: HashRange,
    /// What it may hold.
    pub(crate) allowed: HashRange,
}

/// What is known of a directory's way to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Unknown,
    /// It is on the way that is being followed.
    OnIt,
    /// It leads to the root, or was reported.
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
    /// Fills `out`, whole blocks, from `block` on; false when the source cannot, which is then a
    /// finding.
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

    /// Claims blocks that lie inside the volume; false, and a finding, when somebody had claimed
    /// one of them.
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

    /// What is known of an inode; `None` when the number does not exist or its group says that it
    /// was never used.
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
