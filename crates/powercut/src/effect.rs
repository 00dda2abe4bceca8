//! Takes the calls of a recording apart into effects: changes on the disk that persist or are lost
//! each by itself.
//!
//! A model ([`crate::model`]) says which effects need which earlier ones, and what a sync makes
//! durable. A state after a power cut is then a set of effects. It has everything that is durable,
//! and every effect in it has all effects that it needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use stetfs_crash::exploration::grouped;

use crate::call::{Attribute, Recording, Slot};
use crate::content::Bytes;
use crate::tree::{Body, Node, Object, Tree};

/// The number of an effect, in the order of the calls.
pub type Number = usize;

/// One change by a call that persists or is lost as a whole.
#[derive(Clone, Debug)]
pub struct Effect {
    /// The number of the call, from 0.
    pub call: usize,
    /// What it changes.
    pub change: Change,
    /// Earlier effects without which it cannot persist.
    pub needs: Vec<Number>,
}

/// A change on the disk.
#[derive(Clone, Debug)]
pub enum Change {
    /// These names, changed all at once.
    Names(Vec<(Slot, Option<Object>)>),
    /// Bytes of a file, as far as its length reaches.
    Data {
        /// The file.
        file: Object,
        /// First byte.
        offset: u64,
        /// The bytes.
        piece: Piece,
    },
    /// The length of a file, which grows to it at least, or is cut to it.
    Length {
        /// The file.
        file: Object,
        /// Bytes.
        to: u64,
        /// For a truncation, where the bytes begin that are gone: behind the new end, or behind its
        /// block, whose rest other changes zero.
        gone: Option<u64>,
    },
    /// Attributes, all at once.
    Set {
        /// The object.
        object: Object,
        /// The attributes with their new values.
        attributes: Vec<Attribute>,
    },
}

/// Bytes of a write.
#[derive(Clone, Debug)]
pub enum Piece {
    /// A part of one call's bytes.
    Bytes {
        /// All bytes of the call.
        of: Bytes,
        /// The part's first byte in it.
        from: usize,
        /// Bytes of the part.
        len: usize,
    },
    /// This many zeros.
    Zeros(u64),
}

impl Piece {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes { len, .. } => *len as u64,
            Self::Zeros(len) => *len,
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Change {
    /// Returns the objects that must be synced to make it durable: the file, or the directories.
    pub fn objects(&self) -> Vec<Object> {
        match self {
            Self::Names(names) => {
                let mut dirs: Vec<_> = names.iter().map(|(slot, _)| slot.dir).collect();
                dirs.sort_unstable();
                dirs.dedup();
                dirs
            }
            Self::Data { file, .. } | Self::Length { file, .. } => vec![*file],
            Self::Set { object, .. } => vec![*object],
        }
    }

    /// True if it changes only a time. Every state has all times, and no states are distinguished
    /// by them.
    pub fn is_time(&self) -> bool {
        let is_time = |attribute: &Attribute| matches!(attribute, Attribute::Modified(..));
        matches!(self, Self::Set { attributes, .. } if attributes.iter().all(is_time))
    }

    /// Returns the kind of change in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Names(_) => "name",
            Self::Data { .. } => "data",
            Self::Length { .. } => "length",
            Self::Set { .. } => "attribute",
        }
    }

    /// Returns the change in words: `the length 5`.
    pub fn text(&self) -> String {
        match self {
            Self::Names(names) if names.len() > 1 => "the change of names".to_owned(),
            Self::Names(names) => match names.first() {
                Some((_, None)) => "the removal of the name".to_owned(),
                _ => "the name".to_owned(),
            },
            Self::Data { offset, piece, .. } => format!(
                "{} bytes of data at {}",
                grouped(piece.len()),
                grouped(*offset)
            ),
            Self::Length {
                to, gone: Some(_), ..
            } => {
                format!("the cut to {} bytes", grouped(*to))
            }
            Self::Length { to, .. } => format!("the length of {} bytes", grouped(*to)),
            Self::Set { attributes, .. } => format!("the {}", Attribute::list(attributes)),
        }
    }
}

/// A set of effects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Set {
    words: Vec<u64>,
}

impl Set {
    /// An empty set, with room for this many effects.
    pub fn none(effects: usize) -> Self {
        Self {
            words: vec![0; effects.div_ceil(64)],
        }
    }

    /// The set of this many first effects.
    pub fn first(effects: usize) -> Self {
        let mut set = Self::none(effects);
        (0..effects).for_each(|n| set.insert(n));
        set
    }

