//! A part in a file, which survives the process.
//!
//! The layout is that of `stetfs_format::nand`; unprogrammed pages are holes. Every request writes
//! all its changes before it returns, in the order of `cells.rs`. So if the process dies, or is
//! killed in the middle of a request, the file is as a real part would be after a power cut at that
//! moment.
//!
//! If the *host* goes down, the file survives only if it was opened
//! [`synchronous`](NandFileOptions::synchronous). Then every write waits until it is on the host's
//! medium. (A block with 500 pages or more has a record longer than the medium may write in one
//! piece. A power cut may tear it; its checksum tells.) Without this option the host may keep a
//! later write and lose an earlier one, which no part does. The header therefore names the boot of
//! the host under which the file was opened. Closing the file writes everything and removes that
//! name. A file that names another boot than the present one is refused
//! ([`NandError::HostCrashed`]).
//!
//! The file is locked like an image (`file_open.rs`): nobody else can have it open.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::Path;

use rustix::io::Errno;
use stetfs_format::nand::{NandCorrupt, NandHeader, NandPart};

use super::cells::{Cells, Store};
use super::device::NandDev;
use super::error::NandError;
use crate::error::MediaError;
use crate::file::FileDev;
use crate::file_open::FileOptions;
use crate::pmem::contract::Survives;
use crate::sim::Rig;

/// A part in a file.
pub type NandFile = NandDev<FileStore>;

/// The file of a part, locked as long as this lives.
pub struct FileStore {
    file: FileDev,
    synchronous: bool,
    /// The header to write after everything else, when the file is closed.
    closed: Option<NandHeader>,
}

impl Store for FileStore {
    fn size(&self) -> u64 {
        self.file.shape.size
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MediaError> {
        self.file.read_full(offset, out)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.file.write_full(offset, bytes)?;
        if self.synchronous {
            self.file.sync_to_medium()?;
        }
        Ok(())
    }

    fn survives(&self) -> Option<Survives> {
        Some(if self.synchronous {
            Survives::PowerLoss
        } else {
            Survives::ProcessCrash
        })
    }
}

impl FileStore {
    /// Writes the header and waits until it and all earlier writes are on the host's medium.
    fn write_header(&self, header: &NandHeader) -> Result<(), MediaError> {
        self.file.write_full(0, &header.encode())?;
        self.file.sync_to_medium()
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if let Some(header) = self.closed.take() {
            // After an error the header still says that the file is open, which is true as far as
            // anybody knows.
            let synced = self.file.sync_to_medium();
            let _ = synced.and_then(|()| self.write_header(&header));
        }
    }
}

/// How to make or open a [`NandFile`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct NandFileOptions {
    synchronous: bool,
    read_only: bool,
    after_host_crash: bool,
    mounted: bool,
    rig: Rig,
}

impl NandFileOptions {
    /// Sets whether every write waits until it is on the host's medium, so that the file survives
    /// the host as well. Off by default, because a program takes three such writes.
    pub fn synchronous(mut self, synchronous: bool) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets whether the file is only read, together with other readers. Requests that change the
    /// part fail.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether to open a file that was in use when the host went down. Some of its pages may
    /// then be wrong without an error, and some that were programmed long ago may be gone.
    pub fn after_host_crash(mut self, accept: bool) -> Self {
        self.after_host_crash = accept;
        self
    }

    /// As [`FileOptions::mounted`].
    pub fn mounted(mut self, mounted: bool) -> Self {
        self.mounted = mounted;
        self
    }

    /// Sets the machine whose supply and clock it shares; by default it has its own.
    pub fn rig(mut self, rig: &Rig) -> Self {
        self.rig = rig.clone();
        self
    }

