//! The lists within ACE's bounds have ACE's counts, their workloads run, and shards divide them.

use std::collections::BTreeSet;

use stetfs_crash::exploration::Plan;
use stetfs_crash::sharing::Shard;
use stetfs_crash::states::Effort;
use stetfs_crash::turns::Order;
use stetfs_crash::workload::Workload;
use stetfs_crash::workloads::Choice;
use stetfs_crash::workloads::ace::{Bounds, LeftOut};
use stetfs_crash::workloads::sequences::Sample;
use stetfs_testkit::image::{EXT3_1K, EXT4_1K};
use stetfs_testkit::world::World;
use stetfs_testkit::world::model::{Model, Rules};
use stetfs_testkit::world::op::Op;

/// The lists that are quick to make: workloads, impossible workloads, workloads with the text of
/// another.
const COUNTS: [(Bounds, u64, u64, u64); 3] = [
    (Bounds::One, 266, 2, 32),
    (Bounds::Two, 178_336, 0, 45_048),
    (Bounds::ThreeData, 76_406, 0, 21_400),
];

fn count(bounds: Bounds, rules: Rules) -> (u64, LeftOut) {
    let mut count = 0;
    let left_out = bounds.each(rules, |_| count += 1);
    (count, left_out)
}

#[test]
fn the_bounds_are_those_of_the_paper() {
    for (bounds, count, published) in [
        (Bounds::One, 300, "300"),
        (Bounds::Two, 254_032, "254K"),
        (Bounds::ThreeData, 120_114, "120K"),
        (Bounds::ThreeMetadata, 1_520_892, "1.5M"),
        // 318,288 of them move a directory into itself; 1.5M are left.
        (Bounds::ThreeNested, 1_835_640, "1.5M"),
    ] {
        let counted = (bounds.counted_as_published(), bounds.published().1);
        assert_eq!(counted, (count, published), "{bounds}");
    }
}

#[test]
fn the_counts_are_stated() {
    for (bounds, count, impossible, again) in COUNTS {
        let left_out = LeftOut { impossible, again };
        let counted = self::count(bounds, EXT4_1K.rules());
        assert_eq!(counted, (count, left_out), "{bounds}");
    }
    // Without extents, only one of five modes of fallocate works: punch. Impossible are the other
    // four, on two files, at three places, with four persistence points.
    let (count, left_out) = self::count(Bounds::One, EXT3_1K.rules());
    let fallocates = 4 * 2 * 3 * 4;
    assert_eq!(
        (count, left_out.impossible),
        (266 - fallocates, 2 + fallocates)
    );
}

#[test]
fn every_workload_applies_and_ends_with_a_persistence_point() {
    let mut start = Model::new(EXT4_1K.rules());
    start.set_time((1, 0));
    for (bounds, one_in) in [(Bounds::One, 1), (Bounds::Two, 11), (Bounds::ThreeData, 11)] {
        let mut number = 0;
        let check = |workload: Workload| {
            let mut model = start.clone();
            for op in &workload.ops {
                let applied = model.apply(op);
                assert!(applied.is_ok(), "{workload}: {op}: {applied:?}");
            }
            let mut ops = workload.ops.iter().rev();
            let last = ops.find(|op| !matches!(op, Op::Close { .. }));
            let persists = matches!(
                last,
                Some(Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. } | Op::FsyncDir { .. })
            );
            assert!(persists, "{workload}");
        };
        bounds.each(EXT4_1K.rules(), |workload| {
            number += 1;
            if number % one_in == 0 {
                check(workload);
            }
        });
    }
}

/// The plan of one shard of ACE's sequences of one, in two orders.
fn plan(shard: &str) -> Plan {
    let choice = Choice {
        groups: false,
        lengths: Vec::new(),
        ace: vec![Bounds::One],
        sample: Sample {
            pairs: 0,
            triples: 0,
            seed: 1,
        },
        random: 0,
        scripts: false,
        orders: vec![Order::InOrder, Order::EachHandle],
    };
    let target = "jbd2 journal ext4-1k".parse().expect("a target");
    let shard: Shard = shard.parse().expect("a shard");
    Plan::new(target, Effort::default(), choice, Vec::new(), shard)
}

#[test]
fn shards_divide_the_list() {
    let whole = plan("1/1").workloads;
    assert_eq!(whole.len(), 2 * 266);
    assert_eq!(whole, plan("1/1").workloads);
    assert_eq!(whole[0].name, "ace1:1");
    assert_eq!(whole[0].to_string(), "create foo 644 excl; sync");
    let titles =
        |workloads: &[Workload]| -> Vec<_> { workloads.iter().map(Workload::title).collect() };
    let mut shared = Vec::new();
    for number in 1..=7 {
        let shard = plan(&format!("{number}/7")).workloads;
        assert!(!shard.is_empty() && shard.len() < whole.len());
        shared.extend(titles(&shard));
    }
    assert_eq!(shared.len(), whole.len());
    let all: BTreeSet<_> = shared.into_iter().collect();
    assert_eq!(all, titles(&whole).into_iter().collect());
}
