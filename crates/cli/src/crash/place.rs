//! The places where a program runs and its states are shown: directories, volumes and mounts, all
//! removed at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use stetfs_media::Image;
use stetfs_powercut::fresh::{self, SIZE_MIN};
use stetfs_powercut::judge::{self, Check, Judge, Verdicts};

use crate::failure::{Explain, Failure, Result};
use crate::size::Size;

/// The place of everything that a run makes.
pub(super) struct Place {
    pub(super) scratch: tempfile::TempDir,
    pub(super) dir: PathBuf,
}

impl Place {
    pub(super) fn new(dir: Option<&Path>) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("stetfs-crash-").tempdir()?;
        let dir = match dir {
            Some(dir) => dir.canonicalize().during(|| dir.display().to_string())?,
            None => {
                let dir = scratch.path().join("dir");
                fs::create_dir(&dir)?;
                dir
            }
        };
        Ok(Self { scratch, dir })
    }

    /// Makes judges: the first works in the directory, each other one in a directory of its own.
    pub(super) fn judges(
        &self,
        check: &Check,
        fresh: &Image,
        (jobs, verdicts, stop): (usize, &Arc<Verdicts>, &Arc<AtomicBool>),
    ) -> Result<Vec<Judge>> {
        (0..jobs)
            .map(|n| {
                let scratch = self.scratch.path().join(format!("check{n}"));
                fs::create_dir(&scratch)?;
                let dir = match n {
                    0 => self.dir.clone(),
                    _ => scratch.join("dir"),
                };
                fs::create_dir_all(&dir)?;
                let at = (Path::new("stetfs-crash"), dir.as_path());
                let (verdicts, stop) = (verdicts.clone(), stop.clone());
                Judge::new(check.clone(), fresh.clone(), at, &scratch, verdicts, stop).map_err(told)
            })
            .collect()
    }
}

/// Makes an empty volume of `size` bytes for the user who runs this.
pub(super) fn fresh(size: u64) -> Result<Image> {
    if size < SIZE_MIN {
        return Err(Failure::new(format!(
            "a volume of {} is too small: at least {}",
            Size(size),
            Size(SIZE_MIN)
        )));
    }
    volume(size)
}

/// Makes such a volume of any size.
pub(super) fn volume(size: u64) -> Result<Image> {
    fresh::volume(size).map_err(|e| {
        Failure::new(format!("making a volume of {size} bytes: {e}"))
            .advise("--size 64M is the default; 16M is about the least")
    })
}

/// Adds advice to a failure of the machinery.
pub(super) fn told(error: judge::Error) -> Failure {
    let advice = match &error {
        judge::Error::Mount(_) => Some(NO_MOUNT),
        judge::Error::Volume(_) => Some("the states need more room: --size 256M"),
        _ => None,
    };
    let failure = Failure::from(error);
    advice.into_iter().fold(failure, Failure::advise)
}

pub(super) const NO_MOUNT: &str = "it takes /dev/fuse, and for other users than root fusermount3 \
    (Debian: apt-get install fuse3); in a container --device /dev/fuse --cap-add SYS_ADMIN";
