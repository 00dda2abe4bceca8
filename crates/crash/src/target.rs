//! A target: a scheme in one of its modes, on one variety of volume.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use stetfs::{AtomicFiles, Caller, Fs, Kind, MountOptions, MountReport, OpenFlags};
use stetfs_format::jbd2::JournalSuperblock;
use stetfs_format::{FeatureCompat, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::Image;
use stetfs_scheme::{
    About, Beside, DataMode, Ground, InMemory, Jbd2Log, Registration, SchemeOptions, Trial,
};

use super::flash;
use super::lower::{Lower, LowerFront, about};
use super::media::Media;
use crate::media::contents::Contents;
use crate::media::kind::Kind as Medium;
use stetfs_testkit::image::Variety;
use stetfs_testkit::world::library::{Direct, FILLER, Front, Library};
use stetfs_testkit::world::model::Rules;

/// A scheme in a mode, on a variety of volume.
#[derive(Clone)]
pub struct Target {
    /// The scheme, as the registry has it.
    pub scheme: &'static About,
    /// The scheme's mode; `None` if it has no modes.
    pub data: Option<DataMode>,
    /// Further mount options, those of the scheme.
    pub more: Vec<String>,
    /// The scheme below that one's journal, if there is one: it has the media.
    pub lower: Option<Lower>,
    /// The volume.
    pub volume: Variety,
    /// Blocks of the journal; `None` as mke2fs made it. mke2fs makes no log of fewer than 1,024
    /// blocks, and the kernel mounts none. A shorter one fills and wraps early; the journal
    /// superblock then states its length.
    pub log_blocks: Option<u32>,
    /// The medium of the volume.
    pub home: Medium,
    /// True if there is memory beside the volume.
    pub has_nvm: bool,
}

/// Blocks of a short log. One call of the workloads fits into a transaction, so that each call is
/// one transaction; and the log wraps after a few dozen transactions.
const SHORT_LOG: u32 = 512;

/// MiB of a volume: two block groups with blocks of 1 KiB.
const VOLUME_MIB: u64 = 12;

/// Blocks that are left free: enough for each workload, and so few that workloads soon write into
/// freed blocks.
const ROOM_BLOCKS: u64 = 1024;

/// Bytes of the memory beside a volume for a scheme that keeps part of its log there. It is full
/// after a few dozen transactions.
const NVM_BYTES: u64 = 96 << 10;

/// The size of this memory where it is a cache, in blocks of the volume: so small that blocks are
/// evicted all the time.
const CACHE_BLOCKS: u64 = 384;

/// The UUID of every volume, so that volumes are the same each time.
const UUID: &str = "73746574-6673-4c61-8000-000000000001";

/// Seconds since 1970 at which every run begins.
const START: u64 = 1_700_000_000;

impl Target {
    /// A target from the names of its parts. A scheme with modes takes its default mode when none
    /// is named. Further mount options may follow the mode: `journal,journal_async_commit`. A
    /// scheme below the journal may follow `jbd2`, with its own options: `jbd2/stet,log=jbd2`.
    ///
    /// # Errors
    /// A name is unknown; the error lists the known ones.
    pub fn new(scheme: &str, mode: Option<&str>, volume: Variety) -> Result<Self> {
        let (scheme, lower) = match scheme.split_once('/') {
            Some((scheme, lower)) => (scheme, Some(Lower::parse(lower)?)),
            None => (scheme, None),
        };
        let scheme = about(scheme)?;
        ensure!(
            lower.is_none() || matches!(scheme.jbd2, Jbd2Log::Always),
            "nothing can be below scheme {}, whose journal is not JBD2's",
            scheme.name
        );
        let mut words = mode.unwrap_or("-").split(',');
        let data = match words.next().filter(|word| *word != "-") {
            None => scheme.modes.first().copied(),
            Some(name) => {
                let names: Vec<_> = scheme.modes.iter().map(|m| m.name()).collect();
                let mode = scheme.modes.iter().find(|m| m.name() == name);
                Some(*mode.with_context(|| {
                    format!("scheme {} has no mode {name}: {names:?}", scheme.name)
                })?)
            }
        };
        let more: Vec<_> = words.map(str::to_owned).collect();
        MountOptions::parse(&more.join(","))?;
        let ground = lower.as_ref().map_or(scheme, |lower| lower.scheme);
        Ok(Self {
            scheme,
            data,
            more,
            lower,
            volume,
            log_blocks: Some(SHORT_LOG),
            home: Self::usual_home(ground),
            has_nvm: ground.nvm.is_needed(),
        })
    }

    /// The scheme that has the media.
    pub fn ground(&self) -> &'static About {
        self.lower
            .as_ref()
            .map_or(self.scheme, |lower| lower.scheme)
    }

    /// The target of a trial of this scheme, on a variety of volume.
    ///
    /// # Panics
    /// The trial's ground is not simulated.
    pub fn of(scheme: &Registration, trial: &Trial, volume: Variety) -> Self {
        let (mode, more) = trial.parts();
        let atomic = trial.atomic.then_some("atomic=all");
        let words = std::iter::once(mode.unwrap_or("-")).chain(more);
        let words: Vec<_> = words.chain(atomic).collect();
        let target = Self::new(scheme.about.name, Some(&words.join(",")), volume);
        Self::on_ground_of(trial, target)
    }

    /// What a trial is run on below the journal of a file system with jbd2 in this mode.
    ///
    /// # Panics
    /// As [`of`](Self::of).
    pub fn below(scheme: &Registration, trial: &Trial, mode: &str, volume: Variety) -> Self {
        let words = std::iter::once(scheme.about.name).chain(trial.parts().1);
        let words: Vec<_> = words.collect();
        let name = format!("jbd2/{}", words.join(","));
        Self::on_ground_of(trial, Self::new(&name, Some(mode), volume))
    }

    fn on_ground_of(trial: &Trial, target: Result<Self>) -> Self {
        let home = match trial.ground {
            Ground::Block | Ground::Nvram | Ground::NvmCache => Medium::Block,
            Ground::Memory => Medium::Pmem,
            Ground::Flash => Medium::Nand,
            Ground::Reflink => panic!("{trial}: there is no simulated file system with reflinks"),
        };
        let target = target.and_then(|target| target.on(home, trial.ground.has_nvm()));
        target.unwrap_or_else(|error| panic!("{trial}: {error:#}"))
    }

    /// Returns the medium for which the scheme is made.
    fn usual_home(scheme: &About) -> Medium {
        match (scheme.in_memory, scheme.needs_remap) {
            (InMemory::Only, _) => Medium::Pmem,
            (_, true) => Medium::Nand,
            _ => Medium::Block,
        }
    }

    /// Returns the same target on that medium, with memory beside it or without.
    ///
    /// # Errors
    /// The scheme cannot be on this medium.
    pub fn on(self, home: Medium, has_nvm: bool) -> Result<Self> {
        let (scheme, medium) = (self.ground(), media_name(home, has_nvm));
        for (needs, what, has) in [
            (
                scheme.in_memory == InMemory::Only,
                "byte-addressable memory",
                home == Medium::Pmem,
            ),
            (
                scheme.in_memory == InMemory::Never,
                "a device that keeps sectors whole",
                home != Medium::Pmem,
            ),
            (scheme.needs_remap, "a device that remaps", home.is_flash()),
            (scheme.nvm.is_needed(), "memory beside it", has_nvm),
            (scheme.nvm == Beside::Never, "nothing beside it", !has_nvm),
        ] {
            let name = scheme.name;
            ensure!(!needs || has, "scheme {name} needs {what}: {medium}");
        }
        let (volume, sector) = (self.volume, home.sector());
        ensure!(
            volume.block >= sector,
            "volume {} has blocks of {} bytes, and medium {medium} units of {sector}: ext4-4k",
            volume.name,
            volume.block
        );
        Ok(Self {
            home,
            has_nvm,
            ..self
        })
    }

    /// Returns the same target with the journal that mke2fs made, which the kernel mounts too.
    pub fn with_whole_log(self) -> Self {
        Self {
            log_blocks: None,
            ..self
        }
    }

    /// Returns the options with which the scheme is opened.
    pub fn scheme_options(&self) -> SchemeOptions {
        SchemeOptions {
            data: self.data,
            extra: self.options().scheme_options,
        }
    }

    /// Returns the mount options: small caches, no work by the clock and no threads, so that the
    /// same operations give the same tape.
    pub fn options(&self) -> MountOptions {
        MountOptions {
            scheme: self.scheme.name.to_owned(),
            data: self.data.map(|mode| mode.name().to_owned()),
            commit: Duration::MAX,
            clock: stetfs::clock::Clock::still(START),
            // As small as possible, so that inodes are dropped all the time.
            inodes: Some(0),
            ..MountOptions::parse(&format!("noatime,memory=8M,{}", self.more.join(",")))
                .expect("options that were parsed before")
        }
    }

    /// True if its files can have groups of writes by its mode and options: their data is
    /// journaled.
    pub fn can_group(&self) -> bool {
        let is_journaled = self.data.is_none_or(|mode| mode == DataMode::Journal);
        self.scheme.atomic && (is_journaled || self.options().atomic == AtomicFiles::All)
    }

    /// Returns the model's rules for its operations.
    pub fn rules(&self) -> Rules {
        Rules {
            groups: self.can_group(),
            ..self.volume.rules()
        }
    }

    /// Returns the options for a mount after which the volume is judged: its unmount leaves nothing
    /// in the memory beside the volume.
    pub fn judging_options(&self) -> MountOptions {
        let mut options = self.options();
        let kept = |(name, _): &(String, String)| *name == "keep-cache";
        options.scheme_options.retain(|option| !kept(option));
        options
    }

    /// Mounts its volume.
    ///
    /// # Errors
    /// The volume cannot be mounted.
    pub fn mount(
        &self,
        media: stetfs::Media,
        options: MountOptions,
    ) -> stetfs::Result<(Library, MountReport)> {
        let front: Arc<dyn Front> = match &self.lower {
            Some(lower) => Arc::new(LowerFront::new(lower, options.clock.clone())),
            None => Arc::new(Direct),
        };
        Library::mount_behind(front, media, options)
    }

    /// Makes a fresh volume of 12 MiB with the base directory and a file that takes most of the
    /// blocks. It can grow only a little, since the resize inode's blocks would be checked again
    /// and again. Free blocks hold stale data, so that the judge notices if it is taken for
    /// content. Nothing in the volume is random.
    ///
    /// # Errors
    /// mke2fs or the first mount fails.
    pub fn contents(&self) -> Result<Contents> {
        let dir = stetfs_testkit::host::scratch()?;
        let path = dir.path().join("image");
        let journal_mib = u64::from(self.volume.block) >> 10;
        let block = u64::from(self.volume.block);
        // One group more than one block of descriptors of the smallest size describes. With fewer,
        // mke2fs chooses the reserve itself.
        let groups = block / 32 + 1;
        let extended = format!("hash_seed={UUID},resize={}", groups * block * 8);
        let more = ["-N", "256", "-U", UUID, "-E", &extended];
        self.volume
            .make_with(&path, VOLUME_MIB, journal_mib, &more)?;
        let mut image = Image::from_file(&path)?;
        if let Some(blocks) = self.log_blocks {
            shorten_log(&mut image, blocks).context("shortening the log")?;
        }
        let home = match self.home {
            Medium::Block | Medium::Pmem => image,
            kind @ (Medium::Nand | Medium::Nand16k) => flash::part_with(kind, &image)?,
        };
        let mut contents = vec![(self.home, home)];
        if self.has_nvm {
            let bytes = match self.ground().nvm {
                _ if self.ground().caches => CACHE_BLOCKS * block,
                // The memory has the whole log instead of the volume.
                Beside::Too(_) => u64::from(SHORT_LOG) * block,
                _ => NVM_BYTES,
            };
            contents.push((Medium::Pmem, Image::new(bytes)));
        }
        let media = Media::new(&Contents::new(contents));
        let (mut library, _) = self.mount(media.shown()?, self.judging_options())?;
        library.make_base()?;
        fill(library.fs()).context("filling the volume")?;
        leave_stale_data(library.fs()).context("writing into free blocks")?;
        library.unmount()?;
        Ok(media.contents())
    }
}

