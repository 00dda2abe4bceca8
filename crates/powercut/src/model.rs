//! Models: a file system's promises for a power cut, as rules over the recorded calls.
//!
//! Each model is a row of [`MODELS`], which says for each rule whether it holds. The documentation
//! of [`Rules`] gives the source of each rule. `docs/CRASH.md` has the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use stetfs::mode::{S_IFMT, S_IFREG};

use crate::call::{Attribute, Recording, Slot, What};
use crate::content::Bytes;
use crate::effect::{Arrangement, Change, Effect, Number, Piece, Set};
use crate::tree::{Body, Node, Object, Tree};

/// What must persist before a longer length does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Nothing: a file may have its new length and zeros in place of its data.
    Alone,
    /// The journal up to the write.
    Journal,
    /// The journal up to the write, and the data, where blocks had to be allocated for it.
    JournalAndData,
}

/// What becomes of the rest of the block that holds the new end of a file that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It is gone with the cut.
    Zeroed,
    /// It is zeroed as data is written: it may come back when the file grows.
    MayComeBack,
}

/// The rules by which a file system keeps the order of a program's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Bytes of data that a power cut does not tear: a sector for a disk, a block for a journal
    /// with data in it.
    pub write_unit: u64,
    /// Names, attributes and truncations go through one journal: a later one does not persist
    /// without the earlier ones.
    ///
    /// POSIX promises no order of changes that are not synced, and file systems differ in the order
    /// that they keep (Pillai and others, OSDI 2014). ext4 has one running transaction, which it
    /// commits as a whole (the kernel's Documentation/filesystems/ext4/journal.rst).
    pub one_journal: bool,
    /// Data goes through that journal too (data=journal, which has no delayed allocation).
    pub data_in_journal: bool,
    /// When a file's length on the disk may grow. ext4 allocates late (delalloc), and the length on
    /// the disk grows with the allocation (`i_disksize`, fs/ext4/inode.c). With data=ordered, the
    /// data of blocks that a transaction allocates is written before its commit; with
    /// data=writeback it is not (Documentation/admin-guide/ext4.rst). Since Linux 5.6 it is not
    /// with data=ordered either: the mount has `dioread_nolock`, blocks are allocated unwritten and
    /// read as zeros, and nothing waits for their data (commit 244adf6426ee; `ext4_map_blocks` puts
    /// only written blocks into the transaction's list). Within a block that is allocated already,
    /// the length grows at once and the data follows later (`ext4_da_should_update_i_disksize`).
    pub growth: Growth,
    /// What a cut leaves behind the new end. ext4 zeroes the rest of the block in place, and with
    /// data=ordered the commit waits for that if the block is on the disk
    /// (`__ext4_block_zero_page_range`, fs/ext4/inode.c).
    pub rest: Rest,
    /// A rename over a file waits for the allocation of the renamed file's data. Closing a file
    /// that was truncated to nothing allocates its new data (`auto_da_alloc`,
    /// Documentation/admin-guide/ext4.rst).
    pub auto_da_alloc: bool,
    /// fsync of a file or directory makes the journal durable up to the object's last change, and
    /// thereby names and other files' attributes. Without a journal, fsync makes only its own
    /// object durable: a file's data, length and attributes without its name, or the names in a
    /// directory (POSIX, XSH, fsync; Linux, fsync(2), "does not necessarily ensure that the entry
    /// in the directory containing the file has also reached disk").
    pub sync_commits: bool,
}

/// A model by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// The rules that it keeps.
    pub rules: Rules,
}

/// The model that keeps all changes in their order.
const EXT4_JOURNAL: Model = Model {
    name: "ext4-journal",
    about: "ext4 with data=journal: everything in the order in which it was done",
    rules: Rules {
        write_unit: 4096,
        one_journal: true,
        data_in_journal: true,
        growth: Growth::Journal,
        rest: Rest::Zeroed,
        auto_da_alloc: false,
        sync_commits: true,
    },
};

