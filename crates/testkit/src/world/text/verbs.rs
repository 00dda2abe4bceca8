//! The table of verbs: how to write each, what it does, and which operation it is.

use std::fmt;

use anyhow::{Result, bail};

use super::words::{
    AclWord, Bytes, Device, File, Flag, Id, Is, Kind, Mode, Number, OneOf, Optional, Path, Slot,
    Text, Time, Words,
};
use crate::world::op::{Durable, Op, RenameHow, Reserve, Special, XattrHow};

/// A verb, its words, and what it does.
pub struct Verb {
    /// The first word of the line.
    pub name: &'static str,
    /// The other words, as help shows them.
    pub words: &'static str,
    /// What it does.
    pub does: &'static str,
}

/// Each row is a verb, its help, and its operation with the kinds of its words in order. If a verb
/// stands for several operations, the row may name what the next word must be. If an operation has
/// several verbs, a pattern tells which values belong to the row.
macro_rules! verbs {
    ($(
        $name:literal $(($words:literal, $does:literal))?
        $(=> $([$at:ident])? $op:ident {
            $($field:ident $(@ $of:pat)? = $kind:expr),* $(,)?
        })?;
    )*) => {
        /// Every verb.
        pub const VERBS: &[Verb] = &[$($(
            Verb {
                name: $name,
                words: $words,
                does: $does,
            },
        )?)*];

        /// Reads the words of a verb.
        pub(super) fn read(name: &str, words: &mut Words<'_>) -> Result<Op> {
            $($(
                if name == $name $(&& words.$at())? {
                    return Ok(Op::$op { $($field: $kind.read(words)?),* });
                }
            )?)*
            bail!("there is no operation \"{name}\"")
        }

        /// Writes an operation.
        #[allow(non_shorthand_field_patterns)]
        pub(super) fn write(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match op {
                $($(
                    Op::$op { $($field: $field $(@ $of)?),* } => {
                        f.write_str($name)?;
                        $($kind.write($field, f)?;)*
                        Ok(())
                    }
                )?)*
                Op::Clock(_) | Op::GroupDo(_) => unreachable!("by the caller"),
            }
        }
    };
}

