//! The buffers, and the order of a check.
//!
//! Each step leaves what the next one needs. The superblock gives the shape; the descriptors give
//! the places of bitmaps and tables; the inodes give links, types, blocks and directories; the
//! directories give the number of names of each inode. If a step fails so badly that the next could
//! only guess, the check ends with the findings so far.

use stetfs_format::width::usize_as_u64;

use crate::report::Report;
use crate::source::Source;
use crate::state::{Buffers, Check, Found};

/// How many findings a checker keeps by default.
const KEPT: usize = 100;

/// A read-only checker of volumes. It keeps its buffers from one check to the next.
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
    /// A checker that keeps the first 100 findings of a check and counts the rest.
    pub fn new() -> Self {
        Self::keeping(KEPT)
    }

    /// A checker that keeps the first `findings` findings of a check and counts the rest.
    pub fn keeping(findings: usize) -> Self {
        Self {
            kept: findings,
            buffers: Buffers::default(),
        }
    }

    /// Checks the volume that begins at byte 0 of `source`.
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
