//! Operations as text, one a line: what a failure prints, what people write, what reads back.
//!
//! A line is a verb and its words ([`VERBS`]). Bytes of a word that would end it, begin a comment,
//! or mean something to a shell are written `%` and two hexadecimal digits. A file to be read or
//! written is a slot, `@0` to `@2`, or a path: then it is opened in slot `@2` for this operation
//! alone.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::acl::Acl;
use super::op::{ClockHow, Durable, Op, Payload, RenameHow, Reserve, SLOTS, Special, XattrHow};

/// A verb, its words, and what it does.
pub struct Verb {
    /// The first word of the line.
    pub name: &'static str,
    /// The others, as help shows them.
    pub words: &'static str,
    /// What it does.
    pub does: &'static str,
}

const fn verb(name: &'static str, words: &'static str, does: &'static str) -> Verb {
    Verb { name, words, does }
}

/// Every verb.
pub const VERBS: [Verb; 52] = [
    verb("create", "PATH [MODE] [excl]", "open(O_CREAT) and close"),
    verb("mkdir", "PATH [MODE]", ""),
    verb("mkfifo", "PATH [MODE]", ""),
    verb("mksocket", "PATH [MODE]", ""),
    verb("mkchar", "PATH MAJOR MINOR [MODE]", "mknod of a device"),
    verb("mkblock", "PATH MAJOR MINOR [MODE]", ""),
    verb("symlink", "TARGET PATH", ""),
    verb("link", "OLD|@SLOT NEW", ""),
    verb("unlink", "PATH", ""),
    verb("rmdir", "PATH", ""),
    verb("rename", "OLD NEW [noreplace|exchange|whiteout]", ""),
    verb("open", "@SLOT PATH [truncate]", "for reading and writing"),
    verb(
        "tmpfile",
        "@SLOT PATH [MODE]",
        "open(O_TMPFILE) of a directory",
    ),
    verb("close", "@SLOT", ""),
    verb(
        "write",
        "FILE OFFSET LEN [SEED]",
        "bytes drawn from SEED; 0: zeros",
    ),
    verb("append", "FILE LEN [SEED]", ""),
    verb("read", "FILE OFFSET LEN", ""),
    verb("truncate", "FILE SIZE", ""),
    verb("fallocate", "FILE OFFSET LEN [keep-size]", ""),
    verb("punch", "FILE OFFSET LEN", "FALLOC_FL_PUNCH_HOLE"),
    verb(
        "zero",
        "FILE OFFSET LEN [keep-size]",
        "FALLOC_FL_ZERO_RANGE",
    ),
    verb("setxattr", "PATH NAME LEN [SEED] [create|replace]", ""),
    verb("getxattr", "PATH NAME", ""),
    verb("removexattr", "PATH NAME", ""),
    verb("listxattr", "PATH", ""),
    verb(
        "setacl",
        "PATH access|default ACL|none",
        "ACL: u=7,g=5,o=5,u1000=6,m=7",
    ),
    verb("chmod", "PATH MODE", ""),
    verb("chown", "PATH UID|- GID|-", ""),
    verb("utimes", "PATH ATIME MTIME", "seconds.nanoseconds"),
    verb("stat", "PATH", ""),
    verb("readlink", "PATH", ""),
    verb("readdir", "PATH", ""),
    verb("fsync", "FILE", ""),
    verb("fdatasync", "FILE", ""),
    verb("fsyncdir", "PATH", "fsync of a directory"),
    verb("sync", "", "everything"),
    verb("commit", "", "as by the clock"),
    verb(
        "expire",
        "",
        "as by the clock: what waits for a place gets one",
    ),
    verb(
        "group-begin",
        "",
        "a group of changes; one that is open is dropped",
    ),
    verb(
        "group-switch",
        "",
        "the other of two groups: from now on these verbs are about that one",
    ),
    verb(
        "group-do",
        "VERB WORDS",
        "in it: create to rename, open, truncate, chmod, chown, readdir of paths as it sees them",
    ),
    verb("group-write", "FILE OFFSET LEN [SEED]", "staged in it"),
    verb("group-read", "FILE OFFSET LEN", "with what is staged"),
    verb("group-commit", "[lazy]", "lazy: not durable on return"),
    verb("group-abort", "", ""),
    verb("remount", "", "close, unmount, mount"),
    verb("checkpoint", "", "sync, and write home what is in the log"),
    verb("crash", "", "sync, then mount again without an unmount"),
    verb(
        "clock",
        "still|runs|TIME",
        "the time that operations see: the same, another one for each, this one",
    ),
    verb("chattr", "PATH +j|-j", "one write is one transaction"),
    verb("store", "FILE OFFSET LEN [SEED]", "to mapped memory"),
    verb(
        "copy",
        "@SLOT OFFSET @SLOT OFFSET LEN",
        "copy_file_range, from the first to the second",
    ),
];

