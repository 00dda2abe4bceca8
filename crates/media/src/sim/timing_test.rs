//! The timing models against the figures from which they are made, and against the behaviour of
//! such devices.

use super::timing::*;
use crate::clock::Clock;
use crate::sim::keep::scramble;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const PAGE: u64 = 4096;
const TB: u64 = 1_000_000_000_000;

/// A device on a clock of its own.
struct Timed {
    model: Model,
    clock: Clock,
}

impl Timed {
    fn new(timing: Timing) -> Self {
        Self {
            model: timing.model(TB, true),
            clock: Clock::default(),
        }
    }

    fn run(&mut self, request: Request) -> u64 {
        let busy_ns = self.model.busy_ns(self.clock.now_ns(), request);
        self.clock.advance(busy_ns);
        busy_ns
    }

    fn read(&mut self, offset: u64, len: u64) -> u64 {
        self.run(Request::Read { offset, len })
    }

    fn write(&mut self, offset: u64, len: u64) -> u64 {
        self.run(Request::Write {
            offset,
            len,
            durable: false,
        })
    }

    fn write_durable(&mut self, offset: u64, len: u64) -> u64 {
        self.run(Request::Write {
            offset,
            len,
            durable: true,
        })
    }
}

/// Pages spread over the terabyte.
fn scattered(i: u64) -> u64 {
    scramble(i) % (TB / PAGE) * PAGE
}

fn assert_within(percent: f64, is: f64, should: f64) {
    assert!(
        (is / should - 1.0).abs() < percent / 100.0,
        "{is} instead of {should}"
    );
}

/// Each figure of the table at the top of `timing.rs` comes out of the model.
#[test]
fn flash_does_what_its_figures_say() {
    let cases = [
        (Timing::SataSsd, 540e6, 520e6, 10_000.0, 40_000.0),
        (Timing::NvmeSsd, 3400e6, 2500e6, 15_000.0, 50_000.0),
        (
            Timing::MicroSd,
            17.39e6,
            10.4e6,
            5.36e6 / 4096.0,
            1.05e6 / 4096.0,
        ),
    ];
    for (timing, read_rate, write_rate, reads, writes) in cases {
        let mut dev = Timed::new(timing);
        let mb = 1 << 20;
        let read_ns: u64 = (0..64).map(|i| dev.read(i * mb, mb)).sum();
        assert_within(1.0, (64 * mb) as f64 * 1e9 / read_ns as f64, read_rate);
        let write_ns: u64 = (0..64).map(|i| dev.write(i * mb, mb)).sum();
        // A drive's own time for a request is a part of that for a MiB.
        assert_within(5.0, (64 * mb) as f64 * 1e9 / write_ns as f64, write_rate);
        assert_within(0.1, 1e9 / dev.read(scattered(7), PAGE) as f64, reads);
        assert_within(0.1, 1e9 / dev.write(scattered(7), PAGE) as f64, writes);
    }
    let mut card = Timed::new(Timing::MicroSd);
    let random_ns = card.write(PAGE * 9, PAGE);
    assert_within(
        0.1,
        random_ns as f64 / card.write(PAGE * 10, PAGE) as f64,
        10.4 / 1.05,
    );
}

#[test]
fn flash_flushes_what_there_is() {
    for (timing, flush_ns, durable_ns) in [
        (Timing::SataSsd, 1_643_000, 25_000 + 1_643_000),
        (Timing::NvmeSsd, 1_643_000, 4_007_000),
        (Timing::MicroSd, 0, PAGE * SECOND / 1_050_000),
    ] {
        let mut dev = Timed::new(timing);
        assert_eq!(dev.run(Request::Flush), 0);
        dev.write(scattered(1), PAGE);
        assert_eq!(
            (dev.run(Request::Flush), dev.run(Request::Flush)),
            (flush_ns, 0)
        );
        assert_eq!(dev.write_durable(scattered(2), PAGE), durable_ns);
    }
    let mut protected = Timing::NvmeSsd.model(TB, false);
    let write = |durable| Request::Write {
        offset: 0,
        len: PAGE,
        durable,
    };
    let times = [write(false), Request::Flush, write(true)].map(|r| protected.busy_ns(0, r));
    assert_eq!(times, [20_000, 0, 20_000]);
}

