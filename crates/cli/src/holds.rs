//! What a file or device holds, in words. So nothing is overwritten unawares, and what is no volume
//! is called what it is.
//!
//! Magic numbers, those of file(1) and libblkid, identify the common formats. They give the same
//! answer on every machine, also without util-linux. For the rest blkid(8) is asked, if it is
//! installed. Nothing is written.

use std::fmt::{self, Display};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::SeekFrom;
use stetfs_format::private_log::LogHeader;
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{SUPERBLOCK_OFFSET, Superblock};
use stetfs_media::nand::NandFile;
use stetfs_media::{BlockDev, Class, Tag};

use crate::called;
use crate::e2fsprogs;
use crate::failure::{Explain, Failure, Result};
use crate::partitions::{self, Entry};
use crate::size::Size;

/// Bytes at a device's beginning and end that are searched for anything but zeros.
const ENDS: u64 = 1 << 20;
/// Bytes of a file's data that are read to see whether all are zero. Holes cost nothing.
const READ_MAX: u64 = 1 << 30;

/// What a file or device holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) kind: Kind,
    /// The words, with an article: `an XFS file system`.
    words: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A superblock of ext2, ext3 or ext4, sound or not.
    Ext,
    /// An ext volume with blocks of an unsupported size, in bytes.
    ExtOfBlocks(u32),
    /// The journal of another volume (`mke2fs -O journal_dev`).
    JournalDevice,
    /// A table (GPT or MBR), and its partitions in their order.
    PartitionTable(&'static str, Vec<Partition>),
    /// A region of persistent memory of some scheme.
    Region,
    /// The file of a simulated NAND part.
    NandPart,
    /// A file system, an archive, or whatever else has a name.
    Foreign,
    /// Text.
    Text,
    /// Something unknown.
    Data,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    /// From 1 on, as the kernel counts them.
    pub(crate) number: u32,
    /// Bytes from the beginning.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Its type and its name, as the table has them.
    pub(crate) words: String,
    /// What it begins with, if that is known.
    pub(crate) holds: Option<Box<Holds>>,
}

impl Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl Holds {
    fn new(kind: Kind, words: impl Into<String>) -> Self {
        Self {
            kind,
            words: words.into(),
        }
    }
}

/// Returns what the file or device at `path` holds; `None` if it is empty or all zeros.
pub(crate) fn what(path: &Path) -> Result<Option<Holds>> {
    let shown = || path.display().to_string();
    if NandFile::is_at(path) {
        return Ok(Some(Holds::new(Kind::NandPart, "a simulated NAND part")));
    }
    let kind = path.metadata().during(shown)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        // Opening a pipe would wait for its other end.
        let what = format!("{} is neither a file nor a block device", shown());
        return Err(Failure::new(what));
    }
    let file = File::open(path).during(shown)?;
    let size = rustix::fs::seek(&file, SeekFrom::End(0)).during(shown)?;
    let source = Source {
        size,
        read: &|at, out| Ok(file.read_at(out, at)?),
    };
    if let Some(found) = source.known(0, size).during(shown)? {
        return Ok(Some(found));
    }
    let is_blank = if kind.is_file() {
        source.is_blank_file(&file)
    } else {
        source.are_ends_blank()
    };
    if is_blank.during(shown)? {
        return Ok(None);
    }
    let named = blkid(path).map(|words| Holds::new(Kind::Foreign, words));
    Ok(Some(match named {
        Some(named) => named,
        None => source.data().during(shown)?,
    }))
}

/// Returns [`what`] in words: `nothing` if it is empty.
pub(crate) fn in_words(path: &Path) -> Result<String> {
    Ok(what(path)?.map_or_else(|| "nothing".to_owned(), |holds| holds.to_string()))
}

/// Returns the length of a file or device in bytes.
pub(crate) fn length(path: &Path) -> Result<u64> {
    let file = File::open(path).during(|| path.display().to_string())?;
    rustix::fs::seek(&file, SeekFrom::End(0)).during(|| path.display().to_string())
}

/// Returns what the device of an opened NAND part holds; `None` if both its ends are all zeros.
pub(crate) fn what_on(dev: &dyn BlockDev) -> Result<Option<Holds>> {
    let source = Source {
        size: dev.size(),
        read: &|at, out| {
            dev.read_bytes_at(at, out, Tag::read(Class::Data))?;
            Ok(out.len())
        },
    };
    match source.known(0, source.size)? {
        Some(found) => Ok(Some(found)),
        None if source.are_ends_blank()? => Ok(None),
        None => source.data().map(Some),
    }
}

