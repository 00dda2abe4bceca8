//! What all directories of a volume share: how names are hashed, and the counter of generations.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use stetfs_format::width::{high32, u64_as_usize};
use stetfs_format::{BlockNo, HashVersion, Hasher, InodeNo, Superblock, Time};

/// What all directories of a volume share.
pub(crate) struct Dirs {
    /// `s_def_hash_version`: the hash of new indexes.
    pub(crate) default_version: u8,
    hash_seed: [u32; 4],
    unsigned_hash: bool,
    pub(super) checked: Checked,
    /// How many generations were given out.
    generations: AtomicU64,
}

impl Dirs {
    /// Takes the hash and its seed from the superblock.
    pub(crate) fn new(sb: &Superblock) -> Self {
        Self {
            default_version: sb.def_hash_version,
            hash_seed: sb.hash_seed,
            unsigned_hash: sb.unsigned_hash(),
            checked: Checked::new(),
            generations: AtomicU64::new(0),
        }
    }

    /// How the names of a directory are hashed.
    pub(crate) fn hasher(&self, version: HashVersion) -> Hasher {
        Hasher {
            version,
            unsigned: self.unsigned_hash,
            seed: self.hash_seed,
        }
    }

    /// How the names of a new index are hashed.
    pub(crate) fn default_hasher(&self) -> Hasher {
        self.hasher(HashVersion::of_code(self.default_version).unwrap_or(HashVersion::HalfMd4))
    }

    /// Returns a generation, which the same inode number will not get again soon: a counter,
    /// stirred with the time (splitmix64).
    pub(crate) fn new_generation(&self, now: Time) -> u32 {
        let count = self.generations.fetch_add(1, Ordering::Relaxed);
        let time = now.sec.cast_unsigned() << 30 ^ u64::from(now.nsec);
        let mut x = count.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(time);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        high32(x)
    }
}

/// How a block of a directory was checked. A block that the map has in several places must pass the
/// check of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckedAs {
    /// The first block of a linear directory.
    First,
    /// Any other block of entries.
    Leaf,
    /// A block of the index.
    Index,
}

impl CheckedAs {
    #[expect(clippy::as_conversions, reason = "any number that tells them apart")]
    const fn code(self) -> u64 {
        self as u64
    }
}

/// Which directory blocks have passed their whole check since the mount. In this fixed table, a
/// collision only costs another check. Searches stay inside a block even without the check.
pub(super) struct Checked {
    slots: Box<[AtomicU64]>,
    /// These keep anybody from making an image in which two blocks have the same key.
    secrets: [u64; 2],
}

impl Checked {
    const SLOTS: usize = 1 << 14;

    fn new() -> Self {
        let random = RandomState::new();
        Self {
            slots: (0..Self::SLOTS).map(|_| AtomicU64::new(0)).collect(),
            secrets: [random.hash_one(0), random.hash_one(1)],
        }
    }

    /// The slot of a block, and the value that stands there when the block has passed.
    #[inline]
    pub(super) fn key(&self, ino: InodeNo, block: BlockNo, checked_as: CheckedAs) -> (usize, u64) {
        // Block numbers have 48 bits.
        let what = block.0 | checked_as.code() << 48;
        let [a, b] = self.secrets;
        let (low, high) = (what ^ a).carrying_mul(u64::from(ino.0) ^ b, 0);
        let key = low ^ high;
        (u64_as_usize(block.0) % Self::SLOTS, key | 1)
    }

    #[inline]
    pub(super) fn contains(&self, (slot, key): (usize, u64)) -> bool {
        self.slots[slot].load(Ordering::Relaxed) == key
    }

    pub(super) fn insert(&self, (slot, key): (usize, u64)) {
        self.slots[slot].store(key, Ordering::Relaxed);
    }
}
