//! Uses damaged volumes. Mounting, walking and writing one may give named errors and nothing worse.
//!
//! A volume to damage has a file of each kind, and no metadata checksums, which would detect the
//! damage early. Bytes of its metadata are changed, then [`survive`] uses the volume as programs
//! do. stetfs must not panic, hang, or allocate memory in proportion to a number that it read.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs::{
    Caller, FallocateMode, Fs, MountOptions, OnError, OpenFlags, RenameFlags, SetAttr, SetXattr,
    Whence,
};
use stetfs_format::{FeatureIncompat, InodeNo, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::sim::{CrashImage, Keep, SimOptions};
use stetfs_media::{BlockDev, Class, Image, Tag};
use stetfs_scheme::{OpenArgs, RecoveryCase};
use stetfs_schemes::find;
use stetfs_testkit::rng::Rng;

use crate::media::Media;
use crate::media::contents::Contents;
use crate::media::kind::{UNIT, Unit};
use crate::record::Record;
use crate::target::Target;
use crate::watch::Watched;
use crate::workload::Workload;
use stetfs_testkit::image::{EXT3_1K, Variety};

/// Names in the directory: enough for a hash tree.
const ENTRIES: u32 = 60;

/// Inodes to change at most: the first 12 of a walk contain each kind.
const CHANGED: usize = 12;

/// Bytes of the blocks that are damaged.
const BLOCK: u64 = 1024;

/// Inodes that a walk visits at most, since damage may make the tree endless.
const VISITS: usize = 400;

/// ext4 without any checksum, so that damaged structures are decoded.
pub const BARE_EXT4: Variety = Variety {
    name: "ext4-1k-bare",
    block: 1024,
    inode: 256,
    features: "^metadata_csum,^64bit,^resize_inode",
    extents: true,
};

/// Returns filled volumes to damage, unmounted: one with extents, one with block pointers.
///
/// # Errors
/// mke2fs or filling failed.
pub fn volumes(dir: &Path) -> Result<Vec<(&'static str, Image)>> {
    filled(dir, |fs| fs.unmount())
}

/// Like [`volumes`], but the power goes off after a sync: the journals hold blocks that are not
/// home.
///
/// # Errors
/// mke2fs or filling failed.
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

/// Returns [`volumes`], each with its [`used_blocks`]. Makes them in a temporary directory that it
/// removes.
///
/// # Panics
/// The volumes cannot be made: there is no mke2fs, or no room for temporary files.
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

/// Changes bytes of `image`: each 4 bytes of `damage` name a place and a value. The places lie in
/// the blocks `targets`, so that little of the damage hits empty blocks.
pub fn apply(image: &mut Image, targets: &[u64], damage: &[u8]) {
    for hit in damage.as_chunks::<4>().0 {
        let block = targets[(usize::from(hit[0]) << 2 | usize::from(hit[1] >> 6)) % targets.len()];
        let offset = u64::from(hit[1] & 3) << 8 | u64::from(hit[2]);
        image.write(block * BLOCK + offset, &hit[3..]);
    }
}

/// Returns the numbers of the 1 KiB blocks of an image that are not all zeros. Blocks of the
/// journal count.
pub fn used_blocks(image: &Image) -> Vec<u64> {
    let mut bytes = [0; BLOCK as usize];
    (0..image.size() / BLOCK)
        .filter(|&block| {
            image.read(block * BLOCK, &mut bytes);
            bytes.iter().any(|&b| b != 0)
        })
        .collect()
}

/// Mounts a damaged volume and uses all of it. Errors are expected. A panic or a hang shows by
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

/// Reads the first `seen` inodes of a walk and changes the first `changed`.
fn use_it(fs: &Fs, seen: usize, changed: usize) {
    let c = Caller::root();
    for ino in walk(fs).into_iter().take(seen) {
        look_at(fs, &c, ino);
    }
    for ino in walk(fs).into_iter().take(changed) {
        change(fs, &c, ino);
    }
}

/// All media of a scheme as a power cut leaves them, with a log that has to be recovered.
pub struct Left {
    target: Target,
    contents: Contents,
    /// Medium and offset of the units that a mount or a recovery of these media reads: at most
    /// 1,024, evenly spread.
    targets: Vec<(usize, u64)>,
}

impl Left {
    /// Makes a volume, changes it in many ways, with many syncs, and lets the power go off.
    ///
    /// # Errors
    /// mke2fs, mounting or filling failed.
    pub fn of(target: &Target) -> Result<Self> {
        let media = Media::new(&target.contents()?);
        let fs = Fs::mount(media.shown()?, target.options())?.0;
        fill(&fs)?;
        fs.sync()?;
        let c = Caller::root();
        let ino = fs.lookup(&c, fs.root(), b"file")?.ino;
        for n in 0..30u8 {
            // Ranges of bytes, whole blocks, and blocks that are freed.
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
        let media = Media::new(&contents);
        // If the undamaged media could not be mounted, errors after damage would prove nothing.
        Fs::mount(media.shown_watched()?, target.options()).context("mounting it undamaged")?;
        Ok(Self {
            target: target.clone(),
            targets: units_read(&contents, &media.watched()),
            contents,
        })
    }

    /// Returns the media after power cuts in a workload, at up to `cuts` random moments.
    ///
    /// # Errors
    /// mke2fs or the workload failed.
    pub fn of_cuts(target: &Target, workload: &Workload, cuts: u64) -> Result<Vec<Self>> {
        let record = Record::make(target, &target.contents()?, workload)?;
        let mut rng = Rng::new(cuts);
        let moments = (0..cuts).map(|_| record.begin + rng.below(record.moments()));
        let moments = moments
            .collect::<BTreeSet<u64>>()
            .into_iter()
            .collect::<Vec<_>>();
        let moments = record.tapes.moments(moments);
        let left = moments.map(|moment| {
            let mut left = Self {
                target: target.clone(),
                contents: moment.contents(&Keep::Random(moment.at())),
                targets: Vec::new(),
            };
            let media = Media::try_new(&left.contents)?;
            // The units that a recovery reads count, whether it succeeds or fails.
            let _ = left.open(media.shown_watched()?, |_| ());
            left.targets = units_read(&left.contents, &media.watched());
            Ok(left)
        });
        left.collect()
    }

    /// Returns a copy with damage: each 5 bytes of `damage` name a target (2 bytes), an offset in
    /// it (2) and a value.
    pub fn damaged(&self, damage: &[u8]) -> Self {
        let mut contents = self.contents.clone();
        for [block, more, high, low, value] in damage.as_chunks::<5>().0 {
            let block = usize::from(u16::from_be_bytes([*block, *more])) % self.targets.len();
            let offset = u64::from(u16::from_be_bytes([*high, *low])) % UNIT;
            let (medium, at) = self.targets[block];
            contents.write(medium, at + offset, &[*value]);
        }
        self.with(contents)
    }

    fn with(&self, contents: Contents) -> Self {
        Self {
            target: self.target.clone(),
            targets: self.targets.clone(),
            contents,
        }
    }

    /// Returns a copy after one or two mishaps: a flipped bit, a run of zeros, or bytes copied from
    /// another place.
    pub fn spoiled(&self, rng: &mut Rng) -> Self {
        let mut contents = self.contents.clone();
        let place = |rng: &mut Rng| {
            let (medium, at) = self.targets[rng.below(self.targets.len() as u64) as usize];
            (medium, at + rng.below(UNIT / 8) * 8)
        };
        let hits = if self.targets.is_empty() {
            0
        } else {
            1 + rng.below(2)
        };
        for _ in 0..hits {
            let (medium, at) = place(rng);
            let image = contents.media().nth(medium).map(|(_, image)| image.clone());
            let image = image.unwrap_or_else(|| Image::new(0));
            let (from_medium, from) = place(rng);
            let len = match rng.below(5) {
                0 | 1 => 8,
                2 => 16,
                3 => 64,
                _ => 16 << 10,
            };
            let len = len.min(image.size() - at) as usize;
            let mut bytes = vec![0; len];
            match rng.below(3) {
                0 if len < 64 => {
                    image.read(at, &mut bytes);
                    bytes[rng.below(len as u64) as usize] ^= 1 << rng.below(8);
                }
                1 if from_medium == medium && from + len as u64 <= image.size() => {
                    image.read(from, &mut bytes);
                }
                _ => {}
            }
            contents.write(medium, at, &bytes);
        }
        self.with(contents)
    }

    /// Returns the cases that recovery reaches on these media after `change` changed how the scheme
    /// is opened. Empty for a volume whose superblock is torn.
    pub fn reached_with(&self, change: impl FnOnce(&mut OpenArgs)) -> Vec<&'static RecoveryCase> {
        let media = Media::try_new(&self.contents).map_err(anyhow::Error::new);
        let reached = |media: Media| self.open(media.shown()?, change);
        media.and_then(reached).unwrap_or_default()
    }

    fn open(
        &self,
        media: stetfs::Media,
        change: impl FnOnce(&mut OpenArgs),
    ) -> Result<Vec<&'static RecoveryCase>> {
        let mut raw = [0; SUPERBLOCK_SIZE];
        media
            .home
            .read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, Tag::read(Class::Superblock))?;
        let sb = Superblock::decode(&raw)?;
        let mut args = OpenArgs {
            log: stetfs::journal_extents(&*media.home, &sb)?,
            dev: media.home,
            nvm: media.nvm,
            nvm_new: false,
            block_size: sb.block,
            blocks: sb.blocks_count,
            uuid: sb.uuid,
            has_64bit: sb.is_64bit,
            has_metadata_csum: sb.metadata_csum,
            memory: 4 << 20,
            has_private_log: sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG),
            inode_size: sb.inode_size(),
            writable: true,
            options: self.target.scheme_options(),
        };
        change(&mut args);
        let scheme = find(self.target.scheme.name)?;
        Ok(match scheme.open(args) {
            Ok(opened) => opened.report.reached,
            Err(_) => RecoveryCase::last_reached(),
        })
    }

    /// Mounts the media and uses some of the volume, like [`survive`].
    pub fn survive(&self) {
        if let Ok(fs) = self.mount() {
            // Recovery is what this tests, so the volume is used only a little.
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

/// Returns what the media hold at five stages of a volume's life: before its first mount, just
/// after it, after one synced operation, after many, and after the unmount.
///
/// # Errors
/// mke2fs, mounting or writing failed.
pub fn stages(target: &Target) -> Result<Vec<Contents>> {
    let fresh = target.contents()?;
    let media = Media::new(&fresh);
    let fs = Fs::mount(media.shown()?, target.options())?.0;
    let mut stages = vec![fresh, media.contents()];
    let c = Caller::root();
    fs.mkdir(&c, fs.root(), b"directory", 0o755)?;
    fs.sync()?;
    stages.push(media.contents());
    for n in 0..200u32 {
        let name = format!("{}", n % 20);
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let ino = fs.create(&c, fs.root(), name.as_bytes(), 0o644, flags)?.ino;
        fs.write(&c, ino, 0, &[n as u8; 3000])?;
        fs.fsync(ino, false)?;
        fs.release(ino)?;
    }
    stages.push(media.contents());
    fs.unmount()?;
    stages.push(media.contents());
    Ok(stages)
}

/// Returns the cases that recovery reaches when media of this content are mounted with `options`,
/// whether the mount succeeds or not.
pub fn reached(contents: &Contents, options: MountOptions) -> Vec<&'static RecoveryCase> {
    let media = Media::try_new(contents).map_err(anyhow::Error::new);
    let Ok(shown) = media.and_then(|media| media.shown()) else {
        return Vec::new();
    };
    match Fs::mount(shown, options) {
        Ok((_, report)) => report.recovery.reached,
        Err(_) => RecoveryCase::last_reached(),
    }
}

/// Returns medium and offset of the units that were read: at most `MOST`, evenly spread.
fn units_read(contents: &Contents, watched: &Watched) -> Vec<(usize, u64)> {
    const MOST: usize = 1024;
    let mut first = 0;
    let mut read = Vec::new();
    for (medium, (_, image)) in contents.media().enumerate() {
        let units = image.size().div_ceil(UNIT);
        let was_read = |unit: &u64| watched.read.contains((first + unit) as Unit);
        read.extend(
            (0..units)
                .filter(was_read)
                .map(|unit| (medium, unit * UNIT)),
        );
        first += units;
    }
    let every = read.len().div_ceil(MOST).max(1);
    read.into_iter().step_by(every).collect()
}

fn mount(dev: Arc<dyn BlockDev>) -> Result<Fs> {
    // The volume must go on after an error, not turn read-only.
    let options = MountOptions::parse("data=journal,errors=continue,commit=300,memory=8M")?;
    Ok(Fs::mount(dev, options)?.0)
}

/// Makes a file of each kind in the root directory. Existing names stay.
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
        // Every second block, so that the block map has a tree.
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

/// Returns the inodes that can be reached from the root, each once, at most `VISITS`.
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
