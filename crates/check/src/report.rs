//! The outcome of a check.

use std::fmt;

use crate::finding::Finding;
use stetfs_format::width::usize_as_u64;

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The failed checks, in the order in which they were found; at most as many as the checker
    /// keeps.
    pub findings: Vec<Finding>,
    /// How many there were, including those not kept.
    pub found: u64,
    /// Inodes in use, the reserved ones included.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Blocks in use, metadata included.
    pub blocks: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }
}

/// Formats one finding per line, and the number of those not kept.
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
