//! Persistent memory from outside: both kinds against the contract, and mapped files against the
//! system.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stetfs_media::pmem::{LINE, PmemOptions};
use stetfs_media::sim::{PmemTiming, SimPmem, SimPmemOptions};
use stetfs_media::{Cause, Class, Errno, Image, MappedPmem, MediaError, Op, Pmem, Survives, Tag};

use crate::files::Scratch;
use crate::loops::{Loop, Mount};

const TAG: Tag = Tag::new(Class::Data, Cause::Home);
const SIZE: u64 = 64 << 10;

#[derive(Clone, Debug)]
enum Step {
    Load { at: u64, len: usize },
    LoadWord { at: u64 },
    Store { at: u64, data: Vec<u8> },
    StoreWord { at: u64, value: u64 },
    StoreNt { at: u64, words: Vec<[u8; 8]> },
    Flush { at: u64, len: u64 },
    Fence,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0..40usize, 1 => 0..9000usize];
    let data = |max| prop::collection::vec(any::<u8>(), 0..max);
    prop_oneof![
        3 => (any::<u64>(), len.clone()).prop_map(|(at, len)| Step::Load { at, len }),
        1 => any::<u64>().prop_map(|at| Step::LoadWord { at }),
        4 => (any::<u64>(), prop_oneof![data(40), data(9000)])
            .prop_map(|(at, data)| Step::Store { at, data }),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(at, value)| Step::StoreWord { at, value }),
        2 => (any::<u64>(), prop::collection::vec(any::<[u8; 8]>(), 0..1100))
            .prop_map(|(at, words)| Step::StoreNt { at, words }),
        1 => (any::<u64>(), len).prop_map(|(at, len)| Step::Flush { at, len: len as u64 }),
        1 => Just(Step::Fence),
    ]
}

/// The expected counts, by the same steps.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    read_bytes: u64,
    write_bytes: u64,
    lines: u64,
    fences: u64,
}

