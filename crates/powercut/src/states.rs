//! Chooses which states of a moment are looked at: all when there are few, otherwise a fixed
//! choice.
//!
//! It is a choice among the effects that may or may not be there:
//!
//! - all effects, none, and prefixes of them;
//! - all but one, without the effects that need it; and only one, with those that it needs: for
//!   each of the newest effects and some of the older ones;
//! - all but one object's data, all but one object, only one object;
//! - some random sets.

use std::collections::BTreeSet;

use stetfs_testkit::rng::Rng;

use crate::effect::{Arrangement, Change, Number, Set};
use crate::tree::Object;

/// How much is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// A moment with at most this many states has all of them looked at.
    pub all: usize,
    /// How many of the newest effects are left out or kept alone.
    pub newest: usize,
    /// How many of the older effects are left out or kept alone.
    pub older: usize,
    /// At most this many prefixes.
    pub prefixes: usize,
    /// The number of random sets.
    pub random: usize,
    /// The seed of the random sets.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            all: 256,
            newest: 24,
            older: 16,
            prefixes: 16,
            random: 32,
            seed: 1,
        }
    }
}

/// A power cut: after how many calls it comes, and which effects have reached the disk by then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cut {
    /// The number of calls that had returned.
    pub calls: usize,
    /// The effects that are on the disk.
    pub there: Set,
}

impl Cut {
    /// Returns the effects of the calls that are not on the disk.
    pub fn lost(&self, arrangement: &Arrangement) -> Vec<Number> {
        let end = arrangement.ends[self.calls];
        (0..end).filter(|n| !self.there.has(*n)).collect()
    }
}

impl Cut {
    /// Returns the lost effects that are not lost only because they need another lost effect.
    pub(crate) fn lost_first(&self, arrangement: &Arrangement) -> Vec<Number> {
        let mut lost = self.lost(arrangement);
        let has_all = |n: &Number| {
            let mut needs = arrangement.effects[*n].needs.iter();
            needs.all(|need| self.there.has(*need))
        };
        lost.retain(has_all);
        lost
    }
}

/// The states of a moment that are looked at, those with the smallest losses first.
pub struct States {
    /// The states.
    pub cuts: Vec<Cut>,
    /// True if the moment has no other states.
    pub complete: bool,
}

/// Returns the states after this many calls.
pub fn states(arrangement: &Arrangement, calls: usize, effort: &Effort) -> States {
    let end = arrangement.ends[calls];
    let must = arrangement.must(calls);
    let may: Vec<Number> = (0..end).filter(|n| !must.has(*n)).collect();
    let (sets, complete) = match every(arrangement, &must, &may, effort.all) {
        Some(sets) => (sets, true),
        None => (chosen(arrangement, &must, &may, calls, effort), false),
    };
    let count = |set: &Set| may.iter().filter(|n| !set.has(**n)).count();
    let mut cuts: Vec<Cut> = sets.into_iter().map(|there| Cut { calls, there }).collect();
    cuts.sort_by_cached_key(|cut| count(&cut.there));
    States { cuts, complete }
}

/// Returns all states, unless there are too many.
fn every(
    arrangement: &Arrangement,
    must: &Set,
    may: &[Number],
    most: usize,
) -> Option<BTreeSet<Set>> {
    let mut sets = vec![must.clone()];
    for n in may {
        let needs = &arrangement.effects[*n].needs;
        let with: Vec<Set> = sets
            .iter()
            .filter(|set| needs.iter().all(|need| set.has(*need)))
            .map(|set| {
                let mut set = set.clone();
                set.insert(*n);
                set
            })
            .collect();
        sets.extend(with);
        if sets.len() > most {
            return None;
        }
    }
    Some(sets.into_iter().collect())
}

fn chosen(
    arrangement: &Arrangement,
    must: &Set,
    may: &[Number],
    calls: usize,
    effort: &Effort,
) -> BTreeSet<Set> {
    let end = arrangement.ends[calls];
    let mut sets = BTreeSet::new();
    let all = Set::first(end);
    let mut without = |those: &dyn Fn(Number) -> bool| {
        let mut set = all.clone();
        let lost = may.iter().filter(|n| those(**n));
        lost.for_each(|n| set.remove(*n));
        arrangement.close(&mut set, end);
        // Durable effects are there, and need no lost effect.
        sets.insert(set);
    };
    without(&|_| false);
    without(&|_| true);
    let step = may.len().div_ceil(effort.prefixes.max(1)).max(1);
    for at in may.iter().step_by(step) {
        without(&|n| n >= *at);
    }
    let newest = may.iter().rev().take(effort.newest);
    let rest = may.len().saturating_sub(effort.newest);
    let older = may[..rest].iter();
    let older = older.step_by(rest.div_ceil(effort.older.max(1)).max(1));
    let picked: Vec<Number> = newest.chain(older).copied().collect();
    for n in &picked {
        without(&|other| other == *n);
    }
    let of = |n: Number| arrangement.effects[n].change.objects();
    let objects: BTreeSet<Object> = picked.iter().flat_map(|n| of(*n)).collect();
    for object in &objects {
        let is_data = |n: Number| !matches!(arrangement.effects[n].change, Change::Names(_));
        without(&|n| of(n).contains(object));
        without(&|n| is_data(n) && of(n).contains(object));
        without(&|n| !of(n).contains(object));
    }
    for n in &picked {
        let mut set = must.clone();
        arrangement.add(&mut set, *n);
        sets.insert(set);
    }
    let mut rng = Rng::new(effort.seed ^ (calls as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..effort.random {
        let share = *rng.pick(&[1, 4, 7]);
        let mut set = must.clone();
        for n in may {
            let needs = &arrangement.effects[*n].needs;
            if rng.below(8) < share && needs.iter().all(|need| set.has(*need)) {
                set.insert(*n);
            }
        }
        sets.insert(set);
    }
    sets
}
