//! Second opinions: e2fsck checks the volumes that we have recovered, and replays the journal of a
//! state instead of us.

use anyhow::{Context, Result, ensure};
use stetfs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};
use stetfs_media::{Image, ImageFile};
use stetfs_testkit::host::scratch;
use stetfs_testkit::image::{check, replay, superblock_is_torn};

use super::media::Media;
use super::oracle::Observation;
use super::target::Target;
use crate::media::contents::Contents;
use crate::media::kind::Kind;

/// Asks e2fsck, with files of its own.
#[derive(Default)]
pub struct Second {
    files: Option<Files>,
}

/// Files in a directory that is removed with them.
struct Files {
    dir: tempfile::TempDir,
    /// The last volume that was checked. e2fsck only reads it.
    checked: ImageFile,
}

impl Second {
    fn files(&mut self) -> Result<&mut Files> {
        Ok(match &mut self.files {
            Some(files) => files,
            none => {
                let dir = scratch()?;
                let checked = ImageFile::new(dir.path().join("recovered"));
                none.insert(Files { dir, checked })
            }
        })
    }

    /// Returns e2fsck's opinion of a volume, as an error where it differs from `ours`, our
    /// checker's verdict.
    ///
    /// # Errors
    /// The file cannot be written, or e2fsck cannot be run.
    pub fn opinion(
        &mut self,
        recovered: &Contents,
        ours: &Result<(), String>,
    ) -> Result<Result<(), String>> {
        let volume = match recovered.volume() {
            Ok(volume) => volume,
            // For example a part with a lost page that nobody has read so far.
            Err(error) => {
                return Ok(Err(format!(
                    "the recovered volume cannot be read: {error:#}"
                )));
            }
        };
        let shown = self.files()?.checked.show(&volume);
        let theirs = check(shown.context("an image for e2fsck")?);
        Ok(match (ours, theirs) {
            (Ok(()), Ok(())) | (Err(_), Err(_)) => Ok(()),
            (Ok(()), Err(theirs)) => Err(format!("our checker finds nothing, but {theirs:#}")),
            (Err(ours), Ok(())) => {
                Err(format!("e2fsck -fn finds nothing, but our checker: {ours}"))
            }
        })
    }

    /// Lets e2fsck replay the journal of a state instead of us, and compares the volume with
    /// `ours`, the result of our recovery. Orphans are left to our mount in both. Returns `None`
    /// when e2fsck cannot replay the journal: the volume is no plain one with JBD2's journal, or
    /// its superblock or its newest commit record is torn.
    ///
    /// # Errors
    /// The file cannot be written or read, or e2fsck cannot be run.
    pub fn replay(
        &mut self,
        target: &Target,
        left: &Contents,
        ours: &Observation,
    ) -> Result<Option<Result<(), String>>> {
        let is_jbd2 = target.lower.is_none() && target.scheme.is_jbd2(&target.scheme_options());
        if !is_jbd2 || target.home != Kind::Block {
            return Ok(None);
        }
        let volume = left.volume()?;
        if superblock_is_torn(&volume) {
            return Ok(None);
        }
        let file = self.files()?.dir.path().join("left");
        volume.to_file(&file).context("an image for e2fsck")?;
        if let Err(error) = replay(&file) {
            return Ok(Some(Err(format!("{error:#}"))));
        }
        let replayed = Image::from_file(&file)?;
        if has_errors(&replayed)? {
            return Ok(None);
        }
        let replayed = Contents::of_block_device(replayed);
        let alike = compare(target, &replayed, ours);
        Ok(Some(alike.map_err(|error| format!("{error:#}"))))
    }
}

/// True if e2fsck reports a corrupt transaction. It does so for every torn commit record, where we
/// take one that is whole in what it says, and count others as never written. It then forgets the
/// orphans.
fn has_errors(volume: &Image) -> Result<bool> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    volume.read(SUPERBLOCK_OFFSET, &mut raw);
    let superblock = Superblock::decode(&raw).context("what e2fsck has replayed")?;
    Ok(superblock.state.contains(State::ERROR))
}

/// Mounts the volume that e2fsck has replayed, and compares it with `ours`.
fn compare(target: &Target, replayed: &Contents, ours: &Observation) -> Result<()> {
    let shown = Media::new(replayed).shown()?;
    let (library, _) = target
        .mount(shown, target.options())
        .context("mounting what e2fsck has replayed")?;
    let seen = Observation::of(&library)?;
    let differ = seen.differences_from(ours);
    ensure!(
        differ.is_empty(),
        "where e2fsck has replayed the journal, and expected as we have replayed it:\n{}",
        differ.join("\n")
    );
    Ok(())
}
