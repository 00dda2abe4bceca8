//! Orders the workloads so that a budget that ends early has seen some of each kind.
//!
//! The kinds take turns: the next workload is of the kind that has had the fewest operations so
//! far. A script counts as much as a few dozen short sequences, so neither starves the other.
//! Within a kind, the sequence is random, since neighbouring workloads of an enumeration are alike.
//! Each workload first runs in one order, and these orders alternate from workload to workload.
//! When all workloads of the kind have run, each runs in its next order.

use std::collections::VecDeque;

use crate::turns::Order;
use crate::workload::Workload;
use stetfs_testkit::rng::Rng;

/// A kind of workloads.
struct Line {
    /// Operations of those that had their turn.
    served: usize,
    waiting: VecDeque<Workload>,
}

/// The workloads of all kinds, each in each of the orders, mixed: the same for the same seed.
pub(super) fn mixed(kinds: Vec<Vec<Workload>>, orders: &[Order], seed: u64) -> Vec<Workload> {
    let mut rng = Rng::new(seed);
    let line = |kind| Line {
        served: 0,
        waiting: in_orders(shuffled(kind, &mut rng), orders).into(),
    };
    let mut lines: Vec<Line> = kinds.into_iter().map(line).collect();
    let mut mixed = Vec::new();
    loop {
        let waits = lines.iter_mut().filter(|line| !line.waiting.is_empty());
        let Some(line) = waits.min_by_key(|line| line.served) else {
            return mixed;
        };
        mixed.extend(line.waiting.pop_front().inspect(|workload| {
            line.served += workload.ops.len();
        }));
    }
}

fn shuffled(mut workloads: Vec<Workload>, rng: &mut Rng) -> Vec<Workload> {
    for n in (1..workloads.len()).rev() {
        workloads.swap(n, rng.below(n as u64 + 1) as usize);
    }
    workloads
}

/// Each workload in each order: all in one, which changes from each to the next, then all in
/// another.
fn in_orders(workloads: Vec<Workload>, orders: &[Order]) -> Vec<Workload> {
    let each = workloads.into_iter().enumerate();
    let each: Vec<Vec<_>> = each
        .map(|(n, workload)| {
            let mut in_each = workload.in_each(orders);
            let first = n % in_each.len().max(1);
            in_each.rotate_left(first);
            in_each
        })
        .collect();
    let nth = |n: usize| {
        each.iter()
            .filter_map(move |in_each| in_each.get(n).cloned())
    };
    (0..orders.len().max(1)).flat_map(nth).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sequences::{Sample, sequences};
    use super::super::{Choice, script::Script};
    use super::*;
    use crate::target::Target;
    use stetfs_testkit::image::EXT4_1K;

    const ORDERS: [Order; 3] = [Order::InOrder, Order::EachHandle, Order::Overlap(1)];
    const SAMPLE: Sample = Sample {
        pairs: 0,
        triples: 50,
        seed: 7,
    };

    fn target() -> Target {
        Target::new("jbd2", Some("journal"), EXT4_1K).expect("a target")
    }

    fn choice() -> Choice {
        Choice {
            groups: false,
            lengths: vec![1, 3],
            ace: Vec::new(),
            sample: SAMPLE,
            random: 4,
            scripts: true,
            orders: ORDERS.to_vec(),
        }
    }

    /// What the name says before its number.
    fn kind(workload: &Workload) -> &str {
        let of = ["1-op", "3-op", "random"].into_iter();
        of.into_iter()
            .find(|kind| workload.name.starts_with(kind))
            .unwrap_or("script")
    }

    #[test]
    fn any_beginning_has_some_of_each_kind_and_order() {
        let workloads = choice().workloads(&target()).workloads;
        for (most, least) in [(5, 1), (900, 3)] {
            for wanted in ["1-op", "3-op", "random", "script"] {
                let of_kind: Vec<_> = workloads[..most]
                    .iter()
                    .filter(|workload| kind(workload) == wanted)
                    .collect();
                let orders: BTreeSet<_> = of_kind.iter().map(|w| w.order.to_string()).collect();
                assert!(orders.len() >= least, "{wanted}: {orders:?} of {most}");
            }
        }
        // Sequences of one operation: no two neighbours in the enumeration after each other.
        let numbers: Vec<u64> = workloads
            .iter()
            .filter_map(|workload| workload.name.strip_prefix("1-op:")?.parse().ok())
            .take(20)
            .collect();
        assert!(!numbers.is_sorted(), "{numbers:?}");
        let distinct: BTreeSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), 20, "all once before any twice");
    }

    #[test]
    fn nothing_is_lost_and_the_order_is_the_same_each_time() {
        let target = target();
        let workloads = choice().workloads(&target).workloads;
        assert_eq!(workloads, choice().workloads(&target).workloads);
        let of = |length| sequences(length, EXT4_1K.rules(), SAMPLE).workloads.len();
        let long = Script::WRITTEN.len() + 4;
        let keys: BTreeSet<_> = workloads.iter().map(Workload::key).collect();
        assert_eq!(keys.len(), workloads.len());
        assert_eq!(keys.len(), (2 * of(1) + of(3) + long) * ORDERS.len());
        // One that says its order itself is there in that alone.
        let own = Workload::parse("own", "order overlap9; sync").expect("a workload");
        let other = Workload::parse("other", "sync").expect("a workload");
        let mixed = mixed(vec![vec![own, other]], &ORDERS, 1);
        let titles: BTreeSet<_> = mixed.iter().map(Workload::title).collect();
        let wanted = [
            "other",
            "other each-handle",
            "other overlap1",
            "own overlap9",
        ];
        assert_eq!(titles, wanted.map(str::to_owned).into());
    }
}
