//! Volumes made by mke2fs, in every variety that the tests use, and e2fsck's judgement of them.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use stetfs_media::{BlockDev, Cause, Class, Image, Tag};

use crate::host::run;
use crate::world::model::Rules;
use crate::world::op::Profile;

/// A variety of volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variety {
    /// Its name in messages.
    pub name: &'static str,
    /// Bytes in a block.
    pub block: u32,
    /// Bytes in an inode.
    pub inode: u32,
    /// More features, as `mke2fs -O` takes them.
    pub features: &'static str,
    /// Files are mapped by extents.
    pub extents: bool,
}

/// mke2fs's defaults.
pub const EXT4_4K: Variety = Variety {
    name: "ext4-4k",
    block: 4096,
    inode: 256,
    features: "",
    extents: true,
};
/// 1 KiB blocks: small directories split, trees grow early.
pub const EXT4_1K: Variety = Variety {
    name: "ext4-1k",
    block: 1024,
    inode: 256,
    features: "",
    extents: true,
};
/// 2 KiB blocks.
pub const EXT4_2K: Variety = Variety {
    name: "ext4-2k",
    block: 2048,
    inode: 256,
    features: "",
    extents: true,
};
/// Inodes without space for attributes and nanoseconds.
pub const EXT4_SMALL_INODES: Variety = Variety {
    name: "ext4-inode128",
    block: 1024,
    inode: 128,
    features: "",
    extents: true,
};
/// No metadata checksums, group descriptors with CRC16, no 64-bit block numbers.
pub const EXT4_PLAIN: Variety = Variety {
    name: "ext4-plain",
    block: 4096,
    inode: 256,
    features: "^metadata_csum,uninit_bg,^64bit",
    extents: true,
};
/// An ext3 volume: block pointers, no checksums.
pub const EXT3_1K: Variety = Variety {
    name: "ext3-1k",
    block: 1024,
    inode: 256,
    features: "^extent,^metadata_csum,^64bit,^flex_bg,^huge_file,^uninit_bg,^dir_nlink,\
        ^extra_isize",
    extents: false,
};
/// An ext3 volume in its oldest form.
pub const EXT3_4K: Variety = Variety {
    name: "ext3-4k-inode128",
    block: 4096,
    inode: 128,
    features: "^extent,^metadata_csum,^64bit,^flex_bg,^huge_file,^uninit_bg,^dir_nlink,\
        ^extra_isize",
    extents: false,
};

/// Every variety.
pub const VARIETIES: [Variety; 7] = [
    EXT4_4K,
    EXT4_1K,
    EXT4_2K,
    EXT4_SMALL_INODES,
    EXT4_PLAIN,
    EXT3_1K,
    EXT3_4K,
];

impl Variety {
    /// Returns the variety of that name.
    ///
    /// # Errors
    /// There is none; the error lists the existing ones.
    pub fn find(name: &str) -> Result<Self> {
        let found = VARIETIES.into_iter().find(|variety| variety.name == name);
        found.with_context(|| {
            let names = VARIETIES.map(|variety| variety.name);
            format!("there is no volume {name}; there are {}", names.join(", "))
        })
    }

    /// The model's rules for this variety.
    pub fn rules(&self) -> Rules {
        Rules {
            extents: self.extents,
            fine_times: self.inode > 128,
            block: self.block.into(),
            // The mount decides about groups and whole writes.
            groups: false,
            whole_max: 0,
            all_marked: false,
        }
    }

    /// The operations that the variety supports.
    pub fn profile(&self) -> Profile {
        Profile {
            xattr_max: if self.block == 1024 { 70 } else { 300 },
            wide_times: self.inode > 128,
            ..Profile::default()
        }
    }

    /// Makes a volume of `mib` MiB with a journal of `journal_mib` MiB (0: mke2fs decides) in a new
    /// sparse file.
    ///
    /// # Errors
    /// Those of mke2fs.
    pub fn make(&self, path: &Path, mib: u64, journal_mib: u64) -> Result<()> {
        self.make_with(path, mib, journal_mib, &[])
    }

    /// Makes a volume with more arguments for mke2fs.
    ///
    /// # Errors
    /// Those of mke2fs.
    pub fn make_with(&self, path: &Path, mib: u64, journal_mib: u64, more: &[&str]) -> Result<()> {
        let _ = fs::remove_file(path);
        File::create(path)?.set_len(mib << 20)?;
        let (block, inode) = (self.block.to_string(), self.inode.to_string());
        let journal = format!("size={journal_mib}");
        let mut args = vec!["-q", "-F", "-t", "ext4", "-b", &block, "-I", &inode];
        if !self.features.is_empty() {
            args.extend(["-O", self.features]);
        }
        if journal_mib > 0 {
            args.extend(["-J", &journal]);
        }
        args.extend(more);
        let path = path.to_string_lossy();
        args.push(&path);
        run("mke2fs", &args).map(drop)
    }
}

/// Runs `e2fsck -fn`. An error holds its output: the volume is not clean.
///
/// # Errors
/// e2fsck would change something.
pub fn check(path: &Path) -> Result<()> {
    // In its own process group, so that a signal to the caller does not reach e2fsck: a cancelled
    // e2fsck would report errors.
    let out = Command::new("e2fsck")
        .process_group(0)
        .arg("-fn")
        .arg(path)
        .output()?;
    if !out.status.success() {
        bail!(
            "e2fsck -fn {}: {}\n{}{}",
            path.display(),
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(())
}

/// Runs `e2fsck -y -E journal_only`, which replays the journal and does nothing else.
///
/// # Errors
/// e2fsck failed.
pub fn replay(path: &Path) -> Result<()> {
    let out = Command::new("e2fsck")
        .args(["-y", "-E", "journal_only"])
        .arg(path)
        .output()?;
    if out.status.code().is_none_or(|code| code > 1) {
        bail!(
            "e2fsck -E journal_only: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stdout)
        );
    }
    Ok(())
}

/// Whether a power cut has torn the superblock's two sectors apart: its checksum is wrong (with
/// `metadata_csum`).
pub fn superblock_is_torn(image: &stetfs_media::Image) -> bool {
    let mut raw = [0; stetfs_format::SUPERBLOCK_SIZE];
    image.read(stetfs_format::SUPERBLOCK_OFFSET, &mut raw);
    matches!(
        stetfs_format::Superblock::decode(&raw),
        Err(stetfs_format::Corrupt::SuperChecksum { .. })
    )
}

/// Writes a volume onto a device, except for pieces of `piece_bytes` bytes that hold only zeros.
///
/// # Errors
/// The volume is larger than the device; a write fails.
pub fn copy_to(volume: &Image, dev: &dyn BlockDev, piece_bytes: usize) -> Result<()> {
    ensure!(
        volume.size() <= dev.size(),
        "a volume of {} bytes on a device of {}",
        volume.size(),
        dev.size()
    );
    let mut piece = vec![0; piece_bytes];
    for at in (0..volume.size()).step_by(piece_bytes) {
        let len = (volume.size() - at).min(piece_bytes as u64) as usize;
        let piece = &mut piece[..len];
        volume.read(at, piece);
        if piece.iter().any(|&byte| byte != 0) {
            dev.write_at(at, piece, Tag::new(Class::Data, Cause::Home))?;
        }
    }
    Ok(dev.flush(Cause::Home)?)
}
