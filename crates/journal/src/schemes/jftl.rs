//! JFTL: the block journal on a flash translation layer that remaps. What was logged gets home by a change of the device's table.
//!
//! Source: Lim, Choi, Park, "Journal Remap-Based FTL for Journaling File System with Flash Memory" (section 3).
//!
//! A commit is that of [`jbd2`], in its format; then, in order:
//! 1. the list of (home, log block) pairs goes to the device, which has all of it or nothing after a power cut;
//! 2. blocks that had to be escaped in the log are written home, and flushed;
//! 3. the journal superblock moves the log's tail behind the transaction, durable;
//! 4. the log's blocks are discarded: the device can use the places of their copies, and of what the homes held before.
//!
//! So the log never holds more than one transaction, no content is kept for a checkpoint, and nothing that was logged is written twice.
//!
//! Deviations from the paper:
//! - It clears the journal's addresses with the remapping, and does not say what recovery then makes of a transaction whose blocks are gone. Here
//!   they keep their copies, which both addresses share, until the tail has moved: whoever finds the transaction, the kernel
//!   and e2fsck included, finds all of it.
//! - A transaction of more pairs than one list can have is remapped in several. Its commit record has decided, and a replay repeats
//!   all of them.
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
use crate::error::{JournalError, Result};
use crate::scheme::{About, DataMode, OpenArgs, OptionAbout, RecoveryReport, Scheme};

pub(crate) static ABOUT: About = About {
    name: "jftl",
    title: "JFTL: the block journal, remapped home by the flash translation layer",
    source: "Lim, Choi, Park: Journal Remap-Based FTL for Journaling File System with Flash Memory",
    modes: &[DataMode::Journal, DataMode::Ordered],
    needs_remap: true,
    nvm: None,
    cost: "n + 2 blocks, 2 flushes, a list of n pairs and the journal superblock for a commit of n logged blocks; nothing at checkpoint",
    options: &[&REMAP, &jbd2::ASYNC_COMMIT],
    ..jbd2::ABOUT
};

/// The paper's four configurations are its two values in two modes.
static REMAP: OptionAbout = OptionAbout {
    name: "remap",
    syntax: "on|off",
    default: "on",
    what: "remap what is logged, or copy it home as scheme jbd2 does",
};

pub(crate) fn open(args: OpenArgs) -> Result<(Box<dyn Scheme>, RecoveryReport)> {
    if args.dev.remap().is_none() {
        return Err(JournalError::Unusable(format!(
            "scheme {} needs a device that remaps, a flash translation layer of stetfs, not {}",
            ABOUT.name,
            args.dev.describe()
        )));
    }
    let remaps = args.options.switch(&ABOUT, &REMAP)?;
    jbd2::open_as(&ABOUT, args, remaps)
}
