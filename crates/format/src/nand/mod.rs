//! The file that holds a simulated NAND part: what the part is, the state of each block, and the
//! cells.
//!
//! A header of one page of 4 KiB; then a record for each block, whose place is a power of two so
//! that no record crosses a page of the host's; then the cells: data and spare bytes of each page,
//! one page after the other. Which bytes of the cells mean anything the records say.
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