/// The model of most machines.
const EXT4_ORDERED: Model = Model {
    name: "ext4-ordered",
    about: "ext4 as nearly every Linux machine mounts it: data=ordered, dioread_nolock (since \
        Linux 5.6), delayed allocation, auto_da_alloc",
    rules: Rules {
        write_unit: 512,
        one_journal: true,
        data_in_journal: false,
        growth: Growth::Journal,
        rest: Rest::Zeroed,
        auto_da_alloc: true,
        sync_commits: true,
    },
};

/// All models, the default first.
pub const MODELS: [Model; 5] = [
    EXT4_ORDERED,
    Model {
        name: "ext4-dioread-lock",
        about: "the same mounted with dioread_lock, or before Linux 5.6: new lengths wait for the \
            data",
        rules: Rules {
            growth: Growth::JournalAndData,
            ..EXT4_ORDERED.rules
        },
    },
    Model {
        name: "ext4-writeback",
        about: "ext4 with data=writeback: lengths may come before data",
        rules: Rules {
            rest: Rest::MayComeBack,
            ..EXT4_ORDERED.rules
        },
    },
    EXT4_JOURNAL,
    Model {
        name: "posix",
        about: "the weakest that POSIX and the usual file systems allow: what was not synced \
            persists in any order",
        rules: Rules {
            write_unit: 512,
            one_journal: false,
            data_in_journal: false,
            growth: Growth::Alone,
            rest: Rest::MayComeBack,
            auto_da_alloc: false,
            sync_commits: false,
        },
    },
];

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The program's tree at each time: the result of all calls until then.
pub struct Had<'a> {
    recording: &'a Recording,
    arrangement: Arrangement,
}

impl<'a> Had<'a> {
    /// The trees of a recording.
    pub fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            arrangement: EXT4_JOURNAL.arrange(recording),
        }
    }

    /// Returns the tree after this many calls.
    pub fn after(&self, calls: usize) -> Tree {
        let end = self.arrangement.ends[calls];
        let all = Set::first(end);
        self.arrangement.tree(self.recording, &all, end)
    }

    /// Returns the tree at the end of the recording.
    pub fn at_the_end(&self) -> Tree {
        self.after(self.recording.calls.len())
    }

    /// Returns the moments of the recording, as numbers of calls.
    pub fn moments(&self) -> Vec<usize> {
        self.arrangement.moments(self.recording)
    }

    /// True if a call changes something by which states are compared.
    pub fn changes(&self, call: usize) -> bool {
        self.arrangement.adds(call)
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = MODELS.into_iter().find(|model| model.name == name);
        found.ok_or_else(|| {
            let names = MODELS.map(|model| model.name).join(", ");
            format!("there is no model {name}; there are {names}")
        })
    }
}

impl Model {
    /// Returns the effects of a recording, with the needs of each, and what is durable after each
    /// call.
    pub fn arrange(&self, recording: &Recording) -> Arrangement {
        let mut arranger = Arranger::new(&self.rules, &recording.before);
        for (number, call) in recording.calls.iter().enumerate() {
            arranger.call = number;
            let durable = arranger.take(&call.what);
            let mut set = Set::none(arranger.out.effects.len());
            durable.iter().for_each(|n| arranger.out.add(&mut set, *n));
            let all = (0..arranger.out.effects.len()).filter(|n| set.has(*n));
            let all = all.collect();
            arranger.out.durable.push(all);
            arranger.out.ends.push(arranger.out.effects.len());
        }
        arranger.out
    }
}

/// One write is taken apart into at most this many pieces, each of which may be lost by itself.
const PIECES: u64 = 8;

/// Bytes of a block, the unit of allocation.
const BLOCK: u64 = 4096;

/// What the arranger knows about a file.
#[derive(Default)]
struct FileState {
    /// Data so far: first byte, end, and effect.
    data: Vec<(u64, u64, Number)>,
    /// The newest change of the length.
    length: Option<Number>,
    /// The newest truncations, each with the length that it left and its effect.
    cuts: Vec<(u64, Number)>,
    /// All effects on the file but names.
    all: Vec<(Number, bool)>,
    /// The end of the journal when the file was last changed.
    touched: Option<Number>,
    /// Allocated blocks: written, or there before.
    allocated: BTreeSet<u64>,
    /// Those among them that were written first in the recording: they may not be on the disk yet.
    fresh: BTreeSet<u64>,
    /// Effects that wait for blocks to be allocated (delayed allocation).
    delayed: Vec<Number>,
    /// True if it was truncated to nothing since it was last closed.
    emptied: bool,
}

