//! The outcome of a check.

use std::fmt;

use crate::finding::Finding;
use stetfs_format::width::usize_as_u64;

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, in the order in which it was found: at most as many as the checker keeps.
    pub findings: Vec<Finding>,
    /// How many there were in all.
    pub found: u64,
    /// Inodes in use, the reserved ones included.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Blocks in use, metadata included.
    pub blocks: u64,
}

impl Report {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }
}

/// A finding a line, and how many were left out.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let left_out = self.found - usize_as_u64(self.findings.len());
        if left_out > 0 {
            writeln!(f, "and {left_out} more")?;
        }
        write!(
            f,
            "{} inodes ({} directories) and {} blocks in use, {} findings",
            self.inodes, self.directories, self.blocks, self.found
        )
    }
}