/// A magic number: its offset, its bytes, and what it marks.
struct Magic(u64, &'static [u8], &'static str);

/// Magic numbers that suffice by themselves, the longer and safer ones first.
const MAGICS: &[Magic] = &[
    Magic(0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    Magic(0, b"XFSB", "an XFS file system"),
    Magic(0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    Magic(3, b"-FVE-FS-", "an encrypted volume (BitLocker)"),
    Magic(3, b"NTFS    ", "an NTFS file system"),
    Magic(3, b"EXFAT   ", "an exFAT file system"),
    Magic(82, b"FAT32   ", "a FAT file system"),
    Magic(54, b"FAT16   ", "a FAT file system"),
    Magic(54, b"FAT12   ", "a FAT file system"),
    Magic(0x8001, b"CD001", "an ISO 9660 image"),
    Magic(0x8000, b"JFS1", "a JFS file system"),
    Magic(0x1_0034, b"ReIsEr", "a ReiserFS file system"),
    Magic(0, b"hsqs", "a SquashFS image"),
    Magic(1024, b"\xe2\xe1\xf5\xe0", "an EROFS image"),
    Magic(1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    Magic(32, b"NXSB", "an APFS container"),
    Magic(
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcachefs file system",
    ),
    Magic(4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID array"),
    Magic(4096 - 10, b"SWAPSPACE2", "swap space"),
    Magic(16_384 - 10, b"SWAPSPACE2", "swap space"),
    Magic(65_536 - 10, b"SWAPSPACE2", "swap space"),
    Magic(4096 - 10, b"SWAP-SPACE", "swap space"),
    Magic(0, b"QFI\xfb", "a disk image in the format qcow2"),
    Magic(0, b"KDMV", "a disk image in the format VMDK"),
    Magic(0, b"vhdxfile", "a disk image in the format VHDX"),
    Magic(64, b"\x7f\x10\xda\xbe", "a disk image in the format VDI"),
    Magic(0, b"\x3a\xff\x26\xed", "an Android sparse image"),
    Magic(257, b"ustar", "a tar archive"),
    Magic(0, b"070701", "a cpio archive"),
    Magic(0, b"PK\x03\x04", "a ZIP archive"),
    Magic(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    Magic(0, b"\x1f\x8b\x08", "data compressed by gzip"),
    Magic(0, b"\xfd7zXZ\0", "data compressed by xz"),
    Magic(0, b"\x28\xb5\x2f\xfd", "data compressed by zstd"),
    Magic(0, b"\x04\x22\x4d\x18", "data compressed by lz4"),
    Magic(0, b"BZh", "data compressed by bzip2"),
    Magic(0, b"SQLite format 3\0", "an SQLite database"),
    Magic(0, b"\x7fELF", "a program"),
];

/// Number of sectors in which LVM's label can be.
const LVM_SECTORS: u64 = 4;

struct Source<'a> {
    size: u64,
    read: &'a dyn Fn(u64, &mut [u8]) -> Result<usize>,
}

impl Source<'_> {
    /// Reads `N` bytes at an offset; behind the end, zeros.
    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let mut out = [0; N];
        self.fill(at, &mut out)?;
        Ok(out)
    }

    fn fill(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let len = u64_as_usize(self.size.saturating_sub(at).min(usize_as_u64(out.len())));
        let mut done = 0;
        while done < len {
            match (self.read)(at + usize_as_u64(done), &mut out[done..len])? {
                0 => return Ok(()),
                n => done += n,
            }
        }
        Ok(())
    }

    fn is_at(&self, at: u64, magic: &[u8]) -> Result<bool> {
        let mut found = [0; 16];
        let found = &mut found[..magic.len()];
        self.fill(at, found)?;
        Ok(found == magic)
    }

    fn u16(&self, at: u64) -> Result<u16> {
        Ok(u16::from_le_bytes(self.bytes(at)?))
    }

    fn u32(&self, at: u64) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(at)?))
    }

    /// Returns what is known in the `size` bytes from `start` on.
    fn known(&self, start: u64, size: u64) -> Result<Option<Holds>> {
        if LogHeader::is_one(&self.bytes::<16>(start)?) {
            let words = "a region of persistent memory of a stetfs volume";
            return Ok(Some(Holds::new(Kind::Region, words)));
        }
        if let Some(ext) = self.ext(start)? {
            return Ok(Some(ext));
        }
        for Magic(at, magic, words) in MAGICS {
            if self.is_at(start + at, magic)? {
                return Ok(Some(Holds::new(Kind::Foreign, *words)));
            }
        }
        for sector in 0..LVM_SECTORS {
            let at = start + sector * 512;
            if self.is_at(at, b"LABELONE")? && self.is_at(at + 24, b"LVM2 001")? {
                return Ok(Some(Holds::new(Kind::Foreign, "a physical volume of LVM")));
            }
        }
        match start {
            0 => self.partition_table(size),
            _ => Ok(None),
        }
    }

    /// Looks for ext2, ext3 or ext4, or the journal of one.
    fn ext(&self, start: u64) -> Result<Option<Holds>> {
        const SUPER_MAGIC: u16 = 0xef53;
        const JOURNAL_DEV: u32 = 0x8;
        const MAGIC_AT: u64 = 0x38;
        let raw: [u8; 1024] = self.bytes(start + SUPERBLOCK_OFFSET)?;
        let at = start + SUPERBLOCK_OFFSET;
        if self.u16(at + MAGIC_AT)? != SUPER_MAGIC {
            return Ok(None);
        }
        let words = match Superblock::decode(&raw) {
            Ok(sb) => {
                let size = Size(sb.volume_bytes());
                return Ok(Some(Holds::new(
                    Kind::Ext,
                    format!("{} of {size}", called::name_of(&sb)),
                )));
            }
            // Fields of the superblock: s_feature_incompat, s_uuid, s_log_block_size.
            Err(_) if self.u32(at + 0x60)? & JOURNAL_DEV != 0 => {
                let uuid = called::uuid(&self.bytes(at + 0x68)?);
                let words = format!("the journal of another ext4 volume (UUID {uuid})");
                return Ok(Some(Holds::new(Kind::JournalDevice, words)));
            }
            Err(_) => match self.u32(at + 0x18)? {
                log @ 3..=6 => {
                    let words = format!("an ext4 volume with blocks of {}", Size(1024 << log));
                    return Ok(Some(Holds::new(Kind::ExtOfBlocks(1024 << log), words)));
                }
                _ => "a damaged ext4 volume",
            },
        };
        Ok(Some(Holds::new(Kind::Ext, words)))
    }

    /// Looks for a GPT, else for an MBR.
    fn partition_table(&self, size: u64) -> Result<Option<Holds>> {
        let read = |at: u64, out: &mut [u8]| {
            out.fill(0);
            self.fill(at, out)
        };
        let Some(table) = partitions::table(size, &read)? else {
            return Ok(None);
        };
        let partition = |entry: Entry| Partition {
            // A partition that is missing or unreadable gets no name.
            holds: (entry.offset < self.size)
                .then(|| self.known(entry.offset, entry.size).ok().flatten())
                .flatten()
                .map(Box::new),
            number: entry.number,
            offset: entry.offset,
            size: entry.size,
            words: entry.words,
        };
        let list: Vec<Partition> = table.entries.into_iter().map(partition).collect();
        let damaged = if table.is_sound { "" } else { "damaged " };
        let words = format!("a {damaged}partition table ({})", table.kind);
        let words = match list.len() {
            0 => format!("{words} without partitions"),
            _ => {
                let list: Vec<String> = list.iter().map(Partition::to_string).collect();
                format!("{words}: {}", list.join("; "))
            }
        };
        let kind = if table.is_sound {
            Kind::PartitionTable(table.kind, list)
        } else {
            Kind::Foreign
        };
        Ok(Some(Holds::new(kind, words)))
    }

    /// True if all data of a file, as far as it is read, is zero.
    fn is_blank_file(&self, file: &File) -> Result<bool> {
        let (mut at, mut budget) = (0, READ_MAX);
        while at < self.size && budget > 0 {
            let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => return Ok(true),
                // The file system does not know holes.
                Err(_) => at,
            };
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(self.size);
            let end = end.min(start.saturating_add(budget));
            if !self.is_zero(start, end)? {
                return Ok(false);
            }
            budget -= (end - start).min(budget);
            at = end.max(at + 1);
        }
        Ok(true)
    }

    fn are_ends_blank(&self) -> Result<bool> {
        let last = self.size.saturating_sub(ENDS);
        Ok(self.is_zero(0, ENDS.min(self.size))? && self.is_zero(last, self.size)?)
    }

    fn is_zero(&self, start: u64, end: u64) -> Result<bool> {
        let mut chunk = vec![0; u64_as_usize(ENDS)];
        for at in (start..end).step_by(u64_as_usize(ENDS)) {
            let chunk = &mut chunk[..u64_as_usize((end - at).min(ENDS))];
            chunk.fill(0);
            self.fill(at, chunk)?;
            if chunk.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns words for unknown content: text or data.
    fn data(&self) -> Result<Holds> {
        let mut start = vec![0; u64_as_usize(self.size.min(4096))];
        self.fill(0, &mut start)?;
        let is_text = |byte: &u8| !byte.is_ascii_control() || matches!(byte, b'\n' | b'\r' | b'\t');
        // The last character may be incomplete.
        let is_utf8 = std::str::from_utf8(&start)
            .map_or_else(|e| e.valid_up_to() + 4 > start.len(), |_| true);
        Ok(if start.iter().all(is_text) && is_utf8 {
            Holds::new(Kind::Text, "text")
        } else {
            Holds::new(Kind::Data, "data")
        })
    }
}

impl Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at byte {}, {}, {}",
            self.number,
            self.offset,
            Size(self.size),
            self.words
        )?;
        match &self.holds {
            Some(holds) => write!(f, ", with {holds}"),
            None => Ok(()),
        }
    }
}

