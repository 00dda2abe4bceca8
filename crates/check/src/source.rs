//! The source of a volume's bytes: memory, a file, a device, or anything that fills a buffer from
//! an offset.

use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::FileExt;

use stetfs_format::width::usize_as_u64;

/// The bytes of a volume. They must not change while a check runs.
pub trait Source {
    /// The size in bytes. A checker reads nothing beyond it.
    ///
    /// # Errors
    /// Those of the device.
    fn size(&self) -> io::Result<u64>;

    /// Reads into `out` from byte `offset` on; all of it lies inside [`size`](Self::size).
    ///
    /// # Errors
    /// Those of the device. The checker reports each as a finding and continues where it can.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

impl<S: Source + ?Sized> Source for &S {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, out)
    }
}

impl Source for [u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(usize_as_u64(self.len()))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = || Error::from(ErrorKind::UnexpectedEof);
        let start = usize::try_from(offset).map_err(|_| end())?;
        let bytes = self.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(bytes.ok_or_else(end)?);
        Ok(())
    }
}

/// A file, or an open block device.
impl Source for File {
    fn size(&self) -> io::Result<u64> {
        let mut end = self;
        // The only way that also works for block devices; nothing here depends on the position.
        io::Seek::seek(&mut end, io::SeekFrom::End(0))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
}

/// A source made of a read function and a size.
#[derive(Clone, Copy, Debug)]
pub struct FnSource<F> {
    size: u64,
    read: F,
}

impl<F: Fn(u64, &mut [u8]) -> io::Result<()>> FnSource<F> {
    /// A source of `size` bytes; `read` does what [`Source::read`] demands.
    pub fn new(size: u64, read: F) -> Self {
        Self { size, read }
    }
}

impl<F: Fn(u64, &mut [u8]) -> io::Result<()>> Source for FnSource<F> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (self.read)(offset, out)
    }
}
