//! JFTL: the block journal on a device that remaps. A logged block gets home by a change of the
//! device's table. The table is that of a flash translation layer, as in the paper, or that of a
//! file system with reflinks, on which the volume is a file.
//!
//! Source: Lim, Choi, Park, "Journal Remap-Based FTL for Journaling File System with Flash Memory"
//! (HPCC 2007), section 3.
//!
//! Home and log are on one device that remaps. The log is [`jbd2`]'s.
//!
//! A commit is [`jbd2`]'s, in its format.
//!
//! A checkpoint remaps all of the log. It follows each commit, or with `remap=batch` each commit
//! after which a quarter of the log is in use. In order of writes:
//! 1. the list of (home, log block) pairs, to the device, which returns when it is durable;
//! 2. blocks that had to be escaped in the log, home, and a flush;
//! 3. the journal superblock with the new tail, behind the transaction, durable;
//! 4. a discard of the log's blocks: the device may reuse the pages of their copies, and the pages
//!    that the homes had before.
//!
//! So no logged block is written twice, and memory keeps no more content for a checkpoint than one
//! large transaction has.
//!
//! Where a remap has a price ([`Remap::least_run_bytes`]), as a reflink has, `remap=on` and
//! `remap=batch` put it off until [`jbd2`] would run a checkpoint. Then a block that was logged
//! several times is remapped once, and one flush serves all. Step 2 copies two kinds of runs, as
//! [`jbd2`] does: those too short for the price, and those that do not fill whole granules of the
//! device (blocks of 1 KiB on a file system with blocks of 4 KiB). Step 4 then releases only the
//! copies that homes share.
//!
//! A remap need not be atomic. The log keeps all copies until step 3, so a recovery that finds some
//! of the homes remapped finds the transaction too, and repeats all of it.
//!
//! Deviations from the paper:
//! - The paper remaps after each commit. That costs a block for the tail and at least two pages of
//!   the device's log: nothing for a large transaction, but small ones become slower than without
//!   remapping (docs/LAB.md, `jftl-fig8`). `remap=batch` remaps small ones together.
//! - The paper clears the journal's addresses with the remapping, and does not say what recovery
//!   makes of a transaction whose blocks are gone. Here both addresses share the copies until the
//!   tail has moved, so that any recovery, the kernel's and e2fsck's included, finds the whole
//!   transaction.
//! - A transaction with more pairs than one list can hold is remapped by several lists. Its commit
//!   record has decided, and a replay repeats all of them.
//! - The paper has pages of 512 bytes; here a block is as many pages as it takes.
//!
//! Recovery: that of [`jbd2`], with the rows of [`LEFT`].

use std::ops::Range;

use stetfs_format::BlockNo;
use stetfs_format::width::{must_fit_u32, u64_as_usize, usize_as_u64};
use stetfs_media::{JournalCopy, Remap, RemapPair};

use super::jbd2::{self, Place, Plain, Ways};
use crate::parts::area::JournalArea;
use crate::parts::fill::FILL;
use stetfs_planted::Bug;
use stetfs_scheme::{
    About, Beside, DataMode, Ground, OpenArgs, OptionAbout, Parts, Registration, Result,
    SchemeError, Terms, Trial, recovery_cases,
};

recovery_cases! {
    LEFT:
    AS_IT_IS "a committed transaction's block that the log has as it is"
        => "it is remapped home, again if it was",
        "the log keeps its copy until the tail is moved, so it is the same page as before";
    COPIED "one that had to be escaped, or is in no run that is worth a remap"
        => "it is written home", "the log's copy lacks its first four bytes, or stays in the log";
}

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("jftl-journal", "data=journal", Ground::Flash).planted(&[
            Bug::EarlyRelease,
            Bug::UnsortedChanges,
            Bug::UnsecuredPage,
        ]),
        Trial::new(
            "jftl-journal-batch",
            "data=journal,remap=batch",
            Ground::Flash,
        ),
        Trial::new("jftl-journal-off", "data=journal,remap=off", Ground::Flash),
        Trial::new("jftl-ordered", "data=ordered", Ground::Flash).planted(&[Bug::EarlyRelease]),
        Trial::new("jftl-ordered-off", "data=ordered,remap=off", Ground::Flash),
        Trial::setting(
            "jftl-async",
            "data=journal,journal_async_commit,fill=20",
            Ground::Flash,
        ),
        Trial::new("jftl-reflink", "data=journal", Ground::Reflink),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "jftl",
    title: "JFTL: the block journal, where the device remaps logged blocks home (FTL or reflink)",
    source: "Lim, Choi, Park, HPCC 2007",
    modes: &[DataMode::Journal, DataMode::Ordered],
    needs_remap: true,
    nvm: Beside::Never,
    cost: "commit of n blocks: n + 2 blocks, 2 flushes; checkpoint: a list of pairs, the journal \
        superblock",
    recovery: &[jbd2::LEFT, LEFT],
    options: &[&REMAP, &jbd2::ASYNC_COMMIT, &FILL],
    ..jbd2::ABOUT
};

