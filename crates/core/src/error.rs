//! The errors of operations, as callers see them.
//!
//! There are three sorts of error: answers that POSIX allows (`NotFound`, `NoSpace`, ...), damage
//! found on the volume ([`Error::Corrupt`] for one record, [`Error::Inconsistent`] for records that
//! contradict each other), and failures of the layers below (media, journal). [`Error::kind`] maps
//! each to one [`Kind`], which has one errno. Only `errno.rs` knows the errnos.

use stetfs_format::{BlockNo, Corrupt, Corruption, InodeNo, LBlock};
use stetfs_journal::{Broken, JournalError};
use stetfs_media::MediaError;
use stetfs_scheme::SchemeError;

use crate::alloc::damage::Damage as AllocationDamage;
use crate::mapping::damage::Damage as MappingDamage;
use crate::mount::error::MountError;

/// The result of an operation on the volume.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why an operation did not do what was asked.
        #[derive(Debug, Clone, thiserror::Error)]
        pub enum Error {
            $($(#[$doc])* #[error($text)] $name,)*
            /// A record on the volume fails one of its checks (EUCLEAN, which ext4 calls
            /// EFSCORRUPTED).
            #[error("{0}")]
            Corrupt(Box<Corrupt>),
            /// A record on the volume fails one of its checks, with its place (EUCLEAN).
            #[error("{0}")]
            CorruptAt(Box<Corruption>),
            /// Two records, each valid alone, contradict each other (EUCLEAN).
            #[error("{0}")]
            Inconsistent(Box<Inconsistent>),
            /// The device failed (EIO).
            #[error("{0}")]
            Media(Box<MediaError>),
            /// The journal failed or refuses work (EIO or EROFS).
            #[error("{0}")]
            Journal(Box<JournalError>),
            /// The volume cannot be mounted as asked.
            #[error("{0}")]
            Mount(Box<MountError>),
            /// Another group that wrote to this file was committed first (EBUSY).
            #[error("inode {0} was changed by another group, which was committed first")]
            Conflict(InodeNo),
            /// A group is larger than one transaction (EFBIG).
            #[error(
                "the group may change {wanted} blocks, and one transaction of this volume holds \
                    {limit}: commit less at once, or make the journal larger"
            )]
            GroupTooBig {
                /// How many blocks the group may change, with those of maps and inodes.
                wanted: u32,
                /// How many blocks one transaction holds.
                limit: u32,
            },
        }

        /// What an [`Error`] means to a caller. Each kind has one errno.
        ///
        /// ```
        /// use stetfs::{Error, Kind, MountError};
        ///
        /// assert_eq!(Error::NotFound.kind(), Kind::NotFound);
        /// assert_eq!(Error::Conflict(stetfs_format::InodeNo(12)).kind(), Kind::Busy);
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
            /// The volume is damaged (EUCLEAN).
            Corrupted,
            /// Input or output failed (EIO).
            Io,
        }

        impl Error {
            /// Returns the kind of this error.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$name => Kind::$name,)*
                    Self::Corrupt(_) | Self::CorruptAt(_) | Self::Inconsistent(_) => {
                        Kind::Corrupted
                    }
                    Self::Media(_) => Kind::Io,
                    Self::Journal(e) => journal_kind(e),
                    Self::Mount(e) => mount_kind(e),
                    Self::Conflict(_) => Kind::Busy,
                    Self::GroupTooBig { .. } => Kind::TooBig,
                }
            }
        }
    };
}

