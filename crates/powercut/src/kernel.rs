//! Takes the kernel's ext4 as a model: repeats a program's calls on it, on a simulated disk, with
//! or without a scheme of ours below it, and recovers after each cut.
//!
//! The kernel mounts the volume on a loop device on a device of this process ([`served`]), whose
//! every write and flush is noted. Its timers are kept out: a commit comes where the program syncs,
//! and at the other paces after each call. When two requests may go in either order, the kernel
//! chooses, and it gives other times to files each time. So a run is not the same twice, and a case
//! names the state and not the moment.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, anyhow, ensure};
use stetfs::{Fs, MountOptions, open_alone};
use stetfs_below::{Below, BelowOptions, WRITE_THROUGH};
use stetfs_crash::media::Media;
use stetfs_crash::media::contents::Contents;
use stetfs_media::sim::{CrashImage, SimOptions};
use stetfs_media::{BlockDev, Image};
use stetfs_scheme::DataMode;
use stetfs_testkit::host::{KernelMount, scratch};
use stetfs_testkit::image::{check, superblock_is_torn};

use crate::call::Recording;
use crate::player::Pace;
use crate::scheme::Scheme;
use crate::system::{Played, System, check_end};
use crate::tree::Tree;

mod player;
pub mod served;

use player::Player;
use served::Served;

/// How its names begin.
const KERNEL: &str = "kernel";

/// What others see as the source of the device.
const SOURCE: &str = "stetfs-crash";

/// No commit by the clock (the longest that ext4 takes, in seconds), and no inode tables that are
/// zeroed in the background.
const QUIET: [&str; 2] = ["commit=300", "noinit_itable"];

/// Its modes, named as the models are that say what they leave: `data=`, and further options.
const MODES: [(&str, DataMode, &[&str]); 4] = [
    ("ordered", DataMode::Ordered, &[]),
    ("dioread-lock", DataMode::Ordered, &["dioread_lock"]),
    ("writeback", DataMode::Writeback, &[]),
    ("journal", DataMode::Journal, &[]),
];

/// The kernel's ext4 in one of its modes.
#[derive(Clone, Debug)]
pub struct Kernel {
    name: String,
    mode: DataMode,
    /// Further options of the mount.
    more: &'static [&'static str],
    /// What recovers its volume: the scheme below it, or our jbd2.
    beneath: Scheme,
    /// There is a scheme of ours below it.
    is_below: bool,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Kernel {
    type Err = String;

    /// Parses `kernel`, `kernel-journal` or `kernel-journal/stet`; without a mode, it is the
    /// kernel's default, `ordered`.
    fn from_str(name: &str) -> Result<Self, String> {
        let (above, below) = match name.split_once('/') {
            Some((above, below)) => (above, Some(below)),
            None => (name, None),
        };
        if !Self::is_named(name) {
            return Err(format!("{name} is not {KERNEL}"));
        }
        let wanted = above.strip_prefix(KERNEL).and_then(|m| m.strip_prefix('-'));
        let wanted = wanted.unwrap_or(MODES[0].0);
        let found = MODES.into_iter().find(|(known, ..)| *known == wanted);
        let (_, mode, more) = found.ok_or_else(|| {
            let known = MODES.map(|(known, ..)| known).join(", ");
            format!("{name}: the kernel's ext4 has the modes {known}")
        })?;
        let beneath: Scheme = match below {
            None => format!("jbd2-{}", mode.name()).parse()?,
            Some(below) => below.parse()?,
        };
        if below.is_some() && beneath.is_jbd2() {
            return Err(format!(
                "{name}: jbd2 passes on what the kernel does: take {above}"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            mode,
            more,
            beneath,
            is_below: below.is_some(),
        })
    }
}

impl Kernel {
    /// Some of its names.
    pub const EXAMPLES: [&str; 6] = [
        "kernel-ordered",
        "kernel-dioread-lock",
        "kernel-writeback",
        "kernel-journal",
        "kernel-ordered/stet",
        "kernel-journal/stet",
    ];

    /// True if a `--model` means the kernel's ext4.
    pub fn is_named(name: &str) -> bool {
        let rest = name.strip_prefix(KERNEL);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '/']))
    }

    /// Each write is durable when the device answers it, as a mount with `front=kernel` has it.
    fn writes_through(&self) -> bool {
        self.is_below && self.mode == DataMode::Journal
    }

    /// Options of the kernel's mount.
    fn options(&self) -> String {
        let mut words = vec![format!("data={}", self.mode.name())];
        words.extend(QUIET.iter().chain(self.more).map(|word| (*word).to_owned()));
        if self.writes_through() {
            words.extend(WRITE_THROUGH.map(str::to_owned));
        }
        words.join(",")
    }

    /// The scheme's device on these media, where a scheme is below.
    fn below(&self, media: &stetfs::Media) -> Result<Option<Arc<Below>>> {
        if !self.is_below {
            return Ok(None);
        }
        let alone = open_alone(media, &self.beneath.options())?;
        let options = BelowOptions {
            write_through: self.writes_through(),
            ..BelowOptions::default()
        };
        Ok(Some(Arc::new(Below::new(alone, options)?)))
    }

    /// Repeats the calls on a mount; the tapes end with the last one.
    fn repeat(
        &self,
        served: &Served,
        media: &Media,
        recording: &Recording,
        pace: Pace,
    ) -> Result<Played> {
        let mounted = served.mount("ext4", &self.options())?;
        let mut player = Player::new(mounted.dir(), recording, pace)?;
        player.begin()?;
        let (start, mut returned) = (media.contents(), vec![media.changes()]);
        let stop = served.stop();
        for (number, call) in recording.calls.iter().enumerate() {
            ensure!(!stop.load(Relaxed), "interrupted");
            let done = player.play(number, &call.what);
            done.with_context(|| recording.line(number))?;
            returned.push(media.changes());
        }
        let tapes = media.tapes();
        drop(player);
        mounted.unmount()?;
        Ok(Played {
            tapes,
            start,
            returned,
        })
    }
}

