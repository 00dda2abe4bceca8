//! Damaged volumes: mounted, walked and written, they give named errors and nothing else.
//!
//! A volume without metadata checksums, so that damage gets past them, is filled with one of everything. Then bytes of its metadata
//! are changed, and [`survive`] does to it what users do. The law: no panic, no hang, no memory in proportion to a
//! number that was read.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs::{
    Caller, FallocateMode, Fs, MountOptions, OpenFlags, RenameFlags, SetAttr, SetXattr, Whence,
};
use stetfs_format::InodeNo;
use stetfs_media::sim::{CrashImage, SimOptions};
use stetfs_media::{BlockDev, Image};

use crate::image::{EXT3_1K, Variety};

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

/// Changes bytes of `image`: each four bytes of `damage` name a place and a value. Places are taken from the
/// blocks in `targets`, so that little of the damage is wasted on empty ones.
pub fn apply(image: &mut Image, targets: &[u64], damage: &[u8]) {
    const BLOCK: usize = 1024;
    for hit in damage.as_chunks::<4>().0 {
        let block = targets[(usize::from(hit[0]) << 2 | usize::from(hit[1] >> 6)) % targets.len()];
        let offset = (usize::from(hit[1] & 3) << 8 | usize::from(hit[2])) % BLOCK;
        image.write(block * BLOCK as u64 + offset as u64, &hit[3..]);
    }
}

/// The blocks of an image that hold anything: offsets in units of 1 KiB. The journal's own is left in.
pub fn used_blocks(image: &Image) -> Vec<u64> {
    let mut bytes = [0; 1024];
    (0..image.size() / 1024)
        .filter(|&block| {
            image.read(block * 1024, &mut bytes);
            bytes.iter().any(|&b| b != 0)
        })
        .collect()
}

/// Mounts a damaged volume and uses all of it. Errors are expected; what must not happen happens by itself.
pub fn survive(image: Image) {
    let dev = Arc::new(CrashImage::new(image, SimOptions::default()));
    let Ok(fs) = mount(dev) else { return };
    let c = Caller::root();
    for ino in walk(&fs) {
        look_at(&fs, &c, ino);
    }
    for ino in walk(&fs) {
        change(&fs, &c, ino);
    }
    let _ = fill(&fs);
    let _ = fs.sync();
    let _ = fs.unmount();
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
    for i in 0..120 {
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
    let _ = fs.lookup(c, ino, b"entry-with-a-name-that-fills-blocks-0077");
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
