//! JFTL: the block journal on a device that remaps. What was logged gets home by a change of the
//! device's table: of a flash translation layer's, as in the paper, or of a file system's with
//! reflinks, where the volume is a file on it.
//!
//! Source: Lim, Choi, Park, "Journal Remap-Based FTL for Journaling File System with Flash Memory"
//! (HPCC 2007), section 3.
//!
//! A commit is that of [`jbd2`], in its format. After it, or with `remap=batch` when a quarter of
//! the log is taken then, all of the log is remapped, in order:
//! 1. the list of (home, log block) pairs goes to the device, and is durable when that is done;
//! 2. blocks that had to be escaped in the log are written home, and flushed;
//! 3. the journal superblock moves the log's tail behind the transaction, durable;
//! 4. the log's blocks are discarded: the device can use the places of their copies, and of what
//!    the homes held before.
//!
//! So nothing that was logged is written twice, and no more content is kept for a checkpoint than a
//! large transaction has.
//!
//! Where a remap has its price ([`Remap::least_run_bytes`](stetfs_media::Remap::least_run_bytes)),
//! as a reflink, both values of `remap` that are not `off` leave it until [`jbd2`] would
//! checkpoint: a block that was logged again since is remapped once, and one flush serves all. Runs
//! that are shorter than what is worth it, or not in whole granules of the device (blocks of 1 KiB
//! on a file system with blocks of 4 KiB), are copied in step 2 as [`jbd2`] does, and only the
//! copies that homes now share are released.
//!
//! Nothing here needs a remap that is all or nothing: the log keeps all copies until step 3, so
//! whoever finds some of the homes remapped after a power cut finds the transaction too, and
//! repeats all of it.
//!
//! Deviations from the paper:
//! - It remaps after each commit. That costs a block for the tail and two pages of the device's log
//!   at least: of a large transaction nothing, but small ones become slower than without remapping
//!   (docs/LAB.md, `jftl-fig8`). `remap=batch` remaps small ones together.
//! - It clears the journal's addresses with the remapping, and does not say what recovery then
//!   makes of a transaction whose blocks are gone. Here they keep their copies, which both
//!   addresses share, until the tail has moved: whoever finds the transaction, the kernel and
//!   e2fsck included, finds all of it.
//! - A transaction of more pairs than one list can have is remapped in several. Its commit record
//!   has decided, and a replay repeats all of them.
//! - The paper has 512-byte pages; a block is as many pages as it takes.
//!
//! Recovery is that of [`jbd2`], with this difference:
//!
//! | found | done | why that is right |
//! |---|---|---|
//! | a committed transaction, a block as it is | it is remapped again | the log keeps its copy until the tail is moved, so it is the same page as before |
//! | an escaped block | it is written home | the log's copy lacks its first four bytes |
//! | a transaction without its commit block | nothing | no home was remapped to it |

use super::jbd2;
use stetfs_planted::Bug;
use stetfs_scheme::{
    About, DataMode, Ground, OpenArgs, OptionAbout, Parts, Registration, Result, SchemeError, Trial,
};

/// Its row in the registry.
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
            "data=journal,journal_async_commit",
            Ground::Flash,
        ),
        Trial::new("jftl-reflink", "data=journal", Ground::Reflink),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "jftl",
    title: "JFTL: the block journal, remapped home by a flash translation layer or by reflink",
    source: "Lim, Choi, Park, HPCC 2007",
    modes: &[DataMode::Journal, DataMode::Ordered],
    needs_remap: true,
    nvm: None,
    cost: "n + 2 blocks and 2 flushes for a commit of n logged blocks; a list of pairs and the \
        journal superblock at checkpoint",
    options: &[&REMAP, &jbd2::ASYNC_COMMIT],
    ..jbd2::ABOUT
};

/// The paper's four configurations are off and on in two modes.
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
    let remap = match args.options.value(&REMAP) {
        "on" => Some(1),
        "batch" => Some(u32::MAX),
        "off" => None,
        _ => return Err(args.options.wrong(&ABOUT, &REMAP)),
    };
    jbd2::open_as(&ABOUT, args, remap)
}
