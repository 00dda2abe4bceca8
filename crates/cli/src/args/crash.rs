//! The arguments of `stetfs crash`.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueHint};
use regex_lite::Regex;
use stetfs_crash::campaign::Budget;
use stetfs_crash::sharing::Shard;
use stetfs_crash::turns::Order;
use stetfs_crash::workloads::ace::Bounds;
use stetfs_crash::workloads::script::Script;
use stetfs_powercut::model::MODELS;
use stetfs_powercut::scheme::{Scheme, Under};
use stetfs_testkit::world::text::VERBS;

use crate::size::Size;

/// Explore power cuts: what they do to your program, or to a journaling scheme
///
/// With `-- PROGRAM` the program runs, unchanged, on a volume that records its calls. Then the
/// power is cut at every moment, in each way that the --model allows; each different state that is
/// left is mounted, and --check is run on it. A failure is made as small as it gets and told in
/// the program's own terms (docs/CRASH.md).
///
/// Without a program the journaling schemes themselves are explored. Runs workloads on simulated
/// media and cuts the power at every moment. Then it takes the states that the media may be left
/// in: every subset of the unflushed sectors if they are few, a stated selection if they are many.
/// It recovers each state, compares it with the promise of the scheme, and checks it with a checker
/// of its own; samples are checked by e2fsck and cut again during their recovery. It reduces a
/// failure to the smallest workload that still fails, and prints the command that replays it.
#[derive(Debug, Args)]
#[command(after_long_help = help(), args_conflicts_with_subcommands = true)]
pub(crate) struct Crash {
    #[command(subcommand)]
    pub(crate) command: Option<CrashCommand>,
    #[command(flatten)]
    pub(crate) program: CrashProgram,
    /// The journaling scheme, see `stetfs schemes`
    #[arg(long, default_value = "jbd2", conflicts_with = "judged")]
    pub(crate) scheme: String,
    /// The scheme's mode, or `all` modes (default: the scheme's own default)
    #[arg(long, value_name = "MODE", conflicts_with = "judged")]
    pub(crate) data: Option<String>,
    /// Options of the scheme, as for `stetfs mount -o`
    #[arg(
        short,
        value_name = "OPTIONS",
        value_delimiter = ',',
        conflicts_with = "judged"
    )]
    pub(crate) options: Vec<String>,
    /// The volume: ext4-1k, ext4-2k, ext4-4k, ext4-inode128, ext4-plain, ext3-1k, ext3-4k-inode128;
    /// behind a colon the blocks of its log (default 512; 0: as mke2fs makes it)
    #[arg(long, default_value = "ext4-1k", conflicts_with = "judged")]
    pub(crate) volume: String,
    /// The medium of the volume: block, a device with sectors of 512 bytes and a volatile cache;
    /// pmem, memory with words of 8 bytes behind a processor's cache; nand, flash with a
    /// translation layer; nand16k, the same with pages of 16 KiB in units of 4 KiB, for volumes
    /// with blocks of 4 KiB; block+nvm, a device with memory beside it (default: the medium that
    /// the scheme is for)
    #[arg(long, value_name = "MEDIUM", conflicts_with = "judged")]
    pub(crate) media: Option<String>,
    /// Run sequences of N operations: 1, all; 2, all of a core vocabulary and a share of the
    /// others; 3, a sample. Or a whole list within the bounds of CrashMonkey's ACE: ace1, ace2,
    /// ace3-data, ace3-metadata, ace3-nested; beyond ace1 with --shard. Or groups: sequences of two
    /// of which one is in a group, and two groups beside each other, of writes where file data is
    /// journaled, of names everywhere
    #[arg(
        long,
        value_name = "N|LIST",
        value_delimiter = ',',
        conflicts_with = "judged"
    )]
    pub(crate) ops: Vec<Ops>,
    /// Run one in N of the sequences of two outside the core vocabulary; 0: none; 1: all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        conflicts_with = "judged"
    )]
    pub(crate) share: u64,
    /// Number of sequences of three
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        conflicts_with = "judged"
    )]
    pub(crate) triples: usize,
    /// Number of long random workloads
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "judged")]
    pub(crate) random: u64,
    /// Run every script: the long workloads that are written down
    #[arg(long, conflicts_with = "judged")]
    pub(crate) scripts: bool,
    /// The orders in which each workload is carried out: in-order; each-handle, with a commit
    /// between any two handles; overlapN, with operations during syncs, drawn from the seed N
    #[arg(
        long,
        value_name = "ORDER",
        value_delimiter = ',',
        default_value = "in-order,each-handle,overlap1",
        conflicts_with = "judged"
    )]
    pub(crate) order: Vec<Order>,
    /// A workload as text in a file, or the name of a script; may be given several times
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "judged")]
    pub(crate) workload: Vec<PathBuf>,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Stop after this many states, or after this time: 1000000, 90s, 10m, 2h. Until then each
    /// workload is looked at where syncs have returned, and only then any in depth. Of a program
    /// it counts for each model
    #[arg(
        long,
        value_name = "STATES|TIME",
        default_value = "none",
        hide_default_value = true
    )]
    pub(crate) budget: Budget,
    /// Run the I-th of N parts of the workloads. The name, text and order of a workload choose its
    /// part, so N machines run each workload once, and `stetfs crash merge` adds up their reports.
    /// With --recording: of the states
    #[arg(long, value_name = "I/N")]
    pub(crate) shard: Option<Shard>,
    /// Keep a list of what is finished in this file: turns of workloads. If the file exists, the
    /// same command goes on with the others; a turn that was interrupted begins again. Of a
    /// program: keep what the check says of each state, and do not ask it again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) resume: Option<PathBuf>,
    /// Threads (default: one per processor). Of a program: checks at once, each on a directory of
    /// its own (default: 1)
    #[arg(short, long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Only replay this case, in the form that a failure printed; of a program FILE#CASE
    #[arg(long, value_name = "CASE")]
    pub(crate) replay: Option<String>,
    /// Write the report as JSON, to a file or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Print the workloads, run nothing
    #[arg(long, conflicts_with = "judged")]
    pub(crate) list: bool,
}