/// Refuses to make a regular file among the device nodes, where nobody looks for one.
pub(crate) fn check_new(path: &Path) -> Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let Ok(dir) = dir.canonicalize() else {
        return Ok(());
    };
    let device = |path: &Path| path.metadata().ok().map(|m| m.dev());
    let among_nodes = dir.starts_with("/dev")
        && !dir.starts_with("/dev/shm")
        && device(&dir) == device(Path::new("/dev"));
    if !among_nodes {
        return Ok(());
    }
    let shown = path.display();
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let failure = Failure::new(format!("{shown}: there is no such device"));
    if !name.starts_with(b"mtd") {
        return Err(failure.advise("the block devices of this machine are: lsblk"));
    }
    let list = std::fs::read_to_string("/proc/mtd").unwrap_or_default();
    Err(failure.advise(match list.lines().nth(1) {
        Some(_) => "the NAND parts of this machine are in /proc/mtd",
        None => {
            "the kernel has no MTD device (is its driver loaded?); for a simulated part, name a \
                file elsewhere"
        }
    }))
}

/// Advice about a path that was taken for a volume and holds something else.
pub(crate) fn advice(holds: &Holds) -> Option<String> {
    Some(match &holds.kind {
        Kind::PartitionTable(_, partitions) => {
            let is_ext = |p: &&Partition| {
                let kind = p.holds.as_ref().map(|holds| &holds.kind);
                matches!(kind, Some(Kind::Ext))
            };
            let Some(p) = partitions.iter().find(is_ext) else {
                return Some("none of its partitions holds an ext4 volume".to_owned());
            };
            format!("say which partition, here: --partition {}", p.number)
        }
        Kind::JournalDevice => {
            "name the volume itself: the one with the feature has_journal and no journal inode"
                .to_owned()
        }
        Kind::Region => "name the volume, and give this file as its memory: -o nvm=FILE".to_owned(),
        Kind::ExtOfBlocks(_) => "a kernel with memory pages of that size can mount it".to_owned(),
        Kind::Ext | Kind::NandPart | Kind::Foreign | Kind::Text | Kind::Data => return None,
    })
}

