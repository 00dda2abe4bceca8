//! Damaged volumes: mounted, walked and written, they give named errors and nothing else.
//!
//! A volume without metadata checksums, so that damage gets past them, is filled with one of
//! everything. Then bytes of its metadata are changed, and [`survive`] does to it what users do.
//! The law: no panic, no hang, no memory in proportion to a number that was read.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs::{
    Caller, FallocateMode, Fs, MountOptions, OnError, OpenFlags, RenameFlags, SetAttr, SetXattr,
    Whence,
};
use stetfs_format::{InodeNo, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::sim::{CrashImage, SimOptions};
use stetfs_media::{BlockDev, Image, SimDev};

use crate::media::{Contents, Kind, Media};
use crate::target::Target;
use stetfs_testkit::image::{EXT3_1K, Variety};

/// Names in a directory: enough for a hash tree.
const ENTRIES: u32 = 60;

/// Inodes that are changed: a walk finds each kind among the first.
const CHANGED: usize = 12;

/// Bytes of the blocks that are damaged.
const BLOCK: u64 = 1024;

/// Inodes that a walk visits at most: damage may make the tree endless.
const VISITS: usize = 400;

/// Without checksums of any kind, so that damaged structures are looked at.
pub const BARE_EXT4: Variety = Variety {
    name: "ext4-1k-bare",
    block: 1024,
    inode: 256,
    features: "^metadata_csum,^64bit,^resize_inode",
    extents: true,
};

/// Volumes to damage, filled: with extents and with block pointers.
///
/// # Errors
/// What mke2fs or filling says.
pub fn volumes(dir: &Path) -> Result<Vec<(&'static str, Image)>> {
    filled(dir, |fs| fs.unmount())
}

/// The same as the power going off leaves them: what is in their journals is not at home.
///
/// # Errors
/// What mke2fs or filling says.
pub fn unclean_volumes(dir: &Path) -> Result<Vec<(&'static str, Image)>> {
    filled(dir, |fs| fs.sync())
}

fn filled(
    dir: &Path,
    end: impl Fn(&Fs) -> stetfs::Result<()>,
) -> Result<Vec<(&'static str, Image)>> {
    [BARE_EXT4, EXT3_1K]
        .iter()
        .map(|variety| {
            let path = dir.join(variety.name);
            variety.make(&path, 4, 1)?;
            let dev = Arc::new(CrashImage::new(
                Image::from_file(&path)?,
                SimOptions::default(),
            ));
            let fs = mount(dev.clone())?;
            fill(&fs).with_context(|| format!("filling {}", variety.name))?;
            end(&fs)?;
            Ok((variety.name, dev.image()))
        })
        .collect()
}

/// The same for a process that lives long, each with its [`used_blocks`].
///
/// # Panics
/// They cannot be made: there is no mke2fs, or no room for temporary files.
pub fn volumes_with_targets() -> Vec<(Image, Vec<u64>)> {
    let dir = std::env::temp_dir().join(format!("stetfs-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for the volumes");
    let volumes = volumes(&dir).expect("volumes to damage (needs mke2fs)");
    std::fs::remove_dir_all(&dir).expect("the directory is ours");
    let with_targets = |(_, image)| {
        let targets = used_blocks(&image);
        (image, targets)
    };
    volumes.into_iter().map(with_targets).collect()
}

/// Changes bytes of `image`: each four bytes of `damage` name a place and a value. Places are taken
/// from the blocks in `targets`, so that little of the damage is wasted on empty ones.
pub fn apply(image: &mut Image, targets: &[u64], damage: &[u8]) {
    for hit in damage.as_chunks::<4>().0 {
        let block = targets[(usize::from(hit[0]) << 2 | usize::from(hit[1] >> 6)) % targets.len()];
        let offset = u64::from(hit[1] & 3) << 8 | u64::from(hit[2]);
        image.write(block * BLOCK + offset, &hit[3..]);
    }
}

/// The blocks of an image that hold anything: offsets in units of 1 KiB. The journal's own is left
/// in.
pub fn used_blocks(image: &Image) -> Vec<u64> {
    let mut bytes = [0; BLOCK as usize];
    (0..image.size() / BLOCK)
        .filter(|&block| {
            image.read(block * BLOCK, &mut bytes);
            bytes.iter().any(|&b| b != 0)
        })
        .collect()
}

/// Mounts a damaged volume and uses all of it. Errors are expected; what must not happen happens by
/// itself.
pub fn survive(image: Image) {
    let dev = Arc::new(CrashImage::new(image, SimOptions::default()));
    if let Ok(fs) = mount(dev) {
        use_it(&fs, VISITS, CHANGED);
        let _ = fill(&fs);
        let _ = fs.sync();
        let _ = fs.unmount();
    }
}

/// What users do to a volume: so many of its inodes are looked at, and so many changed.
fn use_it(fs: &Fs, seen: usize, changed: usize) {
    let c = Caller::root();
    for ino in walk(fs).into_iter().take(seen) {
        look_at(fs, &c, ino);
    }
    for ino in walk(fs).into_iter().take(changed) {
        change(fs, &c, ino);
    }
}

/// All media of a scheme as the power going off leaves them, with a log that has to be recovered.
pub struct Left {
    target: Target,
    contents: Contents,
    /// Medium and offset of the blocks of 1 KiB that are damaged: the heads of the home medium, its
    /// log, and the memory beside it.
    targets: Vec<(usize, u64)>,
}

impl Left {
    /// Makes a volume, does all kinds of things on it, many of them confirmed, and lets the power
    /// go off.
    ///
    /// # Errors
    /// What mke2fs, mounting or filling says.
    pub fn of(target: &Target) -> Result<Self> {
        let media = Media::new(&target.contents()?);
        let fs = Fs::mount(media.shown()?, target.options())?.0;
        fill(&fs)?;
        fs.sync()?;
        let c = Caller::root();
        let ino = fs.lookup(&c, fs.root(), b"file")?.ino;
        for n in 0..30u8 {
            // Differences, whole blocks, and blocks that are freed.
            fs.write(&c, ino, u64::from(n) * 1000, &[n; 700])?;
            fs.write(&c, ino, 8 << 10, &[!n; 3000])?;
            let name = format!("{}", n % 3);
            let file = fs.create(&c, fs.root(), name.as_bytes(), 0o644, OpenFlags::WRITE)?;
            fs.write(&c, file.ino, 0, &vec![n; 100 * usize::from(n)])?;
            fs.fsync(ino, false)?;
            fs.release(file.ino)?;
            fs.unlink(&c, fs.root(), name.as_bytes())?;
        }
        fs.sync()?;
        let contents = media.contents();
        let left = Self {
            target: target.clone(),
            targets: read_by_recovery(&contents)?,
            contents,
        };
        // Otherwise nothing would be told by what becomes of it when it is damaged.
        left.mount().context("mounting it undamaged")?;
        Ok(left)
    }

    /// The same with damage: each five bytes of `damage` name a place in two bytes, an offset in
    /// two, and a value.
    pub fn damaged(&self, damage: &[u8]) -> Self {
        let mut contents = self.contents.clone();
        for [block, more, high, low, value] in damage.as_chunks::<5>().0 {
            let block = usize::from(u16::from_be_bytes([*block, *more])) % self.targets.len();
            let offset = u64::from(u16::from_be_bytes([*high, *low])) % BLOCK;
            let (medium, at) = self.targets[block];
            contents.write(medium, at + offset, &[*value]);
        }
        Self {
            target: self.target.clone(),
            targets: self.targets.clone(),
            contents,
        }
    }

    /// Mounts it and uses all of it. As [`survive`].
    pub fn survive(&self) {
        if let Ok(fs) = self.mount() {
            // It is the recovery that is tried; the volume is used a little all the same.
            use_it(&fs, 6, 1);
            let _ = fs.unmount();
        }
    }

    fn mount(&self) -> Result<Fs> {
        let options = MountOptions {
            errors: Some(OnError::Continue),
            ..self.target.options()
        };
        Ok(Fs::mount(Media::try_new(&self.contents)?.shown()?, options)?.0)
    }
}

/// The blocks in which what recovery reads lies, one in so many where there are too many to be hit.
fn read_by_recovery(contents: &Contents) -> Result<Vec<(usize, u64)>> {
    const MOST: usize = 1024;
    let mut blocks = Vec::new();
    for (medium, (kind, image)) in contents.media().enumerate() {
        let used = used_blocks(image).into_iter().map(|block| block * BLOCK);
        let in_log: Box<dyn Fn(u64) -> bool> = match (medium, kind) {
            (0, Kind::Block | Kind::Pmem) => Box::new(in_log_or_heads(image)?),
            _ => Box::new(|_| true),
        };
        let read: Vec<u64> = used.filter(|at| in_log(*at)).collect();
        let every = read.len().div_ceil(MOST).max(1);
        blocks.extend(read.into_iter().step_by(every).map(|at| (medium, at)));
    }
    Ok(blocks)
}

/// Whether an offset in a volume is in its journal area or among its first blocks.
fn in_log_or_heads(volume: &Image) -> Result<impl Fn(u64) -> bool + use<>> {
    const HEADS: u64 = 16 * BLOCK;
    let dev = SimDev::new(volume.clone());
    let mut raw = [0; SUPERBLOCK_SIZE];
    volume.read(SUPERBLOCK_OFFSET, &mut raw);
    let sb = Superblock::decode(&raw)?;
    let block = sb.block_size() as u64;
    let log: Vec<_> = stetfs::journal_extents(&dev, &sb)?
        .iter()
        .map(|extent| extent.start.0 * block..(extent.start.0 + u64::from(extent.len)) * block)
        .collect();
    Ok(move |at| at < HEADS || log.iter().any(|extent| extent.contains(&at)))
}

fn mount(dev: Arc<dyn BlockDev>) -> Result<Fs> {
    // The error handling of a volume that must go on after damage.
    let options = MountOptions::parse("data=journal,errors=continue,commit=300,memory=8M")?;
    Ok(Fs::mount(dev, options)?.0)
}

/// One of everything, in the root directory; what is there already stays.
fn fill(fs: &Fs) -> stetfs::Result<()> {
    let c = Caller::root();
    let root = fs.root();
    let dir = fs.mkdir(&c, root, b"directory", 0o755)?.ino;
    for i in 0..ENTRIES {
        let name = format!("entry-with-a-name-that-fills-blocks-{i:04}");
        fs.mknod(&c, dir, name.as_bytes(), 0o100_644, (0, 0))?;
    }
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let file = fs.create(&c, root, b"file", 0o644, flags)?.ino;
    for i in 0..40u64 {
        // Every second block, so that the map has a tree.
        fs.write(&c, file, i * 2048, &[i as u8; 1024])?;
    }
    let _ = fs.fallocate(&c, file, FallocateMode::KEEP_SIZE, 200 << 10, 64 << 10);
    fs.setxattr(&c, file, b"user.short", b"value", SetXattr::Any)?;
    fs.setxattr(&c, file, b"user.long", &[7; 600], SetXattr::Any)?;
    fs.symlink(&c, root, b"fast", b"file")?;
    fs.symlink(&c, root, b"slow", &[b'x'; 200])?;
    fs.link(&c, file, root, b"hard")?;
    fs.mknod(&c, root, b"fifo", 0o010_644, (0, 0))?;
    fs.release(file)
}

/// The inodes that can be reached, each once as long as damage does not say otherwise.
fn walk(fs: &Fs) -> Vec<InodeNo> {
    let mut found = vec![fs.root()];
    let mut todo = VecDeque::from([fs.root()]);
    while let Some(dir) = todo.pop_front() {
        let mut entries = Vec::new();
        let _ = fs.readdir(dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push((entry.ino, entry.kind));
            }
            entries.len() < VISITS
        });
        for (ino, kind) in entries {
            if found.len() >= VISITS {
                return found;
            }
            if !found.contains(&ino) {
                found.push(ino);
                if kind == 4 {
                    todo.push_back(ino);
                }
            }
        }
    }
    found
}