/// The slot for operations that name a path where a slot could stand.
pub const SCRATCH_SLOT: u8 = SLOTS - 1;

/// Whether a byte of a word stands for itself.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+=,:~^".contains(&byte)
}

/// A word as it is written.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if is_plain(byte) {
                write!(f, "{}", char::from(byte))?
            } else {
                write!(f, "%{byte:02x}")?
            }
        }
        Ok(())
    }
}

/// What a word says.
fn read_word(word: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(byte.with_context(|| format!("\"{word}\": % and two hexadecimal digits"))?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).with_context(|| format!("\"{word}\" is no text"))
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keep = |kept| if kept { " keep-size" } else { "" };
        match self {
            Op::Create {
                path,
                mode,
                exclusive,
            } => {
                let excl = if *exclusive { " excl" } else { "" };
                write!(f, "create {} {mode:o}{excl}", Word(path))
            }
            Op::Mkdir { path, mode } => write!(f, "mkdir {} {mode:o}", Word(path)),
            Op::Mknod {
                path,
                mode,
                special,
            } => {
                let path = Word(path);
                match special {
                    Special::Fifo => write!(f, "mkfifo {path} {mode:o}"),
                    Special::Socket => write!(f, "mksocket {path} {mode:o}"),
                    Special::Char(major, minor) => {
                        write!(f, "mkchar {path} {major} {minor} {mode:o}")
                    }
                    Special::Block(major, minor) => {
                        write!(f, "mkblock {path} {major} {minor} {mode:o}")
                    }
                }
            }
            Op::Symlink { target, path } => write!(f, "symlink {} {}", Word(target), Word(path)),
            Op::Link { old, new } => write!(f, "link {} {}", Word(old), Word(new)),
            Op::LinkSlot { slot, new } => write!(f, "link @{slot} {}", Word(new)),
            Op::Unlink { path } => write!(f, "unlink {}", Word(path)),
            Op::Rmdir { path } => write!(f, "rmdir {}", Word(path)),
            Op::Rename { old, new, how } => {
                let how = match how {
                    RenameHow::Plain => "",
                    RenameHow::NoReplace => " noreplace",
                    RenameHow::Exchange => " exchange",
                    RenameHow::Whiteout => " whiteout",
                };
                write!(f, "rename {} {}{how}", Word(old), Word(new))
            }
            Op::Open {
                slot,
                path,
                truncate,
            } => {
                let truncate = if *truncate { " truncate" } else { "" };
                write!(f, "open @{slot} {}{truncate}", Word(path))
            }
            Op::Tmpfile { slot, path, mode } => {
                write!(f, "tmpfile @{slot} {} {mode:o}", Word(path))
            }
            Op::Close { slot } => write!(f, "close @{slot}"),
            Op::Write {
                slot,
                offset,
                payload: Payload { seed, len },
                durable,
            } => {
                let durable = match durable {
                    Durable::No => "",
                    Durable::Data => " dsync",
                    Durable::All => " sync",
                };
                write!(f, "write @{slot} {offset} {len} {seed}{durable}")
            }
            Op::Append {
                slot,
                payload: Payload { seed, len },
            } => write!(f, "append @{slot} {len} {seed}"),
            Op::Read { slot, offset, len } => write!(f, "read @{slot} {offset} {len}"),
            Op::Truncate { path, size } => write!(f, "truncate {} {size}", Word(path)),
            Op::Ftruncate { slot, size } => write!(f, "truncate @{slot} {size}"),
            Op::Fallocate {
                slot,
                how,
                offset,
                len,
            } => {
                let (verb, kept) = match how {
                    Reserve::Plain => ("fallocate", false),
                    Reserve::KeepSize => ("fallocate", true),
                    Reserve::Punch => ("punch", false),
                    Reserve::Zero => ("zero", false),
                    Reserve::ZeroKeepSize => ("zero", true),
                };
                write!(f, "{verb} @{slot} {offset} {len}{}", keep(kept))
            }
            Op::SetXattr {
                path,
                name,
                value: Payload { seed, len },
                how,
            } => {
                let how = match how {
                    XattrHow::Any => "",
                    XattrHow::Create => " create",
                    XattrHow::Replace => " replace",
                };
                write!(
                    f,
                    "setxattr {} {} {len} {seed}{how}",
                    Word(path),
                    Word(name)
                )
            }
            Op::GetXattr { path, name } => write!(f, "getxattr {} {}", Word(path), Word(name)),
            Op::RemoveXattr { path, name } => {
                write!(f, "removexattr {} {}", Word(path), Word(name))
            }
            Op::ListXattr { path } => write!(f, "listxattr {}", Word(path)),
            Op::SetAcl { path, default, acl } => {
                let which = if *default { "default" } else { "access" };
                let acl = acl.as_ref().map_or_else(|| "none".to_owned(), show_acl);
                write!(f, "setacl {} {which} {acl}", Word(path))
            }
            Op::Chmod { path, mode } => write!(f, "chmod {} {mode:o}", Word(path)),
            Op::Chown { path, uid, gid } => {
                let id = |id: &Option<u32>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
                write!(f, "chown {} {} {}", Word(path), id(uid), id(gid))
            }
            Op::Utimes { path, atime, mtime } => write!(
                f,
                "utimes {} {}.{:09} {}.{:09}",
                Word(path),
                atime.0,
                atime.1,
                mtime.0,
                mtime.1
            ),
            Op::Stat { path } => write!(f, "stat {}", Word(path)),
            Op::Readlink { path } => write!(f, "readlink {}", Word(path)),
            Op::Readdir { path } => write!(f, "readdir {}", Word(path)),
            Op::Fsync { slot } => write!(f, "fsync @{slot}"),
            Op::Fdatasync { slot } => write!(f, "fdatasync @{slot}"),
            Op::FsyncDir { path } => write!(f, "fsyncdir {}", Word(path)),
            Op::Sync => f.write_str("sync"),
            Op::Commit => f.write_str("commit"),
            Op::Expire => f.write_str("expire"),
            Op::GroupBegin => f.write_str("group-begin"),
            Op::GroupSwitch => f.write_str("group-switch"),
            Op::GroupDo(op) => write!(f, "group-do {op}"),
            Op::GroupWrite {
                slot,
                offset,
                payload: Payload { seed, len },
            } => write!(f, "group-write @{slot} {offset} {len} {seed}"),
            Op::GroupRead { slot, offset, len } => {
                write!(f, "group-read @{slot} {offset} {len}")
            }
            Op::GroupCommit { lazy } => {
                write!(f, "group-commit{}", if *lazy { " lazy" } else { "" })
            }
            Op::GroupAbort => f.write_str("group-abort"),
            Op::Remount => f.write_str("remount"),
            Op::Checkpoint => f.write_str("checkpoint"),
            Op::Crash => f.write_str("crash"),
            Op::Clock(ClockHow::Runs) => f.write_str("clock runs"),
            Op::Clock(ClockHow::Still) => f.write_str("clock still"),
            Op::Clock(ClockHow::At(sec, nsec)) => write!(f, "clock {sec}.{nsec:09}"),
            Op::Mark { path, on } => {
                write!(f, "chattr {} {}", Word(path), if *on { "+j" } else { "-j" })
            }
            Op::Store {
                slot,
                offset,
                payload: Payload { seed, len },
            } => write!(f, "store @{slot} {offset} {len} {seed}"),
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => write!(f, "copy @{from} {from_offset} @{to} {to_offset} {len}"),
        }
    }
}

