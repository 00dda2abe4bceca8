//! The simulated device against an independent model.
//!
//! The model knows nothing of pending lists: for each sector it holds the versions that it may have
//! after a cut, the first being the certain one. A hash of the write's position and the atomic
//! unit, known to both sides, decides which writes a sector keeps.

use proptest::prelude::*;

use super::*;
use crate::Errno;
use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::image::Image;
use crate::tag::{Cause, Class, Tag};

pub(super) const SECTOR: usize = 512;
pub(super) const SECTORS: usize = 64;
pub(super) const TAG: Tag = Tag::new(Class::Data, Cause::Home);
const FILL: u8 = 0xD5;

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write {
        first: usize,
        sectors: usize,
        byte: u8,
        durable: bool,
    },
    Discard {
        first: usize,
        sectors: usize,
    },
    Flush,
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    let range = (0..SECTORS).prop_flat_map(|first| (Just(first), 1..=(SECTORS - first).min(20)));
    prop_oneof![
        8 => (range.clone(), any::<u8>(), prop::bool::weighted(0.2))
            .prop_map(|((first, sectors), byte, durable)| Change::Write {
                first,
                sectors,
                byte,
                durable,
            }),
        1 => range.prop_map(|(first, sectors)| Change::Discard { first, sectors }),
        2 => Just(Change::Flush),
    ]
}

pub(super) fn options() -> impl Strategy<Value = SimOptions> {
    (prop_oneof![Just(512), Just(2048)], any::<bool>()).prop_map(|(atomic_unit, volatile_cache)| {
        SimOptions {
            atomic_unit,
            volatile_cache,
            ..SimOptions::default()
        }
    })
}

/// The bytes that a change gives a sector. They differ in each sector, so that a shift is noticed.
fn content(sector: usize, byte: u8) -> Vec<u8> {
    vec![byte ^ (sector as u8).wrapping_mul(31); SECTOR]
}

pub(super) fn carry_out(dev: &SimDev, change: &Change) -> Result<(), MediaError> {
    match *change {
        Change::Write {
            first,
            sectors,
            byte,
            durable,
        } => {
            let parts: Vec<Vec<u8>> = (first..first + sectors).map(|s| content(s, byte)).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let offset = (first * SECTOR) as u64;
            if durable {
                dev.write_durable(offset, &parts, TAG)
            } else {
                dev.write_vectored_at(offset, &parts, TAG)
            }
        }
        Change::Discard { first, sectors } => {
            dev.discard((first * SECTOR) as u64, (sectors * SECTOR) as u64)
        }
        Change::Flush => dev.flush(Cause::Home),
    }
}

/// Whether the write at `position` reached the medium, in the unit that begins at `at`.
fn decide(seed: u64, position: usize, at: u64) -> bool {
    let mut x = seed
        ^ (position as u64).wrapping_mul(0xA24B_AED4_963E_E407)
        ^ at.wrapping_mul(0x9FB2_1C65_1E98_DF25);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x >> 63 == 1
}

/// The versions of each sector after a cut: the certain one, then those that depend on a decision.
pub(super) struct Model {
    certain: Vec<Vec<u8>>,
    perhaps: Vec<Vec<(usize, u64, Vec<u8>)>>,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            certain: (0..SECTORS).map(|s| content(s, 0)).collect(),
            perhaps: vec![Vec::new(); SECTORS],
        }
    }

    fn newest(&self, sector: usize) -> Vec<u8> {
        self.perhaps[sector]
            .last()
            .map_or(&self.certain[sector], |(_, _, bytes)| bytes)
            .clone()
    }

    fn settle(&mut self, sector: usize, bytes: Vec<u8>) {
        self.certain[sector] = bytes;
        self.perhaps[sector].clear();
    }

    /// Applies the change at `position`; a change that is not `done` is in flight.
    pub(super) fn apply(
        &mut self,
        position: usize,
        change: &Change,
        options: SimOptions,
        done: bool,
    ) {
        let unit = u64::from(options.atomic_unit);
        match *change {
            Change::Write {
                first,
                sectors,
                byte,
                durable,
            } => {
                for sector in first..first + sectors {
                    if done && (durable || !options.volatile_cache) {
                        self.settle(sector, content(sector, byte));
                    } else {
                        // The offset at which its part of this write begins decides about a unit.
                        let at = (sector * SECTOR) as u64 / unit * unit;
                        let at = at.max((first * SECTOR) as u64);
                        self.perhaps[sector].push((position, at, content(sector, byte)));
                    }
                }
            }
            Change::Discard { first, sectors } => {
                for sector in first..first + sectors {
                    if done && !options.volatile_cache {
                        self.settle(sector, vec![FILL; SECTOR]);
                    } else {
                        self.perhaps[sector].push((
                            position,
                            (first * SECTOR) as u64,
                            vec![FILL; SECTOR],
                        ));
                    }
                }
            }
            Change::Flush if done => {
                for sector in 0..SECTORS {
                    self.settle(sector, self.newest(sector));
                }
            }
            Change::Flush => {}
        }
    }

    pub(super) fn after_cut(&self, seed: u64) -> Vec<u8> {
        let sector = |s: usize| {
            let kept = self.perhaps[s]
                .iter()
                .rev()
                .find(|(position, at, _)| decide(seed, *position, *at));
            kept.map_or(&self.certain[s], |(_, _, bytes)| bytes).clone()
        };
        (0..SECTORS).flat_map(sector).collect()
    }

    fn all(&self) -> Vec<u8> {
        (0..SECTORS).flat_map(|s| self.newest(s)).collect()
    }
}

