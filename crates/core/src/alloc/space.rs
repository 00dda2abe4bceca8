//! Who may take how many of the free blocks.
//!
//! A block is *available* when it is free in the bitmap and not pinned. Some available blocks are
//! kept for somebody:
//!
//! - *reserved*: a writer was told that its data fits (delayed allocation). The commit chooses the
//!   place, when nobody is left who could be told ENOSPC. The map may need blocks too: at worst
//!   three for one data block (a new indirect block at each of three levels; for extents, a split
//!   at the leaf and above). So [`Space::reserve`] promises blocks only while four times their
//!   number is available. A forced commit places reserved blocks and so lets a volume be filled
//!   after all. It does not place what is *staged* in groups: only their own commit does;
//! - *root's*: `s_r_blocks_count`, for `s_def_resuid`, `s_def_resgid` and the privileged;
//! - *the pool*: 2 % of the volume, at most 4,096 blocks, none on volumes without extents, as
//!   `s_resv_clusters` in the kernel (`ext4_set_resv_clusters`). Ordinary requests never get it, so
//!   that the last writers' maps find room.

use stetfs_sync::Mutex;

/// How many blocks of the map one data block can need at worst.
const MAP_BLOCKS_PER_DATA: u64 = 3;

/// How many blocks each promised block of data keeps from others: itself, and three of the map. A
/// group's staged data does so until the group commits.
pub const ROOM_PER_BLOCK: u64 = 1 + MAP_BLOCKS_PER_DATA;

/// Which account an allocation draws on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A reservation of the caller ([`super::Alloc::reserve`]), which the allocation uses up.
    Reserved,
    /// Free space that is promised to nobody.
    Free {
        /// The caller may use root's blocks.
        privileged: bool,
    },
    /// Every available block: for the map of data that is placed at commit, and for work that must
    /// not fail (orphans, recovery).
    Pool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    available: u64,
    reserved: u64,
    /// The part of `reserved` that is staged in groups.
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
    /// Returns the account of a volume of `blocks` blocks, `free` of them free and `root_blocks`
    /// kept for root; `has_extents` is the feature.
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

    /// Returns how many blocks the request must leave.
    fn kept(&self, privileged: bool) -> u64 {
        if privileged {
            self.pool
        } else {
            self.pool + self.root_blocks
        }
    }

    /// Promises `n` blocks. False: too few are available now; a commit may help.
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

    /// Whether half of the pool is left for maps whose data needs no place: unwritten blocks that
    /// become written split their extent, into two more entries for each block at worst. Half of
    /// the pool lasts for a transaction that splits at a fifth of the volume's blocks.
    pub(crate) fn has_room_for_maps(&self) -> bool {
        let c = self.counts.lock();
        c.reserved * ROOM_PER_BLOCK + self.pool / 2 <= c.available
    }

    /// Takes back a promise of `n` blocks.
    pub(crate) fn release(&self, n: u64) {
        let mut c = self.counts.lock();
        debug_assert!(
            n <= c.reserved,
            "{n} of {} reserved blocks released",
            c.reserved
        );
        c.reserved = c.reserved.saturating_sub(n);
    }

    /// Marks `n` promised blocks as staged.
    pub(crate) fn stage(&self, n: u64) {
        self.counts.lock().staged += n;
    }

    /// Undoes [`Space::stage`] for `n` blocks.
    pub(crate) fn unstage(&self, n: u64) {
        let mut c = self.counts.lock();
        debug_assert!(n <= c.staged, "{n} of {} staged blocks", c.staged);
        c.staged = c.staged.saturating_sub(n);
    }

    /// Takes up to `want` blocks out of the account; returns their number, 0 when it has none. A
    /// reservation is taken in full.
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

    /// Puts back `n` blocks that [`Space::take`] gave and the search did not use.
    pub(crate) fn untake(&self, n: u64, source: Source) {
        let mut c = self.counts.lock();
        c.available += n;
        if source == Source::Reserved {
            c.reserved += n;
        }
    }

    /// Notes that a transaction that is not durable freed `n` blocks.
    pub(crate) fn pin(&self, n: u64) {
        self.counts.lock().pinned += n;
    }

    /// Makes `n` pinned blocks available.
    pub(crate) fn unpin(&self, n: u64) {
        let mut c = self.counts.lock();
        debug_assert!(n <= c.pinned);
        c.pinned = c.pinned.saturating_sub(n);
        c.available += n;
    }

    /// Takes `n` available blocks out of the account, since their group is damaged.
    pub(crate) fn set_aside(&self, n: u64) {
        let mut c = self.counts.lock();
        let n = n.min(c.available);
        c.available -= n;
        c.set_aside += n;
    }

    /// Whether a commit could make more blocks available.
    pub(crate) fn commit_would_help(&self) -> bool {
        let c = self.counts.lock();
        c.pinned > 0 || c.reserved > 0
    }

    /// Returns the free blocks for `statfs`: all that are not reserved, and how many of them an
    /// ordinary user may have.
    pub(crate) fn free(&self) -> (u64, u64) {
        let c = *self.counts.lock();
        let free = (c.available + c.pinned).saturating_sub(c.reserved);
        (free, free.saturating_sub(self.kept(false)))
    }

    /// Returns how many blocks can still be promised, once commits have placed reserved blocks and
    /// released pinned ones.
    pub(crate) fn room(&self, privileged: bool) -> u64 {
        let c = *self.counts.lock();
        let spoken_for = c.reserved + c.staged * MAP_BLOCKS_PER_DATA;
        (c.available + c.pinned).saturating_sub(spoken_for + self.kept(privileged))
    }

    /// Returns how many blocks are free in the bitmaps, for the superblock's count.
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
        // Place each by itself, as a commit may.
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