fn look_at(fs: &Fs, c: &Caller, ino: InodeNo) {
    let _ = fs.getattr(ino);
    let _ = fs.readlink(ino);
    let _ = fs.lookup(c, ino, b"entry-with-a-name-that-fills-blocks-0037");
    let _ = fs.lookup(c, ino, b"missing");
    let mut out = vec![0; 128 << 10];
    let _ = fs.read(ino, 0, &mut out);
    let _ = fs.read(ino, 1 << 40, &mut out);
    let _ = fs.seek(ino, 0, Whence::Hole);
    let _ = fs.seek(ino, 1024, Whence::Data);
    for name in fs.listxattr(c, ino).unwrap_or_default().split(|&b| b == 0) {
        let _ = fs.getxattr(c, ino, name);
    }
}

fn change(fs: &Fs, c: &Caller, ino: InodeNo) {
    let root = fs.root();
    let _ = fs
        .create(c, ino, b"new", 0o600, OpenFlags::WRITE)
        .map(|e| fs.release(e.ino));
    let _ = fs.rename(c, ino, b"new", root, b"moved", RenameFlags::empty());
    let _ = fs.unlink(c, ino, b"entry-with-a-name-that-fills-blocks-0013");
    let _ = fs.rmdir(c, root, b"directory");
    let _ = fs.write(c, ino, 3000, &[1; 5000]);
    let _ = fs.fsync(ino, false);
    let _ = fs.setxattr(c, ino, b"user.new", &[3; 100], SetXattr::Any);
    let _ = fs.removexattr(c, ino, b"user.long");
    let punch = FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE;
    let _ = fs.fallocate(c, ino, punch, 1024, 30_000);
    let shorter = SetAttr {
        size: Some(10_000),
        mode: Some(0o640),
        ..SetAttr::default()
    };
    let _ = fs.setattr(c, ino, &shorter);
    for name in [b"moved".as_slice(), b"hard", b"fast", b"slow", b"file"] {
        let _ = fs.unlink(c, root, name);
    }
}
