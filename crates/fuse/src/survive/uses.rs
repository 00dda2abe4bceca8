//! What the kernel has in use: open files, and inodes that were removed and that it knows still.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use stetfs::InUse;
use stetfs_format::InodeNo;
use stetfs_format::width::must_fit_u32;

/// How an inode is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Use {
    pub(super) generation: u32,
    /// The handles of its open files.
    pub(super) handles: Vec<u64>,
    /// It was made without a name, and can get one.
    pub(super) is_nameable: bool,
    /// It was removed, and the kernel knows it still. Not for regular files and symbolic links.
    pub(super) is_held: bool,
}

/// All that is in use, by inode number: while one is in use, no other inode gets its number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Uses(HashMap<u32, Use>);

impl Uses {
    fn of(&mut self, ino: InodeNo, generation: u32) -> &mut Use {
        let one = self.0.entry(ino.0).or_default();
        if one.generation != generation {
            *one = Use {
                generation,
                ..Use::default()
            };
        }
        one
    }

    /// Notes that a file is open by this handle.
    pub(super) fn opened(&mut self, ino: InodeNo, generation: u32, handle: u64) {
        self.of(ino, generation).handles.push(handle);
    }

    /// Notes that an open file was made without a name, and can get one.
    pub(super) fn is_nameable(&mut self, ino: InodeNo, generation: u32) {
        self.of(ino, generation).is_nameable = true;
    }

    /// Notes that a file has got a name.
    pub(super) fn was_named(&mut self, ino: InodeNo) {
        if let Some(one) = self.0.get_mut(&ino.0) {
            one.is_nameable = false;
        }
    }

    /// Notes that a file is about to be closed. Returns its generation, if it was open by this
    /// handle.
    pub(super) fn closes(&mut self, ino: InodeNo, handle: u64) -> Option<u32> {
        let one = self.0.get_mut(&ino.0)?;
        let at = one.handles.iter().position(|open| *open == handle)?;
        one.handles.swap_remove(at);
        let generation = one.generation;
        self.drop_unused(ino);
        Some(generation)
    }

    /// Notes that an inode was removed, which the kernel knows still.
    pub(super) fn holds(&mut self, ino: InodeNo, generation: u32) {
        self.of(ino, generation).is_held = true;
    }

    /// Notes that the kernel forgets an inode. Returns its generation, if it was held.
    pub(super) fn forgets(&mut self, ino: InodeNo) -> Option<u32> {
        let one = self.0.get_mut(&ino.0).filter(|one| one.is_held)?;
        one.is_held = false;
        let generation = one.generation;
        self.drop_unused(ino);
        Some(generation)
    }

    /// Notes that an inode has another generation now.
    pub(super) fn has_generation(&mut self, ino: InodeNo, generation: u32) {
        if let Some(one) = self.0.get_mut(&ino.0) {
            one.generation = generation;
        }
    }

    fn drop_unused(&mut self, ino: InodeNo) {
        let is_used = |one: &Use| one.is_held || !one.handles.is_empty();
        if self.0.get(&ino.0).is_some_and(|one| !is_used(one)) {
            self.0.remove(&ino.0);
        }
    }

    pub(super) fn get(&self, ino: InodeNo) -> Option<&Use> {
        self.0.get(&ino.0)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (InodeNo, &Use)> {
        self.0.iter().map(|(ino, one)| (InodeNo(*ino), one))
    }

    /// Returns it in the volume's terms.
    pub(super) fn in_use(&self) -> impl Iterator<Item = InUse> {
        self.all().map(|(ino, one)| one.in_use(ino))
    }
}

impl Use {
    /// Returns it in the volume's terms.
    pub(super) fn in_use(&self, ino: InodeNo) -> InUse {
        InUse {
            ino: ino.0,
            generation: self.generation,
            opens: must_fit_u32(self.handles.len() + usize::from(self.is_held)),
            is_held: self.is_held,
            is_nameable: self.is_nameable,
            places_on_close: false,
        }
    }
}
