//! A volume on a NAND part, in a part of a file, or on a qcow2 disk, lent to tools that work on
//! files.
//!
//! mke2fs and e2fsck know nothing of flash and qcow2; resize2fs cuts a file off where a volume in
//! it ends. They get a sparse copy in the directory for temporary files. What they change is
//! written back page by page. The beginning, with the superblock, is written last: a cut in between
//! leaves the volume as a cut of the tool itself would.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use stetfs::MountOptions;
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_media::nand::NandFile;
use stetfs_media::{BlockDev, Cause, Class, Survives, Tag};
use tempfile::NamedTempFile;

use crate::failure::{Explain, Result};
use crate::{disk, part};

/// Bytes that are copied at once, in whole pages of every part.
const CHUNK: usize = 1 << 20;

/// A copy that was lent; dropping this removes it.
pub(crate) struct Loan {
    dev: Arc<dyn BlockDev>,
    copy: NamedTempFile,
}

impl Loan {
    /// Lends the content of the part in `image`. Returns None if `image` is no file of a part. What
    /// is on a qcow2 disk is only lent to be read.
    pub(crate) fn of(image: &Path, read_only: bool) -> Result<Option<Self>> {
        if read_only && part::is_qcow2(image) {
            let loan = Self::with(image, disk::look_at(image)?)?;
            return loan.filled().map(Some);
        }
        match Self::open(image, read_only, Survives::PowerLoss)? {
            Some(loan) => loan.filled().map(Some),
            None => Ok(None),
        }
    }

    /// Lends what is in a part of a file.
    pub(crate) fn of_part(image: &Path) -> Result<Self> {
        Self::blank_part(image)?.filled()
    }

    fn filled(self) -> Result<Self> {
        let loan = self;
        let mut chunk = vec![0; CHUNK];
        for at in loan.chunks() {
            let chunk = loan.read(at, &mut chunk)?;
            if chunk.iter().any(|byte| *byte != 0) {
                let written = loan.copy.as_file().write_all_at(chunk, at);
                written.during(|| loan.copy.path().display().to_string())?;
            }
        }
        Ok(loan)
    }

    /// Lends an empty file of the size of the part in `image`. Returns None if `image` is no file
    /// of a part. The part keeps its content until the loan is given back.
    pub(crate) fn blank(image: &Path) -> Result<Option<Self>> {
        // After a crash, mkfs is run again; so no page has to wait for the host's medium.
        Self::open(image, false, Survives::ProcessCrash)
    }

    /// Lends an empty file of the size of a part of a file.
    pub(crate) fn blank_part(image: &Path) -> Result<Self> {
        Self::with(image, part::open_device(image)?)
    }

    fn open(image: &Path, read_only: bool, durability: Survives) -> Result<Option<Self>> {
        if !NandFile::is_at(image) {
            return Ok(None);
        }
        let options = MountOptions {
            durability,
            ..MountOptions::default()
        };
        let dev = stetfs::open_device(image, &options, read_only)?;
        Self::with(image, dev).map(Some)
    }

    fn with(image: &Path, dev: Arc<dyn BlockDev>) -> Result<Self> {
        // Tools show the copy's name.
        let mut name = part::file_of(image)
            .file_name()
            .unwrap_or_default()
            .to_owned();
        name.push(".");
        let copy = NamedTempFile::with_prefix(&name)
            .and_then(|copy| copy.as_file().set_len(dev.size()).map(|()| copy))
            .during(|| "a copy for the tool".to_owned())
            .or_advise(|| {
                "TMPDIR is where it goes; there has to be room for the volume".to_owned()
            })?;
        Ok(Self { dev, copy })
    }

    /// Returns the path of the copy.
    pub(crate) fn path(&self) -> &Path {
        self.copy.path()
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.dev.size()
    }

    /// Writes what has changed to the part.
    pub(crate) fn give_back(self) -> Result<()> {
        // The tool may have made it shorter.
        let length = self.copy.as_file().set_len(self.dev.size());
        length.during(|| self.copy.path().display().to_string())?;
        let (mut old, mut new) = (vec![0; CHUNK], vec![0; CHUNK]);
        let chunks = self.chunks().skip(1).chain(self.chunks().take(1));
        for at in chunks {
            let old = self.read(at, &mut old)?;
            let new = &mut new[..old.len()];
            let read = self.copy.as_file().read_exact_at(new, at);
            read.during(|| self.copy.path().display().to_string())?;
            if at == 0 {
                self.dev.flush(Cause::Home)?;
            }
            self.write_changed(at, old, new)?;
        }
        self.dev.flush(Cause::Home)?;
        Ok(self.dev.close()?)
    }

    fn write_changed(&self, at: u64, old: &[u8], new: &[u8]) -> Result<()> {
        const TAG: Tag = Tag::new(Class::Data, Cause::Home);
        let sector = u32_as_usize(self.dev.sector_size());
        let pages = old.chunks_exact(sector).zip(new.chunks_exact(sector));
        for (at, (old, new)) in (at..).step_by(sector).zip(pages) {
            if old == new {
                continue;
            }
            if new.iter().all(|byte| *byte == 0) {
                self.dev.write_zeros(at, usize_as_u64(sector), TAG)?;
            } else {
                self.dev.write_at(at, new, TAG)?;
            }
        }
        Ok(())
    }

    /// Returns where the chunks begin.
    fn chunks(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.dev.size()).step_by(CHUNK)
    }

    /// Reads a chunk of the part.
    fn read<'a>(&self, at: u64, chunk: &'a mut [u8]) -> Result<&'a [u8]> {
        let len = u64_as_usize((self.dev.size() - at).min(usize_as_u64(chunk.len())));
        let chunk = &mut chunk[..len];
        self.dev.read_at(at, chunk, Tag::read(Class::Data))?;
        Ok(chunk)
    }
}
