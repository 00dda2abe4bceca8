//! Takes our own journaling schemes as models: repeats a program's calls on a volume with the
//! scheme, on simulated media, and recovers after each cut.
//!
//! The calls are those of the recording, in their order, each at its time. Nothing runs by the
//! clock. A commit comes where the program syncs. With [`Pace::EachCall`] a commit also comes after
//! each call, and between any two handles of a group's commit, where the journal's timer may have
//! it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use stetfs::{Fs, MountOptions};
use stetfs_crash::flash;
use stetfs_crash::media::Media;
use stetfs_crash::media::contents::Contents;
use stetfs_crash::media::kind::Kind;
use stetfs_crash::target::Target;
use stetfs_media::Image;
use stetfs_schemes::for_use;
use stetfs_testkit::image::Variety;

use crate::call::Recording;
use crate::player::{Pace, Player};
use crate::system::{Played, System, check_end};
use crate::tree::Tree;

/// Bytes of the memory beside a volume, for the schemes that want it.
const NVM_BYTES: u64 = 32 << 20;

/// Bytes of a volume on flash: the largest that the simulated parts hold.
pub const FLASH_BYTES: u64 = 12 << 20;

/// A scheme in one of its modes.
#[derive(Clone, Debug)]
pub struct Scheme {
    name: String,
    target: Target,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Scheme {
    type Err = String;

    /// Parses `stet` or `jbd2-ordered`; without a mode, it is the scheme's default.
    fn from_str(name: &str) -> Result<Self, String> {
        let (scheme, mode) = match name.split_once('-') {
            Some((scheme, mode)) => (scheme, Some(mode)),
            None => (name, None),
        };
        if !Self::names().any(|known| known == scheme) {
            return Err(format!(
                "there is no scheme {scheme} that promises anything after a power \
                cut"
            ));
        }
        let volume = Variety::find("ext4-4k").map_err(|e| format!("{e:#}"))?;
        let target = Target::new(scheme, mode, volume).map_err(|e| format!("{e:#}"))?;
        Ok(Self {
            name: name.to_owned(),
            target,
        })
    }
}

impl Scheme {
    /// Returns the names of the schemes that keep a promise.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let abouts = for_use().iter().map(|scheme| scheme.about);
        abouts.filter(|about| about.atomic).map(|about| about.name)
    }

    /// True if its volume is on flash, with [`FLASH_BYTES`].
    pub fn is_on_flash(&self) -> bool {
        self.target.home.is_flash()
    }

    /// True if it is jbd2 itself.
    pub(crate) fn is_jbd2(&self) -> bool {
        self.target.scheme.name == "jbd2"
    }

    /// Makes media with this volume.
    pub(crate) fn media(&self, volume: &Image) -> Result<Media> {
        let home = match self.target.home {
            Kind::Block | Kind::Pmem => volume.clone(),
            kind @ (Kind::Nand | Kind::Nand16k) => flash::part_with(kind, volume)?,
        };
        let mut contents = vec![(self.target.home, home)];
        if self.target.has_nvm {
            contents.push((Kind::Pmem, Image::new(NVM_BYTES)));
        }
        Ok(Media::new(&Contents::new(contents)))
    }

    /// Options of a mount.
    pub(crate) fn options(&self) -> MountOptions {
        self.target.options()
    }

    /// Options of a mount after which the volume is plain.
    pub(crate) fn judging_options(&self) -> MountOptions {
        self.target.judging_options()
    }
}

impl System for Scheme {
    fn paces(&self) -> &'static [Pace] {
        &[Pace::AtSyncs, Pace::EachCall]
    }

    fn volume_bytes(&self) -> Option<u64> {
        self.is_on_flash().then_some(FLASH_BYTES)
    }

    fn keeps_groups(&self) -> bool {
        true
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn play(&self, fresh: &Image, recording: &Recording, pace: Pace) -> Result<Played> {
        let media = self.media(fresh)?;
        let options = self.options();
        let clock = options.clock.clone();
        let (fs, _) = Fs::mount(media.shown()?, options).context("mounting")?;
        let inodes = recording.before.write(&fs);
        let inodes = inodes.context("writing what was there before the program")?;
        fs.sync()?;
        let (start, mut returned) = (media.contents(), vec![media.changes()]);
        let mut player = Player::new(&fs, recording, inodes, pace);
        for (number, call) in recording.calls.iter().enumerate() {
            let ns = call.time.0 * 1_000_000_000 + i64::from(call.time.1);
            clock.set(ns.max(0) as u64);
            let done = player.play(number, &call.what);
            done.with_context(|| recording.line(number))?;
            if pace == Pace::EachCall {
                fs.commit()?;
            }
            returned.push(media.changes());
        }
        check_end(&fs, recording)?;
        Ok(Played {
            tapes: media.tapes(),
            start,
            returned,
        })
    }

    fn recover(&self, left: &Contents) -> Result<(Media, Tree)> {
        let media = Media::new(left);
        let mounted = Fs::mount(media.shown_watched()?, self.judging_options());
        let (fs, _) = mounted.context("recovering what was left")?;
        let (tree, _) = Tree::read(&fs).context("reading what was recovered")?;
        Ok((media, tree))
    }

    /// The explorer of `stetfs crash` has the schemes judged by others.
    fn second_opinion(&self, _: &Contents, _: &Tree) -> Result<bool> {
        Ok(false)
    }
}
