//! Mount options of the kernel's ext4 that are accepted and change nothing here, so that a line of
//! /etc/fstab mounts as it is.
//!
//! They choose between things that cannot be otherwise here, do not concern a file system in user
//! space, or do not exist here. Values are checked as the kernel does. The names are those of
//! ext4(5) and of `ext4_param_specs` in fs/ext4/super.c, among them options of ext2 and ext3 that
//! the kernel ignores too.

use super::value::{OptionError, parse_u32};

/// The value that an option takes.
enum Value {
    /// Nothing.
    None,
    /// A number up to this one.
    Number(u32),
    /// Nothing, or a number.
    Optional,
    /// 0 or a power of two up to 2^30.
    PowerOfTwo,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text, even an empty one.
    Text,
}

const ANY: Value = Value::Number(u32::MAX);

#[rustfmt::skip]
const UNUSED: &[(&str, Value)] = &[
    // Where blocks and inodes go.
    ("stripe", ANY),
    ("orlov", Value::None),
    ("oldalloc", Value::None),
    ("reservation", Value::None),
    ("noreservation", Value::None),
    ("mb_optimize_scan", Value::Number(1)),
    ("prefetch_block_bitmaps", Value::None),
    ("no_prefetch_block_bitmaps", Value::None),
    ("init_itable", Value::Optional),
    ("noinit_itable", Value::None),
    ("debug_want_extra_isize", ANY),
    // How it reads, and how direct I/O locks.
    ("inode_readahead_blks", Value::PowerOfTwo),
    ("dioread_lock", Value::None),
    ("dioread_nolock", Value::None),
    ("nodioread_nolock", Value::None),
    ("nombcache", Value::None),
    ("no_mbcache", Value::None),
    ("bh", Value::None),
    ("nobh", Value::None),
    ("mblk_io_submit", Value::None),
    ("nomblk_io_submit", Value::None),
    // The journal. Records have checksums as the volume's features say; data that cannot be written
    // always stops it.
    ("journal_checksum", Value::None),
    ("nojournal_checksum", Value::None),
    ("journal_ioprio", Value::Number(7)),
    ("journal_dev", Value::Number(0)),
    ("journal", ANY),
    ("data_err", Value::Word(&["abort", "ignore"])),
    ("fc_debug_force", Value::None),
    ("fc_debug_max_replay", ANY),
    // Checks: always made.
    ("block_validity", Value::None),
    ("noblock_validity", Value::None),
    ("check", Value::Text),
    ("nocheck", Value::None),
    ("debug", Value::None),
    ("abort", Value::None),
    ("warn_on_error", Value::None),
    ("nowarn_on_error", Value::None),
    // Attributes of inodes.
    ("nouid32", Value::None),
    ("i_version", Value::None),
    // Quotas and encryption are not supported.
    ("quota", Value::None),
    ("noquota", Value::None),
    ("usrquota", Value::None),
    ("grpquota", Value::None),
    ("prjquota", Value::None),
    ("usrjquota", Value::Text),
    ("grpjquota", Value::Text),
    ("jqfmt", Value::Word(&["vfsold", "vfsv0", "vfsv1"])),
    ("inlinecrypt", Value::None),
];

/// Options that ask for what always happens here: the user need not be told.
const ALWAYS_SO: &[&str] = &[
    "block_validity",
    "check=none",
    "data_err=abort",
    "dioread_nolock",
    "journal_checksum",
    "journal_dev=0",
    "nocheck",
    "noquota",
    "nowarn_on_error",
    "usrjquota=",
    "grpjquota=",
];

/// Whether `name`, or `name=value`, is such an option.
///
/// # Errors
/// It is one, but with a value that the kernel refuses too.
pub(super) fn is_unused(name: &str, value: Option<&str>) -> Result<bool, OptionError> {
    let Some((_, form)) = UNUSED.iter().find(|(known, _)| *known == name) else {
        return Ok(false);
    };
    let wrong = |value: &str, expected| {
        Err(OptionError::Value {
            option: name.to_owned(),
            value: value.to_owned(),
            expected,
        })
    };
    match (form, value) {
        (Value::None | Value::Optional, None) | (Value::Text, Some(_)) => Ok(true),
        (Value::None, Some(_)) => Err(OptionError::UnwantedValue(name.to_owned())),
        (_, None) => Err(OptionError::NoValue(name.to_owned())),
        (_, Some("")) => Err(OptionError::NoValue(name.to_owned())),
        (Value::Number(most), Some(text)) => match parse_u32(text) {
            Some(n) if n <= *most => Ok(true),
            _ if name == "journal_dev" => wrong(text, "external journals are not supported"),
            _ if *most < u32::MAX => wrong(text, "a number that ext4 takes too (ext4(5))"),
            _ => wrong(text, "a number"),
        },
        (Value::Optional, Some(text)) => match parse_u32(text) {
            Some(_) => Ok(true),
            None => wrong(text, "a number"),
        },
        (Value::PowerOfTwo, Some(text)) => match parse_u32(text) {
            Some(n) if n == 0 || n.is_power_of_two() && n <= 1 << 30 => Ok(true),
            _ => wrong(text, "0 or a power of two up to 2^30"),
        },
        (Value::Word(words), Some(text)) => {
            if words.contains(&text) {
                Ok(true)
            } else {
                wrong(text, "a word that ext4 takes too (ext4(5))")
            }
        }
    }
}

/// Whether the option asks for what always happens here.
pub(super) fn is_always_so(option: &str) -> bool {
    ALWAYS_SO.contains(&option)
}
