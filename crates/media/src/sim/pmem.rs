//! Simulated persistent memory.
//!
//! - A store reaches the medium by a flush and a fence, by a fence alone if it went past the cache,
//!   or at random: see `lines.rs`.
//! - Flushing a line that holds nothing new, and a fence with nothing to wait for, are counted and
//!   take time as usual: a processor charges for them too.
//! - A range beyond the end and a misaligned word panic.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{MediaError, Op};
use crate::image::Image;
use crate::meter::Meter;
use crate::pmem::contract::{LINE, Pmem, Survives, WORD, check_words, lines_touched};
use crate::range::check_in_device;
use crate::sim::crash::CrashPoint;
use crate::sim::entry::Entry;
use crate::sim::fault::{FaultPlan, plans_errors};
use crate::sim::medium::Medium;
use crate::sim::power::Rig;
use crate::sim::saboteur;
use crate::sim::tape::Tape;
use crate::sim::volatile::Kind;
use crate::tag::{Cause, Tag};
use stetfs_format::width::{u64_as_usize, usize_as_u64};

/// How long persistent memory takes for each cache line loaded, and for each flushed or stored past
/// the cache. A store into the cache and a fence take no time of their own: the wait is charged to
/// the lines. Lines that a processor would still have in its cache are charged too.
///
/// | | load, ns a line | flush, ns a line | source |
/// |---|---|---|---|
/// | dram | 50 | 50 | Lee, Bahn, Noh, IEEE Trans. Computers 63(9), 2014 |
/// | nvm | 50 | 180 | Yan, Huang, Huang, NPC 2019, section 5.1 |
/// | pcm | 100 | 350 | as dram; the paper on Shortcut-JFS, by the same group, gives no figures |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PmemTiming {
    /// No time at all.
    #[default]
    None,
    /// Battery-backed memory.
    Dram,
    /// The memory with which Spindle and Tinca were measured.
    Nvm,
    /// Phase change memory.
    Pcm,
}

impl PmemTiming {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::None, Self::Dram, Self::Nvm, Self::Pcm];

    /// The name in reports and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Dram => "dram",
            Self::Nvm => "nvm",
            Self::Pcm => "pcm",
        }
    }

    /// Nanoseconds to load a line.
    pub const fn load_ns(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Dram | Self::Nvm => 50,
            Self::Pcm => 100,
        }
    }

    /// Nanoseconds to flush a line or store it past the cache.
    pub const fn flush_ns(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Dram => 50,
            Self::Nvm => 180,
            Self::Pcm => 350,
        }
    }
}

impl fmt::Display for PmemTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The kind of memory to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimPmemOptions {
    /// Whether to keep the tape.
    pub record: bool,
    /// How long accesses take.
    pub timing: PmemTiming,
}

impl Default for SimPmemOptions {
    fn default() -> Self {
        Self {
            record: true,
            timing: PmemTiming::None,
        }
    }
}

impl SimPmemOptions {
    /// Builds memory with this content, all of it stable, on a machine of its own. Panics unless
    /// the size is a multiple of [`LINE`].
    pub fn build(self, image: Image) -> SimPmem {
        self.build_on(&Rig::default(), image)
    }

    /// Builds the memory on the machine `rig`, whose supply and clock it shares with the other
    /// media there.
    pub fn build_on(self, rig: &Rig, image: Image) -> SimPmem {
        let size = image.size();
        assert!(size.is_multiple_of(LINE), "an image of {size} bytes");
        SimPmem {
            options: self,
            size,
            meter: Meter::new(),
            rig: rig.clone(),
            state: Mutex::new(State {
                medium: Medium::new(image, Kind::Pmem, self.record),
                faults: FaultPlan::default(),
            }),
        }
    }
}

/// The simulated memory.
pub struct SimPmem {
    options: SimPmemOptions,
    size: u64,
    meter: Meter,
    rig: Rig,
    state: Mutex<State>,
}

struct State {
    medium: Medium,
    faults: FaultPlan,
}

impl SimPmem {
    /// Memory of the default kind with this content.
    pub fn new(image: Image) -> Self {
        SimPmemOptions::default().build(image)
    }

    /// The kind of memory.
    pub fn options(&self) -> SimPmemOptions {
        self.options
    }

    /// How many stores, flushes and fences were carried out in this memory so far: the length of
    /// the tape, if there is one.
    pub fn changes(&self) -> u64 {
        self.state.lock().medium.changes()
    }

    plans_errors!();

    /// The machine to which it belongs, whose power can be cut.
    pub fn rig(&self) -> &Rig {
        &self.rig
    }

    /// The newest content, which loads return.
    pub fn newest(&self) -> Image {
        self.state.lock().medium.newest()
    }

