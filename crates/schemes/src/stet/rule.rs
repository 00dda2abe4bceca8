//! The rule for the cheapest action for a block of data that has a home.
//!
//! The cost is the number of bytes that are written for this change until the block is home for
//! good. k bytes changed in r ranges; a block has B bytes; it is expected to change h times between
//! two times that it goes home; the sectors that go home have H bytes.
//!
//! | action | what is written |
//! |---|---|
//! | delta: the changed bytes into the log, home later | 16 + 4 r + k + H / h |
//! | whole: the block into the log, home later | 16 + B + B / h |
//! | switch: the block to a new home, the file's mapping to it | B + what its metadata costs |
//! | in place: the changed sectors home, in one atomic write with the record | H |
//!
//! On a device with atomic writes, blocks are written in place instead of being switched, because
//! the device does internally what a switch does.
//!
//! A record takes at least a sector, in memory a cache line. So logged bytes count only as far as
//! they do not fit into the rest of it. With a log in memory beside the volume, logged bytes cost
//! nothing. No block is switched there, because that would wait for the device, and new blocks are
//! logged too: many are freed before they get to the device.

use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed};

use stetfs_format::private_log::CHUNK_SIZE;
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{BlockSize, InodeNo};
use stetfs_media::{BlockDev, DISK_JUMP_BYTES, FLASH_JUMP_BYTES};
use stetfs_scheme::{
    About, ActionCount, Extents, LoggedBlock, OptionAbout, Ranges, Relocates, Result, SchemeOptions,
};

pub(super) static ACTION: OptionAbout = OptionAbout {
    name: "stet",
    syntax: "auto|delta|switch|whole",
    default: "auto",
    what: "what is done with a block of data that has a home: the cheapest, or always the same",
};

pub(super) static MEDIUM: OptionAbout = OptionAbout {
    name: "medium",
    syntax: "auto|flash|disk",
    default: "auto",
    what: "how far new homes may break files up: as flash bears it, or a disk that turns; auto: \
        what the device says it is, in memory without a bound",
};

/// An action for a block of data that has a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Action {
    Delta,
    Switch,
    Whole,
    InPlace,
}

impl Action {
    const ALL: [Self; 4] = [Self::Delta, Self::Switch, Self::Whole, Self::InPlace];

    const fn name(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Switch => "switch",
            Self::Whole => "whole",
            Self::InPlace => "in place",
        }
    }

    /// Returns its index in [`ALL`](Self::ALL).
    #[expect(clippy::as_conversions, reason = "the discriminant is the place")]
    const fn index(self) -> usize {
        self as usize
    }
}

/// The cost of each action for a block, in bytes, in the order of [`Action::ALL`].
type Costs = [usize; Action::ALL.len()];

/// Logged bytes of the metadata that a switched block changes: a mapping, two bits in bitmaps, two
/// group descriptors, and its share of common bytes. Measured: 150 to 210.
const MAPPING: usize = 200;

/// Bytes in front of each range of a delta.
const PAIR: usize = 4;

/// The mount's options.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    /// `Some`: always this action.
    pinned: Option<Action>,
    /// `Some`: whether the medium is a disk that turns, whatever it says of itself.
    turns: Option<bool>,
}

impl Wish {
    pub(super) fn of(about: &'static About, options: &SchemeOptions) -> Result<Self> {
        let pinned = match options.value(&ACTION) {
            "auto" => None,
            "delta" => Some(Action::Delta),
            "switch" => Some(Action::Switch),
            "whole" => Some(Action::Whole),
            _ => return Err(options.wrong(about, &ACTION)),
        };
        let turns = match options.value(&MEDIUM) {
            "auto" => None,
            "flash" => Some(false),
            "disk" => Some(true),
            _ => return Err(options.wrong(about, &MEDIUM)),
        };
        Ok(Self { pinned, turns })
    }
}

/// The sizes of home and log, in bytes, and their kinds.
#[derive(Clone, Copy)]
pub(super) struct Bed {
    pub(super) block_size: BlockSize,
    /// The unit of the log.
    pub(super) log: usize,
    /// The unit of writes home.
    pub(super) home: usize,
    /// The log is in memory beside the volume.
    pub(super) is_beside: bool,
    /// The device can write record and homes atomically.
    pub(super) is_atomic: bool,
}

pub(super) struct Rule {
    wish: Wish,
    bed: Bed,
    expected: Expected,
    record: Growing,
    /// The actions taken, in the order of [`Action::ALL`].
    taken: [Taken; Action::ALL.len()],
}