verbs! {
    "create" ("PATH [MODE] [excl]", "open(O_CREAT) and close")
        => Create { path = Path, mode = Mode(Some(0o644)), exclusive = Flag("excl") };
    "mkdir" ("PATH [MODE]", "") => Mkdir { path = Path, mode = Mode(Some(0o755)) };
    "mkfifo" ("PATH [MODE]", "") => Mknod {
        path = Path, special @ Special::Fifo = Is(Special::Fifo), mode = Mode(Some(0o644)),
    };
    "mksocket" ("PATH [MODE]", "") => Mknod {
        path = Path, special @ Special::Socket = Is(Special::Socket), mode = Mode(Some(0o644)),
    };
    "mkchar" ("PATH MAJOR MINOR [MODE]", "mknod of a device") => Mknod {
        path = Path, special @ Special::Char(..) = Device(Special::Char), mode = Mode(Some(0o644)),
    };
    "mkblock" ("PATH MAJOR MINOR [MODE]", "") => Mknod {
        path = Path, special @ Special::Block(..) = Device(Special::Block),
        mode = Mode(Some(0o644)),
    };
    "symlink" ("TARGET PATH", "") => Symlink { target = Text("the target"), path = Path };
    "link" ("OLD|@SLOT NEW", "") => [at_slot] LinkSlot { slot = Slot, new = Path };
    "link" => Link { old = Path, new = Path };
    "unlink" ("PATH", "") => Unlink { path = Path };
    "rmdir" ("PATH", "") => Rmdir { path = Path };
    "rename" ("OLD NEW [noreplace|exchange|whiteout]", "") => Rename {
        old = Path,
        new = Path,
        how = Optional(&[
            ("", RenameHow::Plain),
            ("noreplace", RenameHow::NoReplace),
            ("exchange", RenameHow::Exchange),
            ("whiteout", RenameHow::Whiteout),
        ]),
    };
    "open" ("@SLOT PATH [truncate]", "for reading and writing")
        => Open { slot = Slot, path = Path, truncate = Flag("truncate") };
    "tmpfile" ("@SLOT PATH [MODE]", "open(O_TMPFILE) of a directory")
        => Tmpfile { slot = Slot, path = Path, mode = Mode(Some(0o600)) };
    "close" ("@SLOT", "") => Close { slot = Slot };
    "write" ("FILE OFFSET LEN [SEED]", "bytes drawn from SEED; 0: zeros") => Write {
        slot = File,
        offset = Number("the offset"),
        payload = Bytes,
        durable = Optional(&[
            ("", Durable::No),
            ("dsync", Durable::Data),
            ("sync", Durable::All),
        ]),
    };
    "append" ("FILE LEN [SEED]", "") => Append { slot = File, payload = Bytes };
    "read" ("FILE OFFSET LEN", "")
        => Read { slot = File, offset = Number("the offset"), len = Number("the length") };
    "truncate" ("FILE SIZE", "") => [at_slot] Ftruncate { slot = Slot, size = Number("the size") };
    "truncate" => Truncate { path = Path, size = Number("the size") };
    "fallocate" ("FILE OFFSET LEN [keep-size]", "") => Fallocate {
        slot = File,
        offset = Number("the offset"),
        len = Number("the length"),
        how @ (Reserve::Plain | Reserve::KeepSize)
            = Optional(&[("", Reserve::Plain), ("keep-size", Reserve::KeepSize)]),
    };
    "punch" ("FILE OFFSET LEN", "FALLOC_FL_PUNCH_HOLE") => Fallocate {
        slot = File,
        offset = Number("the offset"),
        len = Number("the length"),
        how @ Reserve::Punch = Is(Reserve::Punch),
    };
    "zero" ("FILE OFFSET LEN [keep-size]", "FALLOC_FL_ZERO_RANGE") => Fallocate {
        slot = File,
        offset = Number("the offset"),
        len = Number("the length"),
        how @ (Reserve::Zero | Reserve::ZeroKeepSize)
            = Optional(&[("", Reserve::Zero), ("keep-size", Reserve::ZeroKeepSize)]),
    };
    "setxattr" ("PATH NAME LEN [SEED] [create|replace]", "") => SetXattr {
        path = Path,
        name = Text("the name"),
        value = Bytes,
        how = Optional(&[
            ("", XattrHow::Any),
            ("create", XattrHow::Create),
            ("replace", XattrHow::Replace),
        ]),
    };
    "getxattr" ("PATH NAME", "") => GetXattr { path = Path, name = Text("the name") };
    "removexattr" ("PATH NAME", "") => RemoveXattr { path = Path, name = Text("the name") };
    "listxattr" ("PATH", "") => ListXattr { path = Path };
    "setacl" ("PATH access|default ACL|none", "ACL: u=7,g=5,o=5,u1000=6,m=7") => SetAcl {
        path = Path, default = OneOf(&[("access", false), ("default", true)]), acl = AclWord,
    };
    "chmod" ("PATH MODE", "") => Chmod { path = Path, mode = Mode(None) };
    "chown" ("PATH UID|- GID|-", "") => Chown { path = Path, uid = Id, gid = Id };
    "utimes" ("PATH ATIME MTIME", "seconds.nanoseconds")
        => Utimes { path = Path, atime = Time, mtime = Time };
    "stat" ("PATH", "") => Stat { path = Path };
    "readlink" ("PATH", "") => Readlink { path = Path };
    "readdir" ("PATH", "") => Readdir { path = Path };
    "fsync" ("FILE", "") => Fsync { slot = File };
    "fdatasync" ("FILE", "") => Fdatasync { slot = File };
    "fsyncdir" ("PATH", "fsync of a directory") => FsyncDir { path = Path };
    "sync" ("", "everything") => Sync {};
    "commit" ("", "as by the clock") => Commit {};
    "expire" ("", "as by the clock: what waits for a place gets one") => Expire {};
    "fill" ("BLOCKS", "a file outside takes all blocks but so many, or gives some back")
        => Fill { room = Number("the number of blocks") };
    "group-begin" ("", "a group of changes; one that is open is dropped") => GroupBegin {};
    "group-switch" ("", "the other of two groups: from now on these verbs are about that one")
        => GroupSwitch {};
    "group-do" (
        "VERB WORDS",
        "in it: create to rename, open, truncate, chmod, chown, readdir of paths as it sees them"
    );
    "group-write" ("FILE OFFSET LEN [SEED]", "staged in it")
        => GroupWrite { slot = File, offset = Number("the offset"), payload = Bytes };
    "group-read" ("FILE OFFSET LEN", "with what is staged")
        => GroupRead { slot = File, offset = Number("the offset"), len = Number("the length") };
    "group-commit" ("[lazy]", "lazy: not durable on return")
        => GroupCommit { lazy = Flag("lazy") };
    "group-abort" ("", "") => GroupAbort {};
    "remount" ("", "close, unmount, mount") => Remount {};
    "checkpoint" ("", "sync, and write home what is in the log") => Checkpoint {};
    "crash" ("", "sync, then mount again without an unmount") => Crash {};
    "clock" (
        "still|runs|TIME",
        "the time that operations see: the same, another one for each, this one"
    );
    "chattr" ("PATH +j|-j", "one write is one transaction")
        => Mark { path = Path, on = OneOf(&[("+j", true), ("-j", false)]) };
    "store" ("FILE OFFSET LEN [SEED]", "to mapped memory")
        => Store { slot = File, offset = Number("the offset"), payload = Bytes };
    "copy" ("@SLOT OFFSET @SLOT OFFSET LEN", "copy_file_range, from the first to the second")
        => Copy {
            from = Slot,
            from_offset = Number("the offset"),
            to = Slot,
            to_offset = Number("the offset"),
            len = Number("the length"),
        };
}