/// The paper's four configurations: off and on, each in two modes.
static REMAP: OptionAbout = OptionAbout {
    name: "remap",
    syntax: "on|off|batch",
    default: "on",
    what: "remap what is logged after each commit, or when a quarter of the log is taken (by \
        reflink always at checkpoints); or copy it home as scheme jbd2 does",
};

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    if args.dev.remap().is_none() {
        return Err(SchemeError::Unusable(format!(
            "scheme {} needs a device that remaps: a flash translation layer of stetfs, or a file \
                on a file system with reflinks (XFS, Btrfs) that can be written; {} is neither",
            ABOUT.name,
            args.dev.describe()
        )));
    }
    let at_used = match args.options.value(&REMAP) {
        "on" => 1,
        "batch" => u32::MAX,
        "off" => return jbd2::open_as(&ABOUT, args, Box::new(Plain)),
        _ => return Err(args.options.wrong(&ABOUT, &REMAP)),
    };
    let means = args.dev.remap().map(Remap::means);
    let (scheme, terms, report) = jbd2::open_as(&ABOUT, args, Box::new(Remapped { at_used }))?;
    let terms = Terms {
        remaps: means,
        ..terms
    };
    Ok((scheme, terms, report))
}

/// The choices of JFTL: logged blocks get home by a change of the device's table.
struct Remapped {
    /// A checkpoint follows a commit after which this many blocks of the log are in use, or a
    /// quarter of the log if that is less.
    at_used: u32,
}

impl Ways for Remapped {
    /// Where a remap costs nothing, an early checkpoint lets the device reuse the pages of old
    /// contents.
    fn is_time(&self, area: &JournalArea, used: u32) -> bool {
        used >= self.at_used.min(area.capacity() / 4) && device(area).is_ok_and(is_free)
    }

    /// Chooses runs, contiguous at home and in the log, that are whole granules of the device and
    /// long enough.
    fn choose(&self, area: &JournalArea, logged: Vec<Place>) -> Result<Vec<Place>> {
        let device = device(area)?;
        let in_blocks = |bytes: u32| area.block_size.blocks_for(bytes.into());
        let unit = in_blocks(device.granularity()).max(1);
        let least = in_blocks(device.least_run_bytes()).max(unit);
        let end = area.block_size.block_of(area.dev.size());
        let mut pairs = Vec::with_capacity(logged.len());
        for (home, at) in logged {
            pairs.push((home.0, area.place(at)?.0.0, at));
        }
        pairs.sort_unstable();
        let mut chosen = Vec::new();
        for run in pairs.chunk_by(|a, b| (a.0 + 1, a.1 + 1) == (b.0, b.1)) {
            let (home, log, _) = run[0];
            // The aligned part of the run.
            let skip = home.next_multiple_of(unit) - home;
            let whole = (home + usize_as_u64(run.len())).min(end) / unit * unit;
            let len = whole.saturating_sub(home + skip);
            if home.abs_diff(log).is_multiple_of(unit) && len >= least {
                let aligned = &run[u64_as_usize(skip)..][..u64_as_usize(len)];
                chosen.extend(aligned.iter().map(|&(home, _, at)| (BlockNo(home), at)));
            }
        }
        Ok(chosen)
    }

    fn found(&self, chosen: usize, written: usize) {
        if chosen > 0 {
            AS_IT_IS.reached();
        }
        if written > 0 {
            COPIED.reached();
        }
    }

    fn bring(&self, area: &JournalArea, chosen: &[Place]) -> Result<()> {
        let sector = u64::from(area.dev.sector_size());
        let sectors = area.block_size.offset_of(1) / sector;
        let mut pairs = Vec::with_capacity(chosen.len() * u64_as_usize(sectors));
        for &(home, at) in chosen {
            let (log, _) = area.place(at)?;
            pairs.extend((0..sectors).map(|i| RemapPair {
                home: home.0 * sectors + i,
                journal: log.0 * sectors + i,
            }));
        }
        let device = device(area)?;
        // Several lists are as good as one: the commit block has decided, and a recovery that finds
        // some of them done repeats all.
        for list in pairs.chunks(device.max_pairs()) {
            device.remap(list, JournalCopy::Kept)?;
        }
        Ok(())
    }

    /// Releases the transactions' log blocks where a remap costs nothing, and otherwise only the
    /// copies that homes share now.
    fn leave(&self, area: &JournalArea, left: &[Range<u32>], brought: &[Place]) -> Result<()> {
        let device = device(area)?;
        if is_free(device) {
            return left.iter().try_for_each(|run| release(device, area, run));
        }
        let mut at: Vec<u32> = brought.iter().map(|(_, at)| *at).collect();
        at.sort_unstable();
        let runs = at.chunk_by(|a, b| a + 1 == *b);
        let runs = runs.map(|run| run[0]..run[0] + must_fit_u32(run.len()));
        runs.into_iter()
            .try_for_each(|run| release(device, area, &run))
    }
}

/// Returns the device's remapping interface.
fn device(area: &JournalArea) -> Result<&dyn Remap> {
    let why = "the device no longer remaps";
    area.dev
        .remap()
        .ok_or_else(|| SchemeError::Unusable(why.to_owned()))
}

/// True when a remap costs nothing, as in a flash translation layer.
fn is_free(device: &dyn Remap) -> bool {
    device.least_run_bytes() == 0
}

/// Lets the device forget a run of log blocks, which may wrap around the ring and which no recovery
/// replays any more.
fn release(device: &dyn Remap, area: &JournalArea, run: &Range<u32>) -> Result<()> {
    let (mut at, mut len) = (run.start, run.end - run.start);
    while len > 0 {
        let (block, together) = area.place(at)?;
        let n = len.min(together).min(area.end - at);
        let size = area.block_size;
        device.release(size.start_of(block), size.offset_of(n.into()))?;
        at = area.step(at, n);
        len -= n;
    }
    Ok(())
}
