//! The command line of the commands that look through trees: find, du, diff.

use std::ffi::OsString;

use clap::{Args, ValueEnum, ValueHint};

use super::part::PartArgs;
use crate::place::Place;

/// Find files of an image that is not mounted
///
/// Works as find(1): prints the places below each PLACE for which the expression is true, each as
/// IMAGE:/PATH, which other commands of stetfs take. Names of owners are looked up in the image's
/// own /etc/passwd and /etc/group.
#[derive(Debug, Args)]
#[command(after_help = "\
Expressions, as in find(1):
  -maxdepth N, -mindepth N            how deep to look; 0 is PLACE itself
  -depth                              what is in a directory before the directory
  -name GLOB, -iname GLOB             the last part of the path matches; -iname in either case
  -path GLOB, -ipath GLOB             the path matches, as it is printed; * matches a slash, too
  -type LETTERS                       f, d, l, p, s, c, b; several with commas
  -size [+-]N[cwbkMG]                 rounded up to units; b (512 bytes) is the default
  -empty                              an empty file or directory
  -perm MODE, -perm -MODE, /MODE      these permissions, all of these, any of these; in octal
  -uid, -gid, -links, -inum [+-]N     the number, more (+) or less (-)
  -user NAME, -group NAME             or a number
  -mtime, -atime [+-]N                days since it was changed, read; -mmin, -amin: minutes
  -newer PLACE                        changed later than that file of the image or of this machine
  -xattr NAME                         has this extended attribute
  -prune, -true, -false               do not go into the directory
  ( E ), ! E, E -a E, E -o E          and -not, -and, -or
  -print, -print0, -ls                what to do; -print if none of them is there

Examples:
  stetfs find disk.img -name '*.conf' -newer disk.img:/etc/fstab
  stetfs find disk.img:/home -type f -size +10M -ls
  stetfs find disk.img -perm /6000 -print0 | xargs -0 -n1 stetfs ls -l")]
pub(crate) struct Find {
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Print the files that are found as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// IMAGE or IMAGE:/PATH (one or more), then the expression
    #[arg(
        required = true,
        value_name = "PLACE",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_hint = ValueHint::AnyPath,
    )]
    pub(crate) words: Vec<OsString>,
}

/// Show how much space files of an image take that is not mounted
///
/// Works as du(1): in units of 1 KiB, rounded up; a file with several names counts once.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  stetfs du -h -d 1 disk.img
  stetfs du -s --inodes disk.img:/usr disk.img:/var"
)]
pub(crate) struct Du {
    /// IMAGE or IMAGE:/PATH
    #[arg(required = true, value_name = "PLACE")]
    pub(crate) places: Vec<Place>,
    /// Show files, too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Show only the sum of each PLACE
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    pub(crate) summarize: bool,
    /// Show what is at most N levels below PLACE
    #[arg(short = 'd', long, value_name = "N")]
    pub(crate) max_depth: Option<usize>,
    /// Show the lengths of files in bytes, not the space that they take
    #[arg(short, long)]
    pub(crate) bytes: bool,
    /// Show sizes for people: 1.5M
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
    /// Show the number of inodes, not the space
    #[arg(long, conflicts_with_all = ["bytes", "human_readable"])]
    pub(crate) inodes: bool,
    /// Show the sum of all PLACEs at the end
    #[arg(short = 'c', long)]
    pub(crate) total: bool,
    /// Print as JSON: bytes or inodes of each path
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Compare two trees: images that are not mounted, or directories of this machine
///
/// Compares names, types, content, link targets, device numbers, which names are one file, modes,
/// owners, times of the last change, and extended attributes with ACLs. Prints a line for each
/// difference. Does not read what is the same by its blocks; reads all content otherwise.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes, as diff(1): 0 the trees are equal, 1 they differ, 2 it could not be found out.

Examples:
  stetfs diff before.img after.img
  stetfs diff disk.img:/etc /etc --ignore owner,times
  stetfs diff --json a.img b.img | jq -r '.[].path'")]
pub(crate) struct Diff {
    /// IMAGE, IMAGE:/PATH or a directory of this machine
    #[arg(value_name = "A")]
    pub(crate) a: Place,
    /// What to compare it with
    #[arg(value_name = "B")]
    pub(crate) b: Place,
    /// What not to compare
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) ignore: Vec<Aspect>,
    /// Print the differences as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// What two files can differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Aspect {
    Mode,
    Owner,
    Times,
    Xattrs,
    /// Which names are one file.
    Links,
    Content,
}