answers! {
    /// There is no entry of that name, or no such inode (ENOENT).
    NotFound = "no such file or directory",
    /// An entry of that name exists (EEXIST).
    Exists = "file exists",
    /// A directory was needed (ENOTDIR).
    NotDirectory = "not a directory",
    /// A directory was given where none may be (EISDIR).
    IsDirectory = "is a directory",
    /// The directory holds entries (ENOTEMPTY).
    NotEmpty = "directory not empty",
    /// The permission bits or the ACL forbid it (EACCES).
    Access = "permission denied",
    /// The operation itself is not allowed to this caller or on this file (EPERM).
    NotPermitted = "operation not permitted",
    /// No free block or inode is left (ENOSPC).
    NoSpace = "no space left on device",
    /// The mount is read-only (EROFS).
    ReadOnly = "read-only file system",
    /// A name is longer than 255 bytes, or a path than 4095 (ENAMETOOLONG).
    NameTooLong = "file name too long",
    /// The file has as many links as the format can count (EMLINK).
    TooManyLinks = "too many links",
    /// More than 40 symbolic links on one path (ELOOP).
    Loop = "too many levels of symbolic links",
    /// Both names must be on one volume (EXDEV).
    CrossDevice = "invalid cross-device link",
    /// An argument makes no sense here (EINVAL).
    Invalid = "invalid argument",
    /// The file would become larger than the format allows (EFBIG).
    TooBig = "file too large",
    /// The file has no such extended attribute (ENODATA).
    NoData = "no data available",
    /// The caller's buffer is too small, or the attribute's name is too long (ERANGE).
    Range = "numerical result out of range",
    /// The attribute's value is larger than the format allows (E2BIG).
    ArgTooBig = "argument list too long",
    /// The volume or the file cannot do this (EOPNOTSUPP).
    NotSupported = "operation not supported",
    /// The volume or the file is in use (EBUSY).
    Busy = "device or resource busy",
    /// There is nothing there: a seek beyond the data (ENXIO).
    NoSuchDevice = "no such device or address",
    /// The inode was freed, or its number was given to another file (ESTALE).
    Stale = "stale file handle",
    /// The volume was shut down (EIO, as the kernel answers after a shutdown).
    ShutDown = "the volume was shut down",
    /// A value does not fit the type that must carry it (EOVERFLOW).
    Overflow = "value too large for defined data type",
    /// The file is not open for this (EBADF).
    BadFile = "bad file descriptor",
}

fn journal_kind(e: &JournalError) -> Kind {
    match e {
        JournalError::Scheme(SchemeError::Corrupt(_)) => Kind::Corrupted,
        JournalError::Scheme(
            SchemeError::Nvm(_) | SchemeError::Unknown(_) | SchemeError::Option { .. },
        ) => Kind::Invalid,
        JournalError::Shutdown => Kind::ShutDown,
        // The kernel's answer once a journal has stopped (ext4_journal_check_start).
        JournalError::Aborted(_) | JournalError::ReadOnly => Kind::ReadOnly,
        _ => Kind::Io,
    }
}

fn mount_kind(e: &MountError) -> Kind {
    match e {
        MountError::DeviceTooSmall { .. } | MountError::JournalInode { .. } | MountError::Root => {
            Kind::Corrupted
        }
        MountError::NeedsRecovery { .. } => Kind::ReadOnly,
        MountError::InUse { .. } => Kind::Busy,
        _ => Kind::Invalid,
    }
}

