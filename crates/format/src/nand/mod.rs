//! The file that holds a simulated NAND part: what the part is, the state of each block, and the
//! cells.
//!
//! The file has a header of one page (4 KiB), a record for each block, and the cells: data and
//! spare bytes of each page, one page after the other. Records lie a power of two of bytes apart,
//! so that none crosses a page of the host. The records say which cells mean anything.
//!
//! Source: our own.

mod block;
mod error;
mod header;
mod page;
mod part;

pub use block::{BLOCK_RECORD_LAYOUT, BlockCondition, NandBlock};
pub use error::NandCorrupt;
pub use header::{NAND_HEADER_LAYOUT, NandHeader};
pub use page::PageState;
pub use part::{NandEcc, NandGeometry, NandPart, NandTiming, NandWear};
