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
use stetfs_powercut::kernel::Kernel;
use stetfs_powercut::model::MODELS;
use stetfs_powercut::scheme::Scheme;
use stetfs_powercut::under::Under;
use stetfs_testkit::world::text::VERBS;

use crate::size::Size;

/// Explore power cuts: what they do to your program, or to a journaling scheme
///
/// With `-- PROGRAM`, stetfs runs the program, unchanged, on a volume that records its calls. Then
/// it cuts the power at every moment, in each way that --model allows. It mounts each different
/// state that is left, and runs --check on it. It makes each failure as small as possible and tells
/// it in the program's own calls (docs/CRASH.md).
///
/// Without a program, stetfs explores the journaling schemes themselves. It runs workloads on
/// simulated media and cuts the power at every moment. Then it takes the states that the media may
/// be left in: every subset of the unflushed sectors if they are few, a stated selection if they
/// are many. It recovers each state, compares it with the promise of the scheme, and checks it with
/// a checker of its own; samples are checked by e2fsck and cut again during their recovery. It
/// reduces a failure to the smallest workload that still fails, and prints the command that replays
/// it.
#[derive(Debug, Args)]
#[command(after_long_help = help(), args_conflicts_with_subcommands = true)]
pub(crate) struct Crash {
    #[command(subcommand)]
    pub(crate) command: Option<CrashCommand>,
    #[command(flatten)]
    pub(crate) program: CrashProgram,
    /// Journaling scheme to explore, see `stetfs schemes`
    #[arg(long, default_value = "jbd2", conflicts_with = "judged")]
    pub(crate) scheme: String,
    /// Mode of the scheme, or `all` modes [default: the scheme's own]
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
    /// Kind of volume: ext4-1k, ext4-2k, ext4-4k, ext4-inode128, ext4-plain, ext3-1k,
    /// ext3-4k-inode128; after a colon, the number of blocks of its log (default 512; 0: as mke2fs
    /// makes it)
    #[arg(long, default_value = "ext4-1k", conflicts_with = "judged")]
    pub(crate) volume: String,
    /// Medium of the volume. block: a device with sectors of 512 bytes and a volatile cache; pmem:
    /// memory with words of 8 bytes behind a processor's cache; nand: flash with a translation
    /// layer; nand16k: the same with pages of 16 KiB in units of 4 KiB, for volumes with blocks of
    /// 4 KiB; block+nvm: a device with memory beside it [default: the medium that the scheme is
    /// for]
    #[arg(long, value_name = "MEDIUM", conflicts_with = "judged")]
    pub(crate) media: Option<String>,
    /// Run sequences of N operations. 1: all; 2: all of a core vocabulary, and a --share of the
    /// others; 3: a sample (--triples). Or run a whole list within the bounds of CrashMonkey's ACE:
    /// ace1, ace2, ace3-data, ace3-metadata, ace3-nested; beyond ace1, use --shard. Or run
    /// `groups`: sequences of two operations with one or both in a group, and two groups beside
    /// each other; with writes where file data is journaled, with names everywhere [default: 1, if
    /// no other workload is asked for]
    #[arg(
        long,
        value_name = "N|LIST",
        value_delimiter = ',',
        conflicts_with = "judged"
    )]
    pub(crate) ops: Vec<Ops>,
    /// Of the sequences of two outside the core vocabulary, run one in N; 0: none; 1: all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        conflicts_with = "judged"
    )]
    pub(crate) share: u64,
    /// Number of sequences of three that --ops 3 runs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        conflicts_with = "judged"
    )]
    pub(crate) triples: usize,
    /// Number of long random workloads to run
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "judged")]
    pub(crate) random: u64,
    /// Run every script: the long written workloads that --help lists
    #[arg(long, conflicts_with = "judged")]
    pub(crate) scripts: bool,
    /// Orders in which to carry out each workload: in-order; each-handle, with a commit between any
    /// two handles; overlapN, with operations during syncs, drawn from the seed N
    #[arg(
        long,
        value_name = "ORDER",
        value_delimiter = ',',
        default_value = "in-order,each-handle,overlap1",
        conflicts_with = "judged"
    )]
    pub(crate) order: Vec<Order>,
    /// Run this workload: its text in a file, or the name of a script; may be given several times
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "judged")]
    pub(crate) workload: Vec<PathBuf>,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Stop after this many states, or after this time: 1000000, 90s, 10m, 2h [default: never].
    /// Every workload is first cut where syncs have returned, and only then is any explored in
    /// depth. With a program, each model gets the whole budget
    #[arg(
        long,
        value_name = "STATES|TIME",
        default_value = "none",
        hide_default_value = true
    )]
    pub(crate) budget: Budget,
    /// Run part I of N of the workloads. The name, text and order of a workload choose its part, so
    /// N machines run each workload once, and `stetfs crash merge` adds up their reports. With
    /// --recording, the states are shared instead
    #[arg(long, value_name = "I/N")]
    pub(crate) shard: Option<Shard>,
    /// Keep in this file which turns of workloads are finished. If the file exists, the same
    /// command goes on with the others; a turn that was interrupted begins again. With a program:
    /// keep what the check says of each state, and do not ask it again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) resume: Option<PathBuf>,
    /// Number of threads [default: one per processor]. With a program: number of checks at once,
    /// each on a directory of its own [default: 1]
    #[arg(short, long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Only replay this case, in the form that a failure printed; for a program: FILE#CASE
    #[arg(long, value_name = "CASE")]
    pub(crate) replay: Option<String>,
    /// Write the report as JSON to a file, or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Print the workloads and run nothing
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
/// Writes a line to the FIFO that $STETFS_MARKS names, as `echo TEXT > $STETFS_MARKS` does. At
/// every later power cut, the check finds the line in $STETFS_MARKS_FILE.
#[derive(Debug, Args)]
pub(crate) struct CrashMark {
    /// Text of the promise, such as "order 17 confirmed"
    pub(crate) text: String,
}