/// What `stetfs crash` does besides exploring.
#[derive(Debug, Subcommand)]
pub(crate) enum CrashCommand {
    Merge(CrashMerge),
    Mark(CrashMark),
}

/// Promise something, from within a program that `stetfs crash -- PROGRAM` records
///
/// Writes a line to the FIFO that $STETFS_MARKS names, as `echo TEXT > $STETFS_MARKS` does. The
/// line is in $STETFS_MARKS_FILE of the check at every power cut after it.
#[derive(Debug, Args)]
pub(crate) struct CrashMark {
    /// The promise, such as "order 17 confirmed"
    pub(crate) text: String,
}

/// What a power cut does to a program of the user's.
#[derive(Debug, Args)]
#[command(next_help_heading = "Your own program")]
pub(crate) struct CrashProgram {
    /// The program to record, with its arguments; {dir} in them, and $STETFS_DIR, is the directory
    #[arg(
        last = true,
        id = "program",
        value_name = "PROGRAM",
        group = "judged",
        requires = "check"
    )]
    pub(crate) words: Vec<OsString>,
    /// Explore the recording in this file, which --save or --keep wrote, in place of a program; its
    /// check counts, unless there is another --check
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "judged")]
    pub(crate) recording: Option<PathBuf>,
    /// Only record: write the recording to this file, if the check holds without a power cut
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        requires = "program",
        conflicts_with_all = ["shard", "resume", "json", "junit", "mutate", "keep"]
    )]
    pub(crate) save: Option<PathBuf>,
    /// The command that judges a state: exit code 0 if the program's promises hold. {dir} in it,
    /// and $STETFS_DIR, is the directory with the state, which it may change; $STETFS_MARKS_FILE
    /// lists the promises that count
    #[arg(long, value_name = "CMD")]
    pub(crate) check: Option<String>,
    /// What the file system keeps: ext4-ordered, ext4-writeback, ext4-journal, posix; or a scheme
    /// of ours, with its mode behind a dash: stet, jbd2-ordered
    #[arg(
        long,
        value_name = "MODEL",
        value_delimiter = ',',
        default_value = "ext4-ordered",
        requires = "judged"
    )]
    pub(crate) model: Vec<Under>,
    /// Let the program have groups of changes, as on a mount of stetfs: F2FS's ioctls on marked
    /// files, which SQLite knows, and `stetfs tx`. Then the --model is a scheme of ours, since no
    /// other file system keeps them
    #[arg(long, requires = "program")]
    pub(crate) groups: bool,
    /// Count what other processes do in the directory as the program's, and as the check's: for a
    /// program whose work is done by a service or a container. Otherwise only what the program has
    /// started can change anything there, and only its syncs make anything durable
    #[arg(long)]
    pub(crate) others: bool,
    /// Start from the volume in this file, which is only read
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "program")]
    pub(crate) image: Option<PathBuf>,
    /// Run this before the recording; what it does is durable
    #[arg(long, value_name = "CMD", requires = "program")]
    pub(crate) setup: Option<String>,
    /// Size of the fresh volume
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "64M",
        conflicts_with = "image"
    )]
    pub(crate) size: Size,
    /// Mount here (default: a directory below $TMPDIR)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
    /// Seconds after which the program is killed; what it did until then is explored
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60.0,
        requires = "program"
    )]
    pub(crate) timeout: f64,
    /// Seconds after which a check is killed, and has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) check_timeout: f64,
    /// Lines of the program's standard output that are promises
    #[arg(long, value_name = "REGEX", requires = "program")]
    pub(crate) marks_from_stdout: Option<Regex>,
    /// Leave out each fsync of the recording in turn, and say which ones the check does not miss
    #[arg(long, requires = "judged")]
    pub(crate) mutate: bool,
    /// Write the report as JUnit's XML to a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "judged")]
    pub(crate) junit: Option<PathBuf>,
    /// Keep the recording in this file, for --replay (default: only if something is found, below
    /// $TMPDIR)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "program")]
    pub(crate) keep: Option<PathBuf>,
    /// With --replay: run a shell in the directory with the state
    #[arg(long, requires = "replay")]
    pub(crate) shell: bool,
}

