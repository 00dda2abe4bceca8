//! Chooses states one after the other, by what earlier recoveries have read.
//!
//! A recovery depends only on what it reads ([`fold`](super::fold)). A piece where it did not read
//! makes no difference. Among the pieces that it read, those tell most that decide what else is
//! read: a commit record, the end of a ring, a slot with an address. The guide is not told which
//! pieces decide; it finds out.
//!
//! The choice begins with two *bases*: none and all of the pending pieces. From a base the guide
//! *flips* one whole change, which adds it or leaves it out. It flips only changes of which the
//! base's recovery has read something. If the next recovery reads a set of units that no recovery
//! at this moment has read before, the change *decides*. Then the new state becomes a base too, and
//! one piece of the change is flipped alone in both bases. The bases take turns. So deciding
//! changes meet in every combination, if there are few of them, on every medium, and however many
//! pending pieces nobody reads.
//!
//! Most changes are pending at several moments. Of the changes that a base can flip, the one comes
//! first that was flipped least often at earlier moments ([`FlipHistory`]), where flips of deciding
//! changes count a [`DECIDES`]th; among equals, the smallest. Every second flip of a change flips
//! one piece of it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use hashbrown::{HashMap, HashSet};
use stetfs_media::sim::Keep;

use super::moment::{Moment, PieceOf};
use super::watch::UnitSet;
use crate::media::kind::Unit;
use stetfs_testkit::rng::Rng;

/// Flips of a deciding change count a `DECIDES`th, so it is flipped that much more often.
const DECIDES: usize = 4;

/// A change: its medium, and its position on the tape.
type Change = (usize, usize);

/// How often each change was flipped at the moments of a run so far, and which changes decide.
#[derive(Default)]
pub struct FlipHistory {
    flips: HashMap<Change, usize>,
    decide: HashSet<Change>,
}

impl FlipHistory {
    /// Returns the rank of a change: the lowest is flipped first.
    fn rank(&self, change: Change) -> usize {
        let flips = self.flips.get(&change).copied().unwrap_or(0);
        if self.decide.contains(&change) {
            flips / DECIDES
        } else {
            flips
        }
    }
}

/// Chooses states of a moment.
pub struct Guide<'a> {
    pieces: &'a [PieceOf],
    /// The units of each piece; `None` where they are not known.
    units: Vec<Option<Range<Unit>>>,
    /// The pieces of each change, as indices.
    changes: Vec<Range<usize>>,
    bases: VecDeque<Base>,
    /// The sets of units that recoveries of this moment have read so far.
    reads: HashSet<UnitSet>,
    history: &'a mut FlipHistory,
    rng: Rng,
}

/// A state from which changes are flipped.
struct Base {
    is_there: Vec<bool>,
    /// The flips to come, each as the pieces that are flipped together.
    flips: VecDeque<Range<usize>>,
}

/// A state that was chosen, and the pieces that were flipped for it.
pub struct Step {
    is_there: Vec<bool>,
    flipped: Range<usize>,
}

impl<'a> Guide<'a> {
    /// A guide for the states of `moment` with these pieces. The recoveries of the states with none
    /// and with all of them have read `read_of_none` and `read_of_all`.
    pub fn new(
        moment: &Moment<'_>,
        pieces: &'a [PieceOf],
        [read_of_none, read_of_all]: [&UnitSet; 2],
        history: &'a mut FlipHistory,
        rng: &mut Rng,
    ) -> Self {
        let starts =
            (0..pieces.len()).filter(|n| *n == 0 || pieces[*n].change() != pieces[*n - 1].change());
        let ends = starts.clone().skip(1).chain([pieces.len()]);
        let mut guide = Self {
            pieces,
            units: pieces.iter().map(|piece| moment.units(piece)).collect(),
            changes: starts.zip(ends).map(|(start, end)| start..end).collect(),
            bases: VecDeque::new(),
            reads: HashSet::new(),
            history,
            rng: Rng::new(rng.next_u64()),
        };
        guide.begin(vec![false; pieces.len()], read_of_none, None);
        guide.begin(vec![true; pieces.len()], read_of_all, None);
        guide
    }

    fn is_read(&self, piece: usize, read: &UnitSet) -> bool {
        let units = self.units[piece].clone();
        units.is_none_or(|mut units| units.any(|unit| read.contains(unit)))
    }

    /// Adds a base, whose recovery has read `read`. `torn` is flipped first.
    fn begin(&mut self, is_there: Vec<bool>, read: &UnitSet, torn: Option<Range<usize>>) {
        self.reads.insert(read.clone());
        let is_read = |change: &Range<usize>| change.clone().any(|piece| self.is_read(piece, read));
        let mut flips: Vec<_> = self
            .changes
            .iter()
            .filter(|c| is_read(c))
            .cloned()
            .collect();
        let rng = &mut self.rng;
        flips.sort_by_cached_key(|change| {
            let rank = self.history.rank(self.pieces[change.start].change());
            (rank, change.len().ilog2(), rng.below(1 << 20))
        });
        self.bases.push_back(Base {
            flips: torn.into_iter().chain(flips).collect(),
            is_there,
        });
    }