/// `stetfs crash -- PROGRAM`: explores power cuts of a user's program.
#[derive(Debug, Args)]
#[command(next_help_heading = "Your own program")]
pub(crate) struct CrashProgram {
    /// Program to record, with its arguments; {dir} in them, and $STETFS_DIR, is the directory to
    /// work in
    #[arg(last = true, id = "program", value_name = "PROGRAM", group = "judged")]
    pub(crate) words: Vec<OsString>,
    /// Explore the recording in this file, which --save or --keep wrote, instead of running a
    /// program. Its own check is used, unless --check names another
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "judged")]
    pub(crate) recording: Option<PathBuf>,
    /// Only record: write the recording to this file if the check holds without a power cut
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        requires = "program",
        conflicts_with_all = ["shard", "resume", "json", "junit", "mutate", "keep"]
    )]
    pub(crate) save: Option<PathBuf>,
    /// Command that judges a state: it exits with 0 if the program's promises hold. {dir} in it,
    /// and $STETFS_DIR, is the directory with the state, which the command may change;
    /// $STETFS_MARKS_FILE lists the promises that count. Without --check and --read, each file must
    /// be as it was at some moment of the run, not before the last promise
    #[arg(long, value_name = "CMD")]
    pub(crate) check: Option<String>,
    /// Command that reads what the program wrote: of each state it must print what it prints at
    /// some moment of the run without a power cut, not before the last promise. For programs that
    /// recover their files when they read them, such as databases
    #[arg(long, value_name = "CMD", conflicts_with = "check")]
    pub(crate) read: Option<String>,
    /// Rules by which a file system keeps or loses changes: ext4-ordered,
    /// ext4-dioread-lock, ext4-writeback, ext4-journal, posix. Or a file system that runs and has
    /// the program's calls repeated on it: a scheme of ours, with its mode after a dash (stet,
    /// jbd2-ordered); or the kernel's own ext4 (kernel-ordered), which needs root, also with a
    /// scheme below it (kernel-journal/stet)
    #[arg(
        long,
        value_name = "MODEL",
        value_delimiter = ',',
        default_value = "ext4-ordered",
        requires = "judged"
    )]
    pub(crate) model: Vec<Under>,
    /// Let the program make groups of changes, as on a mount of stetfs: by F2FS's ioctls on marked
    /// files, which SQLite knows, and by `stetfs tx`. Then --model must be a scheme of ours, since
    /// no other file system keeps groups
    #[arg(long, requires = "program")]
    pub(crate) groups: bool,
    /// Count what other processes do in the directory as done by the program or the check: for a
    /// program whose work is done by a service or a container. Without this, only the program and
    /// what it started can change anything there, and only their syncs make anything durable
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
    /// Seconds after which a check is killed and has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) check_timeout: f64,
    /// Take each line of the program's standard output that matches as a promise
    #[arg(long, value_name = "REGEX", requires = "program")]
    pub(crate) marks_from_stdout: Option<Regex>,
    /// Leave out each fsync of the recording in turn, and name those whose absence the check does
    /// not notice
    #[arg(long, requires = "judged")]
    pub(crate) mutate: bool,
    /// Write the report as JUnit XML to a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "judged")]
    pub(crate) junit: Option<PathBuf>,
    /// Keep the recording in this file, for --replay [default: below $TMPDIR, only if something is
    /// found]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "program")]
    pub(crate) keep: Option<PathBuf>,
    /// With --replay, run a shell in the directory with the state
    #[arg(long, requires = "replay")]
    pub(crate) shell: bool,
}

/// Add up the reports of an exploration's shards
///
/// Reads the reports of `stetfs crash --shard I/N --json FILE` and shows the sum as one
/// exploration. The reports must be of different shards. They must agree in the version of stetfs,
/// target, effort and choice of workloads; or, for a program, in recording, check and models.
/// Missing shards are named.
#[derive(Debug, Args)]
pub(crate) struct CrashMerge {
    /// Reports to add up
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Write the sum as JSON to a file, or to - (standard output, in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Write the sum as JUnit XML to a file; only for programs
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) junit: Option<PathBuf>,
}

/// What --ops runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ops {
    /// Sequences of this many operations of our own vocabulary.
    Own(usize),
    /// Sequences with operations in a group, and workloads of two groups.
    Groups,
    /// A list within bounds of ACE.
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

/// The long help's end: workloads as text, scripts, exit codes, models, examples.
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
        .map(|m| format!("  {:17}  {}", m.name, m.about));
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
  SCHEME[-MODE]      what a scheme of ours recovers: {}
  kernel[-MODE][/SCHEME]  what the kernel's ext4 leaves, and with a scheme of ours below it:
                     {}

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
        Kernel::EXAMPLES.join(", "),
    )
}
