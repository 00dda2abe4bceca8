//! `stetfs recover`: the recovery of the journal, by the scheme that wrote it, and nothing else.
//!
//! The volume is mounted read-only in this process, which recovers as the kernel's read-only mount
//! does: committed transactions go home, orphans are finished, and the superblock says that nothing
//! is left to recover. Mount count and mount time stay as they are. A volume that needs no recovery
//! is only read.

use std::path::Path;

use serde::Serialize;
use stetfs::{Fs, MountOptions, MountReport};
use stetfs_format::{FeatureCompat, FeatureRoCompat, State};

use crate::args::Recover;
use crate::disk::Disk;
use crate::failure::{Explain, Failure, Result};
use crate::image::{How, failed, open_media, recovery_in_words};
use crate::{mounts, output};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Recovered {
    image: String,
    /// The scheme that recovered; None if nothing had to be recovered.
    scheme: Option<&'static str>,
    /// True if there was something to recover.
    was_needed: bool,
    /// True if it was written to the image.
    written: bool,
    transactions: u32,
    first_transaction: Option<u32>,
    last_transaction: Option<u32>,
    blocks: u64,
    revoked: u64,
    /// The error that had stopped the journal, a negative errno; 0: none.
    journal_errno: i32,
    orphans_deleted: u32,
    orphans_truncated: u32,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &Recover) -> Result<()> {
    let image = &args.image;
    let shown = image.display();
    if args.dry_run {
        if let Some(mount) = mounts::mount_of(image)? {
            let dir = mount.dir.display();
            return Err(Failure::new(format!("{shown} is mounted on {dir}"))
                .advise("its server has recovered it already"));
        }
    } else {
        mounts::check_unused(image)?;
    }
    let report = recover(args)?;
    let warnings = report.as_ref().map_or(&[][..], |r| &r.warnings);
    for warning in warnings {
        eprintln!("stetfs: {shown}: {warning}");
    }
    if args.json {
        return output::json(&in_fields(args, report));
    }
    match report {
        None => output::line(format_args!("{shown}: clean, nothing to recover")),
        Some(report) => {
            let words = recovery_in_words(&report);
            let end = if args.dry_run {
                "; nothing is written (--dry-run)"
            } else {
                ""
            };
            output::line(format_args!(
                "{shown}: {words}, by scheme {}{end}",
                report.scheme
            ))
        }
    }
}

/// Recovers; returns None if there is nothing to recover.
fn recover(args: &Recover) -> Result<Option<MountReport>> {
    let image = &args.image;
    let disk = Disk::open(image)?;
    if !disk.needs_recovery() && !has_orphans(&disk) {
        return check_valid(image, &disk).map(|()| None);
    }
    let options = MountOptions {
        // As in the kernel, the journal of a volume that needs it is recovered all the same.
        read_only: disk.needs_recovery(),
        nvm: args.nvm.clone(),
        ..MountOptions::default()
    };
    let options = match disk.private_log_owner() {
        Some(scheme) => MountOptions { scheme, ..options },
        None => options,
    };
    drop(disk);
    let how = if args.dry_run {
        How::InMemory
    } else {
        How::Writable
    };
    let media = open_media(image, &options, how)?;
    let (fs, report) = Fs::mount(media, options).map_err(|e| failed(image, e))?;
    fs.unmount().during(|| image.display().to_string())?;
    Ok(Some(report))
}

/// True if inodes wait to be freed or truncated. A crash leaves them on a volume whose journal
/// needs recovery; other programs may leave them on one whose journal is empty.
fn has_orphans(disk: &Disk) -> bool {
    let sb = &disk.superblock;
    let in_file = sb
        .feature_ro_compat
        .contains(FeatureRoCompat::ORPHAN_PRESENT);
    sb.last_orphan != 0 || in_file
}

/// Fails if the volume was in use and has no journal: then there is nothing to recover it from.
fn check_valid(image: &Path, disk: &Disk) -> Result<()> {
    let sb = &disk.superblock;
    let has_journal = sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL);
    if has_journal || sb.state.contains(State::VALID) {
        return Ok(());
    }
    let shown = image.display();
    Err(Failure::new(format!(
        "{shown}: it was not cleanly unmounted, and has no journal to recover"
    ))
    .advise(format!("check all of it: stetfs fsck {shown}")))
}

fn in_fields(args: &Recover, report: Option<MountReport>) -> Recovered {
    let recovery = report.as_ref().map(|r| r.recovery.clone());
    let recovery = recovery.unwrap_or_default();
    let orphans = |n: fn(&MountReport) -> u32| report.as_ref().map_or(0, n);
    Recovered {
        image: args.image.display().to_string(),
        scheme: report.as_ref().map(|r| r.scheme),
        was_needed: report.is_some(),
        written: report.is_some() && !args.dry_run,
        transactions: recovery.transactions,
        first_transaction: recovery.sequences.map(|s| s.0),
        last_transaction: recovery.sequences.map(|s| s.1),
        blocks: recovery.blocks,
        revoked: recovery.revoked,
        journal_errno: recovery.journal_errno,
        orphans_deleted: orphans(|r| r.orphans_deleted),
        orphans_truncated: orphans(|r| r.orphans_truncated),
        warnings: report.map(|r| r.warnings).unwrap_or_default(),
    }
}