#[test]
fn a_disk_seeks_turns_and_streams() {
    let mut disk = Timed::new(Timing::Hdd);
    let count = 4000;
    let ns: u64 = (0..count).map(|i| disk.read(scattered(i), PAGE)).sum();
    assert_within(2.0, ns as f64 / count as f64, 8.5e6 + 8.33e6 / 2.0);
    let ns: u64 = (0..count)
        .map(|i| disk.write_durable(scattered(i), PAGE))
        .sum();
    assert_within(2.0, ns as f64 / count as f64, 9.5e6 + 8.33e6 / 2.0);
    disk.read(0, PAGE);
    let mb = 1 << 20;
    let ns: u64 = (0..256).map(|i| disk.read(PAGE + i * mb, mb)).sum();
    assert_within(1.0, (256 * mb) as f64 * 1e9 / ns as f64, 129e6);
}

/// A caller that appends durably and pauses a little in between misses the sector and waits for a
/// turn of the platter.
#[test]
fn a_disk_makes_durable_appends_wait_for_a_turn() {
    let mut disk = Timed::new(Timing::Hdd);
    disk.write_durable(0, PAGE);
    for i in 1..100 {
        let thinking_ns = 50_000;
        disk.clock.advance(thinking_ns);
        let ns = disk.write_durable(i * PAGE, PAGE);
        assert_within(
            1.0,
            (ns + thinking_ns) as f64,
            (60.0 / 7200.0 + 4096.0 / 129e6) * 1e9,
        );
    }
}

#[test]
fn a_disk_writes_its_cache_back_in_order() {
    let mut disk = Timed::new(Timing::Hdd);
    let pages: Vec<u64> = (0..1000).map(scattered).collect();
    let cached_ns: u64 = pages.iter().map(|at| disk.write(*at, PAGE)).sum();
    assert_within(1.0, cached_ns as f64, 1000.0 * 4096.0 / 0.6);
    assert!(disk.read(pages[3], PAGE) < 10_000, "it is in the cache");
    let sorted_ns = disk.run(Request::Flush);
    assert_eq!(disk.run(Request::Flush), 0);
    let unsorted_ns: u64 = pages.iter().map(|at| disk.write_durable(*at, PAGE)).sum();
    assert!(sorted_ns * 2 < unsorted_ns, "{sorted_ns} {unsorted_ns}");

    let log_ns: u64 = (0..1000).map(|i| disk.write(i * PAGE, PAGE)).sum();
    let log_ns = log_ns + disk.run(Request::Flush);
    assert!(log_ns < 60 * MS, "one seek and a stream: {log_ns}");

    pages.iter().for_each(|at| _ = disk.write(*at, PAGE));
    pages.iter().for_each(|at| {
        disk.run(Request::Discard {
            offset: *at,
            len: PAGE,
        });
    });
    assert_eq!(disk.run(Request::Flush), 0);

    let full = (32 << 20) / PAGE;
    let ns: Vec<u64> = (0..=full).map(|i| disk.write(scattered(i), PAGE)).collect();
    let (last, before) = ns.split_last().expect("many");
    assert!(
        *last > SECOND && before.iter().all(|ns| *ns < 10_000),
        "a full cache is written"
    );
}

#[test]
fn names_are_told_apart() {
    let names: std::collections::HashSet<_> = Timing::ALL.map(Timing::name).into();
    assert_eq!(names.len(), Timing::ALL.len());
    assert_eq!(Timing::None.model(TB, true).busy_ns(5, Request::Flush), 0);
}
