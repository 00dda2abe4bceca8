//! Moments of a power cut, and what each may leave of the media.
//!
//! Of a block device and of memory, a cut may leave any choice of the pending *pieces*. Of a NAND
//! part, a cut leaves all earlier changes, and the one change in flight ends in one of several ways
//! ([`Outcome`]). Each way counts as a piece, except the first: the change had not begun. If
//! several of these pieces are kept, the last one counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use stetfs_media::Image;
use stetfs_media::nand::{NandCrashPoint, NandCrashPoints, NandTape, Outcome};
use stetfs_media::sim::{CrashPoint, CrashPoints, Entry, Keep, Piece, Tape};

use super::flash;
use crate::media::contents::Contents;
use crate::media::kind::{Kind, UNIT, Unit, units_of};

/// The tape of a medium.
#[derive(Clone, Debug)]
pub(super) enum TapeOf {
    /// Of a block device or of memory.
    Plain(Kind, Tape),
    /// Of a NAND part.
    Nand(Kind, NandTape),
}

impl TapeOf {
    fn numbers(&self) -> &[u64] {
        match self {
            Self::Plain(_, tape) => tape.numbers(),
            Self::Nand(_, tape) => tape.numbers(),
        }
    }

    /// Returns the units of the medium; `None` for a NAND part, which is the only medium or the
    /// last.
    fn units(&self) -> Option<u64> {
        match self {
            Self::Plain(_, tape) => Some(units_of(tape.start())),
            Self::Nand(..) => None,
        }
    }

    fn points(&self) -> Points {
        match self {
            Self::Plain(kind, tape) => Points::Plain(*kind, Box::new(tape.crash_points())),
            Self::Nand(kind, tape) => Points::Nand(*kind, Box::new(tape.crash_points())),
        }
    }
}

/// The moments of a tape, one after the other.
enum Points {
    Plain(Kind, Box<CrashPoints>),
    Nand(Kind, Box<NandCrashPoints>),
}

impl Points {
    fn at(&mut self, moment: u64) -> PointOf {
        match self {
            Self::Plain(kind, points) => PointOf::Plain(*kind, points.at_moment(moment)),
            Self::Nand(kind, points) => PointOf::Nand(*kind, Box::new(points.at_moment(moment))),
        }
    }
}

/// A medium at a moment.
enum PointOf {
    Plain(Kind, CrashPoint),
    Nand(Kind, Box<NandCrashPoint>),
}

impl PointOf {
    /// Returns the number of pieces, including those that make no difference.
    fn pieces(&self) -> usize {
        match self {
            Self::Plain(_, point) => point.pieces().len(),
            Self::Nand(_, point) => point.outcomes().len() - 1,
        }
    }

    fn left(&self, keep: impl Fn(usize) -> bool) -> (Kind, Image) {
        match self {
            Self::Plain(kind, point) => (*kind, point.image(keep)),
            Self::Nand(kind, point) => {
                let outcomes = point.outcomes();
                let last = (1..outcomes.len()).rev().find(|n| keep(n - 1));
                let outcome = outcomes[last.unwrap_or(0)];
                let nand = point.crash(outcome);
                flash::settle(*kind, &nand);
                (*kind, nand.image())
            }
        }
    }
}

/// The tapes of all media of a run.
#[derive(Clone, Debug)]
pub struct Tapes {
    tapes: Vec<TapeOf>,
}

impl Tapes {
    pub(super) fn new(tapes: Vec<TapeOf>) -> Self {
        Self { tapes }
    }

    /// Returns the changes from `from` on, in their order: the medium (0 is the home device), and
    /// the change as its tape prints it.
    pub fn shown_since(&self, from: u64) -> impl Iterator<Item = (usize, String)> {
        let mut changes = BTreeMap::new();
        for (medium, tape) in self.tapes.iter().enumerate() {
            let mut take = |number: u64, entry: &dyn fmt::Display| {
                if number >= from {
                    changes.insert(number, (medium, entry.to_string()));
                }
            };
            let numbers = tape.numbers().iter().copied();
            match tape {
                TapeOf::Plain(_, tape) => numbers.zip(tape.entries()).for_each(|(n, e)| take(n, e)),
                TapeOf::Nand(_, tape) => numbers.zip(tape.entries()).for_each(|(n, e)| take(n, e)),
            }
        }
        changes.into_values()
    }