/// Goes through the calls and lists their effects.
struct Arranger<'a> {
    rules: &'a Rules,
    out: Arrangement,
    call: usize,
    files: BTreeMap<Object, FileState>,
    /// The newest effect on each name.
    names: BTreeMap<Slot, Number>,
    /// Names in each directory.
    of_dir: BTreeMap<Object, Vec<Number>>,
    /// Names of directories: a directory is not moved before them.
    of_dirs: Vec<Number>,
    /// The end of the journal.
    journal: Option<Number>,
    /// What the next change in the journal needs besides.
    first: Vec<Number>,
    dirs: BTreeSet<Object>,
    regular: BTreeSet<Object>,
}

impl<'a> Arranger<'a> {
    fn new(rules: &'a Rules, before: &Tree) -> Self {
        let mut new = Self {
            rules,
            out: Arrangement {
                effects: Vec::new(),
                ends: vec![0],
                durable: vec![Vec::new()],
                born: BTreeMap::new(),
            },
            call: 0,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            of_dir: BTreeMap::new(),
            of_dirs: Vec::new(),
            journal: None,
            first: Vec::new(),
            dirs: BTreeSet::new(),
            regular: BTreeSet::new(),
        };
        for (_, object) in before.paths() {
            let Some(node) = before.get(object) else {
                continue;
            };
            new.know(object, node);
            if let Body::File(content) = &node.body {
                let allocated = &mut new.files.entry(object).or_default().allocated;
                allocated.extend(0..content.size().div_ceil(BLOCK));
            }
        }
        new
    }

    fn know(&mut self, object: Object, node: &Node) {
        if node.is_dir() {
            self.dirs.insert(object);
        }
        if node.mode & S_IFMT == S_IFREG {
            self.regular.insert(object);
        }
    }

    fn file(&mut self, object: Object) -> &mut FileState {
        self.files.entry(object).or_default()
    }

    fn push(&mut self, change: Change, needs: impl IntoIterator<Item = Number>) -> Number {
        let mut needs: Vec<Number> = needs.into_iter().collect();
        needs.sort_unstable();
        needs.dedup();
        self.out.effects.push(Effect {
            call: self.call,
            change,
            needs,
        });
        self.out.effects.len() - 1
    }

    /// Does the same for a change that goes through the journal, if there is one.
    fn push_journaled(&mut self, change: Change, needs: Vec<Number>) -> Number {
        if !self.rules.one_journal {
            return self.push(change, needs);
        }
        let before = self
            .journal
            .into_iter()
            .chain(std::mem::take(&mut self.first));
        let needs: Vec<Number> = needs.into_iter().chain(before).collect();
        let n = self.push(change, needs);
        self.journal = Some(n);
        n
    }

    /// Adds the effects of a call, and returns those that it makes durable.
    fn take(&mut self, what: &What) -> Vec<Number> {
        match what {
            What::Make { slot, object, node } => {
                self.born(*object, node);
                self.rename(vec![(slot.clone(), Some(*object))], None);
            }
            What::Unnamed { object, node } => self.born(*object, node),
            What::Link { slot, object } => {
                self.rename(vec![(slot.clone(), Some(*object))], None);
            }
            What::Remove { slot, .. } => self.rename(vec![(slot.clone(), None)], None),
            What::Rename {
                from: (from, object),
                to: (to, replaced),
                behind,
                whiteout,
                ..
            } => {
                if let (Some(object), Some(node)) = (behind, whiteout) {
                    self.born(*object, node);
                }
                let names = vec![(from.clone(), *behind), (to.clone(), Some(*object))];
                let over = replaced.is_some() && self.regular.contains(object);
                self.rename(names, Some(*object).filter(|_| over));
            }
            What::Write {
                file,
                offset,
                bytes,
                size,
            } => self.write(*file, *offset, bytes, *size),
            What::Zero { file, offset, len } => self.zero(*file, *offset, *len),
            What::Resize { file, from, to } => self.resize(*file, *from, *to),
            What::Set { object, attributes } => return self.set(*object, attributes),
            What::Close { file } => self.close(*file),
            What::Fsync { object, datasync } => return self.fsync(*object, *datasync),
            What::Group { steps } => {
                for step in steps {
                    self.take(&step.what);
                }
                return (0..self.out.effects.len()).collect();
            }
            What::Sync => return (0..self.out.effects.len()).collect(),
            What::Mark { .. } => {}
        }
        Vec::new()
    }

