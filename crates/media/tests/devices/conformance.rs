//! Every kind of device behaves like a vector of bytes, and refuses the same requests.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stetfs_media::sim::{CrashImage, SimDev, SimOptions};
use stetfs_media::{Block, BlockDev, Cause, Class, Image, MediaError, Op, RamDev, Run, Tag};

pub(crate) const TAG: Tag = Tag::new(Class::Data, Cause::Home);

/// Size of the devices in bytes: more than two of each unit into which they divide their content.
pub(crate) const SIZE: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum How {
    AsOne,
    Durable,
    Flushed,
    /// Each part is a run of its own, the last one first.
    Many,
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: u64,
        parts: Vec<(usize, u8)>,
        how: How,
    },
    Read {
        at: u64,
        len: usize,
    },
    Zeros {
        at: u64,
        len: u64,
    },
    Flush,
}

/// Draws positions and lengths in sectors; short ones are likelier than long ones.
fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0..9usize, 1 => 100..600usize];
    let part = (len.clone(), any::<u8>());
    let how = prop_oneof![
        Just(How::AsOne),
        Just(How::Durable),
        Just(How::Flushed),
        Just(How::Many)
    ];
    prop_oneof![
        4 => (any::<u64>(), prop::collection::vec(part, 0..4), how)
            .prop_map(|(at, parts, how)| Step::Write { at, parts, how }),
        3 => (any::<u64>(), len.clone()).prop_map(|(at, len)| Step::Read { at, len }),
        1 => (any::<u64>(), len).prop_map(|(at, len)| Step::Zeros { at, len: len as u64 }),
        1 => Just(Step::Flush),
    ]
}

/// Fits a position and a length in sectors into the device; returns both in bytes.
fn fit(dev: &dyn BlockDev, at: u64, sectors: u64) -> (u64, u64) {
    let sector = u64::from(dev.sector_size());
    let count = dev.size() / sector;
    let len = sectors.min(count);
    (at % (count - len + 1) * sector, len * sector)
}

/// Makes each slice a run of its own, the last one first.
fn runs<'a>(offset: u64, slices: &[&'a [u8]]) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    let mut at = offset;
    for &slice in slices {
        runs.push(Run {
            offset: at,
            parts: [slice].into_iter().collect(),
            tag: TAG,
        });
        at += slice.len() as u64;
    }
    runs.reverse();
    runs
}

