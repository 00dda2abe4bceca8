//! Regular files: transfer, locks, refusals, reports.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use stetfs_media::{Block, BlockDev, Cause, Errno, FileDev, MediaError, Op};

use crate::conformance::{
    SIZE, TAG, behaves_like_a_vector, reads_any_bytes, refuses_what_is_out_of_bounds,
};

pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a file of zeros without blocks.
    pub(crate) fn image(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path)
            .and_then(|f| f.set_len(size))
            .expect("an image file");
        path
    }
}

fn open(path: &Path) -> FileDev {
    FileDev::options().open(path).expect("it opens")
}

/// Opens the file past the page cache, or reports that the test is left out.
pub(crate) fn open_direct(path: &Path) -> Option<FileDev> {
    match FileDev::options().direct(true).open(path) {
        Ok(dev) => Some(dev),
        Err(MediaError::Open {
            source: Errno::INVAL | Errno::OPNOTSUPP,
            ..
        }) => {
            eprintln!("SKIPPED: no O_DIRECT on {}", path.display());
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn failure(opened: Result<FileDev, MediaError>) -> MediaError {
    match opened {
        Ok(dev) => panic!("{} opened", dev.describe()),
        Err(e) => e,
    }
}

#[test]
fn buffered() {
    let scratch = Scratch::new();
    let dev = open(&scratch.image("a", SIZE));
    assert!(dev.host_cached() && dev.volatile_cache() && !dev.is_block_device());
    assert_eq!((dev.size(), dev.sector_size()), (SIZE, 512));
    behaves_like_a_vector(&dev, 32);
    refuses_what_is_out_of_bounds(&dev);
    reads_any_bytes(&dev);
}

#[test]
fn direct() {
    let scratch = Scratch::new();
    let Some(dev) = open_direct(&scratch.image("a", SIZE)) else {
        return;
    };
    assert!(!dev.host_cached() && dev.volatile_cache() && dev.is_direct());
    behaves_like_a_vector(&dev, 16);
    refuses_what_is_out_of_bounds(&dev);
    reads_any_bytes(&dev);
}

#[test]
fn more_parts_than_one_system_call_takes() {
    let scratch = Scratch::new();
    let path = scratch.image("a", 4 << 20);
    let parts: Vec<Block> = (0..3000u32)
        .map(|i| Block::copy_of(&[(i % 251) as u8; 512]))
        .collect();
    let slices: Vec<&[u8]> = parts.iter().map(Block::bytes).collect();
    let dev = open(&path);
    dev.write_vectored_at(512, &slices, TAG)
        .expect("a long write");
    dev.write_durable(2 << 20, &slices, TAG)
        .expect("a long write");
    let bytes = fs::read(&path).expect("the file");
    assert!(bytes[512..][..3000 * 512] == slices.concat());
    assert!(bytes[2 << 20..][..3000 * 512] == slices.concat());
}

#[test]
fn the_account_shows_what_was_done() {
    let scratch = Scratch::new();
    let dev = open(&scratch.image("a", SIZE));
    dev.write_vectored_at(0, &[&[1; 512], &[2; 1024]], TAG)
        .expect("a write");
    dev.write_durable(4096, &[&[3; 512]], TAG).expect("a write");
    dev.read_at(0, &mut [0; 4096], TAG).expect("a read");
    dev.flush(Cause::Log).expect("a flush");
    dev.discard(8192, 4096).expect("a discard");
    let account = dev.meter().snapshot();
    let traffic = account.of(TAG);
    assert_eq!((traffic.writes, traffic.write_bytes), (2, 2048));
    assert_eq!((traffic.reads, traffic.read_bytes), (1, 4096));
    assert_eq!(
        (
            account.flushes(Cause::Log),
            account.durable_writes(TAG.cause)
        ),
        (1, 1)
    );
    assert_eq!((account.discards(), account.discard_bytes()), (1, 4096));
}

#[test]
fn one_writer_or_many_readers() {
    let scratch = Scratch::new();
    let path = scratch.image("a", SIZE);
    let read_only = FileDev::options().read_only(true);
    let writer = open(&path);
    for options in [FileDev::options(), read_only] {
        let busy = failure(options.open(&path));
        let MediaError::Busy { path: named, by } = &busy else {
            panic!("{busy}")
        };
        assert_eq!(
            (named, by.contains(&std::process::id().to_string())),
            (&path, true),
            "{busy}"
        );
        assert!(busy.to_string().contains("already mounted or in use"));
    }
    read_only
        .lock(false)
        .open(&path)
        .expect("a look without a lock");
    drop(writer);
    let first = read_only.open(&path).expect("a reader");
    let _second = read_only.open(&path).expect("another reader");
    assert!(matches!(
        failure(FileDev::options().open(&path)),
        MediaError::Busy { .. }
    ));
    assert!(first.read_only());
    for refused in [
        first.write_at(0, &[0; 512], TAG),
        first.discard(0, 512),
        first.write_zeros(0, 512, TAG),
    ] {
        assert!(
            matches!(refused, Err(MediaError::ReadOnly { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn what_is_no_storage_is_named() {
    let scratch = Scratch::new();
    let missing = failure(FileDev::options().open(scratch.path("missing")));
    assert!(matches!(
        missing,
        MediaError::Open {
            source: Errno::NOENT,
            ..
        }
    ));
    let directory = failure(FileDev::options().open(scratch.path("")));
    assert!(matches!(
        directory,
        MediaError::NotStorage {
            what: "directory",
            ..
        }
    ));
    let null = failure(FileDev::options().open("/dev/null"));
    assert!(matches!(
        null,
        MediaError::NotStorage {
            what: "character device",
            ..
        }
    ));
    assert_eq!(
        null.to_string(),
        "/dev/null: is a character device, not a regular file or block device"
    );
}

#[test]
fn a_rest_that_is_no_sector_does_not_count() {
    let scratch = Scratch::new();
    let dev = open(&scratch.image("a", 10_000));
    assert_eq!(dev.size(), 9728);
    assert_eq!(open(&scratch.image("b", 100)).size(), 0);
}

/// Somebody truncates the file while it is open.
#[test]
fn a_file_that_shrinks_is_an_error() {
    let scratch = Scratch::new();
    let path = scratch.image("a", SIZE);
    let dev = open(&path);
    OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|f| f.set_len(5000))
        .expect("a cut");
    let read = dev.read_at(4096, &mut [0; 4096], TAG);
    assert_eq!(
        read,
        Err(MediaError::Truncated {
            op: Op::Read,
            offset: 4096,
            len: 4096,
            done: 904
        })
    );
}

/// Content that was cut off or removed while the file was open is not durable, whatever fdatasync
/// says.
#[test]
fn a_file_that_is_cut_or_removed_is_never_flushed() {
    let scratch = Scratch::new();
    type Spoil = fn(&Path) -> std::io::Result<()>;
    let cut: Spoil = |path| {
        File::options()
            .write(true)
            .open(path)
            .and_then(|f| f.set_len(5000))
    };
    let ways: [(&str, Spoil); 2] = [("cut", cut), ("removed", |path| fs::remove_file(path))];
    for (name, spoil) in ways {
        let path = scratch.image(name, SIZE);
        let dev = open(&path);
        dev.write_at(0, &[7; 4096], TAG).expect("a write");
        dev.flush(Cause::Home).expect("a flush");
        spoil(&path).expect("it is spoiled");
        let is_told = |e: &MediaError| match name {
            "cut" => matches!(
                e,
                MediaError::Cut {
                    was: SIZE,
                    is: 5000,
                    ..
                }
            ),
            _ => matches!(e, MediaError::Removed { .. }),
        };
        for done in [
            dev.check_backing(),
            dev.write_durable(0, &[&[8; 4096]], TAG),
            dev.check_backing(),
        ] {
            assert!(is_told(&done.unwrap_err()), "{name}");
        }
        // As after any failed flush, no later one succeeds.
        assert!(dev.flush(Cause::Home).is_err());
    }
}

#[test]
fn discarded_space_goes_back_to_the_host() {
    let scratch = Scratch::new();
    let path = scratch.image("a", SIZE);
    let dev = open(&path);
    dev.write_at(0, &vec![7; SIZE as usize], TAG)
        .expect("a write");
    dev.flush(Cause::Home).expect("a flush");
    let blocks = || fs::metadata(&path).expect("it exists").blocks();
    let full = blocks();
    match dev.discard(0, SIZE / 2) {
        Err(MediaError::Unsupported { .. }) => {
            return eprintln!("SKIPPED: no holes on {}", path.display());
        }
        done => done.expect("a discard"),
    }
    assert!(blocks() <= full / 2 + 16, "{} of {full}", blocks());
    assert_eq!(fs::metadata(&path).expect("it exists").len(), SIZE);
}

/// Bytes written past the page cache and through it are the same bytes.
#[test]
fn direct_and_buffered_agree() {
    let scratch = Scratch::new();
    let path = scratch.image("a", SIZE);
    let Some(dev) = open_direct(&path) else {
        return;
    };
    let odd = vec![5; 700 * 1024 + 1];
    let len = odd.len() - 1 - (odd.len() - 1) % dev.sector_size() as usize;
    dev.write_at(dev.sector_size().into(), &odd[1..=len], TAG)
        .expect("a write from anywhere");
    dev.flush(Cause::Home).expect("a flush");
    let mut bytes = vec![0; len];
    File::open(&path)
        .and_then(|f| f.read_exact_at(&mut bytes, dev.sector_size().into()))
        .expect("a read");
    assert!(bytes.iter().all(|b| *b == 5));
}
