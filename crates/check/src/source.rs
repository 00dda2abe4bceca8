//! Where the bytes of a volume come from: memory, a file, a device, anything that fills a buffer
//! from an offset.

use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::FileExt;

use stetfs_format::width::usize_as_u64;

/// The bytes of a volume. They must not change while a check runs.
pub trait Source {
    /// Bytes that there are. A checker reads none behind them.
    ///
    /// # Errors
    /// What the device says.
    fn size(&self) -> io::Result<u64>;

    /// Fills `out` from byte `offset` on; all of it lies inside [`size`](Self::size).
    ///
    /// # Errors
    /// What the device says. The checker reports it as a finding and goes on where it can.
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

/// A file, or a block device by its name.
impl Source for File {
    fn size(&self) -> io::Result<u64> {
        let mut end = self;
        // The only way that works for block devices too; the position is not used here.
        io::Seek::seek(&mut end, io::SeekFrom::End(0))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
}

/// A function that reads, and how much there is: a source from whatever else has one.
#[derive(Clone, Copy, Debug)]
pub struct FnSource<F> {
    size: u64,
    read: F,
}

impl<F: Fn(u64, &mut [u8]) -> io::Result<()>> FnSource<F> {
    /// `read` is [`Source::read`], `size` in bytes.
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
