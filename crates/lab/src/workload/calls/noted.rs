//! The calls that a workload makes, as a list that can be played elsewhere.

use std::collections::HashMap;

use stetfs_format::InodeNo;

use super::call::{Call, What, renamed};

/// The calls so far, and the path of each inode in them.
pub struct Noted {
    calls: Vec<Call>,
    paths: HashMap<InodeNo, String>,
    is_whole: bool,
}

impl Noted {
    /// No calls yet.
    pub fn new(root: InodeNo) -> Self {
        Self {
            calls: Vec::new(),
            paths: HashMap::from([(root, String::new())]),
            is_whole: true,
        }
    }

    /// Returns all calls; `None` if some were missed.
    pub fn calls(self) -> Option<Vec<Call>> {
        self.is_whole.then_some(self.calls)
    }

    /// Notes that calls were missed.
    pub(in crate::workload) fn miss(&mut self) -> Option<What> {
        self.is_whole = false;
        None
    }

    pub(in crate::workload) fn note(&mut self, what: What) {
        if let What::Rename(from, to) = &what {
            for path in self.paths.values_mut() {
                if let Some(new) = renamed(path, from, to) {
                    *path = new;
                }
            }
        }
        self.calls.push(Call {
            line: self.calls.len() + 1,
            at: None,
            what,
        });
    }

    /// Returns the path of an inode; `None` if its name has not passed here.
    pub(in crate::workload) fn path(&mut self, ino: InodeNo) -> Option<String> {
        let path = self.paths.get(&ino).cloned();
        self.is_whole &= path.is_some();
        path
    }

    /// Returns the path of a name in a directory.
    pub(in crate::workload) fn below(&mut self, dir: InodeNo, name: &str) -> Option<String> {
        let dir = self.path(dir)?;
        let slash = if dir.is_empty() { "" } else { "/" };
        Some(format!("{dir}{slash}{name}"))
    }

    /// Returns the path of a name in a directory, and notes that it is the inode's.
    pub(in crate::workload) fn name(
        &mut self,
        dir: InodeNo,
        name: &str,
        ino: InodeNo,
    ) -> Option<String> {
        let path = self.below(dir, name)?;
        self.paths.insert(ino, path.clone());
        Some(path)
    }
}
