//! Commands for volumes on raw flash (docs/FLASH.md).
//!
//! - [`nand`]: `stetfs nand`, all but `export`.
//! - [`export`]: `stetfs nand export`.
//! - [`loan`]: a copy of a volume on flash for mke2fs and e2fsck.

pub(crate) mod export;
pub(crate) mod loan;
pub(crate) mod nand;
