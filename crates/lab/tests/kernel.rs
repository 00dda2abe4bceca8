//! `stetfs lab kernel`: the stored comparison has a reason for each deviation and is of this code;
//! the device's classes are those of our own writes; and a live run beside the kernel.

use std::fs;
use std::path::Path;

use stetfs_lab::kernel::host::check;
use stetfs_lab::kernel::sheet::{Reasons, Sheet};
use stetfs_lab::kernel::{Job, Pair, Plan, compare, ours};
use stetfs_media::Class;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

fn stored() -> Sheet {
    let text = fs::read(Path::new(DOCS).join("kernel.json")).expect("docs/kernel.json");
    serde_json::from_slice(&text).expect("a sheet")
}

fn of(plan: &Plan, pair: &str, job: &str) -> (Pair, Job) {
    let pair = plan.pairs.iter().find(|p| p.name == pair).expect("a pair");
    let job = plan.jobs.iter().find(|j| j.name == job).expect("a job");
    (pair.clone(), job.clone())
}

#[test]
fn each_deviation_has_a_reason_and_each_reason_a_deviation() {
    let (sheet, plan) = (stored(), Plan::whole().expect("the plan"));
    assert_eq!((&sheet.pairs, &sheet.jobs), (&plan.pairs, &plan.jobs));
    let names = |run: &stetfs_lab::kernel::Compared| (run.pair.clone(), run.job.clone());
    let all = plan.pairs.iter().flat_map(|pair| {
        let of = |job: &Job| (pair.name.clone(), job.name.clone());
        plan.jobs.iter().map(of)
    });
    assert!(sheet.runs.iter().map(names).eq(all));
    let reasons = Reasons::known().expect("reasons");
    let document = sheet.document(&reasons).expect("a reason for each");
    assert_eq!(reasons.unused(&sheet), [""; 0]);
    let kept = fs::read_to_string(Path::new(DOCS).join("lab/kernel.md")).expect("the document");
    assert!(
        kept == document,
        "stetfs lab kernel --from docs/kernel.json --document docs/lab/kernel.md"
    );
    assert!(document.lines().count() <= 120);
    for run in &sheet.runs {
        for account in [&run.kernel, &run.ours] {
            assert_eq!(
                account.of("log/not named").bytes,
                0,
                "{} {}",
                run.pair,
                run.job
            );
        }
    }
}

/// Our side of the stored comparison is what this code does. When the code does something else,
/// make the comparison anew (as root): `stetfs lab kernel --json docs/kernel.json --document ...`.
#[test]
fn ours_is_as_stored() {
    let (sheet, plan) = (stored(), Plan::whole().expect("the plan"));
    for (pair, job) in [
        ("ordered", "create"),
        ("journal", "sqlite-delete"),
        ("writeback", "append"),
    ] {
        let (pair, job) = of(&plan, pair, job);
        let is = |run: &&stetfs_lab::kernel::Compared| run.pair == pair.name && run.job == job.name;
        let kept = sheet.runs.iter().find(is).expect("it is stored");
        let now = ours(&pair, &job, sheet.seed).expect("a run");
        assert_eq!(now.account, kept.ours, "{}, {}", pair.name, job.name);
    }
}

/// The device tells the same classes as the labels of the file system, which knows them.
#[test]
fn classes_on_the_device_are_those_of_our_own_labels() {
    let plan = Plan::whole().expect("the plan");
    for (pair, job) in [
        ("ordered", "fileserver"),
        ("ordered", "rm-r"),
        ("journal", "varmail"),
    ] {
        let (pair, job) = of(&plan, pair, job);
        let run = ours(&pair, &job, 1).expect("a run");
        for class in Class::ALL {
            let labelled: u64 = run
                .meter
                .iter()
                .filter(|(tag, _)| tag.class == class)
                .map(|(_, traffic)| traffic.write_bytes)
                .sum();
            let kinds: &[&str] = match class {
                Class::Journal => &["descriptor", "commit", "revoke", "journal superblock"],
                _ => &[class.name()],
            };
            let told = kinds
                .iter()
                .flat_map(|kind| [format!("log/{kind}"), format!("home/{kind}")]);
            let told: u64 = told.map(|kind| run.account.of(&kind).bytes).sum();
            assert_eq!(told, labelled, "{class} in {}, {}", pair.name, job.name);
        }
    }
}

/// Compares with this machine's kernel. Needs root, /dev/fuse and loop devices.
#[test]
fn the_kernel_writes_as_much_as_ours() {
    let mut plan = Plan::whole().expect("the plan");
    for (kind, pair, list) in [
        (
            "ext4",
            "ordered",
            "run\nrepeat 12\nappend file 4K\nfsync file\nend",
        ),
        (
            "ext4",
            "fast-commit",
            "run\nrepeat 12\nappend file 4K\nfsync file\nend",
        ),
        ("xfs", "xfs", "run\nrepeat 12\ncreate $i\nfsync $i\nend"),
    ] {
        if let Err(missing) = check(kind) {
            eprintln!("SKIPPED: {}, {pair}: {missing:#}", module_path!());
            continue;
        }
        plan = plan.with_load("calls");
        plan.jobs[0].load.clear();
        plan.jobs[0].list = ["create file"]
            .into_iter()
            .chain(list.lines())
            .map(str::to_owned)
            .collect();
        let (pair, job) = of(&plan, pair, "yours");
        let run = compare(&pair, &job, 1).unwrap_or_else(|e| panic!("{}: {e:#}", pair.name));
        let (kernel, ours) = (&run.kernel, &run.ours);
        assert_eq!(kernel.of("log/not named").bytes, 0, "{kernel:?}");
        assert!(kernel.flushes >= 12, "{kernel:?}");
        match kind {
            "xfs" => assert!(kernel.of("log/records").bytes >= 12 * 512, "{kernel:?}"),
            _ if pair.name == "ordered" => {
                for kind in [
                    "home/data",
                    "log/commit",
                    "log/inode_table",
                    "log/block_bitmap",
                ] {
                    let (kernel, ours) = (kernel.of(kind).bytes, ours.of(kind).bytes);
                    assert!(kernel.abs_diff(ours) <= 4096, "{kind}: {run:?}");
                    assert!(kernel >= 12 * 4096, "{kind}: {run:?}");
                }
                assert!(kernel.flushes.abs_diff(ours.flushes) <= 12, "{run:?}");
            }
            _ => assert!(kernel.of("log/fast commit").bytes >= 6 * 4096, "{kernel:?}"),
        }
    }
}