/// How often an action was taken, and the sums that each action would have cost for these blocks.
#[derive(Default)]
struct Taken {
    taken: AtomicU64,
    bytes_by_each: [AtomicU64; Action::ALL.len()],
}

impl Rule {
    pub(super) fn new(wish: Wish, bed: Bed) -> Self {
        Self {
            wish,
            bed,
            expected: Expected::new(),
            record: Growing::new(bed.log),
            taken: Default::default(),
        }
    }

    /// Returns how freely blocks may be relocated on this device. In memory, pieces of a file cost
    /// nothing. `stet=switch` exists to show the cost of switches, and has no bound.
    pub(super) fn relocates(&self, dev: &dyn BlockDev) -> Relocates {
        match self.wish.turns {
            _ if self.bed.is_beside || !self.offers(Action::Switch) => Relocates::No,
            _ if self.wish.pinned == Some(Action::Switch) => Relocates::Freely,
            None if dev.pmem().is_some() => Relocates::Freely,
            _ if self.jump_bytes(dev) >= DISK_JUMP_BYTES => {
                Relocates::Sparingly(Extents::disk(self.bed.block_size))
            }
            _ => Relocates::Sparingly(Extents::FLASH),
        }
    }

    /// True when this action is possible, cheap or not.
    pub(super) fn offers(&self, action: Action) -> bool {
        match (self.wish.pinned, action) {
            (Some(pinned), _) => action == pinned,
            (None, Action::InPlace) => self.bed.is_atomic,
            (None, Action::Switch) => !self.bed.is_atomic,
            (None, Action::Delta | Action::Whole) => true,
        }
    }

    /// Returns the bytes that the device writes in the time of one jump, as the device or the mount
    /// says.
    pub(super) fn jump_bytes(&self, dev: &dyn BlockDev) -> u64 {
        match self.wish.turns {
            None => dev.jump_bytes(),
            Some(true) => DISK_JUMP_BYTES,
            Some(false) => FLASH_JUMP_BYTES,
        }
    }

    /// Returns the cost of each action for a block of a file, of which these bytes changed and
    /// which was changed `changes` times since it was home. The transaction's record has `so_far`
    /// bytes without it.
    fn costs(&self, ino: InodeNo, changed: &Ranges, changes: u16, so_far: usize) -> Costs {
        // In sixteenths of a change, like the expectation.
        let expected = self.expected.of(ino).max((u32::from(changes) + 1) * ONE);
        let share = |bytes: usize| bytes * u32_as_usize(ONE) / u32_as_usize(expected);
        let home = changed.widened(self.bed.home).bytes();
        let logged = |bytes| {
            if self.bed.is_beside {
                0
            } else {
                self.record.cost(so_far, bytes)
            }
        };
        let block = self.bed.block_size.bytes();
        [
            logged(delta_bytes(changed)) + share(home),
            block + logged(MAPPING),
            logged(CHUNK_SIZE + block) + share(block),
            home,
        ]
    }

    /// True when a record that needs the `changed` bytes of a block carries `all` that home does
    /// not have. This saves the sectors that would go home. With a log in memory beside the volume
    /// it is true when the log `fills`.
    pub(super) fn carries(&self, changed: &Ranges, all: &Ranges, fills: bool) -> bool {
        if self.bed.is_beside {
            fills
        } else {
            all.bytes() <= changed.bytes() + self.bed.home / 2
        }
    }

    /// Returns the unit of writes home, in bytes.
    pub(super) fn home_unit(&self) -> usize {
        self.bed.home
    }

    /// Returns the cheapest action for a block. All calls until [`is_sealed`](Self::is_sealed) are
    /// for one transaction.
    pub(super) fn choose(&self, ino: InodeNo, changed: &Ranges, changes: u16) -> Action {
        let costs = self.costs(ino, changed, changes, self.record.so_far());
        let cheapest = Action::ALL
            .into_iter()
            .filter(|action| self.offers(*action))
            .min_by_key(|action| costs[action.index()]);
        let cheapest = cheapest.expect("there are actions");
        self.record.add(match cheapest {
            Action::Delta => delta_bytes(changed),
            Action::Switch => MAPPING,
            Action::Whole => CHUNK_SIZE + self.bed.block_size.bytes(),
            Action::InPlace => 0,
        });
        cheapest
    }

    /// Notes that the transaction's record is complete, and has `metadata` bytes besides data.
    pub(super) fn is_sealed(&self, metadata: usize) {
        self.record.end(metadata);
    }