/// Returns what blkid(8) says, if it is installed.
fn blkid(path: &Path) -> Option<String> {
    let output = e2fsprogs::command("blkid")
        .ok()?
        .args(["-p", "-o", "export", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |key: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    let table = value("PTTYPE").map(|kind| format!("a partition table ({kind})"));
    let content = value("TYPE").map(|kind| format!("what blkid(8) calls {kind}"));
    content.or(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Option<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        what(file.path()).unwrap().map(|holds| holds.to_string())
    }

    #[test]
    fn nothing_is_nothing_and_a_byte_is_something() {
        assert_eq!(of(b""), None);
        assert_eq!(of(&[0; 100]), None);
        assert_eq!(of(&vec![0; 3 << 20]), None);
        let mut late = vec![0; 3 << 20];
        late[2 << 20] = 1;
        assert_eq!(of(&late).as_deref(), Some("data"));
        assert_eq!(of(b"x").as_deref(), Some("text"));
        assert_eq!(of("Grüße\n".as_bytes()).as_deref(), Some("text"));
        assert_eq!(of(b"\x01\x02").as_deref(), Some("data"));
    }

    #[test]
    fn a_table_that_lies_is_no_panic() {
        let mut raw = vec![0xff; 8192];
        raw[512..520].copy_from_slice(b"EFI PART");
        assert!(of(&raw).unwrap().contains("damaged partition table (GPT)"));
    }
}
