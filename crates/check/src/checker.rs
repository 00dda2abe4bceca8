//! The buffers, and the order of a check.
//!
//! Each step leaves for the next what it must know: the superblock the shape; the descriptors where
//! bitmaps and tables lie; the inodes their links, types, blocks and directories; the directories
//! how often each inode is named. A step that fails so badly that the next would only guess ends
//! the check: what is wrong has been named.

use stetfs_format::width::usize_as_u64;

use crate::report::Report;
use crate::source::Source;
use crate::state::{Buffers, Check, Found};

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
}
