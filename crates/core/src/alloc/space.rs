//! Who may take how many of the free blocks.
//!
//! A block is *available* when it is free in the bitmap and not pinned. Some of the available
//! blocks are spoken for:
//!
//! - *reserved*: a writer was told that its data fits (delayed allocation); the place is chosen at
//!   commit, where nobody is left to be told ENOSPC. Mapping those blocks may need blocks for the
//!   map itself: at worst, three for one data block (a new indirect block at each of three levels;
//!   for extents, a split at the leaf and above). So [`Space::reserve`] lets the reservations grow
//!   only as long as four times their number is available. A forced commit turns reservations into
//!   placed blocks, which is how a volume can be filled in spite of that; but not those of what is
//!   *staged* in groups, which nothing places before their commit;
//! - *root's*: `s_r_blocks_count`, for `s_def_resuid`, `s_def_resgid` and the privileged;
//! - *the pool*: 2 % of the volume, at most 4,096 blocks, none on volumes without extents, as
//!   `s_resv_clusters` in the kernel (`ext4_set_resv_clusters`); never given to an ordinary
//!   request, so that the last writers' maps find room.

use stetfs_sync::Mutex;

/// Blocks of the map that placing one data block can need at worst.
const MAP_BLOCKS_PER_DATA: u64 = 3;

/// Blocks that are kept from others for each block of data that is promised, as what a group stages
/// is until it commits: itself, and those of the map.
pub const ROOM_PER_BLOCK: u64 = 1 + MAP_BLOCKS_PER_DATA;

/// What an allocation takes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A reservation that the caller holds ([`super::Alloc::reserve`]); used up by the allocation.
    Reserved,
    /// Free space that nobody else was promised.
    Free {
        /// The caller may use root's blocks.
        privileged: bool,
    },
    /// Whatever there is: for the map of data that is placed at commit, and for work that must not
    /// fail (orphans, recovery).
    Pool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    available: u64,
    reserved: u64,
    /// Of those: for what is staged.
    staged: u64,
    pinned: u64,
    /// Free in damaged groups, where nothing is allocated.
    set_aside: u64,
}

/// The volume's account of free blocks.
pub(crate) struct Space {
    counts: Mutex<Counts>,
    root_blocks: u64,
    pool: u64,
}

impl Space {
    /// `free` blocks of a volume of `blocks`, `root_blocks` of them for root; `has_extents` is the
    /// feature.
    pub(crate) fn new(blocks: u64, free: u64, root_blocks: u64, has_extents: bool) -> Self {
        Self {
            counts: Mutex::new(Counts {
                available: free,
                ..Counts::default()
            }),
            root_blocks,
            pool: if has_extents {
                (blocks / 50).min(4096)
            } else {
                0
            },
        }
    }

    /// What an ordinary request must leave.
    fn kept(&self, privileged: bool) -> u64 {
        if privileged {
            self.pool
        } else {
            self.pool + self.root_blocks
        }
    }

    /// Promises `n` blocks. False: they are not there, or not until a commit.
    pub(crate) fn reserve(&self, n: u64, privileged: bool) -> bool {
        if n == 0 {
            return true;
        }
        let mut c = self.counts.lock();
        let reserved = c.reserved + n;
        let fits = reserved + self.kept(privileged) <= c.available
            && reserved * ROOM_PER_BLOCK <= c.available;
        if fits {
            c.reserved = reserved;
        }
        fits
    }

    /// Whether half of the pool is there for maps whose data needs no place: unwritten blocks that
    /// become written split their extent, by two entries for each block at worst. Half of the pool
    /// lasts for a transaction that splits at a fifth of the volume's blocks.
    pub(crate) fn has_room_for_maps(&self) -> bool {
        let c = self.counts.lock();
        c.reserved * ROOM_PER_BLOCK + self.pool / 2 <= c.available
    }

    /// Takes back a promise.
    pub(crate) fn release(&self, n: u64) {
        let mut c = self.counts.lock();
        debug_assert!(
            n <= c.reserved,
            "{n} of {} reserved blocks released",
            c.reserved
        );
        c.reserved = c.reserved.saturating_sub(n);
    }

    /// `n` blocks that were promised are for what is staged.
    pub(crate) fn stage(&self, n: u64) {
        self.counts.lock().staged += n;
    }

    /// They are not any more.
    pub(crate) fn unstage(&self, n: u64) {
        let mut c = self.counts.lock();
        debug_assert!(n <= c.staged, "{n} of {} staged blocks", c.staged);
        c.staged = c.staged.saturating_sub(n);
    }

    /// Takes up to `want` blocks out of the account; returns how many, 0 for none. A reservation is
    /// taken in full.
    pub(crate) fn take(&self, want: u64, source: Source) -> u64 {
        let mut c = self.counts.lock();
        let n = match source {
            Source::Reserved => {
                debug_assert!(
                    want <= c.reserved,
                    "{want} of {} reserved blocks taken",
                    c.reserved
                );
                want.min(c.available)
            }
            Source::Free { privileged } => {
                let spoken_for =
                    (c.reserved + self.kept(privileged)).max(c.reserved * ROOM_PER_BLOCK);
                want.min(c.available.saturating_sub(spoken_for))
            }
            Source::Pool => want.min(c.available),
        };
        c.available -= n;
        if source == Source::Reserved {
            c.reserved = c.reserved.saturating_sub(n);
        }
        n
    }

