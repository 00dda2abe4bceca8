//! The contract of NAND flash: what a flash translation layer may rely on, and must obey.
//!
//! - A part is divided into erase blocks, and a block into pages. A page has its data and a *spare
//!   area* for the manager of the part; both are read and programmed together. Error correction is
//!   below this contract: its check bits lie elsewhere. The spare area belongs to the caller except
//!   for one byte (see bad blocks).
//! - A page is *programmed* as a whole, once between two erases of its block. The pages of a block
//!   are programmed in order, none left out. (Datasheets: "consecutively within a block";
//!   programming a page again or out of order disturbs its neighbours.) A page that was not
//!   programmed since the last erase reads as bytes of 0xff.
//! - [`Nand::program`] and [`Nand::erase`] are durable on return: a part has no cache.
//! - A power cut in the middle of a program leaves that page untouched, complete, or in one of four
//!   conditions. It looks erased, although it must not be programmed before the next erase; or it
//!   reads as an error, with more wrong bits than the code corrects; or the code is deceived, and
//!   it reads as something else *without* an error; or it can be read once and not again. At
//!   power-up a caller must therefore copy whatever it trusts in such a page elsewhere before
//!   relying on it, and must leave the rest of the block alone. No other page is touched.
//! - A power cut in the middle of an erase leaves each page of that block old, erased or
//!   unreadable. Whatever it looks like, the block must be erased before it is programmed.
//! - Program and erase can fail: the block has *grown bad*. Content programmed earlier can still be
//!   read, except after a failed erase. The block must not be programmed or erased any more; the
//!   caller has to save its content and mark it ([`Nand::mark_bad`]).
//! - A bad block, from the factory or later, has a byte other than 0xff at
//!   [`NandGeometry::bad_mark`] in the spare area of its first page. A caller that programs a first
//!   page leaves 0xff there. The first block is not bad from the factory.
//! - Reading wears out, too: wrong bits increase with each erase of the block and each read of any
//!   of its pages. The part corrects up to [`NandEcc::strength_bits`] of them in a codeword and
//!   reports how many ([`Corrected`]), so that the caller can move the page in time.
//! - The [`Meter`] counts every request that succeeded: pages read and programmed with the bytes of
//!   their data (of the spare area if only that was read), erases, and busy time.
//!
//! A caller that breaks these rules makes the simulated parts panic, so that tests find such a
//! mistake of ours.

use stetfs_format::nand::{NandEcc, NandGeometry};
use stetfs_format::num::{BlockAddr, PageNo};

use super::error::NandError;
use crate::meter::Meter;
use crate::pmem::contract::Survives;
use crate::tag::{Cause, Tag};

/// What a read had to correct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Corrected {
    /// Wrong bits in the worst codeword. When they approach [`NandEcc::strength_bits`], the page
    /// should be moved.
    pub bits: u32,
}

/// A NAND flash part.
pub trait Nand: Send + Sync {
    /// The part's name for messages: `NAND, 128 MiB`.
    fn describe(&self) -> String;

    /// Pages and blocks. They do not change.
    fn geometry(&self) -> NandGeometry;

    /// The error correction of reads.
    fn ecc(&self) -> NandEcc;

    /// Reads a page into `data` and `spare`, which have the lengths of the page's areas.
    ///
    /// [`NandError::Uncorrectable`]: both hold something else, or part of the content; another read
    /// may do better or not.
    fn read(
        &self,
        page: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError>;

    /// Reads the spare area into `spare`, as [`read`](Self::read) does, but not the data.
    fn read_spare(&self, page: PageNo, spare: &mut [u8], tag: Tag) -> Result<Corrected, NandError>;

    /// Programs the next page of a block that is neither bad nor half erased.
    ///
    /// [`NandError::ProgramFailed`]: the page is lost and the block has to be retired.
    fn program(&self, page: PageNo, data: &[u8], spare: &[u8], tag: Tag) -> Result<(), NandError>;

    /// Erases a block that is not bad.
    ///
    /// [`NandError::EraseFailed`]: its content is lost and the block has to be retired.
    fn erase(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError>;

    /// Whether a block is bad. It takes no time: drivers read the marks once and remember them.
    fn is_bad(&self, block: BlockAddr) -> Result<bool, NandError>;

    /// Marks a block bad for good. Readable pages stay readable; marking the block again changes
    /// nothing.
    fn mark_bad(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError>;

    /// What the part's content survives besides power cuts of the part itself; `None` if it is not
    /// in a file.
    fn survives(&self) -> Option<Survives> {
        None
    }

    /// The account of everything done on this part.
    fn meter(&self) -> &Meter;
}
