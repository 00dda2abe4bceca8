//! Which files are open, and how.
//!
//! The core counts opens too; this is for what the core cannot know: which files the kernel may
//! hold pages of, clean or dirty.
//!
//! A file handle is a few bits that say how the file was opened, [`How`], with a number that no
//! other open file has. It comes back with each request.

use std::collections::HashMap;

use bitflags::bitflags;
use parking_lot::Mutex;
use stetfs_format::InodeNo;
use stetfs_format::width::u32_as_usize;

bitflags! {
    /// How a file was opened: FUSE's file handle.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct How: u64 {
        /// For writing.
        const WRITES = 1;
        /// Past the page cache: by O_DIRECT, or because this server said so.
        const DIRECT = 1 << 1;
        /// Because this server said so.
        const LED = 1 << 2;
    }
}

impl How {
    /// A file handle that says this, with the number of the open file.
    pub(crate) fn numbered(self, number: u64) -> u64 {
        number << Self::all().bits().count_ones() | self.bits()
    }

    /// Its writes are kept by the kernel and sent later.
    pub(crate) fn is_cached_writer(self) -> bool {
        self.contains(Self::WRITES) && !self.contains(Self::DIRECT)
    }
}

/// All open files.
#[derive(Default)]
pub(crate) struct Opens {
    shards: [Mutex<Shard>; 16],
}

#[derive(Default)]
struct Shard {
    files: HashMap<InodeNo, Open>,
    /// Files that got a cached writer since they were last looked for.
    fresh: Vec<InodeNo>,
    /// Files that are no longer open, of which the kernel has old times.
    stale: Vec<InodeNo>,
}

/// How often a file is open.
#[derive(Clone, Copy, Default)]
struct Open {
    all: u32,
    /// It was opened through the page cache, where pages of it may be as long as it is open at all.
    cached: bool,
    /// For writing through the page cache.
    cached_writers: u32,
    /// The kernel has been told to ask for its attributes soon.
    watched: bool,
    /// Its pages have taken new blocks while the volume was nearly full.
    grows: bool,
    /// Pages of it found no place, and no writer was told yet.
    lost: bool,
    /// It was written past the page cache because this server said so: a kernel with a writeback
    /// cache believes its own times, and does not change them then.
    led: bool,
}

impl Opens {
    fn shard(&self, ino: InodeNo) -> &Mutex<Shard> {
        &self.shards[u32_as_usize(ino.0) % self.shards.len()]
    }

    pub(crate) fn opened(&self, ino: InodeNo, how: How) {
        let mut shard = self.shard(ino).lock();
        let open = shard.files.entry(ino).or_default();
        open.all += 1;
        open.cached |= !how.contains(How::DIRECT);
        open.led |= how.contains(How::LED);
        if how.is_cached_writer() {
            open.cached_writers += 1;
            let is_first = open.cached_writers == 1;
            if is_first {
                shard.fresh.push(ino);
            }
        }
    }

    pub(crate) fn closed(&self, ino: InodeNo, how: How) {
        let mut shard = self.shard(ino).lock();
        let Some(open) = shard.files.get_mut(&ino) else {
            return;
        };
        open.all = open.all.saturating_sub(1);
        let writer = u32::from(how.is_cached_writer());
        open.cached_writers = open.cached_writers.saturating_sub(writer);
        open.watched &= open.cached_writers > 0;
        if open.all == 0 {
            let is_stale = open.led;
            shard.files.remove(&ino);
            if is_stale {
                shard.stale.push(ino);
            }
        }
    }

    fn ask(&self, ino: InodeNo, what: impl FnOnce(&Open) -> bool) -> bool {
        self.shard(ino).lock().files.get(&ino).is_some_and(what)
    }

