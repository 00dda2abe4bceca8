//! The open files, and how each was opened.
//!
//! The core counts opens too. Here is what the core cannot know: of which files the kernel may hold
//! pages, clean or dirty.
//!
//! A file handle has a few bits that say how the file was opened, [`How`], and a number that no
//! other open file has. It comes back with each request.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bitflags::bitflags;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stetfs_format::InodeNo;
use stetfs_format::width::u32_as_usize;

use crate::errno::Outcome;

bitflags! {
    /// How a file was opened: FUSE's file handle.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct How: u64 {
        /// For writing.
        const WRITES = 1;
        /// Past the page cache: by O_DIRECT, or because this server led it there.
        const DIRECT = 1 << 1;
        /// Led past the page cache by this server, which no fcntl(2) changes.
        const LED = 1 << 2;
        /// Led beside a writeback cache: the kernel still keeps times and sizes itself, and its own
        /// may be wrong.
        const UNTIMED = 1 << 3;
    }
}

impl How {
    /// Returns a file handle with these bits and the number of the open file.
    pub(crate) fn numbered(self, number: u64) -> u64 {
        number << Self::all().bits().count_ones() | self.bits()
    }

    /// Returns the number of the open file of a handle.
    pub(crate) fn number(handle: u64) -> u64 {
        handle >> Self::all().bits().count_ones()
    }

    /// Returns the bits of an open file that this server leads past the page cache.
    pub(crate) fn led(writeback: bool) -> Self {
        let untimed = if writeback {
            Self::UNTIMED
        } else {
            Self::empty()
        };
        Self::DIRECT | Self::LED | untimed
    }

    /// True if the kernel may keep its writes: fcntl(2) can take O_DIRECT away.
    fn may_write_late(self) -> bool {
        self.contains(Self::WRITES) && !self.contains(Self::LED)
    }

    /// True if the kernel keeps its writes and sends them later.
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
    /// Files that got a cached writer since the last [`Opens::watch_fresh`].
    fresh: Vec<InodeNo>,
    /// Closed files of which the kernel may have wrong times and a wrong size.
    stale: Vec<InodeNo>,
    /// Requests that wait for the last close of a file's late writers.
    waiting: Vec<Waiting>,
}

/// A request that waits for a hold.
struct Waiting {
    ino: InodeNo,
    number: u64,
    rest: Rest,
}

/// Continues a request with a hold; with `None` if the file was not closed in time.
pub(crate) type Rest = Box<dyn FnOnce(Option<Hold>) + Send>;

/// How a file is open.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Open {
    all: u32,
    /// It was opened through the page cache. Pages may be there until the last close.
    cached: bool,
    /// Opens for writing through the page cache.
    cached_writers: u32,
    /// The same, and opens for which fcntl(2) may change it to that.
    late_writers: u32,
    /// Holds by groups: meanwhile there are no late writers.
    holds: u32,
    /// The kernel was told to ask for its attributes soon.
    watched: bool,
    /// Its pages have taken new blocks while the volume was nearly full.
    grows: bool,
    /// Why pages of it were lost, an errno, if no writer was told yet.
    lost: Option<i32>,
    /// It was made immutable while it was open.
    frozen: bool,
    /// The kernel may have wrong times and a wrong size for it.
    untimed: bool,
}

impl Shard {
    /// Forgets a file that nobody has open any more, except for its holds.
    fn all_closed(&mut self, ino: InodeNo) {
        let Some(open) = self.files.remove(&ino) else {
            return;
        };
        if open.untimed {
            self.stale.push(ino);
        }
        if open.holds > 0 {
            let left = Open {
                holds: open.holds,
                // As for any file that nobody has open.
                cached: true,
                ..Open::default()
            };
            self.files.insert(ino, left);
        }
    }
}

/// Marks a file as part of a group: opens for writing are led past the page cache.
pub(crate) struct Hold {
    opens: Arc<Opens>,
    ino: InodeNo,
}

impl Hold {
    /// Takes a hold. `None` while the kernel may keep writes to this file that it will send later,
    /// in whole pages; also if the file is not open.
    pub(crate) fn on(opens: &Arc<Opens>, ino: InodeNo) -> Option<Self> {
        Self::of(&mut opens.shard(ino).lock(), opens, ino)
    }

    fn of(shard: &mut Shard, opens: &Arc<Opens>, ino: InodeNo) -> Option<Self> {
        let open = shard.files.get_mut(&ino)?;
        if open.late_writers > 0 {
            return None;
        }
        open.holds += 1;
        let opens = opens.clone();
        Some(Self { opens, ino })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut shard = self.opens.shard(self.ino).lock();
        let Some(open) = shard.files.get_mut(&self.ino) else {
            return;
        };
        open.holds = open.holds.saturating_sub(1);
        if open.all == 0 {
            shard.all_closed(self.ino);
        }
    }
}

