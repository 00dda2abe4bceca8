//! Background work beside calls, and the cost of a fence and of a jump: by sums that can be done by
//! hand.

use std::fs;

use stetfs_lab::cell::{Cell, Machine, system};
use stetfs_lab::system::Outcome;
use stetfs_lab::text::set;

/// Runs seed 1 of a system on a machine with a workload.
fn run(name: &str, machine: &str, workload: &str) -> Outcome {
    let machine = set(&Machine::default(), machine).expect(machine);
    let cell = Cell {
        system: system(name, &machine).expect(name),
        machine,
        workload: workload.to_owned(),
        seed: 1,
    };
    cell.run(&|_, _| {}).expect(name)
}

fn of(outcome: &Outcome, name: &str) -> f64 {
    outcome.get(name).expect(name)
}

/// Compares sums of seconds that are no whole nanoseconds.
fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

const CARD: &str = "medium=card volume=128M journal=4M memory=64M";

/// Makes durable overwrites with a pause behind each.
fn synced(pause: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("calls");
    let list = format!(
        "create f\nwrite f 0 8M\nrun\nrepeat 500\n write f random 4K\n fsync f\n{pause}end\n"
    );
    fs::write(&path, list).expect("a list");
    let workload = format!("calls file={}", path.display());
    (dir, workload)
}

/// Pauses are longer than checkpoints, so the calls take as long as on a volume whose journal is
/// never full, but for a jump or two per checkpoint.
#[test]
fn a_checkpoint_takes_the_pauses() {
    let (_dir, workload) = synced(" wait 100ms\n");
    let jbd2 = |more: &str| run("jbd2:data=journal", &format!("{CARD} {more}"), &workload);
    let (waits, beside) = (jbd2(""), jbd2("background=true"));
    let never = jbd2("journal=32M");
    assert_eq!(of(&never, "checkpoints"), 0.0);
    let count = of(&waits, "checkpoints");
    assert!(count > 3.0 && count == of(&beside, "checkpoints"));
    let [waits_s, beside_s, never_s] = [&waits, &beside, &never].map(|o| of(o, "returned"));
    assert!(
        beside_s - never_s < 0.0125 * count && waits_s - never_s > 0.2 * count,
        "{count} checkpoints: {waits_s} s, {beside_s} s with a background, {never_s} s without any"
    );
    assert!(of(&beside, "p99.9") < of(&waits, "p99.9") / 10.0);
}

/// A device that is never idle has no time to give.
#[test]
fn without_pauses_nothing_is_gained() {
    let (_dir, workload) = synced("");
    for name in ["jbd2:data=journal", "stet"] {
        let [waits, beside] =
            ["false", "true"].map(|is| run(name, &format!("{CARD} background={is}"), &workload));
        for number in ["home", "device.home", "commits", "checkpoints"] {
            let (waits, beside) = (of(&waits, number), of(&beside, number));
            assert!(
                is_same(waits, beside),
                "{name}, {number}: {waits}, {beside}"
            );
        }
        // Nobody waits for the last checkpoint.
        assert!(of(&beside, "returned") <= of(&waits, "returned"));
    }
    // Commits that met an earlier checkpoint waited for it.
    let beside = run(
        "jbd2:data=journal",
        &format!("{CARD} background=true"),
        &workload,
    );
    assert!(of(&beside, "p99.9") > 10.0 * of(&beside, "commit.p50"));
    assert!(of(&beside, "commit.p99") > of(&beside, "commit.p50"));
}

/// A commit by age writes beside the calls, so no call takes longer for it. The data is durable at
/// the end no sooner than otherwise.
#[test]
fn a_commit_by_age_holds_nobody_up() {
    let workload = "fio file=8M ops=700 fsync=0";
    let machine = |more: &str| format!("{CARD} journal=16M processor=phone-2013 commit=5ms {more}");
    let plain = run("jbd2:data=journal", &machine("commit=never"), workload);
    let beside = run("jbd2:data=journal", &machine("background=true"), workload);
    let commits = [&beside, &plain].map(|outcome| of(outcome, "commits"));
    assert!(commits[0] > commits[1], "{commits:?}");
    assert!(is_same(of(&plain, "returned"), of(&beside, "returned")));
    assert!(of(&beside, "durable") > of(&beside, "returned"));
}

/// Small files that are deleted before their data is due are never written.
#[test]
fn data_is_delayed_as_long_as_it_is_said() {
    let workload = "postmark files=50 transactions=2000";
    let placed = |expire: &str, commit: &str| {
        let machine = format!("{CARD} processor=phone-2013 dirty_expire={expire} commit={commit}");
        of(&run("jbd2:data=ordered", &machine, workload), "placed")
    };
    let (at_once, soon, late) = (
        placed("0", "5ms"),
        placed("40ms", "5ms"),
        placed("30s", "5ms"),
    );
    assert!(
        at_once > 1.2 * soon && soon > 0.0 && late == 0.0,
        "{at_once} B, {soon} B, {late} B"
    );
}

#[test]
fn checkpoints_come_by_age() {
    for (name, machine, period) in [
        ("jbd2:data=journal", CARD.to_owned(), "20ms"),
        ("ubj", format!("{CARD} nvm=32M"), "200us"),
    ] {
        let of_period = |period: &str| {
            let machine = format!("{machine} journal=16M commit=each checkpoint={period}");
            run(name, &machine, "fio file=4M ops=100")
        };
        let (never, often) = (of_period("never"), of_period(period));
        assert_eq!(of(&never, "checkpoints"), 0.0, "{name}");
        assert!(of(&often, "checkpoints") > 1.0, "{name}");
        // When the run ends, home already has most of it.
        let last = |outcome: &Outcome| of(outcome, "home") - of(outcome, "durable");
        assert!(last(&often) < last(&never) / 2.0, "{name}");
    }
}

/// Each fence of a commit takes this much longer, and nothing else does.
#[test]
fn fences_take_their_time() {
    for (name, machine) in [
        ("spindle", "medium=disk nvm=16M volume=64M journal=4M"),
        ("tinca", "medium=nand nvm=8M journal=4M memory=32M"),
    ] {
        let with = |fence: &str| {
            let machine = format!("{machine} fence={fence}");
            run(name, &machine, "fio file=2M ops=200 fsync=2")
        };
        let (none, slow) = (with("0"), with("500ns"));
        let fences = of(&none, "fences");
        let late = of(&slow, "durable") - of(&none, "durable");
        // The disk turns meanwhile, which would matter if anything went there; nothing does.
        assert!(is_same(late, 500e-9 * fences) && fences > 200.0, "{name}");
    }
    let shortcut = |fence: &str| {
        let machine = format!("medium=pcm volume=32M journal=4M commit=each fence={fence}");
        of(&run("shortcut", &machine, "fio file=2M ops=200"), "durable")
    };
    let (none, slow) = (shortcut("0"), shortcut("1us"));
    // At least one fence per commit.
    assert!(slow - none >= 200e-6, "{none} s, {slow} s");
}

/// In writeback mode each random overwrite goes home by itself: a jump each, and one or two for the
/// commit.
#[test]
fn jumps_take_their_time() {
    let with = |jump: &str| {
        let machine = format!("{CARD} commit=never jump={jump}");
        run("null", &machine, "fio file=32M ops=64 fsync=1")
    };
    let (card, slow) = (with("0"), with("100ms"));
    let late = of(&slow, "durable") - of(&card, "durable");
    let requests = of(&card, "requests");
    assert!(
        (6.4..=0.1 * requests + 1e-6).contains(&late),
        "{late} s for {requests} requests"
    );
}