    /// Returns the number of changes on all media.
    pub fn changes(&self) -> u64 {
        let ends = self.tapes.iter().filter_map(|tape| tape.numbers().last());
        ends.max().map_or(0, |last| last + 1)
    }

    /// Returns the moments after `wanted` changes, as far as the tapes reach. `wanted` must ascend.
    pub fn moments(
        &self,
        wanted: impl IntoIterator<Item = u64>,
    ) -> impl Iterator<Item = Moment<'_>> {
        let mut points: Vec<_> = self.tapes.iter().map(TapeOf::points).collect();
        let end = self.changes();
        let reached = wanted.into_iter().take_while(move |at| *at <= end);
        reached.map(move |at| Moment {
            at,
            tapes: self,
            media: points.iter_mut().map(|points| points.at(at)).collect(),
        })
    }

    /// Returns the moment after `at` changes; `None` when there are fewer changes.
    pub fn moment(&self, at: u64) -> Option<Moment<'_>> {
        self.moments([at]).next()
    }

    /// Returns the moments just before a flush or fence. There, more is pending than at any moment
    /// since the one before, and every state that was possible since then still is. A NAND part has
    /// none.
    pub fn pre_flush_moments(&self) -> BTreeSet<u64> {
        let of_tape = |tape: &TapeOf| {
            let TapeOf::Plain(_, tape) = tape else {
                return Vec::new();
            };
            let entries = tape.entries().iter().zip(tape.numbers());
            let settles =
                |entry: &Entry| matches!(entry, Entry::Flush { .. } | Entry::Fence { .. });
            entries
                .filter(|(entry, _)| settles(entry))
                .map(|(_, number)| *number)
                .collect::<Vec<_>>()
        };
        self.tapes.iter().flat_map(of_tape).collect()
    }
}

/// A moment at which the power of all media fails.
pub struct Moment<'a> {
    at: u64,
    tapes: &'a Tapes,
    media: Vec<PointOf>,
}

/// A piece at a moment, with its number over all media.
#[derive(Clone, Copy, Debug)]
pub struct PieceOf {
    /// The number by which a [`Keep`] names it.
    pub number: usize,
    medium: usize,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Bytes that are there or not.
    Piece(Piece),
    /// A way in which the change at this position of the tape ends.
    Ending(usize, Outcome),
}

impl PieceOf {
    /// Returns the change that it is a part of: the medium, and the position on its tape.
    pub fn change(&self) -> (usize, usize) {
        let entry = match self.what {
            What::Piece(piece) => piece.entry,
            What::Ending(entry, _) => entry,
        };
        (self.medium, entry)
    }

    /// True if it is one of several ways to end a change.
    pub fn is_alternative(&self) -> bool {
        matches!(self.what, What::Ending(..))
    }
}