/// The releases (FUSE_RELEASE) under way. close(2) does not wait for their ends, so whoever closes
/// a removed file and then needs its room may find it still taken.
#[derive(Default)]
pub(crate) struct Releases {
    under_way: RwLock<()>,
    ended: AtomicU64,
}

/// A release under way.
pub(crate) struct Release<'a> {
    ended: &'a AtomicU64,
    _under_way: RwLockReadGuard<'a, ()>,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Releases {
    /// How long one that the kernel has sent may take until it [begins](Self::begin).
    const LATE: Duration = Duration::from_millis(5);

    /// Begins a release. It ends with what this returns; until then it must not ask for
    /// [room](Self::with_room).
    pub(crate) fn begin(&self) -> Release<'_> {
        Release {
            _under_way: self.under_way.read(),
            ended: &self.ended,
        }
    }

    /// Does `work`. If it finds no room, does it once more for as long as releases end, which may
    /// give some. A failure of `work` has left nothing behind.
    pub(crate) fn with_room<T>(&self, mut work: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        loop {
            let before = self.ended.load(Ordering::SeqCst);
            match work() {
                Err(Errno::NOSPC) if self.has_any_ended_since(before) => {}
                done => return done,
            }
        }
    }

    /// Waits for those under way.
    fn has_any_ended_since(&self, before: u64) -> bool {
        let has_ended = || {
            drop(self.under_way.write());
            self.ended.load(Ordering::SeqCst) != before
        };
        has_ended() || {
            std::thread::sleep(Self::LATE);
            has_ended()
        }
    }
}

impl Opens {
    fn shard(&self, ino: InodeNo) -> &Mutex<Shard> {
        &self.shards[u32_as_usize(ino.0) % self.shards.len()]
    }

    /// Counts an open file. Returns how it is opened: as `led` if it must be.
    pub(crate) fn opened(&self, ino: InodeNo, mut how: How, led: How) -> How {
        let mut shard = self.shard(ino).lock();
        let open = shard.files.entry(ino).or_default();
        if open.holds > 0 && how.contains(How::WRITES) {
            how |= led;
        }
        open.all += 1;
        open.cached |= !how.contains(How::DIRECT);
        open.untimed |= how.contains(How::UNTIMED);
        open.late_writers += u32::from(how.may_write_late());
        if how.is_cached_writer() {
            open.cached_writers += 1;
            let is_first = open.cached_writers == 1;
            if is_first {
                shard.fresh.push(ino);
            }
        }
        how
    }

    /// Counts a close. Requests that have waited for it go on.
    pub(crate) fn closed(self: &Arc<Self>, ino: InodeNo, how: How) {
        for (hold, rest) in self.count_closed(ino, how) {
            rest(hold);
        }
    }

    /// Counts a close. Returns the requests that go on, with their holds; the caller holds no lock
    /// when it continues them.
    fn count_closed(self: &Arc<Self>, ino: InodeNo, how: How) -> Vec<(Option<Hold>, Rest)> {
        let mut shard = self.shard(ino).lock();
        let Some(open) = shard.files.get_mut(&ino) else {
            return Vec::new();
        };
        open.all = open.all.saturating_sub(1);
        let writer = u32::from(how.is_cached_writer());
        open.cached_writers = open.cached_writers.saturating_sub(writer);
        let late = u32::from(how.may_write_late());
        open.late_writers = open.late_writers.saturating_sub(late);
        open.watched &= open.cached_writers > 0;
        let goes_on = late > 0 && open.late_writers == 0;
        if open.all == 0 {
            shard.all_closed(ino);
        }
        if !goes_on || shard.waiting.is_empty() {
            return Vec::new();
        }
        let (now, later) = std::mem::take(&mut shard.waiting)
            .into_iter()
            .partition(|waiting: &Waiting| waiting.ino == ino);
        shard.waiting = later;
        now.into_iter()
            .map(|waiting| (Hold::of(&mut shard, self, ino), waiting.rest))
            .collect()
    }

    /// Calls `rest` with a hold as soon as the file has no late writers. Until then the request is
    /// known by `number`.
    pub(crate) fn when_held(self: &Arc<Self>, ino: InodeNo, number: u64, rest: Rest) {
        let hold = {
            let mut shard = self.shard(ino).lock();
            let hold = Hold::of(&mut shard, self, ino);
            if hold.is_none() {
                shard.waiting.push(Waiting { ino, number, rest });
                return;
            }
            hold
        };
        rest(hold);
    }