/// Leaves [`ROOM_BLOCKS`] free.
fn fill(fs: &Fs) -> Result<()> {
    let caller = Caller::root();
    let file = fs.create(&caller, fs.root(), FILLER, 0o600, OpenFlags::WRITE)?;
    let ino = file.ino;
    let some = vec![b'f'; 64 << 10];
    let mut at = 0;
    loop {
        let stat = fs.statfs()?;
        let free = stat.blocks_free.saturating_sub(ROOM_BLOCKS) * u64::from(stat.block_size);
        let len = free.min(some.len() as u64) as usize;
        if len == 0 {
            break;
        }
        at += fs.write(&caller, ino, at, &some[..len])? as u64;
    }
    fs.release(ino)?;
    Ok(())
}

/// Writes data that no workload writes into every free block, and frees the blocks again.
fn leave_stale_data(fs: &Fs) -> Result<()> {
    let (caller, name) = (Caller::root(), b"stale");
    let file = fs.create(&caller, fs.root(), name, 0o600, OpenFlags::WRITE)?;
    let piece: Vec<u8> = b"STALE DATA, OF A FILE DELETED\n."
        .iter()
        .copied()
        .cycle()
        .take(4096)
        .collect();
    let mut at = 0;
    loop {
        match fs.write(&caller, file.ino, at, &piece) {
            Ok(n) => at += n as u64,
            Err(error) if error.kind() == Kind::NoSpace => break,
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(at > 0, "there is no free block");
    fs.sync()?;
    fs.release(file.ino)?;
    fs.unlink(&caller, fs.root(), name)?;
    Ok(())
}

/// Sets the length of the log in the journal superblock, in blocks.
fn shorten_log(image: &mut Image, blocks: u32) -> Result<()> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    image.read(SUPERBLOCK_OFFSET, &mut raw);
    let sb = Superblock::decode(&raw)?;
    if !sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL) {
        return Ok(());
    }
    let dev = stetfs_media::SimDev::new(image.clone());
    let extents = stetfs::journal_extents(&dev, &sb)?;
    let at = extents.first().context("a journal without blocks")?.start.0 * sb.block_size() as u64;
    let mut raw = vec![0; sb.block_size()];
    image.read(at, &mut raw);
    let mut journal = JournalSuperblock::decode(&raw, sb.block)?;
    ensure!(blocks <= journal.maxlen, "it has {} blocks", journal.maxlen);
    journal.maxlen = blocks;
    journal.encode_into(&mut raw);
    image.write(at, &raw);
    Ok(())
}

