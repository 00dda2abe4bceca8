//! The newest committed version of a block, of which as much is kept as differs from home, or all.

use stetfs_format::Tid;
use stetfs_format::width::u64_as_usize;
use stetfs_media::pmem::WORD;
use stetfs_media::{BlockRef, Class};
use stetfs_scheme::Ranges;

use crate::engine::log::Version;
use crate::parts::index::Indexed;

pub(super) struct PartialVersion {
    pub(super) class: Class,
    /// The first and the last transaction that changed it since it was home.
    oldest: Tid,
    newest: Tid,
    /// What differs from home, in whole words.
    ranges: Ranges,
    pub(super) kept: Kept,
}

/// What is kept of a version.
pub(super) enum Kept {
    /// The bytes of its ranges, one behind the other.
    Parts(Vec<u8>),
    /// All of it.
    Whole(BlockRef),
}

impl Indexed for PartialVersion {
    fn is_held(&self) -> bool {
        !self.ranges.is_empty()
    }
}

impl Version for PartialVersion {
    /// It stays in the index, where nothing changes it meanwhile.
    type Due = ();

    fn oldest(&self) -> Tid {
        self.oldest
    }

    fn newest(&self) -> Tid {
        self.newest
    }

    fn leave(&mut self) {}

    fn arrive(&mut self, (): &()) {
        self.ranges = Ranges::new();
        self.kept = Kept::Parts(Vec::new());
    }
}

impl PartialVersion {
    pub(super) fn new(class: Class, tid: Tid) -> Self {
        Self {
            class,
            oldest: tid,
            newest: tid,
            ranges: Ranges::new(),
            kept: Kept::Parts(Vec::new()),
        }
    }

    /// Takes over what `changed` names from the newer `content`. What is kept whole is a copy of
    /// its own from the second change on, so that who changes a block again and again need not
    /// leave the whole of it behind each time.
    pub(super) fn update(&mut self, tid: Tid, content: &BlockRef, changed: &Ranges) {
        if self.ranges.is_empty() {
            self.oldest = tid;
        }
        self.newest = tid;
        self.ranges.add_all(&changed.widened(u64_as_usize(WORD)));
        match &mut self.kept {
            Kept::Parts(bytes) if self.ranges.bytes() <= content.len() / 4 => {
                bytes.clear();
                bytes.reserve_exact(self.ranges.bytes());
                self.ranges
                    .iter()
                    .for_each(|r| bytes.extend_from_slice(&content[r]));
            }
            Kept::Whole(own) if own.is_unshared() => {
                let own = own.make_mut();
                changed
                    .iter()
                    .for_each(|r| own[r.clone()].copy_from_slice(&content[r]));
            }
            kept => *kept = Kept::Whole(content.clone()),
        }
    }

    /// Its ranges and what is there.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut done = 0;
        self.ranges.iter().map(move |range| {
            let start = range.start;
            let bytes = match &self.kept {
                Kept::Parts(bytes) => &bytes[done..done + range.len()],
                Kept::Whole(content) => &content[range.clone()],
            };
            done += range.len();
            (start, bytes)
        })
    }
}