/// Records that contradict each other. Each variant belongs to one check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistent {
    /// Bitmaps, descriptors and freed runs contradict each other.
    #[error(transparent)]
    Alloc(AllocationDamage),
    /// The records of a file's map contradict each other.
    #[error(transparent)]
    Map(MappingDamage),
    /// An entry or the orphan list names an inode that is not in use.
    #[error("inode {0} is referenced but not in use")]
    UnusedInode(InodeNo),
    /// An inode number is outside the volume, or none that a file may have.
    #[error("inode number {0} is out of range")]
    InodeNumber(InodeNo),
    /// A directory has no block where one must be.
    #[error("directory inode {ino} has a hole at block {lblk}")]
    DirectoryHole {
        /// The directory.
        ino: InodeNo,
        /// The missing block.
        lblk: LBlock,
    },
    /// A directory's size is zero, or no whole number of blocks.
    #[error("directory inode {ino} has size {size}")]
    DirectorySize {
        /// The directory.
        ino: InodeNo,
        /// Its size, in bytes.
        size: u64,
    },
    /// The records of a directory block do not fill it up to its end.
    #[error("directory inode {ino}, block {lblk}: the record at offset {offset} does not fit")]
    DirectoryChain {
        /// The directory.
        ino: InodeNo,
        /// Its block.
        lblk: LBlock,
        /// The byte in the block.
        offset: usize,
    },
    /// Block 0 of a directory has no entry "..".
    #[error("directory inode {0} has no entry \"..\"")]
    NoDotDot(InodeNo),
    /// Following ".." from a directory never reaches the root.
    #[error("directory inode {0} is not below the root")]
    NotBelowRoot(InodeNo),
    /// A directory has its name in one directory, and its ".." leads to another one.
    #[error(
        "directory inode {ino} is named in directory inode {parent}, and its \"..\" is inode \
            {dotdot}"
    )]
    DirectoryElsewhere {
        /// The directory.
        ino: InodeNo,
        /// The directory that has its name.
        parent: InodeNo,
        /// The directory that its ".." leads to.
        dotdot: InodeNo,
    },
    /// The hash tree of a directory leads in circles, or back.
    #[error("directory inode {ino}: the hash tree goes astray at hash {hash:#010x}")]
    IndexAstray {
        /// The directory.
        ino: InodeNo,
        /// Where the next leaf begins.
        hash: u32,
    },
    /// The leaf of a hash tree is full and has fewer than two entries.
    #[error("directory inode {ino}, block {lblk}: full with fewer than two entries")]
    LeafCannotSplit {
        /// The directory.
        ino: InodeNo,
        /// Its block.
        lblk: LBlock,
    },
    /// The chain of orphans reaches an inode for the second time.
    #[error("the list of orphans comes to inode {0} again")]
    OrphanLoop(InodeNo),
    /// A block of the orphan file is missing.
    #[error("the orphan file (inode {ino}) has a hole at block {lblk}")]
    OrphanFileHole {
        /// The orphan file.
        ino: InodeNo,
        /// The missing block.
        lblk: LBlock,
    },
    /// A file maps a block of the volume's own structures.
    #[error("block {block}, which inode {ino} uses, holds the volume's own structures")]
    SystemBlock {
        /// The file.
        ino: InodeNo,
        /// The block.
        block: BlockNo,
    },
    /// The content of an inode that holds it itself (`inline_data`) is missing in part, or longer
    /// than a block.
    #[error("inode {0} does not hold the content that it should hold itself")]
    InlineData(InodeNo),
    /// The inode that should hold the value of an attribute (`ea_inode`) does not.
    #[error("inode {ino} does not hold the value of an attribute of inode {owner}")]
    ValueInode {
        /// The inode with the attribute.
        owner: InodeNo,
        /// The inode that is named for the value.
        ino: InodeNo,
    },
    /// A symbolic link has no target, or one that does not fit.
    #[error("symbolic link inode {ino} has size {size}")]
    SymlinkSize {
        /// The link.
        ino: InodeNo,
        /// Its size in bytes, as the inode says.
        size: u64,
    },
}

impl Error {
    /// Returns why an operation that meets this error must give up in the middle; `None` for an
    /// answer, before which the operation completed or undid its changes.
    pub(crate) fn breaks(&self) -> Option<Broken> {
        match self {
            Self::Corrupt(_) | Self::CorruptAt(_) | Self::Inconsistent(_) => Some(Broken::ByDamage),
            Self::Media(_) | Self::Journal(_) => Some(Broken::ByFailure),
            _ => None,
        }
    }
}

impl From<Corrupt> for Error {
    fn from(e: Corrupt) -> Self {
        Self::Corrupt(Box::new(e))
    }
}

impl From<Corruption> for Error {
    fn from(e: Corruption) -> Self {
        Self::CorruptAt(Box::new(e))
    }
}

impl From<Inconsistent> for Error {
    fn from(e: Inconsistent) -> Self {
        Self::Inconsistent(Box::new(e))
    }
}

impl From<AllocationDamage> for Error {
    fn from(e: AllocationDamage) -> Self {
        Inconsistent::Alloc(e).into()
    }
}

impl From<MappingDamage> for Error {
    fn from(e: MappingDamage) -> Self {
        Inconsistent::Map(e).into()
    }
}

impl From<MediaError> for Error {
    fn from(e: MediaError) -> Self {
        Self::Media(Box::new(e))
    }
}

impl From<JournalError> for Error {
    fn from(e: JournalError) -> Self {
        Self::Journal(Box::new(e))
    }
}

impl From<SchemeError> for Error {
    fn from(e: SchemeError) -> Self {
        JournalError::from(e).into()
    }
}

impl From<MountError> for Error {
    fn from(e: MountError) -> Self {
        Self::Mount(Box::new(e))
    }
}