pub(super) fn start() -> Image {
    Image::from_bytes(&Model::new().all())
}

/// Returns the state that the same decisions give in the simulated device.
pub(super) fn state(point: &CrashPoint, seed: u64) -> Image {
    let pieces = point.pieces();
    point.image(|i| decide(seed, pieces[i].entry, pieces[i].offset))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Compares every moment of a tape, with several states of each; also the same moment when it
    /// is reached by cutting the power, and when the running device is asked for it.
    #[test]
    fn crash_states_are_those_of_the_model(
        changes in prop::collection::vec(change(), 1..25),
        options in options(),
        seed in any::<u64>(),
    ) {
        let dev = options.build(start());
        let mut model = Model::new();
        for (n, change) in changes.iter().enumerate() {
            prop_assert_eq!(state(&dev.crash_point(), seed).to_bytes(), model.after_cut(seed));
            carry_out(&dev, change).expect("nothing is planned to fail");
            model.apply(n, change, options, true);
            prop_assert_eq!(dev.newest().to_bytes(), model.all());
        }
        let tape = dev.tape();
        prop_assert_eq!(tape.len(), changes.len());

        let mut model = Model::new();
        for (n, point) in tape.crash_points().enumerate() {
            let mut cut_here = Model {
                certain: model.certain.clone(),
                perhaps: model.perhaps.clone(),
            };
            if let Some(change) = changes.get(n) {
                cut_here.apply(n, change, options, false);
                model.apply(n, change, options, true);
            }
            for seed in seed..seed.saturating_add(4) {
                let expected = cut_here.after_cut(seed);
                prop_assert_eq!(state(&point, seed).to_bytes(), expected, "moment {}", n);
            }
        }
        let n = seed as usize % (changes.len() + 1);
        let cut = options.build(start());
        cut.cut_at(n as u64);
        for (i, change) in changes.iter().enumerate() {
            prop_assert_eq!(carry_out(&cut, change).is_ok(), i < n);
        }
        prop_assert_eq!(cut.is_cut(), n < changes.len());
        let (cut, taped) = (cut.crash_point(), tape.crash_point(n));
        prop_assert_eq!(cut.pieces(), taped.pieces());
        prop_assert_eq!(state(&cut, seed), state(&taped, seed));
    }

    /// Pieces that are called irrelevant make no difference.
    #[test]
    fn irrelevant_atoms_change_nothing(
        changes in prop::collection::vec(change(), 1..12),
        options in options(),
        seed in any::<u64>(),
    ) {
        let dev = options.build(start());
        for change in &changes {
            carry_out(&dev, change).expect("nothing is planned to fail");
        }
        for point in dev.tape().crash_points() {
            let relevant = point.relevant_pieces();
            let expected = state(&point, seed);
            let pieces = point.pieces();
            for others in [false, true] {
                let image = point.image(|i| {
                    if relevant.binary_search(&i).is_ok() {
                        decide(seed, pieces[i].entry, pieces[i].offset)
                    } else {
                        others
                    }
                });
                prop_assert_eq!(&image, &expected);
            }
        }
    }
}

fn sectors(dev: &SimDev, first: usize, count: usize, byte: u8) -> Result<(), MediaError> {
    carry_out(
        dev,
        &Change::Write {
            first,
            sectors: count,
            byte,
            durable: false,
        },
    )
}

