//! Decides which states need no recovery, since an earlier state looked the same to its recovery.
//!
//! The outcome of a state is a function of the bytes that its recovery and its judges read before
//! they are written (`watch.rs`). Two states that agree in these units have the same outcome,
//! whatever the other units hold. Most bytes that a power cut keeps or loses are never read: the
//! body of a transaction without a commit record, the homes that a replay is about to write. So
//! thousands of states share one outcome. This assumes that the code under test is deterministic. A
//! sample of the folded states is recovered all the same, to test this.
//!
//! A state is described by the units in which it differs from one reference. Each such unit has a
//! *delta*: the difference between the hashes of its content and of the reference's. Sums of deltas
//! (64 bits) then tell contents apart, of the whole or of a set of units.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use stetfs_media::sim::Keep;

use super::moment::{Moment, PieceOf, UnitWrite};
use super::watch::UnitSet;
use crate::media::contents::Contents;
use crate::media::kind::{UNIT, Unit};

/// The units that differ from the reference, each with its delta.
pub type Deltas = BTreeMap<Unit, u64>;

/// Returns the share of one word in the hash of the whole: a folded multiplication, as in wyhash.
/// It does not withstand adversaries.
fn word_hash(unit: Unit, at: usize, word: u64) -> u64 {
    let place = ((u64::from(unit) << 6) | (at as u64 / 8)).wrapping_mul(0xa076_1d64_78bd_642f);
    let product = u128::from(word ^ place) * u128::from(place ^ 0xe703_7ed1_a0b4_28db);
    product as u64 ^ (product >> 64) as u64
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Returns the delta of these bytes, whole words at byte `at` of a unit, against the same bytes of
/// the reference.
fn delta(unit: Unit, at: usize, bytes: &[u8], reference: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).zip(reference[at..].chunks_exact(8));
    let places = (at..).step_by(8);
    sum(places
        .zip(words)
        .filter(|(_, (a, b))| a != b)
        .map(|(at, (a, b))| {
            word_hash(unit, at, word(a)).wrapping_sub(word_hash(unit, at, word(b)))
        }))
}

/// Goes from one content to the next, and knows how each differs from the reference. It is fast
/// when neighbouring contents differ little.
#[derive(Clone)]
pub struct DiffTracker {
    reference: Contents,
    last: Contents,
    deltas: Deltas,
}

impl DiffTracker {
    /// A tracker at the reference.
    pub fn new(reference: Contents) -> Self {
        Self {
            last: reference.clone(),
            reference,
            deltas: Deltas::new(),
        }
    }

    /// Goes to `contents`, in time proportional to the changes since the last content, and returns
    /// its deltas.
    pub fn go_to(&mut self, contents: &Contents) -> &Deltas {
        for unit in contents.unshared(&self.last) {
            let (now, before) = (contents.unit(unit), self.reference.unit(unit));
            match delta(unit, 0, &now, &before) {
                0 => self.deltas.remove(&unit),
                delta => self.deltas.insert(unit, delta),
            };
        }
        self.last = contents.clone();
        &self.deltas
    }
}

/// The states of a moment, each described by deltas, without being built.
pub struct States {
    /// The deltas that all states have.
    fixed: Vec<(Unit, u64)>,
    /// The sum of `fixed`.
    fixed_sum: u64,
    /// The places that pieces write, with their content without the pieces.
    places: Vec<Place>,
    /// The effect of each relevant piece, by its number.
    effects: Vec<(usize, Effect)>,
}

/// A place that pieces write: a whole sector, whose content a delta describes; or a word, of which
/// pieces may write a part.
#[derive(Clone, Copy)]
struct Place {
    unit: Unit,
    /// For a word: its first byte in the unit, and its content in the reference.
    word: Option<(usize, u64)>,
    /// Its content without any of the pieces: a delta, or a word.
    absent: u64,
}

/// The effect of a piece on a place.
#[derive(Clone, Copy)]
enum Effect {
    /// The whole place has this delta.
    Sector { place: usize, delta: u64 },
    /// The bits of the word in `mask` become `bits`.
    Word { place: usize, mask: u64, bits: u64 },
}

