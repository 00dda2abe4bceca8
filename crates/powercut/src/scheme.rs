//! Takes our own journaling schemes as models: repeats a program's calls on a volume with the
//! scheme, on simulated media, and recovers after each cut.
//!
//! The calls are those of the recording, in their order, each at its time. Nothing runs by the
//! clock. A commit comes where the program syncs. With [`Pace::EachCall`] a commit also comes after
//! each call, and between any two handles of a group's commit, where the journal's timer may have
//! it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use stetfs::{Fs, MountOptions};
use stetfs_crash::flash;
use stetfs_crash::media::Media;
use stetfs_crash::media::contents::Contents;
use stetfs_crash::media::kind::Kind;
use stetfs_crash::moment::Tapes;
use stetfs_crash::target::Target;
use stetfs_media::Image;
use stetfs_schemes::for_use;
use stetfs_testkit::image::Variety;

use crate::call::Recording;
use crate::model::{Had, Model};
use crate::player::{Pace, Player};
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

    /// Makes media with an empty volume.
    fn media(&self, fresh: &Image) -> Result<Media> {
        let home = match self.target.home {
            Kind::Block | Kind::Pmem => fresh.clone(),
            kind @ (Kind::Nand | Kind::Nand16k) => flash::part_with(kind, fresh)?,
        };
        let mut contents = vec![(self.target.home, home)];
        if self.target.has_nvm {
            contents.push((Kind::Pmem, Image::new(NVM_BYTES)));
        }
        Ok(Media::new(&Contents::new(contents)))
    }

    /// Recovers what a power cut left. Returns the tree, and the media, which note what was read.
    ///
    /// # Errors
    /// It cannot be recovered.
    pub fn recover(&self, left: &Contents) -> Result<(Media, Tree)> {
        let media = Media::new(left);
        let options = self.target.judging_options();
        let mounted = Fs::mount(media.shown_watched()?, options);
        let (fs, _) = mounted.context("recovering what was left")?;
        let (tree, _) = Tree::read(&fs).context("reading what was recovered")?;
        Ok((media, tree))
    }

    fn options(&self) -> MountOptions {
        self.target.options()
    }
}

/// The meaning of a `--model`.
#[derive(Clone, Debug)]
pub enum Under {
    /// Rules over the recorded calls.
    Rules(Model),
    /// One of our schemes.
    Scheme(Box<Scheme>),
}

impl fmt::Display for Under {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(model) => fmt::Display::fmt(model, f),
            Self::Scheme(scheme) => fmt::Display::fmt(scheme, f),
        }
    }
}

impl FromStr for Under {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let no_model = match name.parse() {
            Ok(model) => return Ok(Self::Rules(model)),
            Err(no_model) => no_model,
        };
        match name.parse() {
            Ok(scheme) => Ok(Self::Scheme(Box::new(scheme))),
            Err(no_scheme) => Err(format!("{no_model}; {no_scheme}")),
        }
    }
}

/// A recording that was repeated on a scheme's volume.
pub struct Played {
    /// Every change of the media.
    pub tapes: Tapes,
    /// The content of the media when the program began.
    pub start: Contents,
    /// For each number of calls, the changes of the media by the time they had returned.
    pub returned: Vec<u64>,
}

impl Played {
    /// Repeats a recording on an empty volume of that scheme.
    ///
    /// # Errors
    /// The volume refuses a call, or at the end holds something else than the program had.
    pub fn new(scheme: &Scheme, fresh: &Image, recording: &Recording, pace: Pace) -> Result<Self> {
        let media = scheme.media(fresh)?;
        let options = scheme.options();
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
        let (there, _) = Tree::read(&fs)?;
        let differ = there.differences(&Had::new(recording).at_the_end());
        ensure!(
            differ.is_empty(),
            "the volume does not hold what the program left: {}",
            differ.join(", ")
        );
        Ok(Self {
            tapes: media.tapes(),
            start,
            returned,
        })
    }

    /// How many calls may have returned after so many changes, where the program had promised more
    /// with each: calls that change nothing on the media all return between the same two changes.
    pub fn calls(&self, changes: u64, recording: &Recording) -> Vec<usize> {
        let last = self.returned.partition_point(|at| *at <= changes).max(1) - 1;
        let first = self.returned[1..].partition_point(|at| *at < changes);
        let promises = |calls: usize| recording.calls[calls - 1].is_mark();
        let each = (first..=last).filter(|calls| *calls == first || promises(*calls));
        each.collect()
    }
}
