//! Which action is the cheapest for a block of data that has a home.
//!
//! In bytes that are written for it, until it is home for good: k bytes changed in r ranges, blocks
//! of B bytes, h expected changes of the block between two times that it goes home, H bytes of the
//! sectors that go home.
//!
//! | action | what is written |
//! |---|---|
//! | delta: the changed bytes into the log, home later | 16 + 4 r + k + H / h |
//! | whole: the block into the log, home later | 16 + B + B / h |
//! | switch: the block to a new home, the file's mapping to it | B + what its metadata costs |
//! | in place: the changed sectors home, in one atomic write with the record | H |
//!
//! Where the device has atomic writes a block is written in place, otherwise switched: the device
//! does itself what a switch does.
//!
//! A record takes a sector in any case, in memory a line: of what goes into the log, only what does
//! not fit into the rest of that counts. Of a log in memory beside the volume nothing counts:
//! nothing is switched there, since that would wait for the device, and new blocks are logged too.
//! Many never get to the device: they are freed before.

use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed};

use stetfs_format::InodeNo;
use stetfs_format::private_log::CHUNK_SIZE;
use stetfs_format::width::{u32_as_usize, usize_as_u64};
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

/// What is done with a block of data that has a home.
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

    /// Its place in [`ALL`](Self::ALL).
    #[expect(clippy::as_conversions, reason = "the discriminant is the place")]
    const fn index(self) -> usize {
        self as usize
    }
}

/// What each action costs for a block, in bytes, in the order of [`Action::ALL`].
type Costs = [usize; Action::ALL.len()];

/// Bytes of metadata that a switched block changes, as they are logged: a mapping, two bits in
/// bitmaps, two group descriptors, and what they share with others. Measured: 150 to 210.
const MAPPING: usize = 200;

/// Bytes in front of each range of a delta.
const PAIR: usize = 4;

/// What the mount's options say.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    /// Always this one.
    pinned: Option<Action>,
    /// The medium is, or is not, a disk that turns, whatever it says of itself.
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

/// What home and log are, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Bed {
    pub(super) block_size: usize,
    /// The unit of what is logged.
    pub(super) log: usize,
    /// The unit of what goes home.
    pub(super) home: usize,
    /// The log is in memory beside the volume.
    pub(super) is_beside: bool,
    /// Record and homes can be written as a whole.
    pub(super) is_atomic: bool,
}

pub(super) struct Rule {
    wish: Wish,
    bed: Bed,
    expected: Expected,
    record: Growing,
    /// What was done, in the order of [`Action::ALL`].
    taken: [Taken; Action::ALL.len()],
}

/// How often an action was taken, and what each would have cost then.
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

    /// What may be relocated on this device. In memory it costs nothing that a file is in pieces.
    /// `stet=switch` is there to show what switches cost, and knows no bound.
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

    /// Whether this may be done with a block, cheap or not.
    pub(super) fn offers(&self, action: Action) -> bool {
        match (self.wish.pinned, action) {
            (Some(pinned), _) => action == pinned,
            (None, Action::InPlace) => self.bed.is_atomic,
            (None, Action::Switch) => !self.bed.is_atomic,
            (None, Action::Delta | Action::Whole) => true,
        }
    }

    /// What is written along in the time of a jump of the device, as it says or the mount does.
    pub(super) fn jump_bytes(&self, dev: &dyn BlockDev) -> u64 {
        match self.wish.turns {
            None => dev.jump_bytes(),
            Some(true) => DISK_JUMP_BYTES,
            Some(false) => FLASH_JUMP_BYTES,
        }
    }

    /// What can be done with a block of a file in which these bytes changed, and that was changed
    /// `changes` times since it was home; the transaction's record has `so_far` bytes without it.
    fn costs(&self, ino: InodeNo, changed: &Ranges, changes: u16, so_far: usize) -> Costs {
        // In sixteenths, as the expectation is.
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
        let block = self.bed.block_size;
        [
            logged(delta_bytes(changed)) + share(home),
            block + logged(MAPPING),
            logged(CHUNK_SIZE + block) + share(block),
            home,
        ]
    }

    /// Whether a record that needs `changed` of a block takes `all` that home has not got: it saves
    /// the sectors that would go home. In memory beside the volume always, when the log `fills`.
    pub(super) fn carries(&self, changed: &Ranges, all: &Ranges, fills: bool) -> bool {
        if self.bed.is_beside {
            fills
        } else {
            all.bytes() <= changed.bytes() + self.bed.home / 2
        }
    }

    /// The unit of what goes home.
    pub(super) fn home_unit(&self) -> usize {
        self.bed.home
    }

    /// What should be done with it. All blocks that are chosen for until
    /// [`is_sealed`](Self::is_sealed) are of one transaction.
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
            Action::Whole => CHUNK_SIZE + self.bed.block_size,
            Action::InPlace => 0,
        });
        cheapest
    }

    /// The record of the transaction is complete: so many bytes of it are not of data.
    pub(super) fn is_sealed(&self, metadata: usize) {
        self.record.end(metadata);
    }

    /// This was done with it, in a record that had so many bytes of data.
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

    /// What was done so far.
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

    /// How a block that stays at its home is logged.
    pub(super) fn logged(&self, block: &LoggedBlock, changed: &Ranges) -> Action {
        match self.wish.pinned {
            Some(Action::Whole) if block.owner.is_some() => Action::Whole,
            _ if delta_bytes(changed) < CHUNK_SIZE + self.bed.block_size => Action::Delta,
            _ => Action::Whole,
        }
    }

    /// A block of the file went home after so many changes.
    pub(super) fn learn(&self, ino: InodeNo, changes: u16) {
        self.expected.learn(ino, changes);
    }
}

/// Bytes of the chunk for these ranges.
fn delta_bytes(changed: &Ranges) -> usize {
    CHUNK_SIZE + PAIR * changed.count() + changed.bytes()
}

/// The record of the transaction that is being closed, as far as it is known. It takes a sector in
/// any case: what fits into that costs nothing.
struct Growing {
    sector: usize,
    /// What records have beside data: a moving average.
    metadata: AtomicUsize,
    /// Of data.
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

    /// What so many bytes cost in a record that has `so_far`.
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

/// One change, as expectations are kept.
const ONE: u32 = 16;

/// Files whose expectations are kept apart; others share one.
const FILES: usize = 4096;

/// How often a block of a file is changed between two times that it goes home: moving averages.
/// What is expected wrongly costs bytes and nothing else.
struct Expected(Vec<AtomicU16>);

impl Expected {
    fn new() -> Self {
        Self((0..FILES).map(|_| AtomicU16::new(16)).collect())
    }

    fn slot(&self, ino: InodeNo) -> &AtomicU16 {
        &self.0[u32_as_usize(ino.0) % FILES]
    }

    /// In sixteenths; at least one change.
    fn of(&self, ino: InodeNo) -> u32 {
        u32::from(self.slot(ino).load(Relaxed)).max(ONE)
    }

    /// An eighth of the new is added to seven eighths of the old.
    fn learn(&self, ino: InodeNo, changes: u16) {
        let slot = self.slot(ino);
        let new = u32::from(changes.min(4095)) * ONE;
        let average = (u32::from(slot.load(Relaxed)) * 7 + new).div_ceil(8);
        slot.store(u16::try_from(average).unwrap_or(u16::MAX), Relaxed);
    }
}
