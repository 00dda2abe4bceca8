//! The media of a run: simulated, recorded, and watched for what is read from them.
//!
//! A scheme has one medium or several. They hang on one supply, so that their changes have one order and a power cut hits all at one
//! [`Moment`]; what each then loses is its own affair, and every combination of what they may lose can be what is left. To
//! whoever enumerates, judges or replays, several media are like one: the atoms of all are numbered through, and what
//! they hold is one value ([`Contents`]).
//!
//! **Units** are pieces of 512 bytes, numbered over all media: what was read, and in what two contents differ, are sets of units. A
//! power cut may tear a unit: a sector of a block device it does not, in persistent memory each word is on its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use stetfs_media::pmem::{Pmem, Survives};
use stetfs_media::sim::{
    Atom, CrashPoint, Entry, Keep, Rig, SimOptions, SimPmem, SimPmemOptions, Tape,
    joint_crash_points,
};
use stetfs_media::{BlockDev, Cause, Image, Layer, MediaError, Meter, PmemDev, SimDev, Tag};

/// Bytes of a unit.
pub const UNIT: u64 = 512;

/// A unit's number, over all media.
pub type Unit = u32;

/// Bytes of the pages that images share.
const PAGE: u64 = 4096;

/// What a medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block device with sectors of 512 bytes and a volatile cache.
    Block,
    /// Persistent memory behind a processor's cache.
    Pmem,
}

impl Kind {
    /// Its name on the command line and in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Pmem => "pmem",
        }
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let kinds = [Self::Block, Self::Pmem];
        let found = kinds.into_iter().find(|kind| kind.name() == name);
        found.with_context(|| format!("there is no medium {name}: block or pmem"))
    }
}

/// What all media of a run hold. Clones share what they have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents(Vec<(Kind, Image)>);

impl Contents {
    /// The contents of these media, the home device first.
    pub fn new(media: Vec<(Kind, Image)>) -> Self {
        assert!(!media.is_empty(), "a home device");
        Self(media)
    }

    /// The content of a home device without further media.
    pub fn of_block_device(image: Image) -> Self {
        Self(vec![(Kind::Block, image)])
    }

    /// The home device: where the volume is.
    pub fn home(&self) -> &Image {
        &self.0[0].1
    }

    fn images(&self) -> impl Iterator<Item = &Image> {
        self.0.iter().map(|(_, image)| image)
    }

    /// Units of all media.
    pub fn units(&self) -> usize {
        self.images().map(units_of).sum::<u64>() as usize
    }

    /// The units of the pages that the two do not share; each may still have equal content.
    pub fn unshared(&self, other: &Self) -> Vec<Unit> {
        let mut found = Vec::new();
        let mut first = 0;
        for (mine, theirs) in self.images().zip(other.images()) {
            for page in mine.unshared_pages(theirs) {
                let end = (page + PAGE).min(mine.size());
                found.extend((page / UNIT..end.div_ceil(UNIT)).map(|n| (first + n) as Unit));
            }
            first += units_of(mine);
        }
        found
    }

    /// The bytes of a unit.
    pub fn unit(&self, unit: Unit) -> [u8; UNIT as usize] {
        let mut out = [0; UNIT as usize];
        let mut unit = u64::from(unit);
        for image in self.images() {
            let units = units_of(image);
            if unit < units {
                image.read(unit * UNIT, &mut out);
                break;
            }
            unit -= units;
        }
        out
    }
}

fn units_of(image: &Image) -> u64 {
    image.size() / UNIT
}

/// A set of units.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitSet(Box<[u64]>);

impl UnitSet {
    fn new(units: usize) -> Self {
        Self(vec![0; units.div_ceil(64)].into())
    }

    /// Whether the unit is in it.
    pub fn contains(&self, unit: Unit) -> bool {
        self.0[unit as usize / 64] & 1 << (unit % 64) != 0
    }

