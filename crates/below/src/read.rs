//! Reads: the newest content of each block, in as few reads of the medium as possible.

use std::ops::Range;
use std::sync::atomic::Ordering;

use stetfs_format::BlockNo;
use stetfs_format::block_size::Piece;
use stetfs_format::width::{must_fit, usize_as_u64};
use stetfs_media::{BlockRef, Tag};
use stetfs_scheme::Held;

use crate::core::Core;
use crate::error::BelowError;
use crate::superblock;

/// Where the content of a part of a read is.
enum Source {
    /// In JBD2's superblock, as it is shown.
    Head,
    /// In the journal, which reads as empty.
    Journal,
    /// In the block of the superblock, as it is shown.
    Superblock,
    /// In memory.
    Memory(BlockRef),
    /// In the scheme or at home. Such neighbours are one part.
    Scheme,
}

impl Core {
    /// Fills `out` with the newest content.
    ///
    /// # Errors
    /// The scheme's or the medium's.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), BelowError> {
        for (source, piece) in self.sources(offset, out.len()) {
            let part = &mut out[piece.in_range()];
            match source {
                Source::Head => {
                    // Whoever reads it replays the log next.
                    let mut state = self.state.lock();
                    state.replayed();
                    let shown = state.collector.superblock();
                    part.copy_from_slice(&shown.bytes()[piece.in_block()]);
                }
                Source::Journal => part.fill(0),
                Source::Superblock => {
                    let mut content = self.content(piece.block)?;
                    let needs_recovery = self.needs_recovery.load(Ordering::Relaxed);
                    superblock::unmark(content.make_mut(), self.size, needs_recovery);
                    part.copy_from_slice(&content[piece.in_block()]);
                }
                Source::Memory(content) => part.copy_from_slice(&content[piece.in_block()]),
                Source::Scheme => self.read_run(&piece, part, tag)?,
            }
        }
        Ok(())
    }

    /// The parts of a read, each with where its content is.
    fn sources(&self, offset: u64, len: usize) -> Vec<(Source, Piece)> {
        let mut state = self.state.lock();
        let mut parts: Vec<(Source, Piece)> = Vec::new();
        for piece in self.size.pieces(offset, len) {
            let source = match state.collector.number(piece.block) {
                Some(0) => Source::Head,
                Some(_) => Source::Journal,
                None if piece.block == self.superblock => Source::Superblock,
                None => state
                    .content(piece.block)
                    .map_or(Source::Scheme, Source::Memory),
            };
            match (parts.last_mut(), &source) {
                (Some((Source::Scheme, last)), Source::Scheme) => last.len += piece.len,
                _ => parts.push((source, piece)),
            }
        }
        parts
    }

    /// Reads neighbours that are not in memory.
    fn read_run(&self, run: &Piece, out: &mut [u8], tag: Tag) -> Result<(), BelowError> {
        let at = self.size.offset_of(run.block) + usize_as_u64(run.within);
        let blocks = self.size.span(at, usize_as_u64(run.len));
        let count = must_fit(blocks.end - blocks.start);
        let scheme = &self.alone.opened.scheme;
        if !scheme.holds_any(BlockNo(blocks.start), count) {
            return Ok(self.dev().read_at(at, out, tag)?);
        }
        // What is home is read in one request as far as it goes.
        let mut home = 0..0;
        for piece in self.size.pieces(at, run.len) {
            let part = piece.in_range();
            match scheme.read(BlockNo(piece.block))? {
                Held::Here(content) => {
                    out[part].copy_from_slice(&content[piece.in_block()]);
                    self.read_home(at, out, std::mem::take(&mut home), tag)?;
                }
                Held::Home if home.is_empty() => home = part,
                Held::Home => home.end = part.end,
            }
        }
        self.read_home(at, out, home, tag)
    }

    /// Reads a part of what begins at byte `at` of the medium.
    fn read_home(
        &self,
        at: u64,
        out: &mut [u8],
        part: Range<usize>,
        tag: Tag,
    ) -> Result<(), BelowError> {
        if part.is_empty() {
            return Ok(());
        }
        let from = at + usize_as_u64(part.start);
        Ok(self.dev().read_at(from, &mut out[part], tag)?)
    }
}
