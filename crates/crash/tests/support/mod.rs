//! Short explorations, and what their reports must show.
#![allow(dead_code)]

use std::num::NonZero;

use stetfs_crash::campaign::Campaign;
use stetfs_crash::record::Front;
use stetfs_crash::report::{Counts, Report};
use stetfs_crash::states::Effort;
use stetfs_crash::target::Target;
use stetfs_crash::turns::Order;
use stetfs_crash::workload::Workload;
use stetfs_crash::workloads::script::Script;
use stetfs_testkit::image::Variety;

/// Moments of a workload to cut at.
pub(crate) fn cuts() -> usize {
    let cuts = std::env::var("STETFS_LAB_CUTS").ok();
    match cuts.and_then(|n| n.parse().ok()) {
        None => 4,
        Some(0) => usize::MAX,
        Some(n) => n,
    }
}

/// e2fsck judges one recovery of this many.
pub(crate) const E2FSCK_EVERY: usize = 64;

/// The usual effort of these tests.
pub(crate) fn effort() -> Effort {
    Effort {
        moments: cuts(),
        nest_every: 6,
        nest_folded: 0,
        e2fsck_every: E2FSCK_EVERY,
        audit_every: 256,
        orders: 4,
        ..Effort::default()
    }
}

/// Explores workloads. Stops at the first violation.
pub(crate) fn explored(
    target: &Target,
    workloads: Vec<Workload>,
    effort: Effort,
    front: Option<Front<'_>>,
) -> Report {
    let fresh = target.contents().expect("a volume");
    let campaign = Campaign {
        effort,
        jobs: std::thread::available_parallelism().map_or(1, NonZero::get),
        enough: 1,
        minimized: 1,
        front,
        ..Campaign::new(target.clone(), fresh, workloads)
    };
    campaign
        .run(&|_| {})
        .unwrap_or_else(|error| panic!("{target}: {error:#}"))
}

/// Explores workloads. Every state must be right.
pub(crate) fn assert_survives(target: &Target, workloads: Vec<Workload>) -> Counts {
    assert_right(target, explored(target, workloads, effort(), None))
}

/// Every state of a report must be right.
pub(crate) fn assert_right(target: &Target, report: Report) -> Counts {
    let shown: Vec<_> = report
        .violations
        .iter()
        .map(|v| format!("{}: {}\nstetfs crash --replay '{}'", v.fault, v.why, v.case))
        .collect();
    assert!(shown.is_empty(), "{}", shown.join("\n\n"));
    let counts = report.counts;
    let is_shown = counts.e2fsck > 0 || counts.recoveries < 8 * E2FSCK_EVERY as u64;
    assert!(counts.states > 0 && is_shown, "{counts:?}");
    println!(
        "{target}: {} workloads, {} states and {} after a second cut, {} recoveries",
        counts.workloads, counts.states, counts.nested, counts.recoveries
    );
    counts
}

/// The scripts as workloads, with their orders by turns.
pub(crate) fn scripts(volume: Variety, scripts: &[Script]) -> Vec<Workload> {
    let orders = [Order::InOrder, Order::Overlap(1), Order::EachHandle];
    let orders = orders.into_iter().cycle();
    let workload =
        |(script, order): (&Script, _)| script.workload(volume.profile()).in_order(order);
    scripts.iter().zip(orders).map(workload).collect()
}