    /// True if the effect is in the set.
    pub fn has(&self, n: Number) -> bool {
        let word = self.words.get(n / 64);
        word.is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Adds an effect.
    pub fn insert(&mut self, n: Number) {
        if n / 64 >= self.words.len() {
            self.words.resize(n / 64 + 1, 0);
        }
        self.words[n / 64] |= 1 << (n % 64);
    }

    /// Removes an effect.
    pub fn remove(&mut self, n: Number) {
        if let Some(word) = self.words.get_mut(n / 64) {
            *word &= !(1 << (n % 64));
        }
    }

    /// True if the other set has all of its effects.
    pub fn is_in(&self, other: &Self) -> bool {
        let mut words = self.words.iter().enumerate();
        words.all(|(at, word)| word & !other.words.get(at).copied().unwrap_or(0) == 0)
    }
}

/// The effects of a recording, as a model arranges them.
#[derive(Clone, Debug)]
pub struct Arrangement {
    /// The effects, in the order of the calls.
    pub effects: Vec<Effect>,
    /// The number of effects of the first n calls, by n from 0 on.
    pub ends: Vec<usize>,
    /// For each number of calls, the effects that are durable then and were not before, with all
    /// that they need.
    pub durable: Vec<Vec<Number>>,
    /// The objects that the recording makes, with their first attributes.
    pub born: BTreeMap<Object, Arc<Node>>,
}

impl Arrangement {
    /// True if the call (from 0) changes something by which states are compared.
    pub fn adds(&self, call: usize) -> bool {
        let added = &self.effects[self.ends[call]..self.ends[call + 1]];
        added.iter().any(|effect| !effect.change.is_time())
    }

    /// Returns the moments of a recording, as numbers of calls: its begin, and after each call that
    /// adds effects or promises something. A sync alone only takes states away.
    pub fn moments(&self, recording: &Recording) -> Vec<usize> {
        let is_one = |calls: &usize| match calls.checked_sub(1) {
            None => true,
            Some(last) => self.adds(last) || recording.calls[last].is_mark(),
        };
        (0..=recording.calls.len()).filter(is_one).collect()
    }

    /// Returns the set of effects that are durable after this many calls.
    pub fn must(&self, calls: usize) -> Set {
        let mut set = Set::none(self.ends[calls]);
        let durable = self.durable[..=calls].iter().flatten();
        durable.for_each(|n| set.insert(*n));
        set
    }

    /// Adds an effect with all effects that it needs.
    pub fn add(&self, set: &mut Set, n: Number) {
        let mut todo = vec![n];
        while let Some(n) = todo.pop() {
            if !set.has(n) {
                set.insert(n);
                todo.extend(&self.effects[n].needs);
            }
        }
    }

    /// Removes all of the first `end` effects that lack an effect that they need.
    pub fn close(&self, set: &mut Set, end: usize) {
        for n in 0..end {
            if set.has(n) && !self.effects[n].needs.iter().all(|need| set.has(*need)) {
                set.remove(n);
            }
        }
    }

    /// Returns the tree that is left when exactly these effects have reached the disk.
    pub fn tree(&self, recording: &Recording, set: &Set, end: usize) -> Tree {
        let mut tree = recording.before.clone();
        for n in (0..end).filter(|n| set.has(*n)) {
            let effect = &self.effects[n];
            let time = recording.calls[effect.call].time;
            self.apply(&mut tree, &effect.change, time);
        }
        tree.forget_what_is_behind_the_ends();
        tree
    }

    fn apply(&self, tree: &mut Tree, change: &Change, time: (i64, u32)) {
        let mut file = |object: Object, f: &mut dyn FnMut(&mut crate::content::Content)| {
            self.bear(tree, object);
            if let Some(node) = tree.get_mut(object) {
                node.mtime = time;
                if let Body::File(content) = &mut node.body {
                    f(content);
                }
            }
        };
        match change {
            Change::Names(names) => {
                for (slot, object) in names {
                    self.bear(tree, slot.dir);
                    if let Some(object) = object {
                        self.bear(tree, *object);
                    }
                    tree.set_name(slot.dir, &slot.name, *object);
                    if let Some(dir) = tree.get_mut(slot.dir) {
                        dir.mtime = time;
                    }
                }
            }
            Change::Data {
                file: object,
                offset,
                piece,
            } => file(*object, &mut |content| match piece {
                Piece::Bytes { of, from, len } => {
                    content.write(*offset, &of.0[*from..*from + *len]);
                }
                Piece::Zeros(len) => content.zero(*offset, *len),
            }),
            Change::Length {
                file: object,
                to,
                gone,
            } => file(*object, &mut |content| {
                if let Some(gone) = gone {
                    content.cut(*gone);
                    content.set_size(*to);
                } else {
                    content.set_size(content.size().max(*to));
                }
            }),
            Change::Set { object, attributes } => {
                self.bear(tree, *object);
                let Some(node) = tree.get_mut(*object) else {
                    return;
                };
                for attribute in attributes {
                    match attribute {
                        Attribute::Mode(mode) => node.mode = *mode,
                        Attribute::Owner(uid, gid) => (node.uid, node.gid) = (*uid, *gid),
                        Attribute::Xattr(name, Some(value)) => {
                            node.xattrs.insert(name.clone(), value.clone());
                        }
                        Attribute::Xattr(name, None) => drop(node.xattrs.remove(name)),
                        Attribute::Modified(sec, nsec) => node.mtime = (*sec, *nsec),
                    }
                }
            }
        }
    }

    /// Puts an object into the tree at its first effect, whether or not it has a name by then.
    fn bear(&self, tree: &mut Tree, object: Object) {
        if tree.get(object).is_none()
            && let Some(node) = self.born.get(&object)
        {
            tree.insert(object, node.clone());
        }
    }
}
