//! The calls that a workload makes, as a list that can be played elsewhere.

use std::collections::HashMap;

use stetfs_format::InodeNo;

use super::call::{Call, What, renamed};

/// Calls so far, and what each inode of them is called.
pub struct Noted {
    calls: Vec<Call>,
    paths: HashMap<InodeNo, String>,
    is_whole: bool,
}

impl Noted {
    /// None yet.
    pub fn new(root: InodeNo) -> Self {
        Self {
            calls: Vec::new(),
            paths: HashMap::from([(root, String::new())]),
            is_whole: true,
        }
    }

    /// All of them; none if some were missed.
    pub fn calls(self) -> Option<Vec<Call>> {
        self.is_whole.then_some(self.calls)
    }

    /// Calls were made of which nothing is known.
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

    /// What an inode is called, if its name has passed here.
    pub(in crate::workload) fn path(&mut self, ino: InodeNo) -> Option<String> {
        let path = self.paths.get(&ino).cloned();
        self.is_whole &= path.is_some();
        path
    }

    /// The path of a name in a directory.
    pub(in crate::workload) fn below(&mut self, dir: InodeNo, name: &str) -> Option<String> {
        let dir = self.path(dir)?;
        let slash = if dir.is_empty() { "" } else { "/" };
        Some(format!("{dir}{slash}{name}"))
    }

    /// The same, of which the inode is known now.
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