    /// Returns `n` blocks that [`Space::take`] gave but the search did not find.
    pub(crate) fn untake(&self, n: u64, source: Source) {
        let mut c = self.counts.lock();
        c.available += n;
        if source == Source::Reserved {
            c.reserved += n;
        }
    }

    /// `n` blocks were freed by a transaction that is not durable.
    pub(crate) fn pin(&self, n: u64) {
        self.counts.lock().pinned += n;
    }

    /// `n` pinned blocks may be used.
    pub(crate) fn unpin(&self, n: u64) {
        let mut c = self.counts.lock();
        debug_assert!(n <= c.pinned);
        c.pinned = c.pinned.saturating_sub(n);
        c.available += n;
    }

    /// `n` available blocks turned out to lie in a damaged group.
    pub(crate) fn set_aside(&self, n: u64) {
        let mut c = self.counts.lock();
        let n = n.min(c.available);
        c.available -= n;
        c.set_aside += n;
    }

    /// A commit could make more space available than there is now.
    pub(crate) fn commit_would_help(&self) -> bool {
        let c = self.counts.lock();
        c.pinned > 0 || c.reserved > 0
    }

    /// Free blocks for `statfs`: all that are free and not reserved, and how many of them an
    /// ordinary user may have.
    pub(crate) fn free(&self) -> (u64, u64) {
        let c = *self.counts.lock();
        let free = (c.available + c.pinned).saturating_sub(c.reserved);
        (free, free.saturating_sub(self.kept(false)))
    }

    /// Blocks that writers can still be promised, once commits have placed what they can, and what
    /// pins some of them is durable.
    pub(crate) fn room(&self, privileged: bool) -> u64 {
        let c = *self.counts.lock();
        let spoken_for = c.reserved + c.staged * MAP_BLOCKS_PER_DATA;
        (c.available + c.pinned).saturating_sub(spoken_for + self.kept(privileged))
    }

    /// Free blocks in the bitmaps, for the superblock's count.
    pub(crate) fn free_in_bitmaps(&self) -> u64 {
        let c = self.counts.lock();
        c.available + c.pinned + c.set_aside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Source = Source::Free { privileged: false };
    const ROOT: Source = Source::Free { privileged: true };

    #[test]
    fn root_and_pool_are_kept_back() {
        let space = Space::new(10_000, 1_000, 500, true);
        assert_eq!(space.take(5_000, FREE), 300);
        assert_eq!(space.take(1, FREE), 0);
        assert!(space.reserve(0, false) && !space.reserve(1, false));
        assert_eq!(space.take(5_000, ROOT), 500);
        assert_eq!(space.take(1, ROOT), 0);
        assert_eq!(space.take(5_000, Source::Pool), 200);
        assert_eq!(space.take(1, Source::Pool), 0);
    }

    #[test]
    fn reservations_leave_room_for_their_map() {
        let space = Space::new(1_000, 400, 0, true);
        assert!(space.reserve(100, false));
        assert!(!space.reserve(1, false) && !space.reserve(1, true));
        assert_eq!(space.take(1, ROOT), 0, "nobody takes the room for the map");
        for _ in 0..100 {
            assert_eq!(space.take(1, Source::Reserved), 1);
            assert_eq!(space.take(3, Source::Pool), 3);
        }
        assert_eq!(space.free(), (0, 0));
    }

    #[test]
    fn what_is_staged_keeps_the_room_for_its_map() {
        let space = Space::new(1_000, 400, 0, true);
        assert!(space.reserve(40, false));
        assert_eq!(space.room(false), 340);
        space.stage(40);
        let room = space.room(false);
        // One by one, as when a commit places each.
        for _ in 0..room {
            assert!(space.reserve(1, false));
            assert_eq!(space.take(1, Source::Reserved), 1);
        }
        assert_eq!(space.room(false), 0);
        space.unstage(40);
        assert_eq!(space.room(false), 120);
    }

    #[test]
    fn maps_find_half_of_the_pool() {
        let space = Space::new(1_000, 400, 0, true);
        assert!(space.has_room_for_maps() && space.reserve(90, false) && space.has_room_for_maps());
        assert!(space.reserve(10, false) && !space.has_room_for_maps());
        space.release(100);
        assert_eq!(space.take(390, Source::Pool), 390);
        assert!(space.has_room_for_maps());
        assert_eq!(space.take(1, Source::Pool), 1);
        assert!(!space.has_room_for_maps());
    }

    #[test]
    fn pinned_blocks_are_free_but_not_available() {
        let space = Space::new(1_000, 20, 0, true);
        space.pin(100);
        assert!(!space.reserve(1, false) && space.commit_would_help());
        assert_eq!(space.free(), (120, 100));
        space.unpin(100);
        assert!(space.reserve(1, false));
        space.release(1);
        assert!(!space.commit_would_help());
        assert_eq!(space.free_in_bitmaps(), 120);
    }
}