/// One state of [`States`]: the deltas of the places.
#[derive(Clone, Debug, Default)]
pub struct State {
    places: Vec<u64>,
    sum: u64,
}

impl State {
    /// Returns the key of its content, which differs for every other content of the run.
    pub fn key(&self) -> u64 {
        self.sum
    }
}

impl States {
    /// Describes the states of `moment`. `None` when a piece lies in several units, or a unit has
    /// both whole sectors and words to be written.
    pub fn of(
        moment: &Moment<'_>,
        relevant: &[PieceOf],
        tracker: &mut DiffTracker,
    ) -> Option<Self> {
        // The certain content, with all pieces absent. No certain change covers a piece that makes
        // a difference.
        let certain = moment.contents_of(|_| false);
        tracker.go_to(&certain);
        let mut made = Self {
            fixed: Vec::new(),
            fixed_sum: 0,
            places: Vec::new(),
            effects: Vec::new(),
        };
        let mut known: BTreeMap<(Unit, usize), usize> = BTreeMap::new();
        // For each unit with places: whether one place is the whole unit, and the part of its delta
        // that belongs to the places.
        let mut units: BTreeMap<Unit, (bool, u64)> = BTreeMap::new();
        for piece in relevant {
            let write = moment.unit_write(piece)?;
            let whole = write.bytes.len() as u64 == UNIT;
            let (is_whole, taken) = units.entry(write.unit).or_insert((whole, 0));
            if *is_whole != whole || !whole && write.at % 8 + write.bytes.len() > 8 {
                return None;
            }
            let at = if whole { 0 } else { write.at / 8 * 8 };
            let place = *known.entry((write.unit, at)).or_insert_with(|| {
                let there = &certain.unit(write.unit)[at..];
                let reference = &tracker.reference.unit(write.unit);
                let len = if whole { UNIT as usize } else { 8 };
                let delta = delta(write.unit, at, &there[..len], reference);
                *taken = taken.wrapping_add(delta);
                made.places.push(Place {
                    unit: write.unit,
                    word: (!whole).then(|| (at, word(&reference[at..at + 8]))),
                    absent: if whole { delta } else { word(&there[..8]) },
                });
                made.places.len() - 1
            });
            made.effects
                .push((piece.number, made.effect(place, &write, tracker)));
        }
        for (unit, delta) in &tracker.deltas {
            let (_, taken) = units.get(unit).unwrap_or(&(false, 0));
            made.fixed.push((*unit, delta.wrapping_sub(*taken)));
        }
        made.fixed_sum = sum(made.fixed.iter().map(|(_, delta)| *delta));
        Some(made)
    }

    fn effect(&self, place: usize, write: &UnitWrite<'_>, tracker: &DiffTracker) -> Effect {
        if self.places[place].word.is_none() {
            let reference = tracker.reference.unit(write.unit);
            let delta = delta(write.unit, 0, write.bytes, &reference);
            return Effect::Sector { place, delta };
        }
        let (mut mask, mut bits) = ([0; 8], [0; 8]);
        let at = write.at % 8;
        mask[at..at + write.bytes.len()].fill(0xff);
        bits[at..at + write.bytes.len()].copy_from_slice(write.bytes);
        Effect::Word {
            place,
            mask: u64::from_le_bytes(mask),
            bits: u64::from_le_bytes(bits),
        }
    }