#[test]
fn rules_for_atoms_print_and_read_back() {
    for text in [
        "all",
        "none",
        "first:3",
        "only:1,5,9",
        "without:2",
        "only:",
        "random:42",
    ] {
        assert_eq!(text.parse::<Keep>().expect("a rule").to_string(), text);
    }
    for text in ["", "first", "first:x", "only:1,x", "all:1", "some"] {
        assert!(text.parse::<Keep>().is_err(), "{text}");
    }
    let kept = |text: &str| {
        let rule: Keep = text.parse().expect("a rule");
        (0..6).filter(|i| rule.keeps(*i)).collect::<Vec<_>>()
    };
    assert_eq!(kept("first:2"), [0, 1]);
    assert_eq!(kept("only:1,5,9"), [1, 5]);
    assert_eq!(kept("without:0,1,2"), [3, 4, 5]);
    let share = |seed| (0..10_000).filter(|i| Keep::Random(seed).keeps(*i)).count();
    assert!((0..100).any(|seed| share(seed) < 1000) && (0..100).any(|seed| share(seed) > 9000));
}

#[test]
fn a_rewrite_and_a_covered_write_are_not_worth_trying() {
    let dev = SimDev::new(start());
    sectors(&dev, 0, 2, 0).expect("what is there already");
    sectors(&dev, 8, 2, 7).expect("to be covered");
    carry_out(
        &dev,
        &Change::Write {
            first: 8,
            sectors: 1,
            byte: 9,
            durable: true,
        },
    )
    .expect("certain");
    let point = dev.crash_point();
    assert_eq!(point.pieces().len(), 4);
    let relevant: Vec<u64> = point
        .relevant_pieces()
        .into_iter()
        .map(|i| point.pieces()[i].offset / SECTOR as u64)
        .collect();
    assert_eq!(relevant, [9]);
}

#[test]
fn a_state_can_be_mounted_written_and_cut_again() {
    let dev = SimDev::new(start());
    sectors(&dev, 3, 4, 1).expect("a write");
    let first = dev.crash_point().crash(&Keep::First(2));
    let mut bytes = [0; 4 * SECTOR];
    first
        .read_at(3 * SECTOR as u64, &mut bytes, TAG)
        .expect("a read");
    let expected: Vec<u8> = [content(3, 1), content(4, 1), content(5, 0), content(6, 0)].concat();
    assert_eq!(bytes[..], expected);
    assert_eq!(
        first.meter().snapshot().total().read_bytes,
        4 * SECTOR as u64
    );

    let again = first.simulate();
    sectors(&again, 5, 1, 8).expect("recovery writes");
    let second = again.crash_point().crash(&Keep::None).image();
    assert_eq!(second, first.image());
    let second = again.crash_point().crash(&Keep::All).image();
    assert_eq!(second.unshared_pages(&first.image()).len(), 1);
}

#[test]
fn traces_are_lines() {
    let dev = SimDev::new(start());
    dev.write_at(4096, &[1; 1024], Tag::new(Class::InodeTable, Cause::Log))
        .expect("a write");
    dev.flush(Cause::Log).expect("a flush");
    dev.write_durable(
        512,
        &[&[2; 512]],
        Tag::new(Class::Journal, Cause::CommitRecord),
    )
    .expect("a write");
    dev.discard(0, 2048).expect("a discard");
    let lines: Vec<String> = dev.tape().entries().iter().map(Entry::to_string).collect();
    let expected = [
        "write 4096+1024 inode_table/log",
        "flush log",
        "write 512+512 journal/commit_record durable",
        "discard 0+2048",
    ];
    assert_eq!(lines, expected);
}

#[test]
#[should_panic(expected = "misuse of the simulated device")]
fn half_a_sector_is_our_mistake() {
    let _ = SimDev::new(start()).write_at(256, &[0; 512], TAG);
}

#[test]
#[should_panic(expected = "beyond the end")]
fn beyond_the_end_is_our_mistake() {
    let _ = SimDev::new(start()).read_at((SECTORS * SECTOR) as u64, &mut [0; 512], TAG);
}