impl System for Kernel {
    fn paces(&self) -> &'static [Pace] {
        &Pace::ALL
    }

    fn volume_bytes(&self) -> Option<u64> {
        self.beneath.volume_bytes()
    }

    fn keeps_groups(&self) -> bool {
        false
    }

    fn is_repeatable(&self) -> bool {
        false
    }

    fn play(&self, fresh: &Image, recording: &Recording, pace: Pace) -> Result<Played> {
        served::check("ext4", &["e2fsck"])?;
        let media = self.beneath.media(&with_before(fresh, recording)?)?;
        let shown = media.shown()?;
        let below = self.below(&shown)?;
        let dev: Arc<dyn BlockDev> = match &below {
            Some(below) => below.clone(),
            None => shown.home,
        };
        let served = Served::new(dev, SOURCE)?;
        let played = self.repeat(&served, &media, recording, pace)?;
        drop(served);
        if let Some(below) = below {
            below.finish()?;
        }
        let (fs, _) = Fs::mount(media.shown()?, self.beneath.options())?;
        check_end(&fs, recording)?;
        Ok(played)
    }

    fn recover(&self, left: &Contents) -> Result<(Media, Tree)> {
        self.beneath.recover(left)
    }

    /// The kernel replays what a power cut has left of its own journal. With a scheme below, the
    /// scheme recovers it first, and the kernel gets the plain volume. e2fsck judges what is there
    /// then.
    fn second_opinion(&self, left: &Contents, tree: &Tree) -> Result<bool> {
        let volume = if self.is_below {
            let media = Media::new(left);
            let (fs, _) = Fs::mount(media.shown()?, self.beneath.judging_options())?;
            fs.unmount()?;
            media.contents().volume()?
        } else {
            left.volume()?
        };
        // The kernel does not mount it: e2fsck must repair it from a copy first.
        if superblock_is_torn(&volume) {
            return Ok(false);
        }
        let place = scratch()?;
        let (file, dir) = (place.path().join("image"), place.path().join("mount"));
        volume.to_file(&file)?;
        std::fs::create_dir(&dir)?;
        KernelMount::ext4(&file, &dir, "noinit_itable")?.unmount()?;
        check(&file).context("what the kernel has recovered")?;
        let recovered = CrashImage::new(Image::from_file(&file)?, SimOptions::default());
        let (fs, _) = Fs::mount(Arc::new(recovered), MountOptions::default())?;
        let (theirs, _) = Tree::read(&fs)?;
        let differ = tree.differences(&theirs);
        if differ.is_empty() {
            return Ok(true);
        }
        Err(anyhow!(
            "recovered by us, against what the kernel recovers:\n{}",
            differ.join("\n")
        ))
    }
}

/// The volume with what was there before the program.
fn with_before(fresh: &Image, recording: &Recording) -> Result<Image> {
    let volume = Arc::new(CrashImage::new(fresh.clone(), SimOptions::default()));
    let (fs, _) = Fs::mount(volume.clone(), MountOptions::default())?;
    let written = recording.before.write(&fs);
    written.context("writing what was there before the program")?;
    fs.unmount()?;
    Ok(volume.image())
}
