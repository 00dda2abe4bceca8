//! The buffers, and the order of a check.
//!
//! Each step leaves for the next what it must know: the superblock the shape; the descriptors where
//! bitmaps and tables lie; the inodes their links, types, blocks and directories; the directories
//! how often each inode is named. A step that fails so badly that the next would only guess ends
//! the check: what is wrong has been named.

use std::io::ErrorKind;

use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Geometry, GroupDesc, InodeNo, Place, Superblock};

use crate::claims::Claims;
use crate::finding::{Fault, Finding};
use crate::htree::HtreeBlock;
use crate::report::Report;
use crate::source::Source;

/// Findings that a checker keeps when it is not told otherwise.
const KEPT: usize = 100;

/// A read-only checker of volumes, with buffers that it keeps from one to the next.
#[derive(Debug)]
pub struct Checker {
    kept: usize,
    buffers: Buffers,
}

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker {
    /// Keeps the first 100 findings of a check and counts the rest.
    pub fn new() -> Self {
        Self::keeping(KEPT)
    }

    /// Keeps the first `findings` of a check and counts the rest.
    pub fn keeping(findings: usize) -> Self {
        Self {
            kept: findings,
            buffers: Buffers::default(),
        }
    }

    /// Checks the volume that `source` holds from its byte 0 on.
    pub fn check<S: Source + ?Sized>(&mut self, source: &S) -> Report {
        self.check_dyn(&source)
    }

    fn check_dyn(&mut self, source: &dyn Source) -> Report {
        let mut found = Found {
            kept: self.kept,
            report: Report::default(),
        };
        if let Some(sb) = crate::superblock::read(source, &mut found) {
            let check = Check {
                source,
                g: *sb.geometry(),
                sb,
                found: &mut found,
                s: &mut self.buffers,
            };
            check.run();
        }
        found.report
    }
}

/// Where findings go.
pub(crate) struct Found {
    kept: usize,
    report: Report,
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
    pub(crate) journal: Option<crate::special::JournalFile>,
    /// A part of an inode table.
    pub(crate) table: Vec<u8>,
    /// A node of a mapping a level.
    pub(crate) nodes: [Vec<u8>; 6],
    /// Anything else.
    pub(crate) block: Vec<u8>,
    pub(crate) names: Vec<crate::directories::NameAt>,
    pub(crate) htree: Vec<HtreeBlock>,
    /// The depth of its leaves, by its root.
    pub(crate) htree_depth: u32,
    /// How far the way of each directory to the root is known.
    pub(crate) ways: Vec<crate::tree::Way>,
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

/// A check under way.
pub(crate) struct Check<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) g: Geometry,
    pub(crate) sb: Superblock,
    pub(crate) found: &'a mut Found,
    pub(crate) s: &'a mut Buffers,
}

impl Check<'_> {
    fn run(mut self) {
        self.reset();
        if self.check_superblock() && self.read_groups() && self.claim_metadata() {
            self.check_inodes();
            self.check_xattr_blocks();
            self.check_special_files();
            self.check_directories();
            self.check_tree();
            self.check_bitmaps();
            self.name_findings();
        }
        self.sum_up();
    }

    fn reset(&mut self) {
        let size = self.g.block_size();
        let s = &mut *self.s;
        s.claims.reset(&self.g);
        s.groups.clear();
        s.bases.clear();
        s.records.clear();
        s.dirs.clear();
        s.runs.clear();
        s.orphan_runs.clear();
        s.xattr_blocks.clear();
        s.journal = None;
        s.block.resize(size, 0);
        for node in &mut s.nodes {
            node.resize(size, 0);
        }
    }

    fn sum_up(&mut self) {
        let report = &mut self.found.report;
        report.inodes = usize_as_u64(self.s.records.iter().filter(|r| r.is_used()).count());
        report.directories = usize_as_u64(self.s.dirs.len());
        report.blocks = self.s.claims.claimed();
    }

    /// Fills `out`, whole blocks, from `block` on; false when the source cannot, which is then a
    /// finding.
    pub(crate) fn read(&mut self, block: BlockNo, out: &mut [u8]) -> bool {
        let count = usize_as_u64(out.len() >> self.g.block_bits);
        let is_inside = block
            .0
            .checked_add(count)
            .is_some_and(|end| end <= self.g.blocks_count);
        let result = match is_inside {
            true => self.source.read(block.0 << self.g.block_bits, out),
            false => Err(ErrorKind::UnexpectedEof.into()),
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
        let group = u32_as_usize(group.0);
        let (start, end) = (self.s.bases[group], self.s.bases[group + 1]);
        let at = start.checked_add(index).filter(|&at| at < end)?;
        Some(&mut self.s.records[u32_as_usize(at)])
    }

    pub(crate) fn dir_index(&self, ino: InodeNo) -> Option<usize> {
        self.s.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }
}
