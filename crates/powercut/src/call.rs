//! The calls of a program on files, in the order in which the mount saw them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stetfs_crash::exploration::grouped;

use crate::content::Bytes;
use crate::tree::{Node, Object, Tree};

/// The record of a program's run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    /// The files before the program began; all durable.
    pub before: Tree,
    /// The calls.
    pub calls: Vec<Call>,
    /// Threads of processes that made calls, with the names of their programs.
    pub processes: Vec<Process>,
    /// True if the program could use groups of changes. Elsewhere it would have gone without them.
    #[serde(default)]
    pub has_groups: bool,
}

/// A thread of a process, as `/proc` had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number; 0: the kernel, on nobody's behalf, for example when it writes mapped pages.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
}

/// One call that changed something, made something durable, or confirmed something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The thread that made it, as an index into [`Recording::processes`]; `None` for marks.
    pub by: Option<usize>,
    /// Its time, in seconds and nanoseconds since 1970, as the volume stored it with the change.
    pub time: (i64, u32),
    /// The path that it concerned, at that time; for a rename the old one.
    pub path: String,
    /// The kind of call.
    pub what: What,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// The directory.
    pub dir: Object,
    /// The name.
    pub name: Vec<u8>,
}

/// The kinds of calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    /// A new file, directory, link or device got its first name.
    Make {
        /// The name.
        slot: Slot,
        /// What it is.
        object: Object,
        /// As it was made.
        node: Arc<Node>,
    },
    /// A new file without a name (O_TMPFILE).
    Unnamed {
        /// What it is.
        object: Object,
        /// As it was made.
        node: Arc<Node>,
    },
    /// A file got another name.
    Link {
        /// The name.
        slot: Slot,
        /// What it names.
        object: Object,
    },
    /// A name was removed.
    Remove {
        /// The name.
        slot: Slot,
        /// What it named.
        object: Object,
    },
    /// A file or directory got a name instead of another.
    Rename {
        /// The old name, and what it named.
        from: (Slot, Object),
        /// The new name, and what it named before.
        to: (Slot, Option<Object>),
        /// The path of the new name.
        to_path: String,
        /// The object that the old name names now: with RENAME_EXCHANGE the one of the new name,
        /// with RENAME_WHITEOUT a new device.
        behind: Option<Object>,
        /// That device.
        whiteout: Option<Arc<Node>>,
    },
    /// Bytes were written. The file grew if they reach beyond its end.
    Write {
        /// The file.
        file: Object,
        /// Where.
        offset: u64,
        /// What.
        bytes: Bytes,
        /// The length before.
        size: u64,
    },
    /// Bytes became zeros (a hole, FALLOC_FL_ZERO_RANGE).
    Zero {
        /// The file.
        file: Object,
        /// Where.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// The length was set (truncate, O_TRUNC, fallocate).
    Resize {
        /// The file.
        file: Object,
        /// The length before.
        from: u64,
        /// The length now.
        to: u64,
    },
    /// Attributes changed, all at once.
    Set {
        /// Of what.
        object: Object,
        /// Which, and to what, in this order.
        attributes: Vec<Attribute>,
    },
    /// A file that was open for writing was closed.
    Close {
        /// The file.
        file: Object,
    },
    /// fsync, or fdatasync.
    Fsync {
        /// Of what.
        object: Object,
        /// It was fdatasync.
        datasync: bool,
    },
    /// A group of changes was committed: all of them at once, and durable. An aborted group has
    /// changed nothing, and is no call.
    Group {
        /// The changes, in the order in which they were staged.
        steps: Vec<Call>,
    },
    /// sync or syncfs.
    Sync,
    /// The program promised something.
    Mark {
        /// What it wrote.
        text: String,
    },
}

/// An attribute with its new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attribute {
    /// Permissions, with the type.
    Mode(u16),
    /// User and group.
    Owner(u32, u32),
    /// An extended attribute; `None`: it was removed.
    Xattr(Vec<u8>, Option<Vec<u8>>),
    /// The time of the last change, in seconds and nanoseconds since 1970.
    Modified(i64, u32),
}

