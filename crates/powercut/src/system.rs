//! Systems that can be taken as models: file systems that run. A program's recorded calls are
//! repeated on them, on simulated media, and they recover what each power cut leaves.

use std::fmt::{Debug, Display};

use anyhow::{Result, ensure};
use stetfs::Fs;
use stetfs_crash::media::Media;
use stetfs_crash::media::contents::Contents;
use stetfs_crash::moment::Tapes;
use stetfs_media::Image;

use crate::call::Recording;
use crate::model::Had;
use crate::player::Pace;
use crate::tree::Tree;

/// A file system that runs. Its text is its name as a `--model`.
pub trait System: Debug + Display + Send + Sync {
    /// When its journal may commit: a recording is repeated at each of these paces.
    fn paces(&self) -> &'static [Pace];

    /// Bytes of its volume, where it cannot be as large as any other.
    fn volume_bytes(&self) -> Option<u64>;

    /// True if it keeps groups of changes whole.
    fn keeps_groups(&self) -> bool;

    /// True if the same calls always change its media in the same way. If not, a case is a state
    /// and not a moment, and machines cannot share the states of a recording.
    fn is_repeatable(&self) -> bool;

    /// Repeats a recording on a volume that was empty (`fresh`).
    ///
    /// # Errors
    /// The volume refuses a call, or at the end holds something else than the program had.
    fn play(&self, fresh: &Image, recording: &Recording, pace: Pace) -> Result<Played>;

    /// Recovers what a power cut left. Returns the tree, and the media, which note what was read.
    ///
    /// # Errors
    /// It cannot be recovered.
    fn recover(&self, left: &Contents) -> Result<(Media, Tree)>;

    /// Lets others judge a state that was recovered as `tree`: whether it is recovered as the same
    /// by a program that is not ours. Returns false if nobody else can recover it.
    ///
    /// # Errors
    /// Others find something else, or damage.
    fn second_opinion(&self, left: &Contents, tree: &Tree) -> Result<bool>;
}

/// A recording that was repeated on a system's volume.
pub struct Played {
    /// Every change of the media.
    pub tapes: Tapes,
    /// The content of the media when the program began.
    pub start: Contents,
    /// For each number of calls, the changes of the media by the time they had returned.
    pub returned: Vec<u64>,
}

impl Played {
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

/// Checks that a volume holds what the program left.
///
/// # Errors
/// It holds something else, or cannot be read.
pub(crate) fn check_end(fs: &Fs, recording: &Recording) -> Result<()> {
    let (there, _) = Tree::read(fs)?;
    let differ = there.differences(&Had::new(recording).at_the_end());
    ensure!(
        differ.is_empty(),
        "the volume does not hold what the program left: {}",
        differ.join(", ")
    );
    Ok(())
}