/// Fails every request of a small run, one at a time: the error is reported once, at that request,
/// and all other requests keep their promise.
#[test]
fn each_request_can_fail() {
    let run = |dev: &SimDev| {
        let mut out = [0; SECTOR];
        [
            sectors(dev, 0, 2, 1),
            dev.read_at(0, &mut out, TAG),
            dev.flush(Cause::Home),
            sectors(dev, 1, 2, 2),
            dev.discard(4 * SECTOR as u64, SECTOR as u64),
            carry_out(
                dev,
                &Change::Write {
                    first: 6,
                    sectors: 1,
                    byte: 3,
                    durable: true,
                },
            ),
            dev.flush(Cause::Home),
        ]
    };
    for failing in 0..7 {
        let dev = SimDev::new(start());
        dev.inject(Fault::nth_of_any(failing as u64));
        let results = run(&dev);
        for (i, result) in results.iter().enumerate() {
            let settles = [2, 5, 6];
            let lost = i > failing && settles.contains(&failing) && settles.contains(&i);
            match result {
                Err(MediaError::Io {
                    source: Errno::IO, ..
                }) => assert_eq!(i, failing),
                Err(MediaError::WritesLost) => assert!(lost, "{i} after {failing}"),
                Err(e) => panic!("{e}"),
                Ok(()) => assert!(i != failing && !lost, "{i} after {failing}"),
            }
        }
        assert_eq!(dev.faults_struck(), 1);
    }
}

#[test]
fn faults_choose_by_kind_place_and_turn() {
    let dev = SimDev::new(start());
    dev.inject(
        Fault::nth(Op::Write, 1)
            .within(1024..2048)
            .times(2)
            .failing(Failure::Error(Errno::NOSPC)),
    );
    let results: Vec<bool> = [0, 2, 8, 3, 2, 1, 3]
        .map(|first| sectors(&dev, first, 1, 5).is_ok())
        .to_vec();
    assert_eq!(results, [true, true, true, false, false, true, true]);

    dev.inject(Fault::nth(Op::Read, 0).for_good());
    for _ in 0..3 {
        let failed = dev.read_at(0, &mut [0; 512], TAG).expect_err("planned");
        assert_eq!(
            failed,
            MediaError::Io {
                op: Op::Read,
                offset: 0,
                len: 512,
                source: Errno::IO
            }
        );
    }
    dev.heal();
    dev.read_at(0, &mut [0; 512], TAG).expect("healed");
}

#[test]
fn a_torn_write_is_there_in_part() {
    let dev = SimDev::new(start());
    dev.inject(Fault::nth(Op::Write, 0).failing(Failure::Torn { sectors: 1 }));
    sectors(&dev, 10, 3, 4).expect_err("torn");
    let there: Vec<u8> = dev.newest().to_bytes()[10 * SECTOR..13 * SECTOR].to_vec();
    assert_eq!(
        there,
        [content(10, 4), content(11, 0), content(12, 0)].concat()
    );
    assert_eq!(dev.crash_point().pieces().len(), 1);
}

/// After a failed flush nobody knows what is on the medium: from then on, everything pending may be
/// there or not.
#[test]
fn a_failed_flush_settles_nothing_ever() {
    let dev = SimDev::new(start());
    sectors(&dev, 0, 1, 1).expect("a write");
    dev.inject(Fault::nth(Op::Flush, 0));
    dev.flush(Cause::Log).expect_err("planned");
    assert_eq!(dev.flush(Cause::Log), Err(MediaError::WritesLost));
    let durable = dev.write_durable(512, &[&[1; 512]], TAG);
    assert_eq!(durable, Err(MediaError::WritesLost));
    assert_eq!(dev.crash_point().pieces().len(), 1);
    assert_eq!(dev.stable(), start());
    assert_eq!(dev.newest().to_bytes()[..SECTOR], content(0, 1));
}

#[test]
fn without_power_nothing_works() {
    let dev = SimDev::new(start());
    dev.cut_at(1);
    sectors(&dev, 0, 1, 1).expect("the power is on");
    dev.read_at(0, &mut [0; 512], TAG)
        .expect("reads do not count");
    sectors(&dev, 1, 1, 1).expect_err("in flight");
    assert!(matches!(
        dev.read_at(0, &mut [0; 512], TAG),
        Err(MediaError::PowerLost { .. })
    ));
    assert!(matches!(
        dev.flush(Cause::Home),
        Err(MediaError::PowerLost { .. })
    ));
    let entries: Vec<usize> = dev
        .crash_point()
        .pieces()
        .iter()
        .map(|piece| piece.entry)
        .collect();
    assert_eq!(entries, [0, 1]);
}