/// Makes random accesses in memory whose content is all zero at first.
fn behaves_like_a_vector(pmem: &dyn Pmem, cases: u32) {
    let state = std::cell::RefCell::new((vec![0u8; pmem.size() as usize], Counts::default()));
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    });
    let place = |at: u64, len: u64, unit: u64| at % ((pmem.size() - len) / unit + 1) * unit;
    let lines = |at: u64, len: u64| {
        (at..at + len)
            .map(|byte| byte / 64)
            .fold((0, None), |(n, last), line| {
                (n + u64::from(last != Some(line)), Some(line))
            })
            .0
    };
    let outcome = runner.run(&prop::collection::vec(step(), 1..20), |steps| {
        let (model, counts) = &mut *state.borrow_mut();
        let put = |model: &mut [u8], counts: &mut Counts, at: u64, data: &[u8]| {
            model[at as usize..][..data.len()].copy_from_slice(data);
            counts.write_bytes += data.len() as u64;
        };
        for step in steps {
            match step {
                Step::Store { at, data } => {
                    let at = place(at, data.len() as u64, 1);
                    pmem.store(at, &data, TAG).expect("a store");
                    put(model, counts, at, &data);
                }
                Step::StoreWord { at, value } => {
                    let at = place(at, 8, 8);
                    pmem.store_u64(at, value, TAG).expect("a store");
                    put(model, counts, at, &value.to_le_bytes());
                }
                Step::StoreNt { at, words } => {
                    let data = words.concat();
                    let at = place(at, data.len() as u64, 8);
                    pmem.store_nt(at, &data, TAG).expect("a store");
                    put(model, counts, at, &data);
                    counts.lines += lines(at, data.len() as u64);
                }
                Step::Load { at, len } => {
                    let at = place(at, len as u64, 1);
                    let mut out = vec![0xEE; len];
                    pmem.load(at, &mut out, TAG).expect("a load");
                    prop_assert!(out == model[at as usize..][..len]);
                    counts.read_bytes += len as u64;
                }
                Step::LoadWord { at } => {
                    let at = place(at, 8, 8);
                    let bytes = model[at as usize..][..8].try_into().expect("a word");
                    prop_assert_eq!(pmem.load_u64(at, TAG), Ok(u64::from_le_bytes(bytes)));
                    counts.read_bytes += 8;
                }
                Step::Flush { at, len } => {
                    let at = place(at, len, 1);
                    pmem.flush(at, len, TAG).expect("a flush");
                    counts.lines += lines(at, len);
                }
                Step::Fence => {
                    pmem.fence(Cause::Home).expect("a fence");
                    counts.fences += 1;
                }
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{}: {e}", pmem.describe()));
    let account = pmem.meter().snapshot();
    let traffic = account.of(TAG);
    let counted = Counts {
        read_bytes: traffic.read_bytes,
        write_bytes: traffic.write_bytes,
        lines: traffic.lines,
        fences: account.fences(Cause::Home),
    };
    assert_eq!(counted, state.into_inner().1, "{}", pmem.describe());
}

/// Makes accesses that must be refused, and checks that the account does not show them.
fn refuses_what_is_out_of_bounds(pmem: &dyn Pmem) {
    let before = pmem.meter().snapshot();
    let size = pmem.size();
    for offset in [size - 8, size, u64::MAX - 7, u64::MAX - 15] {
        let past = |result: Result<(), MediaError>, op: Op| match result {
            Err(MediaError::PastEnd {
                op: it,
                offset: at,
                size: s,
                ..
            }) => {
                assert_eq!((it, at, s), (op, offset, size));
            }
            other => panic!("{op} at {offset}: {other:?}"),
        };
        past(pmem.load(offset, &mut [0; 16], TAG), Op::Read);
        past(pmem.store(offset, &[0; 16], TAG), Op::Write);
        past(pmem.store_nt(offset, &[0; 16], TAG), Op::Write);
        past(pmem.flush(offset, 16, TAG), Op::Flush);
        if offset >= size {
            past(pmem.load_u64(offset, TAG).map(drop), Op::Read);
            past(pmem.store_u64(offset, 1, TAG), Op::Write);
        }
    }
    let misaligned = |result: Result<(), MediaError>| {
        assert!(
            matches!(result, Err(MediaError::Misaligned { .. })),
            "{result:?}"
        );
    };
    misaligned(pmem.load_u64(4, TAG).map(drop));
    misaligned(pmem.store_u64(7, 1, TAG));
    misaligned(pmem.store_nt(4, &[0; 8], TAG));
    misaligned(pmem.store_nt(8, &[0; 12], TAG));
    assert_eq!(
        pmem.meter().snapshot(),
        before,
        "a refused access is not counted"
    );
}

#[test]
fn simulated() {
    for timing in PmemTiming::ALL {
        let options = SimPmemOptions {
            timing,
            record: timing == PmemTiming::None,
        };
        let pmem = options.build(Image::new(SIZE));
        behaves_like_a_vector(&pmem, 12);
        assert_eq!(pmem.survives(), Survives::PowerLoss);
        assert_eq!(
            pmem.rig().clock.now_ns(),
            pmem.meter().snapshot().total_busy_ns()
        );
    }
}

#[test]
fn mapped() {
    let scratch = Scratch::new();
    for (name, survives, words) in [
        (
            "a",
            Survives::PowerLoss,
            "msync at each fence; survives power loss",
        ),
        (
            "b",
            Survives::ProcessCrash,
            "no msync; survives the death of the process only",
        ),
    ] {
        let path = scratch.path(name);
        let options = MappedPmem::options().survives(survives);
        let pmem = options.create(&path, SIZE).expect("a file");
        assert_eq!((pmem.size(), pmem.survives()), (SIZE, survives));
        if !pmem.is_direct() {
            let described = pmem.describe();
            assert!(described.contains(words), "{described}");
        }
        behaves_like_a_vector(&pmem, 32);
        refuses_what_is_out_of_bounds(&pmem);
        let mut all = vec![0; SIZE as usize];
        pmem.load(0, &mut all, TAG).expect("a load");
        assert!(fs::read(&path).expect("the file") == all);
    }
}

/// Readers see each word whole, while other threads store it in any way.
#[test]
fn threads_never_see_half_a_word() {
    let scratch = Scratch::new();
    let pmem = create(&scratch.path("a"), Survives::ProcessCrash);
    std::thread::scope(|scope| {
        for byte in [0x11, 0x22] {
            let pmem = &pmem;
            scope.spawn(move || {
                for i in 0..2000 {
                    let data = [byte; 512];
                    let at = i % 64 * 8;
                    match i % 3 {
                        0 => pmem.store(at, &data, TAG),
                        1 => pmem.store_nt(at, &data, TAG),
                        _ => pmem.store_u64(at, u64::from_le_bytes([byte; 8]), TAG),
                    }
                    .expect("a store");
                }
            });
        }
        for i in 0..4000 {
            let word = pmem
                .load_u64(256 + i % 32 * 8, TAG)
                .expect("a load")
                .to_le_bytes();
            assert!(word.iter().all(|b| *b == word[0]), "{word:?}");
        }
    });
}

fn create(path: &Path, survives: Survives) -> MappedPmem {
    MappedPmem::options()
        .survives(survives)
        .create(path, SIZE)
        .expect("a file")
}

/// Opens a file that was just closed. A process that another test starts has a copy of our locks
/// until it runs its program, so the locks may last a moment longer.
fn reopen(options: PmemOptions, path: impl AsRef<Path>) -> MappedPmem {
    for _ in 0..500 {
        match options.open(&path) {
            Err(MediaError::Busy { .. }) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.expect("it opens"),
        }
    }
    panic!("{} stays locked", path.as_ref().display());
}

fn failure(opened: Result<MappedPmem, MediaError>) -> MediaError {
    match opened {
        Ok(pmem) => panic!("{} opened", pmem.describe()),
        Err(e) => e,
    }
}

fn reason(e: &MediaError) -> Errno {
    match e {
        MediaError::Open { source, .. } => *source,
        other => panic!("{other}"),
    }
}

#[test]
fn made_once_whole_and_never_larger() {
    let scratch = Scratch::new();
    let path = scratch.path("a");
    let made = create(&path, Survives::PowerLoss);
    let blocks = |path: &Path| {
        std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).expect("it exists"))
    };
    assert!(blocks(&path) * 512 >= SIZE, "no holes");
    drop(made);
    let options = MappedPmem::options();
    for size in [SIZE, 2 * SIZE] {
        assert_eq!(reason(&failure(options.create(&path, size))), Errno::EXIST);
    }
    assert_eq!(fs::metadata(&path).expect("it exists").len(), SIZE);
    for size in [0, 100, SIZE + 64] {
        assert_eq!(
            reason(&failure(options.create(scratch.path("b"), size))),
            Errno::INVAL
        );
        assert!(!scratch.path("b").exists());
    }
    assert_eq!(
        reason(&failure(options.open(scratch.path("b")))),
        Errno::NOENT
    );
    assert_eq!(
        reason(&failure(options.open(scratch.image("empty", 0)))),
        Errno::INVAL
    );
    assert!(matches!(
        failure(options.open(scratch.path(""))),
        MediaError::NotStorage { .. }
    ));

    let sparse = scratch.image("sparse", SIZE);
    let read_only = options.read_only(true).open(&sparse).expect("it opens");
    assert_eq!(blocks(&sparse), 0, "looking changes nothing");
    let refused = read_only.store(0, &[1], TAG);
    assert!(matches!(
        refused,
        Err(MediaError::ReadOnly { op: Op::Write, .. })
    ));
    assert!(matches!(
        read_only.store_u64(0, 1, TAG),
        Err(MediaError::ReadOnly { .. })
    ));
    assert!(matches!(
        read_only.store_nt(0, &[1; 8], TAG),
        Err(MediaError::ReadOnly { .. })
    ));
    assert!(matches!(
        read_only.flush(0, 1, TAG),
        Err(MediaError::ReadOnly { .. })
    ));
    assert_eq!(read_only.load_u64(0, TAG), Ok(0));
    drop(read_only);
    let _writable = reopen(options, &sparse);
    assert!(blocks(&sparse) * 512 >= SIZE, "holes are filled");
}

#[test]
fn one_writer_or_many_readers() {
    let scratch = Scratch::new();
    let path = scratch.path("a");
    let read_only = MappedPmem::options().read_only(true);
    let writer = create(&path, Survives::ProcessCrash);
    for options in [MappedPmem::options(), read_only] {
        assert!(matches!(
            failure(options.open(&path)),
            MediaError::Busy { .. }
        ));
    }
    read_only
        .lock(false)
        .open(&path)
        .expect("a look without a lock");
    drop(writer);
    let _first = reopen(read_only, &path);
    let _second = read_only.open(&path).expect("another reader");
    assert!(matches!(
        failure(MappedPmem::options().open(&path)),
        MediaError::Busy { .. }
    ));
}

const CHILD: &str = "STETFS_TEST_STORES_INTO";

/// The child of the next test; by itself it does nothing.
#[test]
fn a_child_that_stores() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let pmem = reopen(MappedPmem::options().survives(Survives::ProcessCrash), path);
    for i in 0..SIZE / LINE {
        pmem.store(i * LINE + 3, &[i as u8; 50], TAG)
            .expect("a store");
        pmem.flush(i * LINE, LINE, TAG).expect("a flush");
    }
    pmem.store_nt(0, &[0xAB; 128], TAG).expect("a store");
    pmem.fence(Cause::Home).expect("a fence");
    pmem.store_u64(128, 77, TAG).expect("a store");
    println!("\nstored");
    std::thread::sleep(Duration::from_secs(60));
}