impl Attribute {
    /// Attributes in words.
    pub fn list(attributes: &[Self]) -> String {
        let each: Vec<_> = attributes.iter().map(Self::to_string).collect();
        each.join(", ")
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "mode {:o}", mode & 0o7777),
            Self::Owner(uid, gid) => write!(f, "owner {uid}:{gid}"),
            Self::Xattr(name, _) => {
                write!(f, "attribute {}", String::from_utf8_lossy(name))
            }
            Self::Modified(..) => f.write_str("time"),
        }
    }
}

/// At most this many steps of a group are shown.
const STEPS: usize = 4;

impl Call {
    /// Returns the call in the program's words: `write(config.tmp), 4,096 bytes at 0`.
    pub fn text(&self) -> String {
        let path = match self.path.as_str() {
            "" => ".",
            path => path,
        };
        match &self.what {
            What::Make { node, .. } => {
                let verb = match node.mode & stetfs::mode::S_IFMT {
                    stetfs::mode::S_IFREG => "create",
                    stetfs::mode::S_IFDIR => "mkdir",
                    stetfs::mode::S_IFLNK => "symlink",
                    _ => "mknod",
                };
                format!("{verb}({path})")
            }
            What::Unnamed { .. } => format!("open({path}, O_TMPFILE)"),
            What::Link { .. } => format!("link({path})"),
            What::Remove { .. } => format!("unlink({path})"),
            What::Rename { to_path, .. } => format!("rename({path}, {to_path})"),
            What::Write { offset, bytes, .. } => format!(
                "write({path}), {} bytes at {}",
                grouped(bytes.0.len() as u64),
                grouped(*offset)
            ),
            What::Zero { offset, len, .. } => format!(
                "fallocate({path}), zeros: {} bytes at {}",
                grouped(*len),
                grouped(*offset)
            ),
            What::Resize { from, to, .. } => format!(
                "truncate({path}), from {} to {} bytes",
                grouped(*from),
                grouped(*to)
            ),
            What::Set { attributes, .. } => {
                format!("set {} of {path}", Attribute::list(attributes))
            }
            What::Close { .. } => format!("close({path})"),
            What::Fsync { datasync, .. } => {
                let data = if *datasync { "fdatasync" } else { "fsync" };
                format!("{data}({path})")
            }
            What::Group { steps } => {
                let mut shown: Vec<_> = steps.iter().take(STEPS).map(Self::text).collect();
                if let more @ 1.. = steps.len().saturating_sub(STEPS) {
                    shown.push(format!("and {more} more"));
                }
                format!("commit of a group: {}", shown.join("; "))
            }
            What::Sync => "sync()".to_owned(),
            What::Mark { text } => format!("mark \"{text}\""),
        }
    }

    /// True if it is a promise.
    pub fn is_mark(&self) -> bool {
        matches!(self.what, What::Mark { .. })
    }

    /// True if it makes something durable.
    pub fn is_sync(&self) -> bool {
        matches!(self.what, What::Fsync { .. } | What::Sync)
    }
}

impl What {
    /// Returns the steps of a group, or the call itself.
    pub fn each(&self) -> impl Iterator<Item = &Self> {
        let (alone, steps) = match self {
            Self::Group { steps } => (None, &steps[..]),
            other => (Some(other), &[][..]),
        };
        alone.into_iter().chain(steps.iter().map(|step| &step.what))
    }
}

impl Recording {
    /// Returns the promises among this many first calls.
    pub fn marks(&self, calls: usize) -> impl Iterator<Item = &str> {
        self.calls[..calls]
            .iter()
            .filter_map(|call| match &call.what {
                What::Mark { text } => Some(text.as_str()),
                _ => None,
            })
    }

    /// `12 python3[4711] write(a), 5 bytes at 0`
    pub fn line(&self, number: usize) -> String {
        let call = &self.calls[number];
        let by = call.by.and_then(|by| self.processes.get(by));
        let who = by.map_or_else(String::new, |p| match p.pid {
            0 => "kernel ".to_owned(),
            pid => format!("{}[{pid}] ", p.name),
        });
        format!("{} {who}{}", number + 1, call.text())
    }
}
