//! The newest committed version of a block: the bytes that differ from home, or all of it.

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
    /// The bytes that differ from home, in whole words.
    ranges: Ranges,
    pub(super) kept: Kept,
}

/// The content of a version that is kept in memory.
pub(super) enum Kept {
    /// The bytes of its ranges, one range behind the other.
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
    /// Nothing: the version stays in the index, where no commit changes it during the checkpoint.
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

    /// Takes over the `changed` bytes of the newer `content`. A version that is kept whole has a
    /// copy of its own from the second change on, so that a block that changes again and again is
    /// not copied each time.
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

    /// Yields the start and the bytes of each of its ranges.
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