/// The stores of a killed process are there, even one that it did not flush: the kernel has them.
#[test]
fn a_killed_process_leaves_its_stores() {
    let scratch = Scratch::new();
    let path = scratch.path("a");
    drop(create(&path, Survives::ProcessCrash));
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "pmem::a_child_that_stores", "--nocapture"])
        .env(CHILD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let said = BufReader::new(child.stdout.take().expect("a pipe"));
    let stored = said
        .lines()
        .any(|line| line.is_ok_and(|line| line == "stored"));
    child.kill().expect("it lives");
    child.wait().expect("it is dead");
    assert!(stored, "the child said something else");

    let mut expected = vec![0; SIZE as usize];
    for i in 0..(SIZE / LINE) as usize {
        expected[i * 64 + 3..][..50].fill(i as u8);
    }
    expected[..128].fill(0xAB);
    expected[128..136].copy_from_slice(&77u64.to_le_bytes());
    assert!(fs::read(&path).expect("the file") == expected);
    let pmem = reopen(MappedPmem::options(), &path);
    assert_eq!(pmem.load_u64(128, TAG), Ok(77));
}

/// A failed msync is as final as a failed fsync. Here the mapped device is a loop device whose file
/// lies on a full file system.
#[test]
fn a_failed_fence_is_never_forgotten() {
    let scratch = Scratch::new();
    let Some(_full) = Mount::new("tmpfs", "size=1m", Path::new("none"), &scratch.path("full"))
    else {
        return;
    };
    let image = scratch.image("full/a", 8 << 20);
    let Some(device) = Loop::over(&image, 512) else {
        return;
    };
    let pmem = MappedPmem::options().open(&device.0).expect("it opens");
    pmem.store(0, &vec![1; 512 << 10], TAG).expect("a store");
    pmem.flush(0, 512 << 10, TAG).expect("a flush");
    pmem.fence(Cause::Log).expect("there is room");
    pmem.store(0, &vec![2; 4 << 20], TAG)
        .expect("into the page cache");
    pmem.fence(Cause::Log).expect("nothing was flushed");
    pmem.flush(0, 4 << 20, TAG).expect("a flush");
    let first = pmem.fence(Cause::Log);
    let failed = matches!(
        first,
        Err(MediaError::Io {
            op: Op::Flush,
            source: Errno::IO,
            ..
        })
    );
    assert!(failed, "{first:?}");
    assert_eq!(pmem.fence(Cause::Log), Err(MediaError::WritesLost));
    assert_eq!(pmem.meter().snapshot().total_fences(), 2);
    assert!(
        pmem.meter().snapshot().busy_ns(Cause::Log) > 0,
        "msync takes time"
    );
}

/// A full file system is reported when the memory is made, not when it is stored to.
#[test]
fn there_is_room_or_there_is_no_memory() {
    let scratch = Scratch::new();
    let Some(_full) = Mount::new("tmpfs", "size=1m", Path::new("none"), &scratch.path("full"))
    else {
        return;
    };
    let path = scratch.path("full/a");
    let full = failure(MappedPmem::options().create(&path, 8 << 20));
    assert_eq!(reason(&full), Errno::NOSPC);
    assert!(!path.exists());
    File::create(&path)
        .and_then(|f| f.set_len(8 << 20))
        .expect("holes");
    assert_eq!(
        reason(&failure(MappedPmem::options().open(&path))),
        Errno::NOSPC
    );
}

#[test]
#[should_panic(expected = "an image of 100 bytes")]
fn simulated_memory_is_in_lines() {
    SimPmem::new(Image::new(100));
}