fn show_acl(acl: &Acl) -> String {
    let mut parts = vec![
        format!("u={}", acl.owner),
        format!("g={}", acl.group),
        format!("o={}", acl.other),
    ];
    parts.extend(acl.users.iter().map(|(id, perm)| format!("u{id}={perm}")));
    parts.extend(acl.groups.iter().map(|(id, perm)| format!("g{id}={perm}")));
    parts.extend(acl.mask.map(|mask| format!("m={mask}")));
    parts.join(",")
}

fn read_acl(text: &str) -> Result<Acl> {
    let mut acl = Acl {
        owner: 0,
        users: Vec::new(),
        group: 0,
        groups: Vec::new(),
        mask: None,
        other: 0,
    };
    for part in text.split(',') {
        let wrong = || anyhow!("\"{part}\" is no entry of an ACL such as u=7, u1000=6 or m=5");
        let (who, perm) = part.split_once('=').ok_or_else(wrong)?;
        let perm: u8 = perm.parse().ok().filter(|p| *p < 8).ok_or_else(wrong)?;
        match who {
            "u" => acl.owner = perm,
            "g" => acl.group = perm,
            "o" => acl.other = perm,
            "m" => acl.mask = Some(perm),
            _ => {
                let list = match who.as_bytes().first() {
                    Some(b'u') => &mut acl.users,
                    Some(b'g') => &mut acl.groups,
                    _ => bail!(wrong()),
                };
                list.push((who[1..].parse().map_err(|_| wrong())?, perm));
            }
        }
    }
    acl.users.sort_unstable();
    acl.groups.sort_unstable();
    Ok(acl)
}