/// Bytes that a piece writes, in one unit.
#[derive(Clone, Copy, Debug)]
pub struct UnitWrite<'a> {
    /// The unit.
    pub unit: Unit,
    /// The first byte in the unit.
    pub at: usize,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Moment<'_> {
    /// Returns the number of changes before it.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the pieces that make a difference, in the order in which they were written.
    pub fn relevant(&self) -> Vec<PieceOf> {
        let mut relevant = Vec::new();
        let mut first = 0;
        for (medium, point) in self.media.iter().enumerate() {
            let mut add = |n: usize, what| {
                relevant.push(PieceOf {
                    number: first + n,
                    medium,
                    what,
                });
            };
            match point {
                PointOf::Plain(_, point) => {
                    let pieces = point.pieces();
                    let those = point.relevant_pieces().into_iter();
                    those.for_each(|n| add(n, What::Piece(pieces[n])));
                }
                PointOf::Nand(_, point) => {
                    let endings = point.outcomes().iter().skip(1).enumerate();
                    endings.for_each(|(n, way)| add(n, What::Ending(point.position(), *way)));
                }
            }
            first += point.pieces();
        }
        relevant.sort_by_key(|piece| {
            let (medium, entry) = piece.change();
            (self.tapes.tapes[medium].numbers().get(entry), piece.number)
        });
        relevant
    }

    /// Returns the number of pieces, including those that make no difference.
    pub fn pieces(&self) -> usize {
        self.media.iter().map(PointOf::pieces).sum()
    }

    /// Returns the contents of the media when exactly the pieces are there that `keep` names.
    pub fn contents(&self, keep: &Keep) -> Contents {
        self.contents_of(|number| keep.keeps(number))
    }

    /// Does the same with the choice as a function.
    pub fn contents_of(&self, keep: impl Fn(usize) -> bool) -> Contents {
        let mut first = 0;
        let mut left = Vec::with_capacity(self.media.len());
        for point in &self.media {
            left.push(point.left(|n| keep(first + n)));
            first += point.pieces();
        }
        Contents::new(left)
    }

    /// Returns the units in which a piece lies; `None` for a change of a NAND part.
    pub fn units(&self, piece: &PieceOf) -> Option<Range<Unit>> {
        let What::Piece(Piece { offset, len, .. }) = piece.what else {
            return None;
        };
        let before = self.units_before(piece.medium)?;
        let unit = |n| (before + n) as Unit;
        Some(unit(offset / UNIT)..unit((offset + len).div_ceil(UNIT)))
    }

    fn units_before(&self, medium: usize) -> Option<u64> {
        self.tapes.tapes[..medium].iter().map(TapeOf::units).sum()
    }

    /// Returns the bytes of a piece and where they lie; `None` when it has no bytes (a discard, a
    /// change of a NAND part) or lies in several units.
    pub fn unit_write(&self, piece: &PieceOf) -> Option<UnitWrite<'_>> {
        let (
            What::Piece(Piece {
                entry, offset, len, ..
            }),
            TapeOf::Plain(_, tape),
        ) = (piece.what, &self.tapes.tapes[piece.medium])
        else {
            return None;
        };
        let (Entry::Write {
            offset: start,
            data,
            ..
        }
        | Entry::Store {
            offset: start,
            data,
            ..
        }) = &tape.entries()[entry]
        else {
            return None;
        };
        let before = self.units_before(piece.medium)?;
        let skip = (offset - start) as usize;
        (offset / UNIT == (offset + len - 1) / UNIT).then(|| UnitWrite {
            unit: (before + offset / UNIT) as Unit,
            at: (offset % UNIT) as usize,
            bytes: &data[skip..skip + len as usize],
        })
    }

    /// Describes for people which of the pending pieces `keep` keeps.
    pub fn describe(&self, keep: &Keep) -> String {
        let relevant = self.relevant();
        let mut by_write: BTreeMap<String, [usize; 2]> = BTreeMap::new();
        let mut ending = None;
        for piece in &relevant {
            let is_kept = keep.keeps(piece.number);
            match piece.what {
                What::Piece(piece) => {
                    let what = piece
                        .tag
                        .map_or("discard".to_owned(), |tag| tag.to_string());
                    by_write.entry(what).or_default()[usize::from(is_kept)] += 1;
                }
                What::Ending(entry, way) => {
                    let (change, before) = ending.get_or_insert((entry, Outcome::NotStarted));
                    (*change, *before) = (entry, if is_kept { way } else { *before });
                }
            }
        }
        let mut shown: Vec<_> = by_write
            .iter()
            .map(|(what, [lost, kept])| format!("{what}: {kept} of {}", lost + kept))
            .collect();
        if !shown.is_empty() {
            shown[0].insert_str(0, "pieces of unflushed changes that are there: ");
        }
        shown.extend(ending.and_then(|(entry, way)| self.describe_ending(entry, way)));
        if shown.is_empty() {
            "nothing was pending".to_owned()
        } else {
            shown.join(", ")
        }
    }

    fn describe_ending(&self, entry: usize, way: Outcome) -> Option<String> {
        self.tapes.tapes.iter().find_map(|tape| match tape {
            TapeOf::Plain(..) => None,
            TapeOf::Nand(_, tape) => Some(format!("{}: {way}", tape.entries()[entry])),
        })
    }
}