    /// Counts an action for a block, in a record that had `data` bytes of data before it.
    pub(super) fn count(
        &self,
        action: Action,
        ino: InodeNo,
        changed: &Ranges,
        changes: u16,
        data: usize,
    ) {
        let counts = &self.taken[action.index()];
        counts.taken.fetch_add(1, Relaxed);
        let costs = self.costs(ino, changed, changes, self.record.metadata() + data);
        for (sum, cost) in counts.bytes_by_each.iter().zip(costs) {
            sum.fetch_add(usize_as_u64(cost), Relaxed);
        }
    }

    /// Returns the counts of the actions.
    pub(super) fn actions(&self) -> Vec<ActionCount> {
        let exists = |action: &Action| self.bed.is_atomic || *action != Action::InPlace;
        let of = |action: Action| {
            let counts = &self.taken[action.index()];
            let bytes = counts.bytes_by_each.iter().map(|sum| sum.load(Relaxed));
            let bytes_by_each = Action::ALL.iter().zip(bytes);
            let bytes_by_each = bytes_by_each.filter(|(action, _)| exists(action));
            ActionCount {
                name: action.name(),
                taken: counts.taken.load(Relaxed),
                bytes: counts.bytes_by_each[action.index()].load(Relaxed),
                bytes_by_each: bytes_by_each.map(|(a, sum)| (a.name(), sum)).collect(),
            }
        };
        Action::ALL.into_iter().filter(exists).map(of).collect()
    }

    /// Returns how a block that keeps its home is logged.
    pub(super) fn logged(&self, block: &LoggedBlock, changed: &Ranges) -> Action {
        match self.wish.pinned {
            Some(Action::Whole) if block.owner.is_some() => Action::Whole,
            _ if delta_bytes(changed) < CHUNK_SIZE + self.bed.block_size.bytes() => Action::Delta,
            _ => Action::Whole,
        }
    }

    /// Notes that a block of the file went home after `changes` changes.
    pub(super) fn learn(&self, ino: InodeNo, changes: u16) {
        self.expected.learn(ino, changes);
    }
}

/// Returns the bytes of a chunk with these ranges.
fn delta_bytes(changed: &Ranges) -> usize {
    CHUNK_SIZE + PAIR * changed.count() + changed.bytes()
}

/// The expected size of the record of the transaction that is being closed. A record takes at least
/// a sector, and bytes that fit into it cost nothing.
struct Growing {
    sector: usize,
    /// Bytes of a record besides data: a moving average.
    metadata: AtomicUsize,
    /// Bytes of data in this record so far.
    data: AtomicUsize,
}

impl Growing {
    fn new(sector: usize) -> Self {
        Self {
            sector,
            metadata: AtomicUsize::new(0),
            data: AtomicUsize::new(0),
        }
    }

    fn metadata(&self) -> usize {
        self.metadata.load(Relaxed)
    }

    fn so_far(&self) -> usize {
        self.metadata() + self.data.load(Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.data.fetch_add(bytes, Relaxed);
    }

    /// Returns the cost of `bytes` more bytes in a record that has `so_far`.
    fn cost(&self, so_far: usize, bytes: usize) -> usize {
        let counted = |len: usize| len.saturating_sub(self.sector);
        counted(so_far + bytes) - counted(so_far)
    }

    fn end(&self, metadata: usize) {
        let average = (self.metadata() * 7 + metadata).div_ceil(8);
        self.metadata.store(average, Relaxed);
        self.data.store(0, Relaxed);
    }
}

/// One change, in the unit of expectations.
const ONE: u32 = 16;

/// The number of expectations; files whose numbers agree modulo this share one.
const FILES: usize = 4096;

/// Expected changes of a file's blocks between two times that they go home: moving averages. A
/// wrong expectation costs bytes and nothing else.
struct Expected(Vec<AtomicU16>);

impl Expected {
    fn new() -> Self {
        Self((0..FILES).map(|_| AtomicU16::new(16)).collect())
    }

    fn slot(&self, ino: InodeNo) -> &AtomicU16 {
        &self.0[u32_as_usize(ino.0) % FILES]
    }

    /// Returns the expectation, in sixteenths of a change; at least one change.
    fn of(&self, ino: InodeNo) -> u32 {
        u32::from(self.slot(ino).load(Relaxed)).max(ONE)
    }

    /// Updates the average: seven eighths of the old and one eighth of the new.
    fn learn(&self, ino: InodeNo, changes: u16) {
        let slot = self.slot(ino);
        let new = u32::from(changes.min(4095)) * ONE;
        let average = (u32::from(slot.load(Relaxed)) * 7 + new).div_ceil(8);
        slot.store(u16::try_from(average).unwrap_or(u16::MAX), Relaxed);
    }
}