    fn insert(&mut self, unit: Unit) {
        self.0[unit as usize / 64] |= 1 << (unit % 64);
    }
}

/// What a run did to its media besides what the tape says.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Units that were read before they were written: what the run depended on, and all that it depended on.
    pub read: UnitSet,
    /// Units that were written.
    pub written: UnitSet,
}

/// A simulated medium.
enum Medium {
    Block(Arc<SimDev>),
    Pmem(Arc<SimPmem>),
}

/// Simulated media on one supply, all with a tape.
pub struct Media {
    rig: Rig,
    media: Vec<Medium>,
    watched: Arc<Mutex<Watched>>,
}

impl Media {
    /// Media with these contents, all of it stable.
    pub fn new(contents: &Contents) -> Self {
        let rig = Rig::default();
        let make = |(kind, image): &(Kind, Image)| match kind {
            Kind::Block => {
                let dev = SimOptions::default().build_on(&rig, image.clone());
                Medium::Block(Arc::new(dev))
            }
            Kind::Pmem => {
                let pmem = SimPmemOptions::default().build_on(&rig, image.clone());
                Medium::Pmem(Arc::new(pmem))
            }
        };
        let none = UnitSet::new(contents.units());
        Self {
            media: contents.0.iter().map(make).collect(),
            watched: Arc::new(Mutex::new(Watched {
                read: none.clone(),
                written: none,
            })),
            rig,
        }
    }

    /// The home device, not watched.
    pub fn home(&self) -> Arc<dyn BlockDev> {
        match &self.media[0] {
            Medium::Block(dev) => dev.clone(),
            Medium::Pmem(pmem) => Arc::new(PmemDev::new(pmem.clone())),
        }
    }

    /// The home device as a volume sees it that is watched.
    pub fn watched_home(&self) -> Arc<dyn BlockDev> {
        let watch = Watch {
            first: 0,
            watched: self.watched.clone(),
        };
        match &self.media[0] {
            Medium::Block(dev) => Arc::new(WatchedDev {
                dev: dev.clone(),
                watch,
            }),
            Medium::Pmem(pmem) => Arc::new(PmemDev::new(Arc::new(WatchedPmem {
                pmem: pmem.clone(),
                watch,
            }))),
        }
    }

    /// Changes on all media so far.
    pub fn changes(&self) -> u64 {
        self.rig.power.changes()
    }

    /// What was read and written so far by whoever was watched.
    pub fn watched(&self) -> Watched {
        self.watched.lock().clone()
    }

    /// What they hold now.
    pub fn contents(&self) -> Contents {
        let content = |medium: &Medium| match medium {
            Medium::Block(dev) => (Kind::Block, dev.newest()),
            Medium::Pmem(pmem) => (Kind::Pmem, pmem.newest()),
        };
        Contents(self.media.iter().map(content).collect())
    }

    /// The record of all changes so far.
    pub fn tapes(&self) -> Tapes {
        let tape = |medium: &Medium| match medium {
            Medium::Block(dev) => (Kind::Block, dev.tape()),
            Medium::Pmem(pmem) => (Kind::Pmem, pmem.tape()),
        };
        let (kinds, tapes) = self.media.iter().map(tape).unzip();
        Tapes { kinds, tapes }
    }
}

/// The tapes of all media of a run.
#[derive(Clone, Debug)]
pub struct Tapes {
    kinds: Vec<Kind>,
    tapes: Vec<Tape>,
}

impl Tapes {
    /// Changes on all media.
    pub fn changes(&self) -> u64 {
        let ends = self.tapes.iter().filter_map(|tape| tape.numbers().last());
        ends.max().map_or(0, |last| last + 1)
    }

