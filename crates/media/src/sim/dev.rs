//! A simulated block device.
//!
//! - A flush settles every write before it.
//! - A write that the device has called durable stays in the order but cannot be lost: no older
//!   pending write ever comes out over it.
//! - Changes pending when a flush failed stay pending for good, for no later flush succeeds. Reads
//!   return them, and a power cut may leave some of them.
//! - Requests beyond the end or not in whole sectors panic.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::dev::{BlockDev, FEW_JUMP_BYTES};
use crate::error::{MediaError, Op};
use crate::image::Image;
use crate::meter::Meter;
use crate::range::{check_parts, check_range};
use crate::sim::crash::CrashPoint;
use crate::sim::entry::Entry;
use crate::sim::fault::{FaultPlan, plans_errors};
use crate::sim::medium::Medium;
use crate::sim::options::SimOptions;
use crate::sim::power::Rig;
use crate::sim::saboteur;
use crate::sim::tape::Tape;
use crate::sim::timing::{Model, Request};
use crate::sim::volatile::Kind;
use crate::tag::{Cause, Tag};
use stetfs_format::width::usize_as_u64;

impl SimOptions {
    /// Builds a device with this content, all of it stable, on a machine of its own. Panics if the
    /// sizes do not fit together.
    pub fn build(self, image: Image) -> SimDev {
        self.build_on(&Rig::default(), image)
    }

    /// Builds the device on the machine `rig`, whose supply and clock it shares with the other
    /// media there.
    pub fn build_on(self, rig: &Rig, image: Image) -> SimDev {
        assert!(
            self.sector.is_power_of_two() && self.sector >= 512,
            "sectors of {} bytes",
            self.sector
        );
        assert!(
            self.atomic_unit >= self.sector && self.atomic_unit.is_multiple_of(self.sector),
            "an atomic unit of {} bytes with sectors of {}",
            self.atomic_unit,
            self.sector
        );
        assert!(
            image.size().is_multiple_of(u64::from(self.sector)),
            "an image of {} bytes",
            image.size()
        );
        let size = image.size();
        SimDev {
            options: self,
            size,
            meter: Meter::new(),
            rig: rig.clone(),
            state: Mutex::new(State {
                medium: Medium::new(image, Kind::Device(self), self.record),
                faults: FaultPlan::default(),
                model: self.timing.model(size, self.volatile_cache),
            }),
        }
    }
}

/// The simulated device.
pub struct SimDev {
    options: SimOptions,
    size: u64,
    meter: Meter,
    rig: Rig,
    state: Mutex<State>,
}

struct State {
    medium: Medium,
    faults: FaultPlan,
    model: Model,
}

impl SimDev {
    /// A device of the default kind with this content.
    pub fn new(image: Image) -> Self {
        SimOptions::default().build(image)
    }

    /// The kind of device.
    pub fn options(&self) -> SimOptions {
        self.options
    }

    /// How many writes, flushes and discards were carried out on this device so far: the length of
    /// the tape, if there is one. Whatever is confirmed now must survive every crash from now on.
    pub fn changes(&self) -> u64 {
        self.state.lock().medium.changes()
    }

    /// The machine to which it belongs.
    pub fn rig(&self) -> &Rig {
        &self.rig
    }

    /// Cuts the power as [`Power::cut_at`](crate::sim::Power::cut_at) does. On a device with its
    /// own supply, `changes` counts the device's changes since it was made.
    pub fn cut_at(&self, changes: u64) {
        self.rig.power.cut_at(changes);
    }

    /// Cuts the power now, with nothing in flight.
    pub fn cut(&self) {
        self.rig.power.cut();
    }

    /// Whether the power is off.
    pub fn is_cut(&self) -> bool {
        self.rig.power.is_cut()
    }

    plans_errors!();

    /// The newest content, which reads return.
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

    /// The record so far. Panics when the device was made without one.
    pub fn tape(&self) -> Tape {
        self.state.lock().medium.tape()
    }

    /// Panics if the request is one that no caller may make.
    fn assert_legal(&self, checked: Result<(), MediaError>) {
        if let Err(mistake) = checked {
            panic!("misuse of the simulated device: {mistake}");
        }
    }