/// Writes a target as text, for example `jbd2 journal ext4-1k` or
/// `jbd2/stet ordered ext4-1k`. A scheme without modes has `-` for
/// its mode; further mount options follow the mode. Behind the volume stand the blocks of an
/// unusual log (`ext4-1k:256`; 0: as mke2fs made it), and a medium that is not the scheme's own
/// (`ext4-1k@pmem`).
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.data.map_or("-", DataMode::name);
        let more: String = self.more.iter().map(|o| format!(",{o}")).collect();
        let lower = self.lower.as_ref();
        let lower = lower.map_or_else(String::new, |lower| format!("/{lower}"));
        let (scheme, volume) = (self.scheme.name, self.volume.name);
        write!(f, "{scheme}{lower} {mode}{more} {volume}")?;
        if self.log_blocks != Some(SHORT_LOG) {
            write!(f, ":{}", self.log_blocks.unwrap_or(0))?;
        }
        let ground = self.ground();
        let usual = (Self::usual_home(ground), ground.nvm.is_needed());
        if (self.home, self.has_nvm) != usual {
            write!(f, "@{}", media_name(self.home, self.has_nvm))?;
        }
        Ok(())
    }
}

/// Follows the name of the home medium when there is memory beside the volume.
const BESIDE: &str = "+nvm";