    /// The moments after `wanted` changes, which ascend, as far as there are so many.
    pub fn moments(
        &self,
        wanted: impl IntoIterator<Item = u64>,
    ) -> impl Iterator<Item = Moment<'_>> {
        let mut points = joint_crash_points(&self.tapes);
        let mut passed = 0;
        wanted.into_iter().map_while(move |at| {
            let media = points.nth((at - passed) as usize)?;
            passed = at + 1;
            Some(Moment { tapes: self, media })
        })
    }

    /// The moment after `at` changes; none when there are not so many.
    pub fn moment(&self, at: u64) -> Option<Moment<'_>> {
        self.moments([at]).next()
    }

    /// The moments just before a flush or fence: then more is pending than ever since the one before, and what could be left earlier
    /// can still be.
    pub fn brims(&self) -> BTreeSet<u64> {
        let brims = |tape: &Tape| {
            let entries = tape.entries().iter().zip(tape.numbers());
            let settles =
                |entry: &Entry| matches!(entry, Entry::Flush { .. } | Entry::Fence { .. });
            entries
                .filter(|(entry, _)| settles(entry))
                .map(|(_, number)| *number)
                .collect::<Vec<_>>()
        };
        self.tapes.iter().flat_map(brims).collect()
    }
}

/// A moment at which the power of all media goes off.
pub struct Moment<'a> {
    tapes: &'a Tapes,
    media: Vec<CrashPoint>,
}

/// An atom of a moment, numbered over all media.
#[derive(Clone, Copy, Debug)]
pub struct AtomOf {
    /// Its number, by which a [`Keep`] knows it.
    pub number: usize,
    medium: usize,
    atom: Atom,
}

impl AtomOf {
    /// Which change it is a part of: the medium and the position on its tape.
    pub fn change(&self) -> (usize, usize) {
        (self.medium, self.atom.entry)
    }
}

/// Bytes that an atom writes, in one unit.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The unit.
    pub unit: Unit,
    /// Where in it.
    pub at: usize,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Moment<'_> {
    /// How many changes had been carried out.
    pub fn at(&self) -> u64 {
        self.media[0].moment()
    }

    /// The atoms that make a difference, in the order in which they were written.
    pub fn relevant(&self) -> Vec<AtomOf> {
        let mut relevant = Vec::new();
        let mut first = 0;
        for (medium, point) in self.media.iter().enumerate() {
            let atoms = point.atoms();
            relevant.extend(point.relevant_atoms().into_iter().map(|n| AtomOf {
                number: first + n,
                medium,
                atom: atoms[n],
            }));
            first += atoms.len();
        }
        relevant.sort_by_key(|a| {
            (
                self.tapes.tapes[a.medium].numbers().get(a.atom.entry),
                a.number,
            )
        });
        relevant
    }

    /// Atoms, those included that make no difference.
    pub fn atoms(&self) -> usize {
        self.media.iter().map(|point| point.atoms().len()).sum()
    }

    /// What is left of the media when just the atoms are there that `keep` names.
    pub fn contents(&self, keep: &Keep) -> Contents {
        self.contents_of(|number| keep.keeps(number))
    }

    /// The same with the choice as a function.
    pub fn contents_of(&self, keep: impl Fn(usize) -> bool) -> Contents {
        let mut first = 0;
        let mut images = Vec::with_capacity(self.media.len());
        for point in &self.media {
            images.push(point.image(|n| keep(first + n)));
            first += point.atoms().len();
        }
        Contents(self.tapes.kinds.iter().copied().zip(images).collect())
    }

    /// Where an atom lies and its bytes; none when it has none (a discard) or lies in several units.
    pub fn piece(&self, atom: &AtomOf) -> Option<Piece<'_>> {
        let Atom {
            entry, offset, len, ..
        } = atom.atom;
        let tape = &self.tapes.tapes[atom.medium];
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
        let before = self.tapes.tapes[..atom.medium].iter();
        let before: u64 = before.map(|tape| units_of(tape.start())).sum();
        let skip = (offset - start) as usize;
        (offset / UNIT == (offset + len - 1) / UNIT).then(|| Piece {
            unit: (before + offset / UNIT) as Unit,
            at: (offset % UNIT) as usize,
            bytes: &data[skip..skip + len as usize],
        })
    }

    /// What the atoms are that `keep` leaves out or keeps, whichever are fewer: for people.
    pub fn describe(&self, keep: &Keep) -> String {
        let relevant = self.relevant();
        let mut by_write: BTreeMap<String, [usize; 2]> = BTreeMap::new();
        for atom in &relevant {
            let what = atom
                .atom
                .tag
                .map_or("discard".to_owned(), |tag| tag.to_string());
            let kept = usize::from(keep.keeps(atom.number));
            by_write.entry(what).or_default()[kept] += 1;
        }
        let shown: Vec<_> = by_write
            .iter()
            .map(|(what, [lost, kept])| format!("{what}: {kept} of {}", lost + kept))
            .collect();
        match shown.is_empty() {
            true => "nothing was pending".to_owned(),
            false => format!(
                "pieces of unflushed changes that are there: {}",
                shown.join(", ")
            ),
        }
    }
}