/// Add up the reports of an exploration's shards
///
/// Reads the reports of `stetfs crash --shard I/N --json FILE` and shows the sum as one
/// exploration. The reports must have the same version of stetfs, target, effort and choice of
/// workloads, or the same recording, check and models, and be of different shards. Missing shards
/// are named.
#[derive(Debug, Args)]
pub(crate) struct CrashMerge {
    /// The reports
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Write the sum as JSON, to a file or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Write the sum as JUnit's XML to a file; of programs only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) junit: Option<PathBuf>,
}

/// Sequences that are enumerated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ops {
    /// Of so many operations of the lab's own vocabulary.
    Own(usize),
    /// With one in a group, and with two groups.
    Groups,
    /// Within the bounds of ACE.
    Ace(Bounds),
}

impl FromStr for Ops {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let length = text.parse().ok().filter(|n| (1..=3).contains(n));
        let own = length.map(Self::Own);
        let groups = (text == "groups").then_some(Self::Groups);
        let lists = Bounds::ALL.map(Bounds::name).join(", ");
        let own = own.or(groups);
        let parsed = own.or_else(|| text.parse().ok().map(Self::Ace));
        parsed.ok_or_else(|| format!("1, 2 or 3, groups, or {lists}"))
    }
}

/// The text form of workloads, for the help.
fn help() -> String {
    let width = VERBS
        .iter()
        .map(|v| v.name.len() + v.words.len() + 1)
        .max()
        .unwrap_or(0);
    let verbs = VERBS.iter().map(|v| {
        let usage = format!("{} {}", v.name, v.words);
        format!("  {usage:width$}  {}", v.does)
            .trim_end()
            .to_owned()
    });
    let scripts: Vec<_> = Script::WRITTEN.iter().map(|s| s.name()).collect();
    let models = MODELS
        .iter()
        .map(|m| format!("  {:14}  {}", m.name, m.about));
    format!(
        "\
Workloads as text, one operation per line or separated by semicolons; # begins a comment:
{}
  FILE is a slot, @0 to @2, or a path, which is then opened for this operation. The lines before
  `begin` are the setup, which is synced and not cut; `setup standard` is that of the sequences.

Scripts: {}, randomN, postmarkN.

Exit codes: 0 no violations, or the program's promises hold; 1 violations; 2 it could not run; \
3 the check fails without a power cut, or not every time; 4 the --budget ended the judging of a \
program early, without findings until then; 129, 130 and 143 it was interrupted by SIGHUP, SIGINT \
or SIGTERM, without violations until then.

Models of file systems, for programs:
{}
  SCHEME[-MODE]   what a scheme of ours recovers: {}

Examples:
  stetfs crash --check ./check.sh -- ./my-program --data {{dir}}
  stetfs crash --model posix,ext4-ordered --check 'test -s {{dir}}/config' -- ./save {{dir}}/config
  stetfs crash --replay /tmp/a.recording#posix:3:1 --shell   look at what a finding has left
  stetfs crash                                     all sequences of one operation
  stetfs crash --data all --ops 2 --jobs 2         all pairs of the core, in each mode
  stetfs crash --random 20 --scripts --budget 10m  long workloads, for ten minutes
  stetfs crash --data journal --ops groups         groups beside each operation
  stetfs crash --scheme null --ops 1               violations, since there is no journal
  stetfs crash --workload mine.txt --json -        your own workload
  stetfs crash --ops 2 --resume pairs.state        after Ctrl-C the same command goes on
  stetfs crash --ops 2 --shard 1/4 --json 1.json   a quarter, on one of four machines
  stetfs crash merge [1-4].json                    the sum of the four reports
  stetfs crash --check ./check.sh --save a.rec -- ./my-program {{dir}}
  stetfs crash --recording a.rec --shard 1/4 --json 1.json   a quarter of its states
  stetfs crash --ops ace2 --shard 1/1000           223 of ACE's sequences of two",
        verbs.collect::<Vec<_>>().join("\n"),
        scripts.join(", "),
        models.collect::<Vec<_>>().join("\n"),
        Scheme::names().collect::<Vec<_>>().join(", "),
    )
}
