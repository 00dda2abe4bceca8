//! Chooses which of the states that a power cut can leave are looked at.
//!
//! If there are too many moments, those just before a flush or fence are taken first: every state
//! that was possible since the one before is still possible then. All moments at which a sync
//! returned are taken besides.
//!
//! If n pending pieces make a difference at a moment, it has 2^n states. With up to
//! [`Effort::exhaustive`] pieces, every state is taken. With more, a selection is:
//!
//! - none and all;
//! - up to [`Effort::prefixes`] prefixes in the order of the writes, as a device leaves that writes
//!   in order; first those that end with a whole change, then those that tear one;
//! - [`Effort::random`] random subsets;
//! - up to [`Effort::guided`] states that the [`guide`](super::guide) chooses by what other
//!   recoveries have read: whole changes that are missing alone or there alone, deciding changes in
//!   every combination, and then torn ones.
//!
//! The number of states that were not taken is counted.
//!
//! A workload is looked at in several [turns](Effort::turn), so that an exploration that runs out
//! of budget has seen something of each workload: first the moments at which syncs returned, then
//! one part of its moments after the other.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use stetfs_media::sim::Keep;

use super::moment::PieceOf;
use super::target::Target;
use super::turns::Order;
use super::workload::Workload;
use crate::media::kind::Kind;
use stetfs_testkit::rng::Rng;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// With at most this many pieces, every subset is taken.
    pub exhaustive: usize,
    /// With more pieces: at most this many prefixes.
    pub prefixes: usize,
    /// With more pieces: this many random subsets.
    pub random: usize,
    /// With more pieces: at most this many states that the guide chooses.
    pub guided: usize,
    /// At most this many moments of a workload.
    pub moments: usize,
    /// One in this many distinct recoveries of a workload is cut again, at each of its moments. 0:
    /// none.
    pub nest_every: usize,
    /// At most this many moments of a recovery.
    pub nest_moments: usize,
    /// One in this many states that were folded is cut again by itself. 0: none.
    pub nest_folded: usize,
    /// e2fsck checks one in this many recovered volumes. 0: only those that our checker finds
    /// damaged.
    pub e2fsck_every: usize,
    /// One in this many folded states is recovered all the same. 0: none.
    pub audit_every: usize,
    /// The run goes on from this many states of a workload, to be cut again (chains).
    pub chains: usize,
    /// A workload whose operations overlap is run in this many more orders, and cut only where a
    /// sync has returned. Most faults between threads show there, if the order brings them about.
    pub orders: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

/// A part of the moments that were chosen for a workload: of each [`Part::OF`] moments in a row,
/// those from `first` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    first: usize,
    end: usize,
    /// True if other parts look at what this part leaves out, so that it is not counted here.
    is_extra: bool,
}

impl Part {
    const OF: usize = 8;

    /// All moments.
    pub const WHOLE: Self = Self::of(0, Self::OF);

    /// All moments, in a turn that comes before the parts and does not count what it leaves out.
    const BEFORE: Self = Self {
        is_extra: true,
        ..Self::WHOLE
    };

    /// The parts of the turns. They grow, since each turn repeats recoveries of the one before.
    const TURNS: [Self; 3] = [Self::of(0, 1), Self::of(1, 3), Self::of(3, Self::OF)];

    const fn of(first: usize, end: usize) -> Self {
        let is_extra = false;
        Self {
            first,
            end,
            is_extra,
        }
    }

    /// True if what it leaves out counts as left out.
    pub fn counts(self) -> bool {
        !self.is_extra
    }

    /// True if it has the `nth` of the chosen moments.
    pub fn has(self, nth: usize) -> bool {
        (self.first..self.end).contains(&(nth % Self::OF))
    }
}

/// What is looked at of a workload at one time.
#[derive(Clone, Debug)]
pub struct Look {
    /// The workload, in the order in which it is carried out.
    pub workload: Workload,
    /// How many states of a moment are looked at.
    pub effort: Effort,
    /// Which of its moments are looked at.
    pub part: Part,
}

impl Look {
    fn at(workload: Workload, effort: Effort, part: Part) -> Self {
        Self {
            workload,
            effort,
            part,
        }
    }
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            exhaustive: 6,
            prefixes: 24,
            random: 4,
            guided: 54,
            moments: usize::MAX,
            nest_every: 1,
            nest_moments: 64,
            nest_folded: 32,
            e2fsck_every: 256,
            audit_every: 4096,
            chains: 2,
            orders: 128,
            seed: 1,
        }
    }
}

