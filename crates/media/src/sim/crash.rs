//! What a power cut can leave: a moment, its atoms, and the images that come of keeping some of them.

use std::fmt;

use hashbrown::HashSet;

use crate::image::Image;
use crate::sim::pending::{Pending, Piece, Volatile, pieces, put};
use crate::sim::tape::Entry;
use crate::sim::{CrashImage, Keep, SimOptions};
use crate::tag::Tag;

/// A moment at which the power goes off: the stable content, and the pending changes of which any part may
/// have got there. The change that was in flight is among them, durable or not.
#[derive(Clone)]
pub struct CrashPoint {
    position: usize,
    moment: u64,
    options: SimOptions,
    stable: Image,
    pending: Vec<Pending>,
    atoms: Vec<Atom>,
    /// For each pending change, the index of its first atom, or that it has none (it is certain).
    first_atom: Vec<Option<usize>>,
}

/// A piece of a pending change that is there or is not there after the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom {
    /// Position on the tape of the change that it belongs to.
    pub entry: usize,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The label of the write; none for a discard.
    pub tag: Option<Tag>,
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}+{}", self.entry, self.offset, self.len)?;
        match self.tag {
            Some(tag) => write!(f, " {tag}"),
            None => f.write_str(" discard"),
        }
    }
}

impl CrashPoint {
    pub(crate) fn new(
        position: usize,
        moment: u64,
        options: SimOptions,
        volatile: &Volatile,
        in_flight: Option<Entry>,
    ) -> Self {
        let mut pending = volatile.pending().to_vec();
        let in_flight = in_flight.filter(|entry| !matches!(entry, Entry::Flush { .. }));
        pending.extend(in_flight.map(|entry| Pending {
            position,
            entry,
            fixed: false,
        }));
        let mut point = Self {
            position,
            moment,
            options,
            stable: volatile.stable().clone(),
            pending,
            atoms: Vec::new(),
            first_atom: Vec::new(),
        };
        point.find_atoms();
        point
    }

    fn find_atoms(&mut self) {
        for pending in &self.pending {
            let first = self.atoms.len();
            self.first_atom.push((!pending.fixed).then_some(first));
            if pending.fixed {
                continue;
            }
            let tag = match pending.entry {
                Entry::Write { tag, .. } => Some(tag),
                _ => None,
            };
            let atom = |piece: Piece| Atom {
                entry: pending.position,
                offset: piece.offset,
                len: piece.len,
                tag,
            };
            self.atoms
                .extend(pieces(&pending.entry, u64::from(self.options.atomic_unit)).map(atom));
        }
    }

    /// How many entries of the tape had been carried out.
    pub fn position(&self) -> usize {
        self.position
    }

    /// How many changes had been carried out on all media of the supply. Between two changes of this device there
    /// are as many moments as others had changes; [`Tape::crash_points`](crate::sim::Tape::crash_points) gives the last of them.
    pub fn moment(&self) -> u64 {
        self.moment
    }

    /// What is certain to be there, without what the device called durable above a pending write.
    pub fn stable(&self) -> &Image {
        &self.stable
    }

    /// Everything that may be there or not, in the order of the tape. Each subset is a state that the device may
    /// be left in; later atoms lie over earlier ones.
    pub fn atoms(&self) -> &[Atom] {
        &self.atoms
    }

    /// The content after the cut when exactly those atoms are there for which `keep`, given their
    /// index in [`atoms`](Self::atoms), says so. It is asked once for each, in ascending order.
    pub fn image(&self, mut keep: impl FnMut(usize) -> bool) -> Image {
        let mut image = self.stable.clone();
        let fill = self.options.discard_fill;
        for (pending, first) in self.pending.iter().zip(&self.first_atom) {
            let Some(first) = first else {
                put(&mut image, &pending.entry, None, fill);
                continue;
            };
            for (i, piece) in
                pieces(&pending.entry, u64::from(self.options.atomic_unit)).enumerate()
            {
                if keep(first + i) {
                    put(&mut image, &pending.entry, Some(piece), fill);
                }
            }
        }
        image
    }