/// Runs random requests on a device whose content is all zero at first. Memory is sometimes
/// misaligned.
pub(crate) fn behaves_like_a_vector(dev: &dyn BlockDev, cases: u32) {
    let mut model = vec![0u8; dev.size() as usize];
    let sector = dev.sector_size() as usize;
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    });
    let model = std::cell::RefCell::new(&mut model);
    let outcome = runner.run(&prop::collection::vec(step(), 1..20), |steps| {
        for step in steps {
            let mut model = model.borrow_mut();
            match step {
                Step::Write { at, parts, how } => {
                    let sectors = parts.iter().map(|(n, _)| *n as u64).sum();
                    let (offset, len) = fit(dev, at, sectors);
                    prop_assume!(len == sectors * sector as u64);
                    let memory: Vec<Vec<u8>> = parts
                        .iter()
                        .map(|(n, byte)| vec![*byte; n * sector + 1])
                        .collect();
                    let blocks: Vec<Block> = parts
                        .iter()
                        .map(|(n, byte)| Block::copy_of(&vec![*byte; n * sector]))
                        .collect();
                    // Aligned when `at` is even, at an odd address otherwise.
                    let slices: Vec<&[u8]> = if at % 2 == 0 {
                        blocks.iter().map(Block::bytes).collect()
                    } else {
                        memory.iter().map(|m| &m[1..]).collect()
                    };
                    let written = match how {
                        How::AsOne => dev.write_vectored_at(offset, &slices, TAG),
                        How::Durable => dev.write_durable(offset, &slices, TAG),
                        How::Flushed => dev.write_flushed(offset, &slices, TAG, Cause::Log),
                        How::Many => dev.write_many(&runs(offset, &slices)),
                    };
                    written.unwrap_or_else(|e| panic!("{how:?}: {e}"));
                    model[offset as usize..][..len as usize].copy_from_slice(&slices.concat());
                }
                Step::Read { at, len } => {
                    let (offset, len) = fit(dev, at, len as u64);
                    let shift = (at % 2) as usize;
                    let mut memory = vec![0xEE; len as usize + shift];
                    dev.read_at(offset, &mut memory[shift..], TAG)
                        .expect("a read");
                    prop_assert!(memory[shift..] == model[offset as usize..][..len as usize]);
                }
                Step::Zeros { at, len } => {
                    let (offset, len) = fit(dev, at, len);
                    dev.write_zeros(offset, len, TAG).expect("zeros");
                    model[offset as usize..][..len as usize].fill(0);
                }
                Step::Flush => dev.flush(Cause::Home).expect("a flush"),
            }
        }
        let mut all = vec![0; dev.size() as usize];
        dev.read_at(0, &mut all, TAG).expect("a read");
        prop_assert!(all[..] == model.borrow()[..]);
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{}: {e}", dev.describe()));
}

/// Makes requests that must be refused, and checks that the account does not show them.
pub(crate) fn refuses_what_is_out_of_bounds(dev: &dyn BlockDev) {
    let before = dev.meter().snapshot();
    let (size, sector) = (dev.size(), u64::from(dev.sector_size()));
    let whole = vec![0; sector as usize];
    for offset in [size, size + sector, u64::MAX - sector + 1] {
        let mut out = whole.clone();
        let past = |e: Result<(), MediaError>, op: Op| match e {
            Err(MediaError::PastEnd {
                op: it,
                offset: at,
                len,
                size: s,
            }) => {
                assert_eq!((it, at, len, s), (op, offset, sector, size));
            }
            other => panic!("{op} at {offset}: {other:?}"),
        };
        past(dev.read_at(offset, &mut out, TAG), Op::Read);
        past(dev.write_at(offset, &whole, TAG), Op::Write);
        past(dev.write_durable(offset, &[&whole], TAG), Op::Write);
        past(dev.discard(offset, sector), Op::Discard);
    }
    let half = sector / 2;
    let misaligned = |e: Result<(), MediaError>| {
        assert!(matches!(e, Err(MediaError::Misaligned { .. })), "{e:?}")
    };
    misaligned(dev.read_at(half, &mut whole.clone(), TAG));
    misaligned(dev.read_at(0, &mut whole[..half as usize].to_vec(), TAG));
    misaligned(dev.write_at(half, &whole, TAG));
    misaligned(dev.write_vectored_at(0, &[&whole[..half as usize], &whole[..half as usize]], TAG));
    misaligned(dev.discard(half, sector));
    assert_eq!(
        dev.meter().snapshot(),
        before,
        "a refused request is not counted"
    );
}

/// Reads odd ranges, as mounting reads superblocks.
pub(crate) fn reads_any_bytes(dev: &dyn BlockDev) {
    let size = 4 * u64::from(dev.sector_size());
    let content: Vec<u8> = (0..size).map(|i| (i / 7) as u8).collect();
    dev.write_at(0, &content, TAG).expect("a write");
    for (offset, len) in [
        (0, 0),
        (0, size),
        (1, 1),
        (1024, 1024),
        (511, 2),
        (513, 1500),
    ] {
        let mut out = vec![0; len as usize];
        dev.read_bytes_at(offset, &mut out, TAG).expect("a read");
        assert_eq!(
            out,
            content[offset as usize..][..len as usize],
            "{len} bytes at {offset}"
        );
    }
    let past = dev.read_bytes_at(dev.size() - 1, &mut [0; 2], TAG);
    assert!(matches!(past, Err(MediaError::PastEnd { .. })));
}

#[test]
fn memory() {
    for sector in [512, 4096] {
        let dev = RamDev::with_sector(SIZE, sector);
        behaves_like_a_vector(&dev, 32);
        refuses_what_is_out_of_bounds(&dev);
        reads_any_bytes(&dev);
    }
}

#[test]
fn simulated() {
    let dev = SimDev::new(Image::new(SIZE));
    behaves_like_a_vector(&dev, 16);
    reads_any_bytes(&dev);
}

#[test]
fn crash_image() {
    let dev = CrashImage::new(Image::new(SIZE), SimOptions::default());
    behaves_like_a_vector(&dev, 32);
    refuses_what_is_out_of_bounds(&dev);
    reads_any_bytes(&dev);
}

#[test]
fn memory_is_taken_only_where_it_is_used() {
    let dev = RamDev::new(16 << 30);
    assert_eq!(dev.allocated_bytes(), 0);
    dev.write_at((16 << 30) - 512, &[1; 512], TAG)
        .expect("a write");
    let mut out = [1; 4096];
    dev.read_at(8 << 30, &mut out, TAG).expect("a read");
    assert_eq!(out, [0; 4096]);
    assert_eq!(dev.allocated_bytes(), 64 << 10);
    dev.discard(0, 16 << 30).expect("a discard");
    assert_eq!(dev.allocated_bytes(), 0);
}

#[test]
fn memory_goes_to_a_file_and_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let dev = RamDev::new((8 << 20) + 512);
    dev.write_at(3 << 20, &[7; 70_144], TAG).expect("a write");
    dev.write_at(8 << 20, &[9; 512], TAG).expect("a write");
    let copy = dev.fork();
    copy.write_at(0, &[1; 512], TAG).expect("a write");
    dev.to_file(&path).expect("a file");
    let back = RamDev::from_file(&path).expect("the file");
    let bytes = std::fs::read(&path).expect("the file");
    for (dev, name) in [
        (&dev, "device"),
        (&back, "read back"),
        (&RamDev::from_image(&bytes), "from bytes"),
    ] {
        let mut all = vec![0; dev.size() as usize];
        dev.read_at(0, &mut all, TAG).expect("a read");
        assert!(all == bytes, "{name}");
    }
    assert!(back.allocated_bytes() < 1 << 20);
}

/// Readers see each sector whole, while other threads write it.
#[test]
fn threads_never_see_half_a_sector() {
    let dev = RamDev::new(256 << 10);
    std::thread::scope(|scope| {
        for byte in [1, 2] {
            let dev = &dev;
            scope.spawn(move || {
                for i in 0..2000 {
                    dev.write_at(i % 100 * 512, &[byte; 8192], TAG)
                        .expect("a write");
                }
            });
        }
        for _ in 0..2000 {
            let mut out = [0; 8192];
            dev.read_at(25_600, &mut out, TAG).expect("a read");
            for sector in out.as_chunks::<512>().0 {
                assert!(sector.iter().all(|b| b == &sector[0]));
            }
        }
    });
}