    fn check_writable(&self, op: Op, offset: u64, len: u64) -> Result<(), MediaError> {
        if self.options.read_only {
            return Err(MediaError::ReadOnly { op, offset, len });
        }
        Ok(())
    }

    /// Carries out a change, unless the power or the plan of errors prevents it. Returns the time
    /// that it took, in ns.
    fn change(&self, request: Entry) -> Result<u64, MediaError> {
        let (op, offset, len) = request.range();
        self.check_writable(op, offset, len)?;
        let mut supply = self.rig.power.lock();
        let mut state = self.state.lock();
        state.medium.admit(&mut supply, &request)?;
        let must_settle = matches!(
            request,
            Entry::Flush { .. } | Entry::Write { durable: true, .. }
        );
        if let Some(failure) = state.faults.strike_change((op, offset, len), must_settle)? {
            if let Some(remains) = request.after(failure, self.options.sector) {
                state.medium.carry_out(&mut supply, remains);
            }
            return Err(failure.of(op, offset, len));
        }
        let busy_ns = state.let_time_pass(&self.rig.clock, request.timed());
        state.medium.carry_out(&mut supply, request);
        Ok(busy_ns)
    }

    fn write(
        &self,
        offset: u64,
        parts: &[&[u8]],
        tag: Tag,
        durable: bool,
    ) -> Result<u64, MediaError> {
        let checked = check_parts(offset, parts, self.options.sector, self.size);
        self.assert_legal(checked.clone().map(drop));
        let data: Arc<[u8]> = match parts {
            [one] => Arc::from(*one),
            _ => parts.concat().into(),
        };
        let busy_ns = self.change(Entry::Write {
            offset,
            data,
            tag,
            durable,
        })?;
        self.meter.count_busy(tag, busy_ns);
        checked
    }
}

impl State {
    /// Lets the time of a request pass and returns it, in ns.
    fn let_time_pass(&mut self, clock: &Clock, request: Request) -> u64 {
        let busy_ns = self.model.busy_ns(clock.now_ns(), request);
        clock.advance(busy_ns);
        busy_ns
    }
}

impl BlockDev for SimDev {
    fn describe(&self) -> String {
        format!("simulated device, {} KiB", self.size >> 10)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn sector_size(&self) -> u32 {
        self.options.sector
    }

    fn atomic_unit(&self) -> u32 {
        self.options.atomic_unit
    }

    fn read_only(&self) -> bool {
        self.options.read_only
    }

    fn volatile_cache(&self) -> bool {
        self.options.volatile_cache
    }

    fn host_cached(&self) -> bool {
        true
    }

    fn jump_bytes(&self) -> u64 {
        self.options.timing.jump_bytes().unwrap_or(FEW_JUMP_BYTES)
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let (op, len) = (Op::Read, usize_as_u64(out.len()));
        self.assert_legal(check_range(op, offset, len, self.options.sector, self.size));
        let supply = self.rig.power.lock();
        let mut state = self.state.lock();
        if supply.is_off() {
            return Err(MediaError::PowerLost { op, offset, len });
        }
        if let Some(failure) = state.faults.strike(op, offset, len) {
            return Err(failure.of(op, offset, len));
        }
        state.medium.read(offset, out);
        let busy_ns = state.let_time_pass(&self.rig.clock, Request::Read { offset, len });
        self.meter.count_read(tag, len);
        self.meter.count_busy(tag, busy_ns);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = self.write(offset, parts, tag, false)?;
        self.meter.count_write(tag, len);
        Ok(())
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = self.write(offset, parts, tag, !saboteur::drops(tag.cause))?;
        self.meter.count_durable_write(tag, len);
        Ok(())
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        if saboteur::drops(cause) {
            return Ok(());
        }
        let busy_ns = self.change(Entry::Flush { cause })?;
        self.meter.count_flush(cause);
        self.meter.count_cause_busy(cause, busy_ns);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.assert_legal(check_range(
            Op::Discard,
            offset,
            len,
            self.options.sector,
            self.size,
        ));
        let busy_ns = self.change(Entry::Discard { offset, len })?;
        self.meter.count_discard(len, busy_ns);
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