    /// The state that `keep` describes, as a device.
    pub fn crash(&self, keep: &Keep) -> CrashImage {
        CrashImage::new(self.image(|i| keep.keeps(i)), self.options)
    }

    /// Indices of the atoms that can make a difference. The others are covered by something later and certain, or
    /// write what is there anyway: whether they are kept changes nothing, so whoever enumerates states
    /// leaves them out.
    pub fn relevant_atoms(&self) -> Vec<usize> {
        let covered = self.covered_atoms();
        let mut touched = Touched::new(self.options.sector);
        let mut relevant = Vec::new();
        for (pending, first) in self.pending.iter().zip(&self.first_atom) {
            let Some(first) = first else {
                pieces(&pending.entry, u64::MAX).for_each(|piece| touched.add(piece));
                continue;
            };
            for (i, piece) in
                pieces(&pending.entry, u64::from(self.options.atomic_unit)).enumerate()
            {
                let changes_nothing =
                    !touched.meets(piece) && self.is_stable_content(&pending.entry, piece);
                if !changes_nothing {
                    touched.add(piece);
                    if !covered.contains(&(first + i)) {
                        relevant.push(first + i);
                    }
                }
            }
        }
        relevant
    }

    /// Atoms that lie wholly under later changes that are certain.
    fn covered_atoms(&self) -> HashSet<usize> {
        let mut certain = Touched::new(self.options.sector);
        let mut covered = HashSet::new();
        for (pending, first) in self.pending.iter().zip(&self.first_atom).rev() {
            let Some(first) = first else {
                pieces(&pending.entry, u64::MAX).for_each(|piece| certain.add(piece));
                continue;
            };
            for (i, piece) in
                pieces(&pending.entry, u64::from(self.options.atomic_unit)).enumerate()
            {
                if certain.covers(piece) {
                    covered.insert(first + i);
                }
            }
        }
        covered
    }

    /// Whether a piece of a write is already in the stable content.
    fn is_stable_content(&self, entry: &Entry, piece: Piece) -> bool {
        let Entry::Write { offset, data, .. } = entry else {
            return false;
        };
        let start = (piece.offset - offset) as usize;
        let mut there = vec![0; piece.len as usize];
        self.stable.read(piece.offset, &mut there);
        there == data[start..start + there.len()]
    }
}

/// A set of sectors, with long ranges kept apart.
struct Touched {
    sector: u64,
    sectors: HashSet<u64>,
    long: Vec<Piece>,
}

impl Touched {
    /// Sectors from which on a range is not taken apart.
    const LONG: u64 = 4096;

    fn new(sector: u32) -> Self {
        Self {
            sector: u64::from(sector),
            sectors: HashSet::new(),
            long: Vec::new(),
        }
    }

    fn sectors_of(&self, piece: Piece) -> std::ops::Range<u64> {
        piece.offset / self.sector..(piece.offset + piece.len).div_ceil(self.sector)
    }

    fn add(&mut self, piece: Piece) {
        let sectors = self.sectors_of(piece);
        if sectors.end - sectors.start < Self::LONG {
            self.sectors.extend(sectors);
        } else {
            self.long.push(piece);
        }
    }

    fn has(&self, sector: u64) -> bool {
        let at = sector * self.sector;
        let in_long = self
            .long
            .iter()
            .any(|long| (long.offset..long.offset + long.len).contains(&at));
        self.sectors.contains(&sector) || in_long
    }

    fn meets(&self, piece: Piece) -> bool {
        self.sectors_of(piece).any(|sector| self.has(sector))
    }

    fn covers(&self, piece: Piece) -> bool {
        self.sectors_of(piece).all(|sector| self.has(sector))
    }
}

impl fmt::Debug for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashPoint")
            .field("position", &self.position)
            .field("atoms", &self.atoms.len())
            .finish_non_exhaustive()
    }
}