/// The words of a line, taken one after the other.
struct Words<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str> {
        self.words
            .next()
            .with_context(|| format!("{what} is missing"))
    }

    fn path(&mut self) -> Result<String> {
        let word = self.next("the path")?;
        ensure!(!word.starts_with('@'), "{word} is a slot, not a path");
        read_word(word)
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let word = self.next(what)?;
        word.parse()
            .map_err(|_| anyhow!("{what} cannot be \"{word}\""))
    }

    /// A number, when the next word begins like one.
    fn number_if_any<T: FromStr>(&mut self, what: &str) -> Result<Option<T>> {
        match self.words.peek() {
            Some(word) if word.starts_with(|c: char| c.is_ascii_digit()) => {
                self.number(what).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn mode(&mut self, word: &str) -> Result<u16> {
        let mode = u16::from_str_radix(word, 8).ok().filter(|m| *m <= 0o7777);
        mode.with_context(|| format!("the mode cannot be \"{word}\": octal, at most 7777"))
    }

    fn mode_or(&mut self, default: u16) -> Result<u16> {
        let is_mode = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
        match self.words.next_if(is_mode) {
            Some(word) => self.mode(word),
            None => Ok(default),
        }
    }

    fn flag(&mut self, name: &str) -> bool {
        self.words.next_if_eq(&name).is_some()
    }

    fn slot(&mut self) -> Result<u8> {
        let word = self.next("the slot")?;
        slot_of(word)?.with_context(|| format!("\"{word}\" is no slot such as @0"))
    }

    fn payload(&mut self) -> Result<Payload> {
        let len = self.number("the length")?;
        let seed = self.number_if_any("the seed")?.unwrap_or(1);
        Ok(Payload { seed, len })
    }

    fn time(&mut self) -> Result<(i64, u32)> {
        let word = self.next("the time")?;
        let wrong = || anyhow!("the time cannot be \"{word}\": seconds.nanoseconds");
        let (sec, nsec) = word.split_once('.').unwrap_or((word, "0"));
        let nsec = format!("{nsec:0<9}");
        let nsec: u32 = nsec.parse().map_err(|_| wrong())?;
        ensure!(nsec < 1_000_000_000, wrong());
        Ok((sec.parse().map_err(|_| wrong())?, nsec))
    }

    fn id(&mut self) -> Result<Option<u32>> {
        match self.words.next_if_eq(&"-") {
            Some(_) => Ok(None),
            None => self.number("the id").map(Some),
        }
    }
}

/// The slot that a word names, if it is one.
fn slot_of(word: &str) -> Result<Option<u8>> {
    let Some(number) = word.strip_prefix('@') else {
        return Ok(None);
    };
    let slot = number.parse().ok().filter(|slot| *slot < SLOTS);
    let last = SLOTS - 1;
    let slot = slot.with_context(|| format!("\"{word}\" is no slot: @0 to @{last}"))?;
    Ok(Some(slot))
}

/// The operations that a line means: one, or three when it names a path where a slot could stand.
///
/// # Errors
/// What is wrong with the line, and how the verb is written.
pub fn read_line(line: &str) -> Result<Vec<Op>> {
    let mut words = Words {
        words: line.split_whitespace().peekable(),
    };
    let name = words.next("the verb")?;
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        bail!("there is no operation \"{name}\"");
    };
    let read = read_ops(name, &mut words).and_then(|ops| match words.words.next() {
        Some(more) => bail!("\"{more}\" is too much"),
        None => Ok(ops),
    });
    read.map_err(|error| anyhow!("{error:#}; it is {name} {}", verb.words))
}

fn read_ops(name: &str, words: &mut Words<'_>) -> Result<Vec<Op>> {
    if name == "group-do" {
        let name = words.next("the verb")?;
        let ops = read_ops(name, words)?;
        return match <[Op; 1]>::try_from(ops) {
            Ok([op]) if op.fits_group() => Ok(vec![Op::GroupDo(Box::new(op))]),
            _ => bail!("a group cannot do that {name}"),
        };
    }
    if let Some(op) = read_names_op(name, words)? {
        return Ok(vec![op]);
    }
    if let Some(op) = read_attribute_op(name, words)? {
        return Ok(vec![op]);
    }
    if name == "truncate" && !words.words.peek().is_some_and(|w| w.starts_with('@')) {
        let path = words.path()?;
        let size = words.number("the size")?;
        return Ok(vec![Op::Truncate { path, size }]);
    }
    let file = words.next("the file")?;
    match slot_of(file)? {
        Some(slot) => Ok(vec![read_file_op(name, slot, words)?]),
        None => {
            let slot = SCRATCH_SLOT;
            let open = Op::Open {
                slot,
                path: read_word(file)?,
                truncate: false,
            };
            let op = read_file_op(name, slot, words)?;
            Ok(vec![open, op, Op::Close { slot }])
        }
    }
}

fn read_names_op(name: &str, words: &mut Words<'_>) -> Result<Option<Op>> {
    Ok(Some(match name {
        "create" => Op::Create {
            path: words.path()?,
            mode: words.mode_or(0o644)?,
            exclusive: words.flag("excl"),
        },
        "mkdir" => Op::Mkdir {
            path: words.path()?,
            mode: words.mode_or(0o755)?,
        },
        "mkfifo" | "mksocket" | "mkchar" | "mkblock" => {
            let path = words.path()?;
            let special = match name {
                "mkfifo" => Special::Fifo,
                "mksocket" => Special::Socket,
                "mkchar" => Special::Char(
                    words.number("the major number")?,
                    words.number("the minor number")?,
                ),
                _ => Special::Block(
                    words.number("the major number")?,
                    words.number("the minor number")?,
                ),
            };
            let mode = words.mode_or(0o644)?;
            Op::Mknod {
                path,
                mode,
                special,
            }
        }
        "symlink" => Op::Symlink {
            target: read_word(words.next("the target")?)?,
            path: words.path()?,
        },
        "link" if words.words.peek().is_some_and(|w| w.starts_with('@')) => Op::LinkSlot {
            slot: words.slot()?,
            new: words.path()?,
        },
        "link" => Op::Link {
            old: words.path()?,
            new: words.path()?,
        },
        "unlink" => Op::Unlink {
            path: words.path()?,
        },
        "rmdir" => Op::Rmdir {
            path: words.path()?,
        },
        "rename" => Op::Rename {
            old: words.path()?,
            new: words.path()?,
            how: if words.flag("noreplace") {
                RenameHow::NoReplace
            } else if words.flag("exchange") {
                RenameHow::Exchange
            } else if words.flag("whiteout") {
                RenameHow::Whiteout
            } else {
                RenameHow::Plain
            },
        },
        "open" => Op::Open {
            slot: words.slot()?,
            path: words.path()?,
            truncate: words.flag("truncate"),
        },
        "tmpfile" => Op::Tmpfile {
            slot: words.slot()?,
            path: words.path()?,
            mode: words.mode_or(0o600)?,
        },
        "close" => Op::Close {
            slot: words.slot()?,
        },
        "readlink" => Op::Readlink {
            path: words.path()?,
        },
        "readdir" => Op::Readdir {
            path: words.path()?,
        },
        "fsyncdir" => Op::FsyncDir {
            path: words.path()?,
        },
        "sync" => Op::Sync,
        "commit" => Op::Commit,
        "expire" => Op::Expire,
        "group-begin" => Op::GroupBegin,
        "group-switch" => Op::GroupSwitch,
        "group-commit" => Op::GroupCommit {
            lazy: words.flag("lazy"),
        },
        "group-abort" => Op::GroupAbort,
        "remount" => Op::Remount,
        "checkpoint" => Op::Checkpoint,
        "crash" => Op::Crash,
        "clock" if words.flag("runs") => Op::Clock(ClockHow::Runs),
        "clock" if words.flag("still") => Op::Clock(ClockHow::Still),
        "clock" => {
            let (sec, nsec) = words.time()?;
            Op::Clock(ClockHow::At(sec, nsec))
        }
        "copy" => {
            let at = "the offset";
            Op::Copy {
                from: words.slot()?,
                from_offset: words.number(at)?,
                to: words.slot()?,
                to_offset: words.number(at)?,
                len: words.number("the length")?,
            }
        }
        _ => return Ok(None),
    }))
}

fn read_attribute_op(name: &str, words: &mut Words<'_>) -> Result<Option<Op>> {
    let xattr = |words: &mut Words<'_>| read_word(words.next("the name")?);
    Ok(Some(match name {
        "setxattr" => Op::SetXattr {
            path: words.path()?,
            name: xattr(words)?,
            value: words.payload()?,
            how: match (words.flag("create"), words.flag("replace")) {
                (true, _) => XattrHow::Create,
                (_, true) => XattrHow::Replace,
                _ => XattrHow::Any,
            },
        },
        "getxattr" => Op::GetXattr {
            path: words.path()?,
            name: xattr(words)?,
        },
        "removexattr" => Op::RemoveXattr {
            path: words.path()?,
            name: xattr(words)?,
        },
        "listxattr" => Op::ListXattr {
            path: words.path()?,
        },
        "setacl" => Op::SetAcl {
            path: words.path()?,
            default: match words.next("access or default")? {
                "access" => false,
                "default" => true,
                other => bail!("\"{other}\" is neither access nor default"),
            },
            acl: match words.next("the ACL")? {
                "none" => None,
                acl => Some(read_acl(acl)?),
            },
        },
        "chmod" => Op::Chmod {
            path: words.path()?,
            mode: {
                let word = words.next("the mode")?;
                words.mode(word)?
            },
        },
        "chown" => Op::Chown {
            path: words.path()?,
            uid: words.id()?,
            gid: words.id()?,
        },
        "utimes" => Op::Utimes {
            path: words.path()?,
            atime: words.time()?,
            mtime: words.time()?,
        },
        "stat" => Op::Stat {
            path: words.path()?,
        },
        "chattr" => Op::Mark {
            path: words.path()?,
            on: match words.next("+j or -j")? {
                "+j" => true,
                "-j" => false,
                other => bail!("\"{other}\" is neither +j nor -j"),
            },
        },
        _ => return Ok(None),
    }))
}

fn read_file_op(name: &str, slot: u8, words: &mut Words<'_>) -> Result<Op> {
    let at = "the offset";
    Ok(match name {
        "write" => Op::Write {
            slot,
            offset: words.number(at)?,
            payload: words.payload()?,
            durable: match (words.flag("dsync"), words.flag("sync")) {
                (true, _) => Durable::Data,
                (_, true) => Durable::All,
                _ => Durable::No,
            },
        },
        "append" => Op::Append {
            slot,
            payload: words.payload()?,
        },
        "store" => Op::Store {
            slot,
            offset: words.number(at)?,
            payload: words.payload()?,
        },
        "read" => Op::Read {
            slot,
            offset: words.number(at)?,
            len: words.number("the length")?,
        },
        "group-write" => Op::GroupWrite {
            slot,
            offset: words.number(at)?,
            payload: words.payload()?,
        },
        "group-read" => Op::GroupRead {
            slot,
            offset: words.number(at)?,
            len: words.number("the length")?,
        },
        "truncate" => Op::Ftruncate {
            slot,
            size: words.number("the size")?,
        },
        "fallocate" | "punch" | "zero" => Op::Fallocate {
            slot,
            offset: words.number(at)?,
            len: words.number("the length")?,
            how: match (name, name != "punch" && words.flag("keep-size")) {
                ("fallocate", false) => Reserve::Plain,
                ("fallocate", true) => Reserve::KeepSize,
                ("zero", false) => Reserve::Zero,
                ("zero", true) => Reserve::ZeroKeepSize,
                _ => Reserve::Punch,
            },
        },
        "fsync" => Op::Fsync { slot },
        "fdatasync" => Op::Fdatasync { slot },
        _ => bail!("{name} does not work on files"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::draw::stream;
    use crate::world::op::Profile;

    #[test]
    fn whatever_is_drawn_reads_back() {
        for op in stream(7, 5000, Profile::default()) {
            let line = op.to_string();
            let read = read_line(&line).unwrap_or_else(|error| panic!("{line}: {error:#}"));
            assert_eq!(read, [op], "{line}");
            assert!(!line.contains([';', '\'', '"', '#', '\n']), "{line}");
        }
    }

    #[test]
    fn groups_read_back() {
        for line in [
            "group-begin",
            "group-switch",
            "group-do create f 644 excl",
            "group-do rename d/f g exchange",
            "group-do open @0 g",
            "group-do truncate g 100",
            "group-write @0 10 20 3",
            "group-read @1 10 20",
            "group-commit",
            "group-commit lazy",
            "group-abort",
        ] {
            let ops = read_line(line).expect(line);
            assert_eq!(ops.len(), 1);
            assert_eq!(ops[0].to_string(), line);
        }
        let error = format!("{:#}", read_line("group-commit now").expect_err("too much"));
        assert!(error.contains("it is group-commit [lazy]"), "{error}");
        for line in [
            "fsync f",
            "fsync @0",
            "open @0 f truncate",
            "group-do sync",
            "write f 0 9",
        ] {
            let line = format!("group-do {line}");
            let error = format!("{:#}", read_line(&line).expect_err(&line));
            assert!(error.contains("a group cannot do that"), "{line}: {error}");
        }
        let error = format!("{:#}", read_line("group-do mkdir").expect_err("too little"));
        assert!(
            error.contains("the path is missing; it is group-do VERB"),
            "{error}"
        );
    }

    #[test]
    fn words_may_hold_anything() {
        for name in ["with space", "@0", "100%", "semi;colon", "'quoted'", "ü"] {
            let op = Op::Unlink { path: name.into() };
            assert_eq!(read_line(&op.to_string()).expect(name), [op]);
        }
    }

    #[test]
    fn a_path_is_opened_for_the_operation() {
        let ops = read_line("write d/f 10 20").expect("a line");
        let shown: Vec<_> = ops.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["open @2 d/f", "write @2 10 20 1", "close @2"]);
    }

    #[test]
    fn wrong_lines_say_how_it_is_done() {
        for (line, why) in [
            ("frobnicate x", "no operation"),
            ("write f 10", "the length is missing"),
            ("write f ten 20", "the offset cannot be \"ten\""),
            ("unlink f g", "\"g\" is too much"),
            ("open 0 f", "no slot such as @0"),
            ("open @9 f", "@0 to @2"),
            ("chmod f 888", "octal"),
            ("setacl f access u=9", "no entry of an ACL"),
        ] {
            let error = format!("{:#}", read_line(line).expect_err(line));
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
