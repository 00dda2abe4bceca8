//! Each case of each scheme's recovery table is reached: by a power cut, or by a later change of
//! the media (damage, an older copy, other memory). docs/RECOVERY.md has these tables;
//! `STETFS_LAB_WRITE=1` writes it.
//!
//! A case that nothing reaches is untested, or cannot happen.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs::MountOptions;
use stetfs_crash::campaign::Campaign;
use stetfs_crash::damage::{self, Left};
use stetfs_crash::media::contents::Contents;
use stetfs_crash::media::kind::Kind;
use stetfs_crash::states::Effort;
use stetfs_crash::target::Target;
use stetfs_crash::turns::Order;
use stetfs_crash::workload::Workload;
use stetfs_crash::workloads::script::Script;
use stetfs_format::jbd2::JournalIncompat;
use stetfs_media::{Cause, Class, Image, RamDev, Tag};
use stetfs_scheme::{About, Beside, Ground, OpenArgs, RecoveryCase};
use stetfs_schemes::{each_example, each_scheme, find, for_use};
use stetfs_testkit::ground::simulated;
use stetfs_testkit::host::needs;
use stetfs_testkit::image::{EXT3_1K, EXT4_1K, Variety};
use stetfs_testkit::rng::Rng;
use stetfs_testkit::{document, skip_unless};

fn rows(about: &About) -> impl Iterator<Item = &'static RecoveryCase> {
    about.recovery.iter().copied().flatten().copied()
}

