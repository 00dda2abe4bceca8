//! A scheme that serves a volume without a file system of ours above it: the kernel's ext4 has the
//! files, and what it journals becomes the scheme's transactions.
//!
//! Order at opening, each step safe to be cut at:
//! 1. Superblock and journal area: only read.
//! 2. If JBD2's journal is to be replayed, that is done first: its area becomes the scheme's.
//! 3. The scheme opens, and recovers what a crash left of its own log.
//! 4. The superblock gets the scheme's mark, and loses `needs_recovery`: nobody but the scheme can
//!    replay anything now.
//!
//! At closing the scheme brings everything home. JBD2's superblock says that the log is empty. Then
//! the superblock loses the mark.

use stetfs_format::features::FeatureCompat;
use stetfs_format::{FeatureIncompat, Superblock, Tid};
use stetfs_media::BlockDev;
use stetfs_scheme::{DataMode, LogExtent, Mark, OpenArgs, Opened, SchemeOptions};

use super::choice::{Choice, Found, choose};
use super::error::MountError;
use super::{check_private_log, journal_area, mark, superblock};
use crate::device::Media;
use crate::error::Result;
use crate::options::MountOptions;

/// The scheme of a volume that belongs to none, where the options name none.
const DEFAULT: &str = "stet";
/// The scheme by which JBD2's own journal is replayed.
const JBD2: &str = "jbd2";

/// A scheme that serves a volume alone.
pub struct Alone {
    /// The scheme, with the volume's media.
    pub opened: Opened,
    /// The superblock as it was before the scheme marked it.
    pub superblock: Superblock,
    /// The journal area. Block 0 is JBD2's superblock; the rest is the scheme's.
    pub log: Vec<LogExtent>,
    /// The user should know this, a sentence each.
    pub warnings: Vec<String>,
}

/// Opens the scheme that the options name, or the one that the volume belongs to.
///
/// # Errors
/// [`MountError`]: the volume has no journal, or one that is elsewhere or takes fast commits; the
/// scheme does not suit it. Damaged records; an error of the media or the scheme.
pub fn open_alone(media: &Media, opts: &MountOptions) -> Result<Alone> {
    let dev = &media.home;
    let sb = superblock::load(&**dev)?;
    check_ground(&**dev, &sb, opts)?;
    let has_private_log = sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG);
    let log = journal_area::journal_extents(&**dev, &sb)?;
    let args = |options| OpenArgs {
        dev: dev.clone(),
        nvm: media.nvm.clone(),
        nvm_new: opts.nvm_new,
        block_size: sb.block,
        // The volume may grow while it is used.
        blocks: sb.block.block_of(dev.size()),
        uuid: sb.uuid,
        has_64bit: sb.is_64bit,
        has_metadata_csum: sb.metadata_csum,
        log: log.clone(),
        memory: usize::try_from(opts.memory / 2).unwrap_or(usize::MAX),
        has_private_log,
        inode_size: sb.inode_size(),
        writable: true,
        options,
    };
    let mut warnings = Vec::new();
    if !has_private_log {
        replay(&**dev, &sb, &log, args, &mut warnings)?;
    }
    // Recovery may have changed it.
    let sb = superblock::load(&**dev)?;
    let owner = if has_private_log {
        journal_area::private_log_owner(&**dev, &sb, &log)?
    } else {
        None
    };
    let found = Found {
        owner: owner.as_deref(),
        dirty: false,
        has_journal: true,
        read_only: false,
    };
    let mut choice = choose(opts, &sb, &found, &mut warnings)?;
    if !opts.names_scheme() && choice.scheme.about.name == JBD2 {
        // There is a journal of JBD2's above already.
        choice.scheme = stetfs_schemes::find(DEFAULT)?;
        choice.options.data = None;
    }
    let Choice { scheme, options } = choice;
    if has_private_log {
        check_private_log(&**dev, owner, scheme.about, opts)?;
    }
    // The kernel says what of the data it journals.
    let takes_all = scheme.about.modes.contains(&DataMode::Journal);
    let options = SchemeOptions {
        data: takes_all.then_some(DataMode::Journal),
        ..options
    };
    let opened = scheme.open(args(options))?;
    // A recovery of the scheme's own may have changed it too.
    let sb = superblock::load(&**dev)?;
    superblock::store(&**dev, |sb| {
        sb.feature_incompat -= FeatureIncompat::RECOVER;
        mark(sb, opened.terms.mark);
    })?;
    Ok(Alone {
        opened,
        superblock: sb,
        log,
        warnings,
    })
}

/// Makes sure that a scheme can have the volume.
fn check_ground(dev: &dyn BlockDev, sb: &Superblock, opts: &MountOptions) -> Result<()> {
    if !sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL) {
        let scheme = stetfs_schemes::find(&opts.scheme)?.about.name;
        return Err(MountError::NoJournal { scheme }.into());
    }
    if sb.feature_compat.contains(FeatureCompat::FAST_COMMIT) {
        return Err(MountError::FastCommits.into());
    }
    if dev.read_only() {
        let device = dev.describe();
        return Err(MountError::CannotCommit { device }.into());
    }
    let (volume, device) = (sb.volume_bytes(), dev.size());
    if volume > device {
        return Err(MountError::DeviceTooSmall { volume, device }.into());
    }
    Ok(())
}

/// Replays JBD2's journal if the superblock asks for that, and else marks it empty.
fn replay(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
    args: impl FnOnce(SchemeOptions) -> OpenArgs,
    warnings: &mut Vec<String>,
) -> Result<()> {
    if sb.feature_incompat.contains(FeatureIncompat::RECOVER) {
        let jbd2 = stetfs_schemes::find(JBD2)?;
        let opened = jbd2.open(args(SchemeOptions::default()))?;
        opened.scheme.close()?;
        if opened.report.was_needed {
            let transactions = opened.report.transactions;
            warnings.push(format!(
                "JBD2's journal had {transactions} transactions to replay"
            ));
        }
    } else if journal_area::holds_leftovers(dev, sb, log)? {
        journal_area::wipe(dev, sb, log)?;
        warnings.push(
            "the journal holds old transactions, but the volume is clean: they were not replayed"
                .to_owned(),
        );
    }
    Ok(())
}

/// Brings everything home and takes the mark away. `sequence` is the number that the kernel's next
/// transaction will have; `needs_recovery` is what the kernel said last.
///
/// # Errors
/// The scheme's or the device's: the mark stays then, and the next opening recovers.
pub fn close_alone(alone: &Alone, sequence: Tid, needs_recovery: bool) -> Result<()> {
    let Opened {
        scheme, terms, dev, ..
    } = &alone.opened;
    scheme.close()?;
    if terms.keeps {
        return Ok(dev.close()?);
    }
    if terms.mark == Mark::PrivateLog {
        let sb = superblock::load(&**dev)?;
        journal_area::set_empty(&**dev, &sb, &alone.log, sequence)?;
    }
    superblock::store(&**dev, |sb| {
        sb.feature_incompat -= FeatureIncompat::PRIVATE_LOG;
        sb.feature_incompat
            .set(FeatureIncompat::RECOVER, needs_recovery);
    })?;
    Ok(dev.close()?)
}