    /// Continues the request of this number without a hold, if it still waits.
    pub(crate) fn give_up(&self, ino: InodeNo, number: u64) {
        let waiting = {
            let mut shard = self.shard(ino).lock();
            let is_it = |waiting: &Waiting| waiting.number == number;
            let at = shard.waiting.iter().position(is_it);
            at.map(|at| shard.waiting.remove(at))
        };
        if let Some(waiting) = waiting {
            (waiting.rest)(None);
        }
    }

    fn ask(&self, ino: InodeNo, what: impl FnOnce(&Open) -> bool) -> bool {
        self.shard(ino).lock().files.get(&ino).is_some_and(what)
    }

    /// Returns whether somebody has the file open.
    pub(crate) fn is_open(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.all > 0)
    }

    /// Returns whether the kernel may hold dirty pages of it that an open file wrote.
    pub(crate) fn has_cached_writer(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.cached_writers > 0)
    }

    /// Returns whether the kernel may have pages of the file. It may if somebody has opened it
    /// through the page cache since it was first opened, or if nobody has it open.
    pub(crate) fn is_cached(&self, ino: InodeNo) -> bool {
        let shard = self.shard(ino).lock();
        shard.files.get(&ino).is_none_or(|open| open.cached)
    }

    /// Returns whether the kernel may keep its attributes for a moment only.
    pub(crate) fn is_watched(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.watched)
    }

    /// Returns the files that have got a cached writer since the last call and have it still. They
    /// are watched from now on.
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

    /// Returns the files that were closed since the last call and of which the kernel may have
    /// wrong times and a wrong size.
    pub(crate) fn take_stale(&self) -> Vec<InodeNo> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| std::mem::take(&mut shard.lock().stale))
            .collect()
    }

    /// Returns all open files.
    pub(crate) fn all(&self) -> Vec<(InodeNo, Open)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().files.iter().map(|(ino, open)| (*ino, *open)));
        }
        all
    }

    /// Notes a file that was opened by the server before this one.
    pub(crate) fn restore(&self, ino: InodeNo, open: Open) {
        let mut shard = self.shard(ino).lock();
        shard.files.insert(ino, open);
        if open.cached_writers > 0 && !open.watched {
            shard.fresh.push(ino);
        }
    }

    /// Notes closed files of which the kernel may have wrong times and a wrong size.
    pub(crate) fn note_stale(&self, files: impl Iterator<Item = InodeNo>) {
        files.for_each(|ino| self.shard(ino).lock().stale.push(ino));
    }

    /// Returns all files that have a cached writer. They are watched from now on.
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

    /// Notes that the file is mapped: the kernel gets pages of it although it was opened past the
    /// page cache.
    pub(crate) fn is_mapped(&self, ino: InodeNo) {
        self.change(ino, |open| open.cached = true);
    }

    /// Notes that its pages have taken new blocks.
    pub(crate) fn grew(&self, ino: InodeNo) {
        self.change(ino, |open| open.grows = true);
    }

    /// Returns whether its pages may need new blocks.
    pub(crate) fn grows(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.grows)
    }

    /// Notes that pages of it were lost. The kernel may then have a wrong size.
    pub(crate) fn lost(&self, ino: InodeNo, errno: Errno) {
        self.change(ino, |open| {
            open.lost = Some(errno.raw_os_error());
            open.untimed = true;
        });
    }

    /// Returns why pages of it were lost since the last call; `None` if none were.
    pub(crate) fn take_lost(&self, ino: InodeNo) -> Option<Errno> {
        let mut lost = None;
        self.change(ino, |open| lost = open.lost.take());
        lost.map(Errno::from_raw_os_error)
    }

    /// Notes whether the file is immutable now. If so, its writers through the page cache are
    /// watched, and refused.
    pub(crate) fn freeze(&self, ino: InodeNo, is_frozen: bool) {
        self.change(ino, |open| {
            open.frozen = is_frozen;
            open.watched |= is_frozen && open.cached_writers > 0;
        });
    }

    /// Returns whether it became immutable while it was open.
    pub(crate) fn is_frozen(&self, ino: InodeNo) -> bool {
        self.ask(ino, |open| open.frozen)
    }

    /// Returns whether any file is open for writing through the page cache.
    pub(crate) fn has_cached_writers(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.any(|shard| {
            shard
                .lock()
                .files
                .values()
                .any(|open| open.cached_writers > 0)
        })
    }

    /// Returns how many files are open for writing through the page cache and may need new blocks.
    pub(crate) fn growing(&self) -> usize {
        let grows = |open: &&Open| open.grows && open.cached_writers > 0;
        let shards = self.shards.iter();
        shards
            .map(|shard| shard.lock().files.values().filter(grows).count())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LED: How = How::DIRECT.union(How::LED);

    #[test]
    fn writers_through_the_page_cache_are_counted() {
        let opens = Arc::new(Opens::default());
        let (ino, read, write) = (InodeNo(12), How::empty(), How::WRITES);
        opens.opened(ino, read, LED);
        assert!(!opens.has_cached_writer(ino) && opens.is_cached(ino));
        opens.opened(ino, write, LED);
        opens.opened(ino, write, LED);
        opens.opened(ino, write | How::DIRECT, LED);
        opens.closed(ino, write);
        assert!(opens.has_cached_writer(ino));
        opens.closed(ino, write);
        assert!(!opens.has_cached_writer(ino));
        opens.closed(ino, read);
        assert!(opens.is_cached(ino), "its pages are still there");
        opens.closed(ino, write | How::DIRECT);
        assert!(opens.shard(ino).lock().files.is_empty());
        opens.opened(ino, write | How::DIRECT, LED);
        assert!(!opens.is_cached(ino));
    }

    #[test]
    fn only_files_that_stay_open_are_watched() {
        let opens = Arc::new(Opens::default());
        let (short, long) = (InodeNo(12), InodeNo(13));
        opens.opened(short, How::WRITES, LED);
        opens.opened(long, How::WRITES, LED);
        opens.closed(short, How::WRITES);
        assert_eq!(opens.watch_fresh(), [long]);
        assert!(opens.is_watched(long) && !opens.is_watched(short));
        // A file is returned once, and not watched any more when nobody writes it.
        assert!(opens.watch_fresh().is_empty());
        opens.opened(long, How::empty(), LED);
        opens.closed(long, How::WRITES);
        assert!(!opens.is_watched(long));
    }

    #[test]
    fn a_file_has_groups_or_writers_through_the_page_cache() {
        let opens = Arc::new(Opens::default());
        let (ino, late) = (InodeNo(12), How::WRITES | How::DIRECT);
        assert!(Hold::on(&opens, ino).is_none(), "it is not open");
        for how in [How::WRITES, late] {
            opens.opened(ino, how, LED);
            assert!(Hold::on(&opens, ino).is_none());
            opens.closed(ino, how);
        }
        let led = How::WRITES | LED;
        opens.opened(ino, led, LED);
        let holds = [Hold::on(&opens, ino), Hold::on(&opens, ino)];
        assert!(holds.iter().all(Option::is_some));
        // Opens are still led if the file was closed meanwhile.
        opens.closed(ino, led);
        assert_eq!(opens.opened(ino, How::WRITES, LED), led);
        assert_eq!(opens.opened(ino, How::empty(), LED), How::empty());
        opens.closed(ino, led);
        opens.closed(ino, How::empty());
        drop(holds);
        assert!(opens.shard(ino).lock().files.is_empty());
        assert_eq!(opens.opened(ino, How::WRITES, LED), How::WRITES);
    }

    #[test]
    fn who_waits_for_a_hold_gets_one_at_the_last_close() {
        let opens = Arc::new(Opens::default());
        let (ino, other, led) = (InodeNo(12), InodeNo(28), How::WRITES | LED);
        let told = Arc::new(Mutex::new(Vec::new()));
        let wait = |ino, number| {
            let told = told.clone();
            let rest = move |hold: Option<Hold>| told.lock().push((number, hold.is_some()));
            opens.when_held(ino, number, Box::new(rest));
        };
        for ino in [ino, other] {
            opens.opened(ino, led, LED);
            opens.opened(ino, How::WRITES, LED);
        }
        opens.opened(ino, How::WRITES, LED);
        for (ino, number) in [(ino, 1), (other, 2), (ino, 3), (ino, 4)] {
            wait(ino, number);
        }
        opens.closed(ino, How::WRITES);
        opens.give_up(ino, 3);
        assert_eq!(*told.lock(), [(3, false)], "one writes it still");
        opens.closed(ino, How::WRITES);
        assert_eq!(*told.lock(), [(3, false), (1, true), (4, true)]);
        opens.give_up(ino, 1);
        wait(ino, 5);
        assert_eq!(told.lock()[3..], [(5, true)], "at once");
        opens.closed(other, How::WRITES);
        assert_eq!(told.lock()[4..], [(2, true)]);
        for ino in [ino, other] {
            opens.closed(ino, led);
        }
        // Both files are in one shard.
        assert!(opens.shard(ino).lock().files.is_empty(), "no hold is left");
    }
}
