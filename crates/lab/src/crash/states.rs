//! Which of the states that a power cut can leave are looked at.
//!
//! At a moment n atoms are pending that make a difference: 2^n states. With up to [`Effort::exhaustive`] atoms every one is
//! taken. With more: none, all, up to [`Effort::prefixes`] prefixes in the order of the writes (a device that writes in order; those that end
//! with a change first, then those that tear one), all but one and one alone for up to [`Effort::singles`] atoms spread over
//! them, and [`Effort::random`] subsets by chance. How many states there would have been is counted beside those that
//! were taken.

use std::collections::BTreeSet;

use stetfs_media::sim::Keep;

use super::media::AtomOf;
use crate::rng::Rng;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Effort {
    /// Up to so many atoms, every subset.
    pub exhaustive: usize,
    /// Beyond that, so many prefixes.
    pub prefixes: usize,
    /// And so many atoms are the only one that is missing, and the only one that is there.
    pub singles: usize,
    /// And so many subsets by chance.
    pub random: usize,
    /// At most so many moments of a workload, evenly spread.
    pub moments: usize,
    /// Of the distinct recoveries of a workload, one in so many is cut in its turn, at each of its moments. 0: none.
    pub nest_every: usize,
    /// At most so many moments of a recovery, evenly spread.
    pub nest_moments: usize,
    /// Of the states that read the same as one that was cut again, one in so many is too. 0: none.
    pub nest_folded: usize,
    /// Of the distinct recoveries, one in so many is shown to e2fsck. 0: only failures.
    pub e2fsck_every: usize,
    /// Of the states that were folded into another one, one in so many is recovered all the same. 0: none.
    pub audit_every: usize,
    /// Where chance comes from.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            exhaustive: 6,
            prefixes: 48,
            singles: 12,
            random: 12,
            moments: usize::MAX,
            nest_every: 1,
            nest_moments: 64,
            nest_folded: 32,
            e2fsck_every: 256,
            audit_every: 4096,
            seed: 1,
        }
    }
}

impl Effort {
    /// For workloads with so many moments that all of everything would take too long.
    pub fn for_long(self) -> Self {
        Self {
            moments: self.moments.min(160),
            nest_every: self.nest_every * 8,
            nest_folded: 0,
            ..self
        }
    }

    /// Lengths of the prefixes that are taken, those that end with a change first.
    fn prefixes(&self, relevant: &[AtomOf]) -> impl Iterator<Item = usize> {
        let ends_a_change = |k: &usize| relevant[*k].change() != relevant[k - 1].change();
        let (whole, torn): (Vec<_>, Vec<_>) = (1..relevant.len()).partition(ends_a_change);
        let most = self.prefixes;
        let left = most.saturating_sub(whole.len());
        let spread = |those: Vec<usize>, most: usize| {
            let n = those.len().min(most);
            let nth = move |i: usize| those[i * those.len() / n];
            (0..n).map(nth).collect::<Vec<_>>()
        };
        spread(whole, most).into_iter().chain(spread(torn, left))
    }

    /// The choices at a moment with these atoms.
    pub fn choices(&self, relevant: &[AtomOf], rng: &mut Rng) -> Vec<Keep> {
        let n = relevant.len();
        let set = |those: &[AtomOf]| those.iter().map(|a| a.number).collect::<BTreeSet<_>>();
        let mut choices = vec![Keep::All];
        if n == 0 {
            return choices;
        }
        choices.push(Keep::None);
        if n <= self.exhaustive {
            // Not the empty set and not the whole one.
            for bits in 1..(1u64 << n) - 1 {
                let those = (0..n).filter(|i| bits >> i & 1 == 1);
                choices.push(Keep::Only(those.map(|i| relevant[i].number).collect()));
            }
            return choices;
        }
        // The atoms of one medium are numbered in their order; those of several are not.
        let in_order = relevant.is_sorted_by_key(|a| a.number);
        choices.extend(self.prefixes(relevant).map(|k| match in_order {
            true => Keep::First(relevant[k].number),
            false => Keep::Only(set(&relevant[..k])),
        }));
        let step = n.div_ceil(self.singles.max(1));
        let start = rng.below(step as u64) as usize;
        for atom in relevant.iter().skip(start).step_by(step).take(self.singles) {
            choices.push(Keep::Without(set(&[*atom])));
            choices.push(Keep::Only(set(&[*atom])));
        }
        choices.extend((0..self.random).map(|_| Keep::Random(rng.below(1 << 20))));
        choices
    }
}

/// How many states a moment with `n` atoms has; as many as a `u64` counts when there are more.
pub fn possible(n: usize) -> u64 {
    u32::try_from(n)
        .ok()
        .and_then(|n| 1u64.checked_shl(n))
        .unwrap_or(u64::MAX)
}