impl Effort {
    /// Returns an effort that does not take too long for this workload and target. All recoveries
    /// of a workload of one operation are cut again; those of longer workloads are much alike, so
    /// fewer are. In memory a commit is dozens of changes of hundreds of words, and on flash of
    /// hundreds of pages. Nearly all of their states differ in what recovery reads, so less is
    /// looked at there.
    pub fn fitted(self, workload: &Workload, target: &Target) -> Self {
        let mut fitted = self;
        if workload.is_long() {
            fitted.moments = fitted.moments.min(160);
        } else {
            fitted.orders = fitted.orders.min(2);
        }
        if workload.operations() > 1 {
            fitted.nest_every *= 4;
            fitted.nest_folded = 0;
        }
        if target.home != Kind::Block || target.has_nvm {
            let (moments, nest_every) = match (workload.is_long(), workload.operations()) {
                (true, _) => (160, 64),
                (false, ..=1) => (24, 64),
                (false, _) => (16, 256),
            };
            // A state on flash costs two mounts of the layer.
            let is_costly = target.home.is_flash() && workload.operations() > 1;
            let moments = if is_costly && !workload.is_long() {
                6
            } else {
                moments
            };
            fitted.moments = fitted.moments.min(moments);
            fitted.prefixes = fitted.prefixes.min(8);
            fitted.random = fitted.random.min(2);
            fitted.guided = fitted.guided.min(20);
            fitted.nest_every = self.nest_every * nest_every;
            fitted.nest_moments = fitted.nest_moments.min(12);
            fitted.nest_folded = 0;
        }
        fitted
    }

    /// Returns each order in which a workload is carried out, its own first, with what is looked at
    /// in it.
    pub fn looks(self, workload: &Workload, target: &Target) -> Vec<Look> {
        let fitted = self.fitted(workload, target);
        let own = Look::at(workload.clone(), fitted, Part::WHOLE);
        let others = fitted.others(workload, 0..fitted.orders);
        std::iter::once(own).chain(others).collect()
    }

    /// Returns the number of turns in which a workload is looked at.
    pub fn turns(workload: &Workload) -> usize {
        1 + Self::parts(workload).len()
    }

    /// Returns what is looked at of a workload in its `nth` turn. The first turn looks at its own
    /// order, only where a sync has returned. Each further turn looks at a part of its moments and
    /// at some of the further orders. All turns together are [`looks`](Self::looks).
    ///
    /// # Panics
    /// There is no such turn.
    pub fn turn(self, workload: &Workload, target: &Target, nth: usize) -> Vec<Look> {
        /// Further orders that were looked at when each turn of a long workload but the last has
        /// ended.
        const ORDERS: [u64; 2] = [4, 32];
        let fitted = self.fitted(workload, target);
        let parts = Self::parts(workload);
        let Some(depth) = nth.checked_sub(1) else {
            return vec![Look::at(workload.clone(), fitted.brief(), Part::BEFORE)];
        };
        let is_last = depth + 1 == parts.len();
        let end = |turn: usize| {
            if turn + 1 == parts.len() {
                fitted.orders
            } else {
                ORDERS[turn].min(fitted.orders)
            }
        };
        let begin = depth.checked_sub(1).map_or(0, end);
        let effort = Self {
            chains: if is_last { fitted.chains } else { 0 },
            ..fitted
        };
        let own = Look::at(workload.clone(), effort, parts[depth]);
        let others = fitted.others(workload, begin..end(depth));
        others.chain([own]).collect()
    }

