//! An image as a device, copied on write, on which a file system is mounted after a cut.

use std::io;
use std::path::Path;

use parking_lot::RwLock;

use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::image::Image;
use crate::meter::Meter;
use crate::range::{check_parts, check_range};
use crate::sim::crash::CrashPoint;
use crate::sim::dev::SimDev;
use crate::sim::keep::Keep;
use crate::sim::options::SimOptions;
use crate::sim::volatile::Kind;
use crate::tag::{Cause, Tag};
use stetfs_format::width::usize_as_u64;

/// An image as a device that can be read and written at once, with nothing simulated. Making one
/// takes a microsecond, because it shares everything unwritten with its image.
pub struct CrashImage {
    content: RwLock<Image>,
    size: u64,
    options: SimOptions,
    meter: Meter,
}

impl CrashImage {
    /// A device with this content.
    pub fn new(content: Image, options: SimOptions) -> Self {
        Self {
            size: content.size(),
            content: RwLock::new(content),
            options,
            meter: Meter::new(),
        }
    }

    /// Returns the present content.
    pub fn image(&self) -> Image {
        self.content.read().clone()
    }

    /// Writes the present content to a file, for tools that need one.
    pub fn to_file(&self, path: &Path) -> io::Result<()> {
        self.image().to_file(path)
    }

    /// Returns a simulated device of the same kind that begins with the present content: for a
    /// second cut, which falls into the recovery from the first.
    pub fn simulate(&self) -> SimDev {
        self.options.build(self.image())
    }

    fn store(&self, offset: u64, parts: &[&[u8]]) -> Result<u64, MediaError> {
        let len = check_parts(offset, parts, self.options.sector, self.size)?;
        let mut content = self.content.write();
        let mut at = offset;
        for part in parts {
            content.write(at, part);
            at += usize_as_u64(part.len());
        }
        Ok(len)
    }
}

impl CrashPoint {
    /// Returns the state that `keep` describes, as a device. Panics unless it is a block device's.
    pub fn crash(&self, keep: &Keep) -> CrashImage {
        let Kind::Device(options) = self.kind else {
            panic!("a state of persistent memory is no block device");
        };
        CrashImage::new(self.state(keep), options)
    }
}

impl BlockDev for CrashImage {
    fn describe(&self) -> String {
        format!("image in memory, {} KiB", self.size >> 10)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn sector_size(&self) -> u32 {
        self.options.sector
    }

    fn atomic_unit(&self) -> u32 {
        self.options.atomic_unit
    }

    fn read_only(&self) -> bool {
        false
    }

    fn volatile_cache(&self) -> bool {
        false
    }

    fn host_cached(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let len = usize_as_u64(out.len());
        check_range(Op::Read, offset, len, self.options.sector, self.size)?;
        self.content.read().read(offset, out);
        self.meter.count_read(tag, len);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = self.store(offset, parts)?;
        self.meter.count_write(tag, len);
        Ok(())
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = self.store(offset, parts)?;
        self.meter.count_durable_write(tag, len);
        Ok(())
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.meter.count_flush(cause);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        check_range(Op::Discard, offset, len, self.options.sector, self.size)?;
        self.content
            .write()
            .fill(offset, len, self.options.discard_fill);
        self.meter.count_discard(len, 0);
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