/// Notes which units of a medium are read and written.
struct Watch {
    /// The number of the medium's first unit.
    first: Unit,
    watched: Arc<Mutex<Watched>>,
}

impl Watch {
    fn units(&self, offset: u64, end: u64) -> Range<Unit> {
        self.first + (offset / UNIT) as Unit..self.first + end.div_ceil(UNIT) as Unit
    }

    fn note_read(&self, offset: u64, len: u64) {
        let mut watched = self.watched.lock();
        for unit in self.units(offset, offset + len) {
            if !watched.written.contains(unit) {
                watched.read.insert(unit);
            }
        }
    }

    /// Units that are written in part are not taken for written: what is read of them may be the rest.
    fn note_write(&self, offset: u64, len: u64) {
        let whole = offset.next_multiple_of(UNIT)..(offset + len) / UNIT * UNIT;
        if whole.start < whole.end {
            let mut watched = self.watched.lock();
            self.units(whole.start, whole.end)
                .for_each(|unit| watched.written.insert(unit));
        }
    }
}

/// A block device that is watched.
struct WatchedDev {
    dev: Arc<SimDev>,
    watch: Watch,
}

impl WatchedDev {
    fn note_parts(&self, offset: u64, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.watch.note_write(offset, len);
    }
}

impl Layer for WatchedDev {
    fn below(&self) -> &dyn BlockDev {
        &*self.dev
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_read(offset, out.len() as u64);
        self.dev.read_at(offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.note_parts(offset, parts);
        self.dev.write_vectored_at(offset, parts, tag)
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.note_parts(offset, parts);
        self.dev.write_durable(offset, parts, tag)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.watch.note_write(offset, len);
        self.dev.discard(offset, len)
    }
}

/// Persistent memory that is watched.
struct WatchedPmem {
    pmem: Arc<SimPmem>,
    watch: Watch,
}

impl Pmem for WatchedPmem {
    fn describe(&self) -> String {
        self.pmem.describe()
    }

    fn size(&self) -> u64 {
        self.pmem.size()
    }

    fn survives(&self) -> Survives {
        self.pmem.survives()
    }

    fn read_only(&self) -> bool {
        self.pmem.read_only()
    }

    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_read(offset, out.len() as u64);
        self.pmem.load(offset, out, tag)
    }

    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError> {
        self.watch.note_read(offset, 8);
        self.pmem.load_u64(offset, tag)
    }

    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_write(offset, data.len() as u64);
        self.pmem.store(offset, data, tag)
    }

    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError> {
        self.pmem.store_u64(offset, value, tag)
    }

    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_write(offset, data.len() as u64);
        self.pmem.store_nt(offset, data, tag)
    }

    fn flush(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        self.pmem.flush(offset, len, tag)
    }

    fn fence(&self, cause: Cause) -> Result<(), MediaError> {
        self.pmem.fence(cause)
    }

    fn meter(&self) -> &Meter {
        self.pmem.meter()
    }
}