    /// The content that is safe from a power cut.
    pub fn stable(&self) -> Image {
        self.state.lock().medium.stable()
    }

    /// The moment of a power cut now, or of the cut that already happened.
    pub fn crash_point(&self) -> CrashPoint {
        let supply = self.rig.power.lock();
        self.state.lock().medium.crash_point(&supply)
    }

    /// The record so far. Panics when the memory was made without one.
    pub fn tape(&self) -> Tape {
        self.state.lock().medium.tape()
    }

    /// Panics if the access is one that no caller may make.
    #[track_caller]
    fn assert_legal(&self, checked: Result<(), MediaError>) {
        if let Err(mistake) = checked {
            panic!("misuse of the simulated memory: {mistake}");
        }
    }

    /// Carries out a change that takes `busy_ns`, unless the power or the plan of errors prevents
    /// it.
    fn change(&self, change: Entry, busy_ns: u64) -> Result<(), MediaError> {
        let (op, offset, len) = change.range();
        let mut supply = self.rig.power.lock();
        let mut state = self.state.lock();
        state.medium.admit(&mut supply, &change)?;
        let is_fence = matches!(change, Entry::Fence { .. });
        if let Some(failure) = state.faults.strike_change((op, offset, len), is_fence)? {
            return Err(failure.of(op, offset, len));
        }
        state.medium.carry_out(&mut supply, change);
        self.rig.clock.advance(busy_ns);
        Ok(())
    }

    /// Copies a range out, unless the power or the plan of errors prevents it.
    fn read(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let (op, len) = (Op::Read, usize_as_u64(out.len()));
        let supply = self.rig.power.lock();
        if supply.is_off() {
            return Err(MediaError::PowerLost { op, offset, len });
        }
        let mut state = self.state.lock();
        if let Some(failure) = state.faults.strike(op, offset, len) {
            return Err(failure.of(op, offset, len));
        }
        state.medium.read(offset, out);
        drop(state);
        let busy_ns = lines_touched(offset, len) * self.options.timing.load_ns();
        self.rig.clock.advance(busy_ns);
        self.meter.count_read(tag, len);
        self.meter.count_busy(tag, busy_ns);
        Ok(())
    }

    /// Stores, and charges the time of the lines that the store sends to the medium (past the cache
    /// only).
    fn write(
        &self,
        offset: u64,
        data: &[u8],
        tag: Tag,
        past_cache: bool,
    ) -> Result<(), MediaError> {
        let len = usize_as_u64(data.len());
        let lines = if past_cache {
            lines_touched(offset, len)
        } else {
            0
        };
        let busy_ns = lines * self.options.timing.flush_ns();
        let change = Entry::Store {
            offset,
            data: Arc::from(data),
            tag,
            past_cache,
        };
        self.change(change, busy_ns)?;
        self.meter.count_write(tag, len);
        self.meter.count_lines(tag, lines);
        self.meter.count_busy(tag, busy_ns);
        Ok(())
    }
}

impl Pmem for SimPmem {
    fn describe(&self) -> String {
        format!("simulated persistent memory, {} KiB", self.size >> 10)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn survives(&self) -> Survives {
        Survives::PowerLoss
    }

    fn read_only(&self) -> bool {
        false
    }

    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.assert_legal(check_in_device(
            Op::Read,
            offset,
            usize_as_u64(out.len()),
            self.size,
        ));
        self.read(offset, out, tag)
    }

    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError> {
        self.assert_legal(check_words(Op::Read, offset, WORD, self.size));
        let mut bytes = [0; u64_as_usize(WORD)];
        self.read(offset, &mut bytes, tag)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.assert_legal(check_in_device(
            Op::Write,
            offset,
            usize_as_u64(data.len()),
            self.size,
        ));
        self.write(offset, data, tag, false)
    }

    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError> {
        self.assert_legal(check_words(Op::Write, offset, WORD, self.size));
        self.write(offset, &value.to_le_bytes(), tag, false)
    }

    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.assert_legal(check_words(
            Op::Write,
            offset,
            usize_as_u64(data.len()),
            self.size,
        ));
        self.write(offset, data, tag, true)
    }

    fn flush(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        self.assert_legal(check_in_device(Op::Flush, offset, len, self.size));
        let lines = lines_touched(offset, len);
        let busy_ns = lines * self.options.timing.flush_ns();
        self.change(Entry::FlushLines { offset, len, tag }, busy_ns)?;
        self.meter.count_lines(tag, lines);
        self.meter.count_busy(tag, busy_ns);
        Ok(())
    }

    fn fence(&self, cause: Cause) -> Result<(), MediaError> {
        if saboteur::drops(cause) {
            return Ok(());
        }
        self.change(Entry::Fence { cause }, 0)?;
        self.meter.count_fence(cause);
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
