//! A disk in the format qcow2, which is only read. The crate imago decodes it.
//!
//! Source: QEMU, `docs/interop/qcow2.txt`; for its locks `block/file-posix.c`
//! (`RAW_LOCK_PERM_BASE`).
//!
//! Nothing but the file itself is opened: a backing file or a file for the data is named by the
//! image, that is by whoever has made it, not by the user.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use imago::file::File as Opened;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2 as Format;
use imago::{FormatAccess, FormatDriverBuilder, Storage, StorageOpenOptions};
use rustix::io::Errno;
use stetfs_format::width::usize_as_u64;
use stetfs_media::{BlockDev, Cause, MediaError, Meter, Op, Tag};

const MAGIC: [u8; 4] = *b"QFI\xfb";
/// The unit of the disk's size.
const SECTOR: u32 = 512;
/// The byte of the file on which a program has a lock while it may write to the disk
/// (`BLK_PERM_WRITE`).
const WRITER: u64 = 100 + 1;

/// Returns whether a file is such a disk.
pub(crate) fn is_qcow2(file: &Path) -> bool {
    // Opening a pipe would wait for its other end.
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return false;
    }
    let mut magic = [0; MAGIC.len()];
    let read = File::open(file).and_then(|file| file.read_exact_at(&mut magic, 0));
    read.is_ok() && magic == MAGIC
}

/// Returns whether a program, as a virtual machine, may be writing to the disk.
pub(super) fn has_writer(file: &File) -> rustix::io::Result<bool> {
    stetfs_sys::is_range_locked(file, WRITER, 1)
}

/// An open disk. Requests are within it.
pub(super) struct Qcow2 {
    shown: String,
    size: u64,
    access: FormatAccess<Opened>,
    meter: Meter,
}

impl Qcow2 {
    pub(super) fn open(file: &Path) -> io::Result<Self> {
        let opened = Opened::open(StorageOpenOptions::new().filename(file))?;
        let format = Format::<Opened>::builder(opened).open(Nothing)?;
        let access = FormatAccess::new(format);
        Ok(Self {
            shown: format!("{}, qcow2", file.display()),
            size: access.size() - access.size() % u64::from(SECTOR),
            access,
            meter: Meter::default(),
        })
    }
}

/// Opens nothing that an image refers to.
struct Nothing;

impl<S: Storage + 'static> ImplicitOpenGate<S> for Nothing {
    fn open_format<F: FormatDriverBuilder<S>>(&mut self, rest: F) -> io::Result<FormatAccess<S>> {
        Err(not_opened(rest.get_image_path().as_deref()))
    }

    fn open_storage(&mut self, data: StorageOpenOptions) -> io::Result<S> {
        Err(not_opened(data.get_filename()))
    }
}

fn not_opened(file: Option<&Path>) -> io::Error {
    let file = file.unwrap_or(Path::new("another file"));
    io::Error::other(format!("{} is not opened for it", file.display()))
}

fn read_only(op: Op, offset: u64, len: u64) -> MediaError {
    MediaError::ReadOnly { op, offset, len }
}

impl BlockDev for Qcow2 {
    fn describe(&self) -> String {
        self.shown.clone()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn sector_size(&self) -> u32 {
        SECTOR
    }

    fn read_only(&self) -> bool {
        true
    }

    fn volatile_cache(&self) -> bool {
        false
    }

    /// Decoding a cluster once more costs something.
    fn host_cached(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let (len, begun) = (usize_as_u64(out.len()), Instant::now());
        let read = self.access.read(out, offset);
        self.meter.count_read(tag, len);
        let busy = begun.elapsed().as_nanos();
        self.meter
            .count_busy(tag, u64::try_from(busy).unwrap_or(u64::MAX));
        read.map_err(|e| MediaError::Io {
            op: Op::Read,
            offset,
            len,
            source: Errno::from_io_error(&e).unwrap_or(Errno::IO),
        })
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], _: Tag) -> Result<(), MediaError> {
        let len = parts.iter().map(|part| usize_as_u64(part.len())).sum();
        Err(read_only(Op::Write, offset, len))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        Err(read_only(Op::Discard, offset, len))
    }

    fn flush(&self, _: Cause) -> Result<(), MediaError> {
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
