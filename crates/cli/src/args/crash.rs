//! The arguments of `stetfs crash`.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueHint};
use stetfs_lab::crash::turns::Order;

/// Explore power cuts: the states that a crash can leave, recovered and judged
///
/// Runs workloads on simulated media, cuts the power at every moment, and takes the states that the media may then be left in:
/// every choice of the unflushed sectors where they are few, a stated selection where they are many. Each state is recovered,
/// cut again during its recovery, checked by e2fsck and by a checker of its own, and compared with what the scheme
/// promises. A failure is made as small as it gets and printed with the command that replays it.
#[derive(Debug, Args)]
#[command(after_long_help = crate::crash::help())]
pub(crate) struct Crash {
    /// The journaling scheme, see `stetfs schemes`
    #[arg(long, default_value = "jbd2")]
    pub(crate) scheme: String,
    /// Its mode, or `all` of them (default: the scheme's)
    #[arg(long, value_name = "MODE")]
    pub(crate) data: Option<String>,
    /// Options of the scheme, as for `stetfs mount -o`
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// The volume: ext4-1k, ext4-2k, ext4-4k, ext4-inode128, ext4-plain, ext3-1k, ext3-4k-inode128; behind a colon
    /// the blocks of its log (512; 0: as mke2fs makes it)
    #[arg(long, default_value = "ext4-1k")]
    pub(crate) volume: String,
    /// What the volume is on: block, a device with sectors of 512 bytes and a volatile cache; pmem, memory with words of 8 bytes
    /// behind a processor's cache; nand, flash with a translation layer (default: what the scheme is for)
    #[arg(long, value_name = "MEDIUM")]
    pub(crate) media: Option<String>,
    /// Sequences of so many operations: 1, all; 2, all of a core and a share of the others; 3, a sample
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
    /// In which orders each workload is carried out: in-order; each-handle, with a commit between any two handles; overlapN,
    /// operations while syncs are under way, drawn from the seed N
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
    #[arg(long, value_name = "STATES|TIME")]
    pub(crate) budget: Option<Limit>,
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

/// When an exploration stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// After so many states.
    States(u64),
    /// After so long.
    Time(Duration),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no number of states and no time such as 90s, 10m or 2h");
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let seconds = match unit {
            "" => return Ok(Self::States(number)),
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(wrong()),
        };
        let seconds = number.checked_mul(seconds).ok_or_else(wrong)?;
        Ok(Self::Time(Duration::from_secs(seconds)))
    }
}

fn parse_length(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=3).contains(n))
        .ok_or_else(|| "1, 2 or 3".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_states_or_times() {
        assert_eq!("1000".parse(), Ok(Limit::States(1000)));
        assert_eq!("10m".parse(), Ok(Limit::Time(Duration::from_secs(600))));
        for wrong in [
            "",
            "m",
            "-1",
            "10d",
            "99999999999999999999",
            "9999999999999999999h",
        ] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }
}