    /// Returns one random piece of a change; `None` when the change has only one.
    fn one_of(&mut self, change: &Range<usize>) -> Option<Range<usize>> {
        let piece = change.start + self.rng.below(change.len() as u64) as usize;
        (change.len() > 1).then_some(piece..piece + 1)
    }

    /// Returns the next state; `None` when nothing is left to flip.
    pub fn choose(&mut self) -> Option<Step> {
        loop {
            let mut base = self.bases.pop_front()?;
            let Some(mut flipped) = base.flips.pop_front() else {
                continue;
            };
            let change = self.pieces[flipped.start].change();
            let times = self.history.flips.entry(change).or_default();
            *times += 1;
            if *times % 2 == 0
                && let Some(one) = self.one_of(&flipped)
            {
                flipped = one;
            }
            let mut is_there = base.is_there.clone();
            let now = !is_there[flipped.start];
            is_there[flipped.clone()].fill(now);
            self.bases.push_back(base);
            return Some(Step { is_there, flipped });
        }
    }

    /// Takes note of what the recovery of a state has read. `step` must be the newest that
    /// [`choose`](Self::choose) has returned.
    pub fn learn(&mut self, step: Step, read: &UnitSet) {
        if self.reads.contains(read) {
            return;
        }
        let change = self.pieces[step.flipped.start].change();
        self.history.decide.insert(change);
        let torn = self.one_of(&step.flipped);
        if let Some(base) = self.bases.back_mut() {
            torn.iter()
                .for_each(|one| base.flips.push_front(one.clone()));
        }
        self.begin(step.is_there, read, torn);
    }

    /// Returns the rule that keeps the pieces of a state.
    pub fn keep(&self, step: &Step) -> Keep {
        let those = |is_there: bool| -> BTreeSet<usize> {
            let both = self.pieces.iter().zip(&step.is_there);
            let those = both.filter(|(_, there)| **there == is_there);
            those.map(|(piece, _)| piece.number).collect()
        };
        let (there, missing) = (those(true), those(false));
        if there.len() <= missing.len() {
            Keep::Only(there)
        } else {
            Keep::Without(missing)
        }
    }
}

#[cfg(test)]
mod tests {
    use stetfs_media::{Cause, Class, Image, Tag};

    use super::*;
    use crate::media::Media;
    use crate::media::contents::Contents;
    use crate::media::kind::UNIT;

    const UNITS: Unit = 32;

    fn is_set(left: &Contents, unit: Unit) -> bool {
        left.unit(unit)[0] != 0
    }

    /// Reads units 0 and 1. Reads unit 2 if unit 0 is set, and unit 3 if unit 1 is.
    fn read_of(left: &Contents) -> UnitSet {
        let media = Media::new(left);
        let dev = media.shown_watched().expect("a device").home;
        let flags: [Unit; 2] = [0, 1];
        let told: [(Unit, Unit); 2] = [(0, 2), (1, 3)];
        let told = told.into_iter().filter(|(flag, _)| is_set(left, *flag));
        for unit in flags.into_iter().chain(told.map(|(_, unit)| unit)) {
            let (at, tag) = (u64::from(unit) * UNIT, Tag::read(Class::Data));
            dev.read_at(at, &mut [0; UNIT as usize], tag)
                .expect("a read");
        }
        media.watched().read
    }

    /// Deciding changes meet in every combination, each with the unit that is then read, there and
    /// missing. Changes that nobody reads are not flipped.
    #[test]
    fn what_decides_meets_in_every_combination() {
        let start = Contents::of_block_device(Image::new(u64::from(UNITS) * UNIT));
        let media = Media::new(&start);
        let dev = media.shown().expect("a device").home;
        for unit in (0..UNITS).rev() {
            let (at, tag) = (u64::from(unit) * UNIT, Tag::new(Class::Data, Cause::Home));
            dev.write_at(at, &[1; UNIT as usize], tag).expect("a write");
        }
        let tapes = media.tapes();
        let moment = tapes.moment(UNITS.into()).expect("the end");
        let pieces = moment.relevant();
        let ends = [Keep::None, Keep::All].map(|keep| read_of(&moment.contents(&keep)));
        let mut history = FlipHistory::default();
        let reads = [&ends[0], &ends[1]];
        let mut guide = Guide::new(&moment, &pieces, reads, &mut history, &mut Rng::new(1));
        let mut seen = BTreeSet::from([[false; 4], [true; 4]]);
        for _ in 0..24 {
            let Some(step) = guide.choose() else {
                break;
            };
            let left = moment.contents(&guide.keep(&step));
            let [a, b, c, d] = [0, 1, 2, 3].map(|unit| is_set(&left, unit));
            seen.insert([a, b, a && c, b && d]);
            let unread = (4..UNITS).filter(|unit| is_set(&left, *unit)).count();
            assert!([0, UNITS as usize - 4].contains(&unread), "{unread}");
            guide.learn(step, &read_of(&left));
        }
        assert_eq!(seen.len(), 9, "{seen:?}");
    }
}