    fn born(&mut self, object: Object, node: &Arc<Node>) {
        self.out.born.insert(object, node.clone());
        self.know(object, node);
    }

    /// Changes names, all at once. `over` is a file that takes the place of another one.
    fn rename(&mut self, names: Vec<(Slot, Option<Object>)>, over: Option<Object>) {
        let mut needs: Vec<Number> = names
            .iter()
            .filter_map(|(slot, _)| self.names.get(slot).copied())
            .collect();
        let moves = names.len() > 1;
        let is_dir = |(_, object): &(Slot, Option<Object>)| {
            object.is_some_and(|object| self.dirs.contains(&object))
        };
        let of_dir = names.iter().any(is_dir);
        if moves && of_dir {
            // Two moves in the other order could put directories below themselves.
            needs.extend(&self.of_dirs);
        }
        if let Some(file) = over.filter(|_| self.rules.auto_da_alloc) {
            needs.extend(&self.file(file).delayed);
        }
        let slots: Vec<Slot> = names.iter().map(|(slot, _)| slot.clone()).collect();
        let n = self.push_journaled(Change::Names(names), needs);
        for slot in slots {
            self.of_dir.entry(slot.dir).or_default().push(n);
            self.file(slot.dir).touched = Some(n);
            self.names.insert(slot, n);
        }
        if of_dir {
            self.of_dirs.push(n);
        }
    }

    /// Returns what new data between two bytes needs: older data in the same units, and truncations
    /// within the range.
    fn below(&mut self, file: Object, from: u64, to: u64) -> Vec<Number> {
        let write_unit = self.rules.write_unit;
        let (from, end) = (
            from / write_unit * write_unit,
            to.div_ceil(write_unit) * write_unit,
        );
        let state = self.file(file);
        let older = state.data.iter().rev();
        let older = older.filter(|(a, b, _)| *a < end && from < *b);
        // The block of the cut stays where it is, and may be written before the cut.
        let cuts = state.cuts.iter();
        let cuts = cuts.filter(|(left, _)| left.next_multiple_of(BLOCK) < to);
        let older = older.map(|(_, _, n)| *n);
        older.chain(cuts.map(|(_, n)| *n)).collect()
    }

    /// Adds a change of data or length, in the journal if the data goes there.
    fn push_of_data(&mut self, change: Change, needs: Vec<Number>) -> Number {
        if self.rules.data_in_journal {
            self.push_journaled(change, needs)
        } else {
            self.push(change, needs)
        }
    }

    fn write(&mut self, file: Object, offset: u64, bytes: &Bytes, size: u64) {
        let rules = *self.rules;
        let end = offset + bytes.0.len() as u64;
        let mut from = offset;
        let (mut journaled, mut last) = (None, self.file(file).length);
        let mut under = Vec::new();
        for to in cuts_of(offset, end, rules.write_unit) {
            let piece = Piece::Bytes {
                of: bytes.clone(),
                from: (from - offset) as usize,
                len: (to - from) as usize,
            };
            let (data, is_fresh) = self.write_piece(file, from..to, piece, &mut journaled);
            if is_fresh {
                under.push(data);
            }
            // The length grows with each allocated block, or with the whole write.
            let is_step = rules.growth == Growth::Alone || to.is_multiple_of(BLOCK) || to == end;
            if to > size && is_step {
                let under = std::mem::take(&mut under);
                last = Some(self.grow(file, to, (last, under), is_fresh));
            }
            from = to;
        }
        let journal = self.journal;
        self.file(file).touched = journal;
    }

