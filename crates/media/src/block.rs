//! The content of one file system block: immutable once shared, aligned for direct I/O.
//!
//! Caches, the running transaction and a commit in flight share a [`BlockRef`]. Changing one that
//! somebody else still holds copies the block first ([`BlockRef::make_mut`]), so a commit writes
//! exactly the bytes that it was given, whatever the next transaction does meanwhile.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The unit of alignment in bytes: what O_DIRECT asks of memory and of offsets on common devices.
const SECTOR: usize = 512;

#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(512))]
struct Sector([u8; SECTOR]);

const ZERO: Sector = Sector([0; SECTOR]);

/// The bytes of one block. The length is a multiple of 512, the memory is aligned to 512.
#[derive(Clone)]
pub struct Block(Box<[Sector]>);

impl Block {
    /// A block of `len` zero bytes. Panics unless `len` is a multiple of 512.
    pub fn zeroed(len: usize) -> Self {
        assert!(len.is_multiple_of(SECTOR), "a block of {len} bytes");
        Self(vec![ZERO; len / SECTOR].into_boxed_slice())
    }

    /// A block with a copy of `bytes`. Panics unless the length is a multiple of 512.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let (sectors, rest) = bytes.as_chunks::<SECTOR>();
        assert!(rest.is_empty(), "a block of {} bytes", bytes.len());
        Self(sectors.iter().map(|s| Sector(*s)).collect())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    /// The bytes, for changing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// A shared, immutable [`Block`]; cloning it copies no bytes.
#[derive(Clone)]
pub struct BlockRef(Arc<Block>);

impl BlockRef {
    /// Shares `block`.
    pub fn new(block: Block) -> Self {
        Self(Arc::new(block))
    }

    /// Returns the bytes for changing; copies them first if anybody else holds them.
    pub fn make_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0).bytes_mut()
    }

    /// Whether both are the same memory (not merely equal bytes).
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether nobody else holds this content.
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Deref for BlockRef {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl From<Block> for BlockRef {
    fn from(block: Block) -> Self {
        Self::new(block)
    }
}

impl fmt::Debug for BlockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockRef({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_content_never_changes() {
        let mut a = BlockRef::new(Block::copy_of(&[7; 1024]));
        let b = a.clone();
        assert!(a.is_same(&b));
        a.make_mut()[3] = 9;
        assert_eq!((a[3], b[3]), (9, 7));
        assert_eq!(b.as_ptr() as usize % SECTOR, 0);
    }
}
