//! The contract of NAND flash, against which a flash translation layer is written.
//!
//! - A part is divided into erase blocks, a block into pages. A page has its data and a *spare
//!   area* for whoever manages the part; both are read and programmed together. Error correction is
//!   below this line: its check bits lie elsewhere, and the spare area belongs to the caller but
//!   for one byte (see bad blocks).
//! - A page is *programmed* as a whole, once between two erases of its block, and the pages of a
//!   block in order: the first, the second and so on, none left out. (Datasheets: "consecutively
//!   within a block"; programming a page again or out of order disturbs its neighbours.) A page
//!   that was not programmed since the last erase reads as bytes of 0xff.
//! - When [`Nand::program`] or [`Nand::erase`] has returned, it is durable: a part has no cache.
//! - A power cut in the middle of a program leaves anything in that page: nothing that can be seen,
//!   although it must not be programmed before the next erase; less than the code corrects, which
//!   reads as an error or, when the code is deceived, as something else *without* an error; the
//!   whole page, but so weakly that it can be read once and not again. Whoever finds such a page at
//!   power-up has to bring what he believes elsewhere before he relies on it, and to leave the rest
//!   of its block alone. No other page is touched.
//! - A power cut in the middle of an erase leaves each page of that block as it was, erased or
//!   unreadable; however it looks, the block has to be erased before it is programmed.
//! - Program and erase can fail: the block has *grown bad*. What was programmed in it before can
//!   still be read, except after a failed erase. It must not be programmed or erased any more; its
//!   content is to be saved and the block marked ([`Nand::mark_bad`]).
//! - Bad blocks have another byte than 0xff at [`NandGeometry::bad_mark`] in the spare area of
//!   their first page, those that were bad from the factory included. Whoever programs a first page
//!   leaves 0xff there. The first block is not bad from the factory.
//! - Reading wears out, too: wrong bits become more with each erase of the block and each read of
//!   any of its pages. Up to [`NandEcc::strength_bits`] a codeword are corrected and reported
//!   ([`Corrected`]), so that the page can be moved in time.
//! - Every request that succeeded is counted by the [`Meter`]: pages read and programmed with the
//!   bytes of their data (of the spare area when only that was asked for), erases, and busy time.
//!
//! What breaks these rules on the caller's side panics: it is a mistake of ours and shall be found.

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
    /// Wrong bits in the worst codeword. When they come near [`NandEcc::strength_bits`], the page
    /// should be moved.
    pub bits: u32,
}

/// A NAND flash part.
pub trait Nand: Send + Sync {
    /// What it is, for messages: `NAND, 128 MiB`.
    fn describe(&self) -> String;

    /// Pages and blocks. They do not change.
    fn geometry(&self) -> NandGeometry;

    /// What is corrected on the way out.
    fn ecc(&self) -> NandEcc;

    /// Fills `data` and `spare`, which have the lengths of a page's, with what was programmed.
    ///
    /// [`NandError::Uncorrectable`]: both hold something else, or part of it; reading again may or
    /// may not do better.
    fn read(
        &self,
        page: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError>;

    /// Fills `spare` as [`read`](Self::read) does, and says nothing about the data.
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

    /// Marks a block bad for good. What can still be read of it stays readable; marking it again
    /// changes nothing.
    fn mark_bad(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError>;

    /// What its content survives besides power cuts of the part itself, where it lives in a file.
    fn survives(&self) -> Option<Survives> {
        None
    }

    /// The account of everything done on this part.
    fn meter(&self) -> &Meter;
}
