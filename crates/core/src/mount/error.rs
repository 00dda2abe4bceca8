//! Why a volume cannot be mounted as asked.

use stetfs_format::InodeNo;

/// Why a volume cannot be mounted as asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MountError {
    /// The volume has features that change the format in ways unknown here.
    #[error("the volume uses features that are not supported: {names}")]
    Features {
        /// Their names, as dumpe2fs prints them.
        names: String,
    },
    /// The device has no room for a superblock.
    #[error("{device} has {size} bytes: too few for a volume")]
    NoRoom {
        /// The device's name.
        device: String,
        /// Its size in bytes.
        size: u64,
    },
    /// The device ends before the volume does.
    #[error("the volume has {volume} bytes but the device only {device}: {} are missing at its \
        end", volume.saturating_sub(*device))]
    DeviceTooSmall {
        /// Size of the volume in bytes, as its superblock says.
        volume: u64,
        /// Size of the device in bytes.
        device: u64,
    },
    /// The journal is on another device.
    #[error("the volume has an external journal (device {device:#x}), which is not supported")]
    ExternalJournal {
        /// Its device number.
        device: u32,
    },
    /// The journal takes fast commits, which are not replayed here.
    #[error(
        "the volume has the feature fast_commit: unmount it cleanly and run tune2fs -O \
            ^fast_commit on it"
    )]
    FastCommits,
    /// The device can only be read, so no scheme can commit anything on it.
    #[error("{device} cannot be written")]
    CannotCommit {
        /// The device.
        device: String,
    },
    /// The journal's inode is not valid.
    #[error("journal inode {ino} {why}")]
    JournalInode {
        /// The inode.
        ino: InodeNo,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The scheme needs a journal and the volume has none.
    #[error(
        "the volume has no journal (it is ext2, or ext4 without one), and scheme {scheme} needs \
            one (there is scheme=null, and tune2fs -j)"
    )]
    NoJournal {
        /// The scheme.
        scheme: &'static str,
    },
    /// The volume needs recovery, and the device cannot be written.
    #[error("the journal needs recovery and {device} is read-only (noload mounts without it)")]
    NeedsRecovery {
        /// The device.
        device: String,
    },
    /// Another scheme left committed content in the log, and this scheme cannot bring it home.
    #[error(
        "the volume's journal needs recovery, which scheme {scheme} cannot do: mount it with \
            scheme=jbd2 once, or run e2fsck"
    )]
    ForeignRecovery {
        /// The scheme of this mount.
        scheme: &'static str,
    },
    /// The volume is in use, on this machine or another one (feature `mmp`).
    #[error(
        "the volume is in use{}: by {node}, there called {device}, and its multiple-mount \
            protection (feature mmp) says that this one is alive",
        if *fsck { " by e2fsck" } else { "" }
    )]
    InUse {
        /// The machine.
        node: String,
        /// The device's name there.
        device: String,
        /// The user is e2fsck, running or killed.
        fsck: bool,
    },
    /// `noload` without `ro`, on a volume that needs recovery.
    #[error(
        "the journal needs recovery, and with mount option \"noload\" it gets none: that needs \
            \"ro\""
    )]
    NoloadWritable,
    /// `sb=` names a block that holds no superblock.
    #[error(
        "mount option \"sb={at}\": at that block of 1 KiB there is no superblock (`mke2fs -n` with \
            the volume's options lists where its copies are, in blocks of its own size)"
    )]
    NoCopy {
        /// The block, in units of 1 KiB.
        at: u32,
    },
    /// `atomic=all` with a scheme that makes no write atomic.
    #[error(
        "mount option \"atomic=all\" needs a scheme that journals, which {scheme} does not: after \
            a crash it promises nothing"
    )]
    NotAtomic {
        /// The scheme.
        scheme: &'static str,
    },
    /// The scheme has no such data mode.
    #[error("scheme {scheme} has no mode data={mode}")]
    DataMode {
        /// The scheme.
        scheme: &'static str,
        /// The mode that was asked for.
        mode: String,
    },
    /// The newest content is in a log that only one scheme can read.
    #[error(
        "the volume was not cleanly unmounted from scheme {scheme}, and only that can recover it: \
            mount it with \
         scheme={scheme} (or run `stetfs fsck`)"
    )]
    PrivateLog {
        /// The scheme that wrote the log.
        scheme: String,
    },
    /// The root inode is not a directory.
    #[error("the root inode is not a directory")]
    Root,
}