fn media_name(home: Medium, has_nvm: bool) -> String {
    if has_nvm {
        format!("{}{BESIDE}", home.name())
    } else {
        home.name().to_owned()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<_> = text.split_whitespace().collect();
        let [scheme, mode, volume] = words[..] else {
            return Err(anyhow!("\"{text}\" is not a scheme, a mode and a volume"));
        };
        let (volume, home) = volume.split_once('@').unwrap_or((volume, ""));
        let (volume, log) = volume.split_once(':').unwrap_or((volume, ""));
        let mut target = Self::new(scheme, Some(mode), Variety::find(volume)?)?;
        if !home.is_empty() {
            let beside = home.strip_suffix(BESIDE);
            let has_nvm = beside.is_some() || target.has_nvm;
            target = target.on(beside.unwrap_or(home).parse()?, has_nvm)?;
        }
        Ok(match log {
            "" => target,
            "0" => target.with_whole_log(),
            blocks => Self {
                log_blocks: Some(blocks.parse().context("the blocks of the log")?),
                ..target
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use stetfs_testkit::ground::simulated;
    use stetfs_testkit::host::needs;
    use stetfs_testkit::image::EXT4_1K;
    use stetfs_testkit::skip_unless;
    use stetfs_testkit::world::op::Op;
    use stetfs_testkit::world::{BASE, World};

    use super::*;

    /// A target can have groups exactly where a mount with its options allows them.
    #[test]
    fn groups_are_where_a_mount_has_them() {
        skip_unless!(needs(false, false, &["mke2fs"]));
        let mut known = std::collections::BTreeSet::new();
        let schemes = stetfs_schemes::for_use();
        for (scheme, trial) in schemes
            .iter()
            .flat_map(|s| simulated(s).map(move |t| (s, t)))
        {
            let target = Target::of(scheme, trial, EXT4_1K);
            let media = Media::new(&target.contents().expect("a volume"));
            let shown = media.shown().expect("media");
            let (mut library, _) = Library::mount(shown, target.options()).expect("a mount");
            let create = Op::Create {
                path: "f".into(),
                mode: 0o644,
                exclusive: false,
            };
            library.apply(&create).expect("a file");
            let path = format!("/{BASE}/f");
            let file = library
                .fs()
                .resolve(&Caller::root(), path.as_bytes(), false);
            let can = library
                .fs()
                .can_group(file.expect("a file").ino)
                .expect("an answer");
            assert_eq!(target.can_group(), can, "{target}");
            known.insert(can);
        }
        assert_eq!(known.len(), 2);
    }
}
