//! Layers: block devices and persistent memory in front of others.

use std::path::Path;

use crate::atomic::AtomicWrite;
use crate::dev::{BlockDev, write_zeros_by_hand};
use crate::error::MediaError;
use crate::meter::Meter;
use crate::pmem::contract::{Pmem, Survives};
use crate::remap::Remap;
use crate::tag::{Cause, Tag};

/// A block device in front of another one. The device behind does whatever the layer does not do
/// itself.
///
/// A request of several parts reaches the layer as single requests, so none bypasses it. For the
/// same reason the layer hides [`BlockDev::pmem`] of the device behind, and offers
/// [`BlockDev::remap`] and [`BlockDev::atomic_write`] only if it says so.
pub trait Layer: Send + Sync {
    /// The device behind.
    fn below(&self) -> &dyn BlockDev;

    /// [`BlockDev::describe`].
    fn describe(&self) -> String {
        self.below().describe()
    }

    /// [`BlockDev::volatile_cache`].
    fn volatile_cache(&self) -> bool {
        self.below().volatile_cache()
    }

    /// [`BlockDev::host_cached`].
    fn host_cached(&self) -> bool {
        self.below().host_cached()
    }

    /// [`BlockDev::jump_bytes`].
    fn jump_bytes(&self) -> u64 {
        self.below().jump_bytes()
    }

    /// [`BlockDev::read_at`].
    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.below().read_at(offset, out, tag)
    }

    /// [`BlockDev::write_vectored_at`].
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.below().write_vectored_at(offset, parts, tag)
    }

    /// [`BlockDev::write_durable`]: by the layer's own write and flush.
    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.write_vectored_at(offset, parts, tag)?;
        self.flush(tag.cause)
    }

    /// [`BlockDev::flush`].
    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.below().flush(cause)
    }

    /// [`BlockDev::discard`].
    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.below().discard(offset, len)
    }

    /// [`BlockDev::remap`]: none, since it would bypass the layer.
    fn remap(&self) -> Option<&dyn Remap> {
        None
    }

    /// [`BlockDev::atomic_write`]: none, for the same reason.
    fn atomic_write(&self) -> Option<&dyn AtomicWrite> {
        None
    }

    /// [`BlockDev::write_zeros`]: by the layer's own writes.
    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        write_zeros_by_hand(self, offset, len, tag)
    }
}

impl<L: Layer + ?Sized> BlockDev for L {
    fn describe(&self) -> String {
        Layer::describe(self)
    }

    fn size(&self) -> u64 {
        self.below().size()
    }

    fn sector_size(&self) -> u32 {
        self.below().sector_size()
    }

    fn atomic_unit(&self) -> u32 {
        self.below().atomic_unit()
    }

    fn read_only(&self) -> bool {
        self.below().read_only()
    }

    fn volatile_cache(&self) -> bool {
        Layer::volatile_cache(self)
    }

    fn host_cached(&self) -> bool {
        Layer::host_cached(self)
    }

    fn jump_bytes(&self) -> u64 {
        Layer::jump_bytes(self)
    }

    fn survives(&self) -> Option<Survives> {
        self.below().survives()
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        self.below().check_backing()
    }

    fn close(&self) -> Result<(), MediaError> {
        self.below().close()
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        Layer::read_at(self, offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        Layer::write_vectored_at(self, offset, parts, tag)
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        Layer::write_durable(self, offset, parts, tag)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        Layer::flush(self, cause)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        Layer::discard(self, offset, len)
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        Layer::write_zeros(self, offset, len, tag)
    }

    fn remap(&self) -> Option<&dyn Remap> {
        Layer::remap(self)
    }

    fn atomic_write(&self) -> Option<&dyn AtomicWrite> {
        Layer::atomic_write(self)
    }

    fn meter(&self) -> &Meter {
        self.below().meter()
    }
}

/// A device whose reads nobody else caches, as if they went past every cache: `host_cached` is
/// false.
#[derive(Debug)]
pub struct Uncached<D>(pub D);

impl<D: std::ops::Deref<Target: BlockDev + Sized> + Send + Sync> Layer for Uncached<D> {
    fn below(&self) -> &dyn BlockDev {
        &*self.0
    }

    fn host_cached(&self) -> bool {
        false
    }
}

/// Persistent memory in front of another one. The memory behind does whatever the layer does not do
/// itself.
pub trait PmemLayer: Send + Sync {
    /// The memory behind.
    fn below(&self) -> &dyn Pmem;

    /// [`Pmem::load`].
    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.below().load(offset, out, tag)
    }

    /// [`Pmem::load_u64`].
    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError> {
        self.below().load_u64(offset, tag)
    }

    /// [`Pmem::store`].
    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.below().store(offset, data, tag)
    }

    /// [`Pmem::store_u64`].
    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError> {
        self.below().store_u64(offset, value, tag)
    }

    /// [`Pmem::store_nt`].
    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.below().store_nt(offset, data, tag)
    }

    /// [`Pmem::fence`].
    fn fence(&self, cause: Cause) -> Result<(), MediaError> {
        self.below().fence(cause)
    }
}

impl<L: PmemLayer + ?Sized> Pmem for L {
    fn describe(&self) -> String {
        self.below().describe()
    }

    fn path(&self) -> Option<&Path> {
        self.below().path()
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.below().next_data(offset)
    }

    fn size(&self) -> u64 {
        self.below().size()
    }

    fn survives(&self) -> Survives {
        self.below().survives()
    }

    fn read_only(&self) -> bool {
        self.below().read_only()
    }

    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        PmemLayer::load(self, offset, out, tag)
    }

    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError> {
        PmemLayer::load_u64(self, offset, tag)
    }

    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        PmemLayer::store(self, offset, data, tag)
    }

    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError> {
        PmemLayer::store_u64(self, offset, value, tag)
    }

    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        PmemLayer::store_nt(self, offset, data, tag)
    }

    fn flush(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        self.below().flush(offset, len, tag)
    }

    fn fence(&self, cause: Cause) -> Result<(), MediaError> {
        PmemLayer::fence(self, cause)
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        self.below().check_backing()
    }

    fn meter(&self) -> &Meter {
        self.below().meter()
    }
}
