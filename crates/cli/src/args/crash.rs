//! The arguments of `stetfs crash`.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueHint};
use stetfs_crash::campaign::Budget;
use stetfs_crash::exploration::Shard;
use stetfs_crash::turns::Order;
use stetfs_crash::workloads::ace::Bounds;

/// Explore power cuts: the states that a crash can leave, recovered and judged
///
/// Runs workloads on simulated media and cuts the power at every moment. Then it takes the states
/// that the media may be left in: every subset of the unflushed sectors if they are few, a stated
/// selection if they are many. It recovers each state, compares it with the promise of the scheme,
/// and checks it with a checker of its own; samples are checked by e2fsck and cut again during
/// their recovery. It reduces a failure to the smallest workload that still fails, and prints the
/// command that replays it.
#[derive(Debug, Args)]
#[command(after_long_help = crate::crash::help(), args_conflicts_with_subcommands = true)]
pub(crate) struct Crash {
    #[command(subcommand)]
    pub(crate) command: Option<CrashCommand>,
    /// The journaling scheme, see `stetfs schemes`
    #[arg(long, default_value = "jbd2")]
    pub(crate) scheme: String,
    /// The scheme's mode, or `all` modes (default: the scheme's own default)
    #[arg(long, value_name = "MODE")]
    pub(crate) data: Option<String>,
    /// Options of the scheme, as for `stetfs mount -o`
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// The volume: ext4-1k, ext4-2k, ext4-4k, ext4-inode128, ext4-plain, ext3-1k, ext3-4k-inode128;
    /// behind a colon the blocks of its log (default 512; 0: as mke2fs makes it)
    #[arg(long, default_value = "ext4-1k")]
    pub(crate) volume: String,
    /// The medium of the volume: block, a device with sectors of 512 bytes and a volatile cache;
    /// pmem, memory with words of 8 bytes behind a processor's cache; nand, flash with a
    /// translation layer; nand16k, the same with pages of 16 KiB in units of 4 KiB, for volumes
    /// with blocks of 4 KiB; block+nvm, a device with memory beside it (default: the medium that
    /// the scheme is for)
    #[arg(long, value_name = "MEDIUM")]
    pub(crate) media: Option<String>,
    /// Run sequences of N operations: 1, all; 2, all of a core vocabulary and a share of the
    /// others; 3, a sample. Or a whole list within the bounds of CrashMonkey's ACE: ace1, ace2,
    /// ace3-data, ace3-metadata, ace3-nested; beyond ace1 with --shard
    #[arg(long, value_name = "N|LIST", value_delimiter = ',')]
    pub(crate) ops: Vec<Ops>,
    /// Run one in N of the sequences of two outside the core vocabulary; 0: none; 1: all
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) share: u64,
    /// Number of sequences of three
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) triples: usize,
    /// Number of long random workloads
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) random: u64,
    /// Run every script: the long workloads that are written down
    #[arg(long)]
    pub(crate) scripts: bool,
    /// The orders in which each workload is carried out: in-order; each-handle, with a commit
    /// between any two handles; overlapN, with operations during syncs, drawn from the seed N
    #[arg(
        long,
        value_name = "ORDER",
        value_delimiter = ',',
        default_value = "in-order,each-handle,overlap1"
    )]
    pub(crate) order: Vec<Order>,
    /// A workload as text in a file, or the name of a script; may be given several times
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) workload: Vec<PathBuf>,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Stop after this many states, or after this time: 1000000, 90s, 10m, 2h
    #[arg(
        long,
        value_name = "STATES|TIME",
        default_value = "none",
        hide_default_value = true
    )]
    pub(crate) budget: Budget,
    /// Run the I-th of N parts of the workloads. The name, text and order of a workload choose its
    /// part, so N machines run each workload once, and `stetfs crash merge` adds up their reports
    #[arg(long, value_name = "I/N")]
    pub(crate) shard: Option<Shard>,
    /// Keep a list of the finished workloads in this file. If the file exists, the same command
    /// runs only the other workloads; a half-explored workload is explored again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) resume: Option<PathBuf>,
    /// Threads (default: one per processor)
    #[arg(short, long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Only replay this case, in the form that a failure printed
    #[arg(long, value_name = "CASE")]
    pub(crate) replay: Option<String>,
    /// Write the report as JSON, to a file or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Print the workloads, run nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// What `stetfs crash` does besides exploring.
#[derive(Debug, Subcommand)]
pub(crate) enum CrashCommand {
    Merge(CrashMerge),
}

/// Add up the reports of an exploration's shards
///
/// Reads the reports of `stetfs crash --shard I/N --json FILE` and shows the sum as one
/// exploration. The reports must have the same version of stetfs, target, effort and choice of
/// workloads, and be of different shards. Missing shards are named.
#[derive(Debug, Args)]
pub(crate) struct CrashMerge {
    /// The reports
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Write the sum as JSON, to a file or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

/// Sequences that are enumerated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ops {
    /// Of so many operations of the lab's own vocabulary.
    Own(usize),
    /// Within the bounds of ACE.
    Ace(Bounds),
}

impl FromStr for Ops {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let length = text.parse().ok().filter(|n| (1..=3).contains(n));
        let own = length.map(Self::Own);
        let lists = Bounds::ALL.map(Bounds::name).join(", ");
        let parsed = own.or_else(|| text.parse().ok().map(Self::Ace));
        parsed.ok_or_else(|| format!("1, 2 or 3, or {lists}"))
    }
}