    /// A single state, with these deltas.
    pub fn single(deltas: &Deltas) -> Self {
        Self {
            fixed_sum: sum(deltas.values().copied()),
            fixed: deltas.iter().map(|(unit, delta)| (*unit, *delta)).collect(),
            places: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// Returns the state in which exactly the pieces are there that `keep` names.
    pub fn state(&self, keep: &Keep) -> State {
        let mut places: Vec<u64> = self.places.iter().map(|place| place.absent).collect();
        for (number, effect) in &self.effects {
            if !keep.keeps(*number) {
                continue;
            }
            match *effect {
                Effect::Sector { place, delta } => places[place] = delta,
                Effect::Word { place, mask, bits } => {
                    places[place] = places[place] & !mask | bits;
                }
            }
        }
        for (now, place) in places.iter_mut().zip(&self.places) {
            if let Some((at, reference)) = place.word {
                let hash = |word| word_hash(place.unit, at, word);
                *now = hash(*now).wrapping_sub(hash(reference));
            }
        }
        let sum = self.fixed_sum.wrapping_add(sum(places.iter().copied()));
        State { places, sum }
    }
}

fn sum(deltas: impl Iterator<Item = u64>) -> u64 {
    deltas.fold(0, u64::wrapping_add)
}

/// The outcomes so far, found by the content of the units that they depended on.
pub struct Folds<T> {
    groups: Vec<Group<T>>,
}

/// Outcomes that depended on the same set of units.
struct Group<T> {
    read: UnitSet,
    by_content: HashMap<u64, T>,
}

impl<T> Default for Folds<T> {
    fn default() -> Self {
        Self { groups: Vec::new() }
    }
}

impl<T: Copy> Folds<T> {
    /// Prepares the states of a moment for [`find`](Self::find).
    pub fn lookup<'a>(&self, states: &'a States) -> Lookup<'a> {
        Lookup {
            states,
            groups: self
                .groups
                .iter()
                .map(|group| Part::of(states, &group.read))
                .collect(),
        }
    }

    /// Returns the outcome of a state, if an earlier state had the same content in all units on
    /// which its outcome depended.
    pub fn find(&self, lookup: &mut Lookup<'_>, state: &State) -> Option<T> {
        for group in &self.groups[lookup.groups.len()..] {
            lookup.groups.push(Part::of(lookup.states, &group.read));
        }
        let mut parts = self.groups.iter().zip(&lookup.groups);
        parts.find_map(|(group, part)| group.by_content.get(&part.key(state)).copied())
    }

    /// Adds the outcome of a recovered state and the units on which it depended. Returns the number
    /// of its group.
    pub fn add(&mut self, lookup: &Lookup<'_>, state: &State, read: &UnitSet, outcome: T) -> usize {
        let key = Part::of(lookup.states, read).key(state);
        let known = self.groups.iter().position(|group| group.read == *read);
        let at = known.unwrap_or_else(|| {
            self.groups.push(Group {
                read: read.clone(),
                by_content: HashMap::new(),
            });
            self.groups.len() - 1
        });
        self.groups[at].by_content.insert(key, outcome);
        at
    }

    /// Returns the units on which the outcomes of a group depended.
    pub fn read(&self, group: usize) -> &UnitSet {
        &self.groups[group].read
    }

    /// Returns the number of groups: different sets of units on which outcomes depended.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }
}

/// The states of a moment, prepared for each group.
pub struct Lookup<'a> {
    states: &'a States,
    groups: Vec<Part>,
}

/// The part of a moment's states that lies in a set of units.
struct Part {
    fixed_sum: u64,
    places: Vec<usize>,
}

impl Part {
    fn of(states: &States, units: &UnitSet) -> Self {
        let fixed = states
            .fixed
            .iter()
            .filter(|(unit, _)| units.contains(*unit));
        let places = states.places.iter().enumerate();
        let inside = places.filter(|(_, place)| units.contains(place.unit));
        Self {
            fixed_sum: sum(fixed.map(|(_, delta)| *delta)),
            places: inside.map(|(n, _)| n).collect(),
        }
    }

    fn key(&self, state: &State) -> u64 {
        let places = sum(self.places.iter().map(|n| state.places[*n]));
        self.fixed_sum.wrapping_add(places)
    }
}

#[cfg(test)]
mod tests {
    use stetfs_media::{Cause, Class, Image, Tag};

    use super::*;
    use crate::media::Media;
    use crate::media::kind::Kind;
    use crate::states::Effort;
    use stetfs_testkit::rng::Rng;

    const SIZE: u64 = 16 << 10;