    /// Whether the kernel may hold dirty pages of it that an open file wrote.
    pub(crate) fn has_cached_writer(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.cached_writers > 0)
    }

    /// Whether the kernel may have pages of it: because somebody reads or writes it through the
    /// page cache, or did since it was first opened; or nobody has it open, and somebody had.
    pub(crate) fn is_cached(&self, ino: InodeNo) -> bool {
        let shard = self.shard(ino).lock();
        shard.files.get(&ino).is_none_or(|open| open.cached)
    }

    /// Whether its attributes may be kept for a moment only.
    pub(crate) fn is_watched(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.watched)
    }

    /// The files that have got a cached writer since the last call and have it still. They are
    /// watched from now on.
    pub(crate) fn watch_fresh(&self) -> Vec<InodeNo> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            for ino in std::mem::take(&mut shard.fresh) {
                if let Some(open) = shard.files.get_mut(&ino)
                    && open.cached_writers > 0
                    && !open.watched
                {
                    open.watched = true;
                    found.push(ino);
                }
            }
        }
        found
    }

    /// The files that were closed since the last call and of which the kernel has old times.
    pub(crate) fn take_stale(&self) -> Vec<InodeNo> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| std::mem::take(&mut shard.lock().stale))
            .collect()
    }

    /// All files that have a cached writer. They are watched from now on.
    pub(crate) fn watch_all(&self) -> Vec<InodeNo> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for (ino, open) in &mut shard.lock().files {
                if open.cached_writers > 0 {
                    open.watched = true;
                    found.push(*ino);
                }
            }
        }
        found
    }

    fn change(&self, ino: InodeNo, change: impl FnOnce(&mut Open)) {
        if let Some(open) = self.shard(ino).lock().files.get_mut(&ino) {
            change(open);
        }
    }

    /// The kernel is about to get pages of it through a file that was opened past the page cache:
    /// it is mapped.
    pub(crate) fn is_mapped(&self, ino: InodeNo) {
        self.change(ino, |open| open.cached = true);
    }

    /// Its pages have taken new blocks.
    pub(crate) fn grew(&self, ino: InodeNo) {
        self.change(ino, |open| open.grows = true);
    }

    /// Whether its pages may need new blocks.
    pub(crate) fn grows(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.grows)
    }

    /// Pages of it found no place.
    pub(crate) fn lost(&self, ino: InodeNo) {
        self.change(ino, |open| open.lost = true);
    }

    /// Whether pages of it found no place since this was last asked.
    pub(crate) fn take_lost(&self, ino: InodeNo) -> bool {
        let mut lost = false;
        self.change(ino, |open| lost = std::mem::take(&mut open.lost));
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_through_the_page_cache_are_counted() {
        let opens = Opens::default();
        let (ino, read, write) = (InodeNo(12), How::empty(), How::WRITES);
        opens.opened(ino, read);
        assert!(!opens.has_cached_writer(ino) && opens.is_cached(ino));
        opens.opened(ino, write);
        opens.opened(ino, write);
        opens.opened(ino, write | How::DIRECT);
        opens.closed(ino, write);
        assert!(opens.has_cached_writer(ino));
        opens.closed(ino, write);
        assert!(!opens.has_cached_writer(ino));
        opens.closed(ino, read);
        assert!(opens.is_cached(ino), "its pages are still there");
        opens.closed(ino, write | How::DIRECT);
        assert!(opens.shard(ino).lock().files.is_empty());
        opens.opened(ino, write | How::DIRECT);
        assert!(!opens.is_cached(ino));
    }

    #[test]
    fn only_files_that_stay_open_are_watched() {
        let opens = Opens::default();
        let (short, long) = (InodeNo(12), InodeNo(13));
        opens.opened(short, How::WRITES);
        opens.opened(long, How::WRITES);
        opens.closed(short, How::WRITES);
        assert_eq!(opens.watch_fresh(), [long]);
        assert!(opens.is_watched(long) && !opens.is_watched(short));
        // Not told a second time, and not watched any more when nobody writes.
        assert!(opens.watch_fresh().is_empty());
        opens.opened(long, How::empty());
        opens.closed(long, How::WRITES);
        assert!(!opens.is_watched(long));
    }
}
