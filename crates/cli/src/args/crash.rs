//! The arguments of `stetfs crash`.

use std::num::NonZero;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use stetfs_lab::crash::campaign::Budget;
use stetfs_lab::crash::turns::Order;
use stetfs_lab::exploration::Shard;

/// Explore power cuts: the states that a crash can leave, recovered and judged
///
/// Runs workloads on simulated media, cuts the power at every moment, and takes the states that the
/// media may then be left in: every choice of the unflushed sectors where they are few, a stated
/// selection where they are many. Each state is recovered, cut again during its recovery, checked
/// by e2fsck and by a checker of its own, and compared with what the scheme promises. A failure is
/// made as small as it gets and printed with the command that replays it.
#[derive(Debug, Args)]
#[command(after_long_help = crate::crash::help(), args_conflicts_with_subcommands = true)]
pub(crate) struct Crash {
    #[command(subcommand)]
    pub(crate) command: Option<CrashCommand>,
    /// The journaling scheme, see `stetfs schemes`
    #[arg(long, default_value = "jbd2")]
    pub(crate) scheme: String,
    /// Its mode, or `all` of them (default: the scheme's)
    #[arg(long, value_name = "MODE")]
    pub(crate) data: Option<String>,
    /// Options of the scheme, as for `stetfs mount -o`
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// The volume: ext4-1k, ext4-2k, ext4-4k, ext4-inode128, ext4-plain, ext3-1k, ext3-4k-inode128;
    /// behind a colon the blocks of its log (512; 0: as mke2fs makes it)
    #[arg(long, default_value = "ext4-1k")]
    pub(crate) volume: String,
    /// What the volume is on: block, a device with sectors of 512 bytes and a volatile cache; pmem,
    /// memory with words of 8 bytes behind a processor's cache; nand, flash with a translation
    /// layer (default: what the scheme is for)
    #[arg(long, value_name = "MEDIUM")]
    pub(crate) media: Option<String>,
    /// Sequences of so many operations: 1, all; 2, all of a core and a share of the others; 3, a
    /// sample
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_length)]
    pub(crate) ops: Vec<usize>,
    /// Of the sequences of two that are not all core, run one in so many; 0: none
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) share: u64,
    /// How many sequences of three
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) triples: usize,
    /// So many long random workloads
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) random: u64,
    /// Every long workload that is written down
    #[arg(long)]
    pub(crate) scripts: bool,
    /// In which orders each workload is carried out: in-order; each-handle, with a commit between
    /// any two handles; overlapN, operations while syncs are under way, drawn from the seed N
    #[arg(
        long,
        value_name = "ORDER",
        value_delimiter = ',',
        default_value = "in-order,each-handle,overlap1"
    )]
    pub(crate) order: Vec<Order>,
    /// A workload as text in a file, or a script by its name; several times for several
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) workload: Vec<PathBuf>,
    /// Where every choice by chance comes from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Stop after so many states, or so long: 1000000, 90s, 10m, 2h
    #[arg(
        long,
        value_name = "STATES|TIME",
        default_value = "none",
        hide_default_value = true
    )]
    pub(crate) budget: Budget,
    /// Run the I-th of N parts of the workloads; which part one belongs to is told by its name,
    /// text and order, so that N machines with the same command run each once, and
    /// `stetfs crash merge` adds up what they found
    #[arg(long, value_name = "I/N")]
    pub(crate) shard: Option<Shard>,
    /// Keep in this file which workloads are done, and go on from there when it is there: the same
    /// command again runs the others. What was half done when it was interrupted or the budget
    /// ended is done again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) resume: Option<PathBuf>,
    /// Threads (default: one a processor)
    #[arg(short, long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Replay a case as a failure printed it, and nothing else
    #[arg(long, value_name = "CASE")]
    pub(crate) replay: Option<String>,
    /// Write the report as JSON, to a file or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Print the workloads, run nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// What can be done beside exploring.
#[derive(Debug, Subcommand)]
pub(crate) enum CrashCommand {
    Merge(CrashMerge),
}

/// Add up what the shards of an exploration found
///
/// Reads what `stetfs crash --shard I/N --json FILE` wrote and shows the sum as one exploration.
/// The reports must be of the same version of stetfs, target, effort and choice of workloads, and
/// of different shards; those that are missing are named.
#[derive(Debug, Args)]
pub(crate) struct CrashMerge {
    /// Reports
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Write the sum as JSON, to a file or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

fn parse_length(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=3).contains(n))
        .ok_or_else(|| "1, 2 or 3".to_owned())
}