    fn changes(media: &Media, kind: Kind, rng: &mut Rng) {
        let tag = Tag::new(Class::Data, Cause::Home);
        let dev = media.shown().expect("a device").home;
        for _ in 0..40 {
            let mut bytes = vec![0; 512 * (1 + rng.below(4) as usize)];
            rng.fill(&mut bytes);
            let at = rng.below(8) * 512;
            match (rng.below(5), dev.pmem().filter(|_| kind == Kind::Pmem)) {
                (0, _) => dev.flush(Cause::Log).expect("a flush"),
                (1, None) => dev.write_durable(at, &[&bytes], tag).expect("a write"),
                (1 | 2, Some(pmem)) => {
                    let len = 1 + rng.below(30) as usize;
                    let at = at + rng.below(300);
                    pmem.store(at, &bytes[..len], tag).expect("a store");
                    if rng.chance(50) {
                        pmem.flush(at, len as u64, tag).expect("a flush of lines");
                    }
                }
                (3, _) => {
                    // Writes bytes that are there already.
                    dev.read_at(at, &mut bytes, tag).expect("a read");
                    dev.write_at(at, &bytes, tag).expect("a write");
                }
                _ => dev.write_at(at, &bytes, tag).expect("a write"),
            }
        }
    }

    /// A state that is not built must have the key of its built content.
    #[test]
    fn keys_tell_contents_apart() {
        for (seed, kind) in (0..20).flat_map(|seed| [(seed, Kind::Block), (seed, Kind::Pmem)]) {
            let mut rng = Rng::new(seed);
            let start = Contents::new(vec![(kind, Image::new(SIZE))]);
            let media = Media::new(&start);
            changes(&media, kind, &mut rng);
            let tapes = media.tapes();
            let mut tracker = DiffTracker::new(start.clone());
            let mut by_key: HashMap<u64, Contents> = HashMap::new();
            for moment in tapes.moments(0..) {
                let relevant = moment.relevant();
                let states = States::of(&moment, &relevant, &mut tracker).expect("no discards");
                for keep in Effort::default().choices(&relevant, &mut rng) {
                    let key = states.state(&keep).key();
                    let left = moment.contents(&keep);
                    let built = States::single(DiffTracker::new(start.clone()).go_to(&left));
                    let shown = format!("seed {seed}, {kind:?}, {} {keep}", moment.at());
                    assert_eq!(key, built.state(&Keep::All).key(), "{shown}");
                    let same = by_key.entry(key).or_insert_with(|| left.clone());
                    assert_eq!(*same, left, "{shown}");
                }
            }
            assert!(
                by_key.len() > 100,
                "seed {seed}, {kind:?}: {}",
                by_key.len()
            );
        }
    }

    /// A state is folded into a recovered one that agrees with it in all units that were read then,
    /// and into no other.
    #[test]
    fn states_fold_by_what_was_read() {
        let start = Contents::of_block_device(Image::new(SIZE));
        let media = Media::new(&start);
        let tag = Tag::new(Class::Data, Cause::Home);
        media
            .shown()
            .expect("a device")
            .home
            .write_at(0, &[7; 3 * 512], tag)
            .expect("a write");
        let tapes = media.tapes();
        let mut tracker = DiffTracker::new(start.clone());
        let moment = tapes.moment(1).expect("the end");
        let states = States::of(&moment, &moment.relevant(), &mut tracker).expect("states");
        // A reader of the first two sectors that has written the second before.
        let reader = Media::new(&start);
        let dev = reader.shown_watched().expect("a device").home;
        dev.write_at(512, &[1; 512], tag).expect("a write");
        dev.read_at(0, &mut [0; 1024], tag).expect("a read");
        let read = reader.watched().read;
        assert!(read.contains(0) && !read.contains(1) && !read.contains(2));
        let mut folds = Folds::default();
        let state = |keep: &str| states.state(&keep.parse().expect("a choice"));
        let mut lookup = folds.lookup(&states);
        folds.add(&lookup, &state("only:0"), &read, 1);
        for (keep, found) in [("only:0,2", Some(1)), ("all", Some(1)), ("only:1,2", None)] {
            assert_eq!(folds.find(&mut lookup, &state(keep)), found, "{keep}");
        }
        folds.add(&lookup, &state("none"), &read, 2);
        assert_eq!(folds.find(&mut lookup, &state("only:1,2")), Some(2));
    }
}