    /// Makes a file with a new part. The file has its full size but takes no space. Panics if such
    /// a part is impossible ([`NandPart::check`]).
    pub fn create(
        self,
        path: impl AsRef<Path>,
        part: NandPart,
        uuid: [u8; 16],
    ) -> Result<NandFile, NandError> {
        let path = path.as_ref();
        if let Err(mistake) = part.check() {
            panic!("{mistake}");
        }
        let failed = |e: std::io::Error| MediaError::Open {
            path: path.to_owned(),
            source: Errno::from_io_error(&e).unwrap_or(Errno::IO),
        };
        let mut new = OpenOptions::new();
        let file = new
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(failed)?;
        let made = file
            .set_len(part.geometry.file_bytes())
            .map_err(|e| failed(e).into())
            .and_then(|()| self.format(path, part, uuid));
        if made.is_err() {
            // This call created the file, and it is not a part yet.
            let _ = fs::remove_file(path);
        }
        made
    }

    fn format(&self, path: &Path, part: NandPart, uuid: [u8; 16]) -> Result<NandFile, NandError> {
        let header = NandHeader {
            uuid,
            boot: [0; 16],
            part,
        };
        let cells = Cells::format(self.open_store(path)?, header, 0)?;
        self.take_into_use(path, cells)
    }

    /// Opens the file of a part and checks its header and every record.
    pub fn open(self, path: impl AsRef<Path>) -> Result<NandFile, NandError> {
        let path = path.as_ref();
        let store = self.open_store(path)?;
        let left = Cells::read_header(&store)?.boot;
        if ![[0; 16], boot_id(path)?].contains(&left) && !self.after_host_crash {
            return Err(NandError::HostCrashed {
                path: path.to_owned(),
            });
        }
        self.take_into_use(path, Cells::open(store)?)
    }

    fn open_store(&self, path: &Path) -> Result<FileStore, NandError> {
        let file = FileOptions::default()
            .read_only(self.read_only)
            .mounted(self.mounted)
            .open(path)?;
        if file.is_block_device() {
            return Err(NandError::File(MediaError::NotStorage {
                path: path.to_owned(),
                what: "block device",
            }));
        }
        Ok(FileStore {
            file,
            synchronous: self.synchronous,
            closed: None,
        })
    }

    /// Notes in the header that the file is in use.
    fn take_into_use(
        &self,
        path: &Path,
        mut cells: Cells<FileStore>,
    ) -> Result<NandFile, NandError> {
        let header = *cells.header();
        let boot = if self.synchronous {
            [0; 16]
        } else {
            boot_id(path)?
        };
        if header.boot != boot && !self.read_only {
            if self.synchronous {
                cells.store.file.sync_to_medium()?;
            }
            cells.store.write_header(&NandHeader { boot, ..header })?;
        }
        if !self.synchronous && !self.read_only {
            cells.store.closed = Some(NandHeader {
                boot: [0; 16],
                ..header
            });
        }
        let mib = header.part.geometry.data_bytes() >> 20;
        let name = format!("{}, NAND, {mib} MiB", path.display());
        Ok(NandDev::from_cells(name, &self.rig, cells, None))
    }
}

impl NandFile {
    /// Returns the default options for making or opening one.
    pub fn options() -> NandFileOptions {
        NandFileOptions::default()
    }

    /// Whether the file at `path` begins like the file of a part. False if it cannot be read.
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        let mut raw = [0; NandHeader::SIZE];
        let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
        let file = is_file.then(|| File::open(&path).ok()).flatten();
        file.is_some_and(|mut file| file.read_exact(&mut raw).is_ok())
            && !matches!(NandHeader::decode(&raw), Err(NandCorrupt::Magic(_)))
    }

    /// The file's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.state().cells.header().uuid
    }

    /// Waits until all writes are on the host's medium.
    pub fn sync(&self) -> Result<(), NandError> {
        Ok(self.state().cells.store.file.sync_to_medium()?)
    }
}

/// Returns the host's identifier of its present boot.
fn boot_id(path: &Path) -> Result<[u8; 16], MediaError> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let failed = |source| MediaError::Open {
        path: path.to_owned(),
        source,
    };
    let text = fs::read_to_string(BOOT_ID)
        .map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| failed(Errno::INVAL))?;
    Ok(number.to_be_bytes())
}