    /// Returns the parts of a workload's moments, one for each turn. Neighbouring moments of a
    /// short workload have many states in common, so they are looked at together.
    fn parts(workload: &Workload) -> &'static [Part] {
        if workload.is_long() {
            &Part::TURNS
        } else {
            &[Part::WHOLE]
        }
    }

    /// Returns some of the further orders, with a brief effort.
    fn others(self, workload: &Workload, some: Range<u64>) -> impl Iterator<Item = Look> {
        let seed = match workload.order {
            Order::Overlap(seed) => Some(seed),
            Order::InOrder | Order::EachHandle => None,
        };
        seed.into_iter().flat_map(move |seed| {
            let orders = some.clone().map(move |n| seed + 1000 * (n + 1));
            orders.map(move |seed| {
                let workload = workload.clone().in_order(Order::Overlap(seed));
                Look::at(workload, self.brief(), Part::WHOLE)
            })
        })
    }

    /// Returns an effort for the moments at which a sync returned: none and all of the pending
    /// pieces.
    fn brief(self) -> Self {
        Self {
            exhaustive: 0,
            prefixes: 0,
            random: 0,
            guided: 0,
            moments: 0,
            nest_every: 0,
            nest_folded: 0,
            e2fsck_every: 0,
            audit_every: 0,
            chains: 0,
            orders: 0,
            ..self
        }
    }

    /// Returns at most `most` moments of `all`: first those in `pre_flush`, then others, both
    /// evenly spread.
    pub fn spread(
        all: Range<u64>,
        pre_flush: &BTreeSet<u64>,
        most: usize,
        rng: &mut Rng,
    ) -> Vec<u64> {
        if (all.end - all.start) as usize <= most {
            return all.collect();
        }
        let (first, rest): (Vec<_>, Vec<_>) = all.partition(|at| pre_flush.contains(at));
        let mut taken = some_of(&first, most, rng);
        taken.extend(some_of(&rest, most - taken.len(), rng));
        taken.sort_unstable();
        taken
    }

    /// Returns the lengths of the prefixes that are taken: first those that end with a change.
    fn prefixes(&self, relevant: &[PieceOf]) -> impl Iterator<Item = usize> {
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

    /// Returns how many states of a moment with these pieces the guide may choose.
    pub fn guided(&self, relevant: &[PieceOf]) -> usize {
        let is_all_taken =
            relevant.len() <= self.exhaustive || relevant.iter().all(PieceOf::is_alternative);
        if is_all_taken { 0 } else { self.guided }
    }

    /// Returns the other choices at a moment with these pieces: all first, then none if that
    /// differs.
    pub fn choices(&self, relevant: &[PieceOf], rng: &mut Rng) -> Vec<Keep> {
        let n = relevant.len();
        let set = |those: &[PieceOf]| {
            those
                .iter()
                .map(|piece| piece.number)
                .collect::<BTreeSet<_>>()
        };
        let mut choices = vec![Keep::All];
        if n == 0 {
            return choices;
        }
        choices.push(Keep::None);
        if relevant.iter().all(PieceOf::is_alternative) {
            // Keeping the last alternative is the state `Keep::All`.
            let single = |piece: &PieceOf| Keep::Only([piece.number].into());
            choices.extend(relevant[..n - 1].iter().map(single));
            return choices;
        }
        if n <= self.exhaustive {
            // All subsets but the empty and the whole one.
            for bits in 1..(1u64 << n) - 1 {
                let those = (0..n).filter(|i| bits >> i & 1 == 1);
                choices.push(Keep::Only(those.map(|i| relevant[i].number).collect()));
            }
            return choices;
        }
        // Pieces of one medium are numbered in the order of the writes; pieces of several media are
        // not.
        let in_order = relevant.is_sorted_by_key(|piece| piece.number);
        choices.extend(self.prefixes(relevant).map(|k| {
            if in_order {
                Keep::First(relevant[k].number)
            } else {
                Keep::Only(set(&relevant[..k]))
            }
        }));
        choices.extend((0..self.random).map(|_| Keep::Random(rng.below(1 << 20))));
        choices
    }
}

/// Returns at most `most` of `those`, evenly spread from a random start.
fn some_of(those: &[u64], most: usize, rng: &mut Rng) -> Vec<u64> {
    if most == 0 {
        return Vec::new();
    }
    let step = those.len().div_ceil(most).max(1);
    let start = rng.below(step as u64) as usize;
    those.iter().copied().skip(start).step_by(step).collect()
}

/// Returns the number of states of a moment with these pieces; it saturates.
pub fn possible(relevant: &[PieceOf]) -> u64 {
    if relevant.iter().all(PieceOf::is_alternative) {
        return relevant.len() as u64 + 1;
    }
    u32::try_from(relevant.len())
        .ok()
        .and_then(|n| 1u64.checked_shl(n))
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::script::Script;
    use stetfs_testkit::image::EXT4_1K;

    /// The looks of all turns are those of `looks`, each once. In the first turn every workload is
    /// looked at where syncs have returned.
    #[test]
    fn turns_are_all_of_it() {
        let target = Target::new("jbd2", Some("journal"), EXT4_1K).expect("a target");
        let long = Script::LogAndReplace.workload(EXT4_1K.profile());
        let short = Workload::parse("short", "create f; sync").expect("a workload");
        let overlap = Order::Overlap(7);
        let effort = Effort::default();
        for workload in [
            long.clone(),
            long.in_order(overlap),
            short.in_order(overlap),
        ] {
            let turns = 0..Effort::turns(&workload);
            let mut turns = turns.map(|nth| effort.turn(&workload, &target, nth));
            let first = turns.next().expect("a first turn");
            assert_eq!((first.len(), first[0].effort.moments), (1, 0));
            assert_eq!(first[0].workload, workload);
            let looks: Vec<_> = turns.flatten().collect();
            let (own, others): (Vec<_>, Vec<_>) = looks
                .iter()
                .partition(|look| look.workload.order == workload.order);
            for nth in 0..50 {
                assert_eq!(own.iter().filter(|look| look.part.has(nth)).count(), 1);
            }
            let chains: usize = own.iter().map(|look| look.effort.chains).sum();
            assert_eq!(chains, effort.chains);
            let of = |looks: &[&Look]| -> Vec<Order> {
                looks.iter().map(|look| look.workload.order).collect()
            };
            let at_once = effort.looks(&workload, &target);
            let at_once: Vec<_> = at_once.iter().skip(1).collect();
            assert_eq!(of(&others), of(&at_once));
        }
    }
}
