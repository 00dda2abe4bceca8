//! The places where a program runs and its states are shown: directories, volumes and mounts, all
//! removed at the end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use stetfs_media::Image;
use stetfs_powercut::judge::{self, Check, Judge, Verdicts};

use crate::e2fsprogs;
use crate::failure::{Explain, Failure, Result};
use crate::size::Size;

/// Block size of fresh volumes, in bytes.
const BLOCK: u64 = 4096;

/// The UUID of every volume, so that they are equal each time.
const UUID: &str = "73746574-6673-4c61-8000-000000000002";

/// Seconds since 1970 at which every volume was made, so that they are equal at any time.
const MADE_AT: &str = "1700000000";

/// Bytes of the smallest volume on which states are shown: a journal of 4 MiB, and some room beside
/// it.
pub(super) const SIZE_MIN: u64 = 16 << 20;

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

    /// Makes an empty volume of `size` bytes for the user who runs this.
    pub(super) fn fresh(&self, size: u64) -> Result<Image> {
        if size < SIZE_MIN {
            return Err(Failure::new(format!(
                "a volume of {} is too small: at least {}",
                Size(size),
                Size(SIZE_MIN)
            )));
        }
        self.volume(size)
    }

    /// Makes such a volume of any size.
    pub(super) fn volume(&self, size: u64) -> Result<Image> {
        let path = self.scratch.path().join("fresh.img");
        File::create(&path)?.set_len(size)?;
        // Nothing in it may be random: a case is replayed on another volume.
        let extended = format!(
            "root_owner={}:{},hash_seed={UUID}",
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        );
        let block = BLOCK.to_string();
        let mut mke2fs = e2fsprogs::command("mke2fs")?;
        mke2fs
            .args(["-q", "-F", "-t", "ext4", "-m", "0", "-b", &block])
            .args(["-J", "size=4", "-U", UUID, "-E", &extended])
            .env("E2FSPROGS_FAKE_TIME", MADE_AT)
            .arg(&path);
        let made = mke2fs.output().during(|| "mke2fs".to_owned())?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            return Err(
                Failure::new(format!("making a volume of {size} bytes: {said}"))
                    .advise("--size 64M is the default; 16M is about the least"),
            );
        }
        let image = Image::from_file(&path)?;
        fs::remove_file(&path)?;
        Ok(image)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A case of a scheme is a moment on such a volume, and all shards must be of equal volumes.
    #[test]
    fn volumes_are_the_same_at_any_time() {
        let place = Place::new(None).unwrap();
        let made = || place.volume(SIZE_MIN).unwrap().to_bytes();
        let first = made();
        // The volume's times have a resolution of a second.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(first == made(), "two volumes differ");
    }
}
