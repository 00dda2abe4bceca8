//! States that are chosen one after the other, by what the recoveries of those before have read.
//!
//! A recovery depends on nothing but what it reads ([`fold`](super::fold)). So an atom that lies
//! where a recovery did not read makes no difference to it, and of those that it did read the most
//! telling are those that decide what else is read: a commit record, the end of a ring, a slot that
//! says where something lies. Which they are, nobody has to say: it shows.
//!
//! The choice begins with two *bases*, nothing and everything of what is pending. From a base it
//! *flips* one change, as a whole: that is there or missing besides. Only changes are flipped of
//! which the base's recovery has read something. When a recovery then reads something else than
//! all before it at this moment, the change *decides*: the new state is a base too, from which
//! further changes are flipped, and one atom of the change is flipped alone in both. The bases take
//! turns. So changes that decide meet in every combination, if there are few of them, whatever the
//! medium, and however many atoms are pending that nobody reads.
//!
//! A change is mostly pending at several moments. Of those that a base can flip, the one comes
//! first that was flipped least often at the moments before ([`Tried`]), where changes that decide
//! count [`DECIDES`] times less; then the smallest. Every second time it is one atom of the change.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use hashbrown::{HashMap, HashSet};
use stetfs_media::sim::Keep;

use super::moment::{AtomOf, Moment};
use super::watch::UnitSet;
use crate::media::kind::Unit;
use stetfs_testkit::rng::Rng;

/// So many times as often as others changes are flipped that decide.
const DECIDES: usize = 4;

/// A change by the medium and its position on the tape.
type Change = (usize, usize);

/// What was flipped at the moments of a run so far.
#[derive(Default)]
pub struct Tried {
    flips: HashMap<Change, usize>,
    decide: HashSet<Change>,
}

impl Tried {
    /// How long a change can wait: the less, the sooner it is flipped.
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
    atoms: &'a [AtomOf],
    /// Where each atom lies; none where that is not known.
    units: Vec<Option<Range<Unit>>>,
    /// The atoms of each change.
    changes: Vec<Range<usize>>,
    bases: VecDeque<Base>,
    /// What recoveries have read so far.
    reads: HashSet<UnitSet>,
    tried: &'a mut Tried,
    rng: Rng,
}

/// A state to go on from.
struct Base {
    is_there: Vec<bool>,
    /// Atoms that are flipped together.
    flips: VecDeque<Range<usize>>,
}

/// A state that was chosen, and what it was made of.
pub struct Step {
    is_there: Vec<bool>,
    flipped: Range<usize>,
}

impl<'a> Guide<'a> {
    /// To choose among the states of `moment` with these atoms, where the recoveries of nothing and
    /// of everything have read this.
    pub fn new(
        moment: &Moment<'_>,
        atoms: &'a [AtomOf],
        [read_of_none, read_of_all]: [&UnitSet; 2],
        tried: &'a mut Tried,
        rng: &mut Rng,
    ) -> Self {
        let starts =
            (0..atoms.len()).filter(|n| *n == 0 || atoms[*n].change() != atoms[*n - 1].change());
        let ends = starts.clone().skip(1).chain([atoms.len()]);
        let mut guide = Self {
            atoms,
            units: atoms.iter().map(|atom| moment.units(atom)).collect(),
            changes: starts.zip(ends).map(|(start, end)| start..end).collect(),
            bases: VecDeque::new(),
            reads: HashSet::new(),
            tried,
            rng: Rng::new(rng.next_u64()),
        };
        guide.begin(vec![false; atoms.len()], read_of_none, None);
        guide.begin(vec![true; atoms.len()], read_of_all, None);
        guide
    }

    fn is_read(&self, atom: usize, read: &UnitSet) -> bool {
        let units = self.units[atom].clone();
        units.is_none_or(|mut units| units.any(|unit| read.contains(unit)))
    }

    /// A new base, of which this was read.
    fn begin(&mut self, is_there: Vec<bool>, read: &UnitSet, torn: Option<Range<usize>>) {
        self.reads.insert(read.clone());
        let is_read = |change: &Range<usize>| change.clone().any(|atom| self.is_read(atom, read));
        let mut flips: Vec<_> = self
            .changes
            .iter()
            .filter(|c| is_read(c))
            .cloned()
            .collect();
        let rng = &mut self.rng;
        flips.sort_by_cached_key(|change| {
            let rank = self.tried.rank(self.atoms[change.start].change());
            (rank, change.len().ilog2(), rng.below(1 << 20))
        });
        self.bases.push_back(Base {
            flips: torn.into_iter().chain(flips).collect(),
            is_there,
        });
    }

    /// One atom of a change; none when it has no more.
    fn one_of(&mut self, change: &Range<usize>) -> Option<Range<usize>> {
        let atom = change.start + self.rng.below(change.len() as u64) as usize;
        (change.len() > 1).then_some(atom..atom + 1)
    }

    /// The next state; none when there is nothing left to flip.
    pub fn choose(&mut self) -> Option<Step> {
        loop {
            let mut base = self.bases.pop_front()?;
            let Some(mut flipped) = base.flips.pop_front() else {
                continue;
            };
            let change = self.atoms[flipped.start].change();
            let times = self.tried.flips.entry(change).or_default();
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

    /// Says what the recovery of a state has read that [`choose`](Self::choose) gave last.
    pub fn learn(&mut self, step: Step, read: &UnitSet) {
        if self.reads.contains(read) {
            return;
        }
        let change = self.atoms[step.flipped.start].change();
        self.tried.decide.insert(change);
        let torn = self.one_of(&step.flipped);
        if let Some(base) = self.bases.back_mut() {
            torn.iter()
                .for_each(|one| base.flips.push_front(one.clone()));
        }
        self.begin(step.is_there, read, torn);
    }

    /// The state as a choice.
    pub fn keep(&self, step: &Step) -> Keep {
        let those = |is_there: bool| -> BTreeSet<usize> {
            let both = self.atoms.iter().zip(&step.is_there);
            let those = both.filter(|(_, there)| **there == is_there);
            those.map(|(atom, _)| atom.number).collect()
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

    /// Reads units 0 and 1, and unit 2 if the first is set, and unit 3 if the second is.
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

    /// What decides meets in every combination, with what is read then there and missing; nothing
    /// is flipped that nobody reads.
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
        let atoms = moment.relevant();
        let ends = [Keep::None, Keep::All].map(|keep| read_of(&moment.contents(&keep)));
        let mut tried = Tried::default();
        let reads = [&ends[0], &ends[1]];
        let mut guide = Guide::new(&moment, &atoms, reads, &mut tried, &mut Rng::new(1));
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