    /// Adds a piece of a write. `journaled` is the last block that the same write has allocated.
    /// Returns the number of the change, and true if its block had to be allocated.
    fn write_piece(
        &mut self,
        file: Object,
        range: Range<u64>,
        piece: Piece,
        journaled: &mut Option<u64>,
    ) -> (Number, bool) {
        let (from, to) = (range.start, range.end);
        let change = Change::Data {
            file,
            offset: from,
            piece,
        };
        let needs = self.below(file, from, to);
        let data = self.push_of_data(change, needs);
        let blocks = from / BLOCK..to.div_ceil(BLOCK);
        // A block is allocated as a whole.
        let begun = *journaled == Some((to - 1) / BLOCK);
        let growth = self.rules.growth;
        let state = self.file(file);
        state.data.push((from, to, data));
        state.all.push((data, true));
        let fresh: Vec<u64> = blocks.filter(|b| state.allocated.insert(*b)).collect();
        state.fresh.extend(&fresh);
        if let Some(block) = fresh.last() {
            *journaled = Some(*block);
        }
        let is_fresh = !fresh.is_empty() || begun;
        if is_fresh && growth == Growth::JournalAndData {
            state.delayed.push(data);
        }
        (data, is_fresh)
    }

    /// Lets a write grow the length to `to`, behind the length before it and the data below it.
    fn grow(
        &mut self,
        file: Object,
        to: u64,
        (before, under): (Option<Number>, Vec<Number>),
        is_fresh: bool,
    ) -> Number {
        let change = Change::Length {
            file,
            to,
            gone: None,
        };
        let mut needs: Vec<Number> = before.into_iter().collect();
        if self.rules.growth != Growth::Alone {
            needs.extend(self.journal);
        }
        if self.rules.growth == Growth::JournalAndData {
            needs.extend(under);
        }
        let length = self.push_of_data(change, needs);
        let state = self.file(file);
        state.length = Some(length);
        state.all.push((length, true));
        if is_fresh {
            state.delayed.push(length);
        }
        length
    }

    fn zero(&mut self, file: Object, offset: u64, len: u64) {
        if self.rules.one_journal && !self.rules.data_in_journal {
            // First the length on the disk reaches behind the hole, whatever waits for its blocks
            // there (`ext4_update_disksize_before_punch`).
            let change = Change::Length {
                file,
                to: offset + len,
                gone: None,
            };
            let n = self.push_journaled(change, Vec::new());
            self.file(file).all.push((n, true));
        }
        let (begin, end) = (offset, offset + len);
        // Whole blocks are freed, or marked as not written; the rest is zeroed where it is.
        let whole = if self.rules.data_in_journal {
            begin..end
        } else {
            let first = begin.next_multiple_of(BLOCK).min(end);
            first..(end / BLOCK * BLOCK).max(first)
        };
        self.zero_in_place(file, begin..whole.start);
        if !whole.is_empty() {
            let needs = self.below_zeros(file, &whole);
            let change = Change::Data {
                file,
                offset: whole.start,
                piece: Piece::Zeros(whole.end - whole.start),
            };
            let n = self.push_journaled(change, needs);
            let state = self.file(file);
            state.data.push((whole.start, whole.end, n));
            state.all.push((n, true));
        }
        self.zero_in_place(file, whole.end..end);
        let journal = self.journal;
        let state = self.file(file);
        state.touched = journal;
        let freed = offset.div_ceil(BLOCK)..(offset + len) / BLOCK;
        state.allocated.retain(|block| !freed.contains(block));
    }

    /// Adds zeros that are written as data is.
    fn zero_in_place(&mut self, file: Object, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut from = range.start;
        for to in cuts_of(range.start, range.end, self.rules.write_unit) {
            let needs = self.below_zeros(file, &(from..to));
            let change = Change::Data {
                file,
                offset: from,
                piece: Piece::Zeros(to - from),
            };
            let n = self.push(change, needs);
            let state = self.file(file);
            state.data.push((from, to, n));
            state.all.push((n, true));
            from = to;
        }
    }

    /// Returns what zeros need. Where no block is on the disk there is nothing to zero, and what
    /// was written around them still waits.
    fn below_zeros(&mut self, file: Object, range: &Range<u64>) -> Vec<Number> {
        let mut needs = self.below(file, range.start, range.end);
        let state = self.file(file);
        let waits = |n: &Number| {
            let mut data = state.data.iter();
            data.any(|(from, _, data)| data == n && state.fresh.contains(&(from / BLOCK)))
        };
        needs.retain(|n| !waits(n));
        needs
    }