/// The cases that nothing has reached yet.
struct Unreached(Vec<&'static RecoveryCase>);

impl Unreached {
    fn reached(&mut self, rows: &[&RecoveryCase]) {
        self.0.retain(|row| !rows.contains(row));
    }

    /// True if refusals are left. Damage leads to them.
    fn has_refusals(&self) -> bool {
        self.0.iter().any(|row| row.done.starts_with("error"))
    }

    /// True if other cases are left. Power cuts lead to them.
    fn has_others(&self) -> bool {
        self.0.iter().any(|row| !row.done.starts_with("error"))
    }
}

/// Scripts that overwrite, free, use blocks again and fill the log, with orders by turns. Those
/// that reach the rarest cases come first.
fn workloads(volume: Variety) -> Vec<Workload> {
    // Removes directories while a checkpoint writes them home.
    let reuse = Script::Reuse.workload(volume.profile());
    let scripts = [
        Script::LogAndReplace,
        Script::Revokes,
        Script::Overwrites,
        Script::Neighbours,
        Script::Random(1),
        Script::Random(2),
        Script::Random(3),
        Script::Random(4),
    ];
    let orders = [Order::InOrder, Order::Overlap(1), Order::EachHandle];
    let orders = orders.into_iter().cycle();
    let workload = |(script, order): (Script, _)| script.workload(volume.profile()).in_order(order);
    let scripts = scripts.into_iter().zip(orders);
    std::iter::once(reuse.in_order(Order::Overlap(1)))
        .chain(scripts.map(workload))
        .collect()
}

/// Cuts the power in a workload.
fn cuts(target: &Target, workload: Workload, effort: Effort, unreached: &mut Unreached) {
    if !unreached.has_others() {
        return;
    }
    let fresh = target.contents().expect("a volume");
    let campaign = Campaign {
        effort,
        ..Campaign::new(target.clone(), fresh, vec![workload])
    };
    let report = campaign.run(&|_| {}).expect("an exploration");
    unreached.0.retain(|row| report.reached.times(row) == 0);
}

/// Cuts the power, then damages the media or opens them in the wrong way.
fn spoiled(target: &Target, unreached: &mut Unreached) {
    const TRIES: usize = 40;
    for (seed, workload) in workloads(target.volume).into_iter().enumerate() {
        if unreached.0.is_empty() {
            return;
        }
        let mut rng = Rng::new(seed as u64);
        for left in Left::of_cuts(target, &workload, 40).expect("a workload") {
            for change in MISFITS {
                unreached.reached(&left.reached_with(change));
            }
            for _ in 0..TRIES {
                if unreached.0.is_empty() {
                    return;
                }
                unreached.reached(&left.spoiled(&mut rng).reached_with(|_| ()));
            }
        }
    }
}

/// Wrong ways to open: read-only, with too small a volume, with another volume's UUID, with memory
/// taken for a device with sectors, with a log that the kernel used with fast commits. The first is
/// the right way.
const MISFITS: [fn(&mut OpenArgs); 6] = [
    |_| {},
    |args| args.writable = false,
    |args| args.blocks = 40,
    |args| args.uuid[0] ^= 1,
    |args| {
        if args.dev.pmem().is_some() {
            let mut content = vec![0; args.dev.size() as usize];
            let tag = Tag::read(Class::Data);
            args.dev.read_at(0, &mut content, tag).expect("a read");
            args.dev = Arc::new(RamDev::from_image(&content));
        }
    },
    |args| {
        const INCOMPAT_AT: usize = 0x28;
        let at = args.block_size.start_of(args.log[0].start);
        let (mut block, tag) = (
            vec![0; args.block_size.bytes()],
            Tag::new(Class::Journal, Cause::Control),
        );
        args.dev.read_at(at, &mut block, tag).expect("a read");
        let bits = JournalIncompat::FAST_COMMIT.bits().to_be_bytes();
        block[INCOMPAT_AT..][..bits.len()].copy_from_slice(&bits);
        args.dev.write_at(at, &block, tag).expect("a write");
    },
];

/// Mounts volumes with memory of another time, with foreign memory, and without their memory: as
/// usual, read-only, and with permission to overwrite the memory.
fn mismatched(target: &Target, unreached: &mut Unreached) {
    let stages = damage::stages(target).expect("a volume");
    let memories: Vec<_> = stages.iter().filter_map(|at| at.media().nth(1)).collect();
    let usual = target.options();
    let ways = [
        usual.clone(),
        MountOptions {
            read_only: true,
            ..usual.clone()
        },
        MountOptions {
            nvm_new: true,
            ..usual
        },
    ];
    for stage in &stages {
        let home = stage
            .media()
            .next()
            .map(|(kind, image)| (kind, image.clone()));
        let home = home.expect("a home device");
        let mut pairs = vec![stage.clone()];
        if let Some((kind, memory)) = memories.first() {
            let mut foreign = Image::new(memory.size());
            foreign.write(100, b"somebody's");
            // The region of the mounted volume, in a larger memory.
            let (_, in_use) = memories[memories.len() - 2];
            let mut longer = vec![0; in_use.size() as usize + 4096];
            let len = longer.len() - 4096;
            in_use.read(0, &mut longer[..len]);
            let others = [foreign, Image::from_bytes(&longer)];
            let all = memories.iter().map(|(_, memory)| *memory).chain(&others);
            let pair = |memory: &Image| Contents::new(vec![home.clone(), (*kind, memory.clone())]);
            pairs = all.map(pair).collect();
        }
        // Memory for a volume that had none, none for a volume that had some.
        if let Beside::Too(bytes) = target.scheme.nvm {
            let mut other = vec![home.clone()];
            if memories.is_empty() {
                other.push((Kind::Pmem, Image::new(bytes)));
            }
            pairs.push(Contents::new(other));
        }
        for (pair, way) in pairs
            .iter()
            .flat_map(|pair| ways.iter().map(move |way| (pair, way)))
        {
            unreached.reached(&damage::reached(pair, way.clone()));
        }
    }
}

fn every_row(name: &str) {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let scheme = find(name).expect("a scheme");
    let mut unreached = Unreached(rows(scheme.about).collect());
    // Special trials come last in the table; some rows are only theirs. Flash takes longest.
    let mut trials: Vec<_> = simulated(scheme).collect();
    trials.reverse();
    trials.sort_by_key(|trial| trial.ground == Ground::Flash);
    let on = |trial, volume: Variety| Target::of(scheme, trial, volume);
    for trial in &trials {
        if unreached.has_refusals() {
            mismatched(&on(trial, EXT4_1K), &mut unreached);
            // Without checksums, recovery looks at the fields of a damaged record.
            for volume in [EXT4_1K, EXT3_1K] {
                spoiled(&on(trial, volume), &mut unreached);
            }
        }
    }
    // The shortest workloads first. If they are not enough, more moments with more states.
    let mut workloads = workloads(EXT4_1K);
    workloads.sort_by_key(|workload| workload.ops.len());
    for (moments, orders) in [(12, 4), (60, 32)] {
        let effort = Effort {
            moments,
            orders,
            ..Effort::default()
        };
        for workload in &workloads {
            for trial in &trials {
                cuts(
                    &on(trial, EXT4_1K),
                    workload.clone(),
                    effort,
                    &mut unreached,
                );
            }
        }
    }
    for trial in &trials {
        spoiled(&on(trial, EXT4_1K), &mut unreached);
    }
    let found: Vec<_> = unreached.0.iter().map(|row| row.found).collect();
    assert!(found.is_empty(), "{name}: nothing leads to {found:#?}");
}

macro_rules! tests {
    ($($scheme:ident)*) => {
        $(
            #[test]
            fn $scheme() {
                every_row(stringify!($scheme));
            }
        )*
    };
}

each_scheme!(tests);
each_example!(tests);

/// A table of a scheme. The number is its place in [`About::recovery`].
fn shown(marker: &str) -> Result<String> {
    let (name, nth) = marker.split_once(' ').context("a scheme and a number")?;
    let tables = find(name)?.about.recovery;
    let rows = tables.get(nth.parse::<usize>()?).context("a table")?;
    let mut text = "| found | done | why that is right |\n|---|---|---|\n".to_owned();
    for row in *rows {
        writeln!(text, "| {} | {} | {} |", row.found, row.done, row.why)?;
    }
    Ok(text)
}

#[test]
fn the_document_has_these_tables() {
    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/RECOVERY.md");
    const BEGIN: &str = "<!-- recovery ";
    let is = fs::read_to_string(DOCUMENT).expect("the document");
    let should = document::render(&is, BEGIN, shown).expect("its tables");
    for scheme in for_use() {
        for table in scheme.about.recovery {
            let first = table.first().expect("a row");
            let row = format!("| {} |", first.found);
            assert!(should.contains(&row), "{}: {row}", scheme.about.name);
        }
    }
    if std::env::var_os("STETFS_LAB_WRITE").is_some() {
        fs::write(DOCUMENT, &should).expect("the document");
        return;
    }
    let wrong = document::difference("docs/RECOVERY.md", &is, &should);
    assert_eq!(wrong, None, "STETFS_LAB_WRITE=1 writes it");
}