    fn resize(&mut self, file: Object, from: u64, to: u64) {
        let cuts = to < from;
        let block_end = to.next_multiple_of(BLOCK).min(from);
        let mut gone = cuts.then_some(to);
        if cuts && to < block_end && !self.rules.data_in_journal {
            if self.rules.rest == Rest::MayComeBack {
                gone = Some(to.next_multiple_of(BLOCK));
            }
            self.zero_in_place(file, to..block_end);
        }
        let change = Change::Length { file, to, gone };
        let needs: Vec<Number> = if self.rules.one_journal {
            // The journal has the truncation, whatever became of what was to be written.
            Vec::new()
        } else {
            self.file(file).length.into_iter().collect()
        };
        let n = self.push_journaled(change, needs);
        let journal = self.journal;
        let state = self.file(file);
        state.length = Some(n);
        state.all.push((n, true));
        state.touched = journal;
        if cuts {
            state.cuts.push((to, n));
            state.allocated.split_off(&to.div_ceil(BLOCK));
            state.emptied |= to == 0;
        }
    }

    /// Sets attributes. Returns what is durable at once: times, which no model loses.
    fn set(&mut self, object: Object, attributes: &[Attribute]) -> Vec<Number> {
        let change = Change::Set {
            object,
            attributes: attributes.to_vec(),
        };
        if change.is_time() {
            return vec![self.push(change, [])];
        }
        let mut before = self.file(object).all.iter().rev();
        let before = before.find(|(_, is_data)| !is_data).map(|(n, _)| *n);
        let n = self.push_journaled(change, before.into_iter().collect());
        let journal = self.journal;
        let state = self.file(object);
        state.all.push((n, false));
        state.touched = journal;
        Vec::new()
    }

    fn close(&mut self, file: Object) {
        let auto = self.rules.auto_da_alloc;
        let state = self.file(file);
        if std::mem::take(&mut state.emptied) && auto {
            let delayed = state.delayed.clone();
            self.first.extend(delayed);
        }
    }

    fn fsync(&mut self, object: Object, datasync: bool) -> Vec<Number> {
        let names = self.of_dir.get(&object).cloned().unwrap_or_default();
        let commits = self.rules.sync_commits;
        let state = self.file(object);
        let own = state.all.iter();
        let own = own.filter(|(_, is_data)| *is_data || !datasync);
        let journal = state.touched.filter(|_| commits);
        own.map(|(n, _)| *n).chain(names).chain(journal).collect()
    }
}

/// Returns where the pieces of a write end: at every boundary of units if these are few; otherwise
/// behind the first unit, before the last, and at some boundaries of blocks.
fn cuts_of(from: u64, to: u64, write_unit: u64) -> Vec<u64> {
    let boundaries = |unit: u64, step: u64| {
        let first = (from / unit + 1) * unit;
        let all = (0..).map(move |n| first + n * step * unit);
        all.take_while(|end| *end < to)
    };
    let mut ends: Vec<u64> = match (to - from) / write_unit {
        0..PIECES => boundaries(write_unit, 1).collect(),
        _ => {
            let blocks = (to - from) / BLOCK;
            let step = blocks.div_ceil(PIECES - 2).max(1);
            let first = boundaries(write_unit, 1).next();
            first
                .into_iter()
                .chain(boundaries(BLOCK, step))
                .chain([(to - 1) / write_unit * write_unit])
                .collect()
        }
    };
    ends.push(to);
    ends.sort_unstable();
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_sectors_are_lost_each_alone_and_many_in_pieces() {
        assert_eq!(cuts_of(0, 4, 512), [4]);
        assert_eq!(cuts_of(510, 1030, 512), [512, 1024, 1030]);
        assert_eq!(cuts_of(0, 6000, 512), [512, 4096, 5632, 6000]);
        let large = cuts_of(100, 1 << 20, 512);
        assert_eq!((large[0], large[1], large.len()), (512, 4096, 9));
        assert_eq!(cuts_of(0, 8192, 4096), [4096, 8192]);
    }
}
