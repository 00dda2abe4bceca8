//! When the device fails or refuses: the error is told, nothing that was confirmed is lost, nothing
//! half done appears.
//!
//! Each request of a workload to one of its media fails once, or from then on for good. The
//! workload stops at the first answer that is not the model's. Then the power is cut, and the
//! device must hold a state that the model allows. `STETFS_LAB_CUTS=N` tries N requests of each run
//! (default 16; 0: all).
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use stetfs::{Fs, MountOptions};
use stetfs_crash::media::Media;
use stetfs_crash::media::kind::Kind;
use stetfs_crash::oracle::{Allowed, Oracle, Placed};
use stetfs_crash::subject::Subject;
use stetfs_crash::target::Target;
use stetfs_crash::workloads::script::Script;
use stetfs_media::Op::{Erase, Read, Write};
use stetfs_media::sim::{Failure, Fault, Keep, SimOptions};
use stetfs_media::{AtomicWrite, BlockDev, FileOptions, Layer, MediaError, Run, SimDev};
use stetfs_scheme::{DataPromise, Ground};
use stetfs_schemes::{each_example, each_scheme, find};
use stetfs_testkit::ground::orders;
use stetfs_testkit::host::{KernelMount, Loop, needs, scratch};
use stetfs_testkit::image::{EXT3_1K, EXT4_1K, EXT4_4K, check};
use stetfs_testkit::mounted::Mounted;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;
use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::{Durable, Op};
use stetfs_testkit::world::{Outcome, Reply, World};

/// Returns how many requests of a run fail, each in a run of its own.
fn tries() -> u64 {
    std::env::var("STETFS_LAB_CUTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(16)
}

fn mounted(target: &Target, dev: &Arc<SimDev>) -> Result<Library> {
    Ok(Library::mount(dev.clone() as Arc<dyn BlockDev>, target.options())?.0)
}

/// The result of a script.
struct Ran {
    /// The states that may be found: from the newest that a sync vouched for, to the one after the
    /// operation that failed.
    allowed: Allowed,
    /// The answer that was not the model's.
    told: Option<Outcome>,
    /// The promise of the scheme in its mode.
    promise: DataPromise,
}

/// Runs the script while `fault` is planned on a medium.
fn run_with(
    target: &Target,
    script: Script,
    media: &Media,
    (medium, fault): (usize, Fault),
) -> Result<Ran> {
    run_on(target, script, media.shown()?, || {
        media.inject(medium, fault);
    })
}

/// Runs the script on a volume that fails or refuses as soon as `begins` is set.
fn run_on(
    target: &Target,
    script: Script,
    shown: stetfs::Media,
    begins: impl FnOnce(),
) -> Result<Ran> {
    let mounted = Library::mount_as_it_is(shown, target.options()).context("mounting");
    let (mut library, _) = mounted?;
    let promise = library.fs().promise();
    begins();
    let mut model = Model::new(target.volume.rules());
    let (mut vouched, mut placed, mut told) = (0, Placed::default(), None);
    for op in script.ops(target.volume.profile()) {
        if op == Op::Remount {
            continue;
        }
        let (expected, found) = (model.apply(&op), library.apply(&op));
        if expected == found {
            vouched = vouched.max(model.vouched(promise.is_apart()));
            placed.note(model.synced(), model.steps());
            continue;
        }
        match (&expected, &found) {
            (_, Err(Errno::IO | Errno::ROFS)) => {}
            // After a short write, the rest fails when it is tried again.
            (Ok(Reply::Count(all)), Ok(Reply::Count(some))) if some < all => {}
            _ => bail!(
                "{op:?}: {found:?} tells nobody that the device failed, expected {expected:?}"
            ),
        }
        // A failed sync has vouched for nothing.
        told = Some(found);
        break;
    }
    Ok(Ran {
        allowed: Allowed {
            states: vouched..=model.steps(),
            placed,
        },
        told,
        promise,
    })
}

/// Returns the model's states of the script without remounts.
fn states(target: &Target, script: Script) -> Vec<Model> {
    let mut model = Model::new(target.volume.rules());
    let mut states = vec![model.clone()];
    for op in script
        .ops(target.volume.profile())
        .iter()
        .filter(|op| **op != Op::Remount)
    {
        let _ = model.apply(op);
        states.push(model.clone());
    }
    states
}

/// Lets each request to a medium fail; media are counted from the home device on.
fn each_request_fails(target: &Target, medium: usize, script: Script) -> Result<String> {
    let contents = target.contents()?;
    let kind = contents
        .media()
        .nth(medium)
        .context("there is no such medium")?
        .0;
    // Count the requests.
    let media = Media::new(&contents);
    let never = Fault::nth_of_any(u64::MAX);
    let ran = run_with(target, script, &media, (medium, never))?;
    ensure!(ran.told.is_none(), "failed without a fault");
    let idle = Media::new(&contents);
    drop(Library::mount_as_it_is(idle.shown()?, target.options())?);
    let requests_of = |media: &Media| media.struck()[medium].1;
    let requests = requests_of(&media).saturating_sub(requests_of(&idle));
    let oracle = Oracle::new(states(target, script), &[], ran.promise);
    let mut subject = Subject::new(target);
    let mut rng = Rng::new(requests);
    let (mut struck, mut told) = (0, 0);
    let step = if tries() == 0 {
        1
    } else {
        (requests / tries()).max(1)
    };
    for nth in (rng.below(step)..requests).step_by(step as usize) {
        let fault = match (kind, rng.below(4)) {
            // A page that cannot be read is lost, whatever was promised about it.
            (Kind::Nand | Kind::Nand16k, 0) => Fault::nth(Write, nth / 2).times(2),
            (Kind::Nand | Kind::Nand16k, 1) => Fault::nth(Erase, nth % 8),
            (Kind::Nand | Kind::Nand16k, _) => Fault::nth(Write, nth / 2),
            (_, 0) => Fault::nth_of_any(nth).for_good(),
            (Kind::Block, 1) => Fault::nth_of_any(nth).failing(Failure::Torn { sectors: 1 }),
            // A line that has gone bad and is not written either.
            (Kind::Pmem, 1) => Fault::nth(Read, nth / 2).for_good(),
            _ => Fault::nth_of_any(nth),
        };
        let name = format!("{target} {}, medium {medium}: {fault:?}", script.name());
        let media = Media::new(&contents);
        let ran = run_with(target, script, &media, (medium, fault));
        let ran = ran.with_context(|| name.clone())?;
        struck += media.struck()[medium].0;
        told += u64::from(ran.told.is_some());
        let tapes = media.tapes();
        let now = tapes.moment(tapes.changes()).context("the last moment")?;
        for keep in [Keep::All, Keep::Random(nth)] {
            let left = now.contents(&keep);
            if let Err((fault, why)) = subject.judge(&left, &oracle, &ran.allowed)? {
                let told = ran.told;
                bail!("{name}, {told:?}, cut afterwards keeping {keep}: {fault}: {why}");
            }
        }
    }
    Ok(format!(
        "{target} {}, medium {medium}: {struck} faults struck, {told} were told, of {requests} \
            requests",
        script.name()
    ))
}

/// Runs each trial that has an order of writes of its own, with faults of each of its media: lines
/// of memory that go bad and stores that are lost, pages that cannot be programmed and blocks that
/// cannot be erased. Scripts and varieties of volume take turns.
fn every_trial(scheme: &str) {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let scheme = find(scheme).expect("a scheme");
    // Schemes that are not atomic promise nothing here.
    if !scheme.about.atomic {
        return;
    }
    let scripts = [
        Script::LogAndReplace,
        Script::Overwrites,
        Script::Revokes,
        Script::Random(21),
        Script::Orphans,
    ];
    let volumes = [EXT4_1K, EXT4_1K, EXT4_4K, EXT3_1K];
    let turns = scripts.into_iter().cycle().zip(volumes.into_iter().cycle());
    for (trial, (script, volume)) in orders(scheme).zip(turns) {
        let target = Target::of(scheme, trial, volume);
        for medium in 0..1 + usize::from(trial.ground.has_nvm()) {
            match each_request_fails(&target, medium, script) {
                Ok(line) => println!("{line}"),
                Err(error) => panic!("{error:#}"),
            }
        }
    }
}

macro_rules! tests {
    ($($scheme:ident)*) => {
        $(
            #[test]
            fn $scheme() {
                every_trial(stringify!($scheme));
            }
        )*
    };
}

each_scheme!(tests);
each_example!(tests);

/// A device that can write less atomically than it said a moment before: it refuses two requests of
/// three once `begins` is set.
struct Shrinks {
    dev: Arc<dyn BlockDev>,
    begins: AtomicBool,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Layer for Shrinks {
    fn below(&self) -> &dyn BlockDev {
        &*self.dev
    }

    fn atomic_write(&self) -> Option<&dyn AtomicWrite> {
        Some(self)
    }
}

impl AtomicWrite for Shrinks {
    fn max_sectors(&self) -> usize {
        let below = self.dev.atomic_write().expect("a device that has them");
        below.max_sectors()
    }

    fn write_whole(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        if self.begins.load(Relaxed)
            && runs.len() > 1
            && !self.asked.fetch_add(1, Relaxed).is_multiple_of(3)
        {
            self.refused.fetch_add(1, Relaxed);
            return Err(MediaError::Io {
                op: Write,
                offset: 0,
                len: 0,
                source: Errno::TOOBIG,
            });
        }
        let below = self.dev.atomic_write().expect("a device that has them");
        below.write_whole(runs)
    }
}

/// stet asks how long an atomic write may be, and a wearing device may allow less when the write
/// comes. Then the log takes what was meant for home, and no caller gets an error.
#[test]
fn an_atomic_write_that_has_become_too_long_goes_to_the_log() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let scheme = find("stet").expect("a scheme");
    let mut trials = orders(scheme).filter(|trial| trial.ground == Ground::Flash);
    let trial = trials.next().expect("it has one on flash");
    for script in [Script::Overwrites, Script::LogAndReplace] {
        let target = Target::of(scheme, trial, EXT4_4K);
        let media = Media::new(&target.contents().expect("a volume"));
        let mut shown = media.shown().expect("the layer");
        let shrinks = Arc::new(Shrinks {
            dev: shown.home,
            begins: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        shown.home = shrinks.clone();
        let ran = run_on(&target, script, shown, || {
            shrinks.begins.store(true, Relaxed)
        });
        let ran = ran.expect("a run");
        assert!(ran.told.is_none(), "{}: {:?}", script.name(), ran.told);
        let refused = shrinks.refused.load(Relaxed);
        println!("{}: {refused} refused", script.name());
        assert!(refused > 0, "{}: nothing was refused", script.name());
        let oracle = Oracle::new(states(&target, script), &[], ran.promise);
        let tapes = media.tapes();
        let now = tapes.moment(tapes.changes()).expect("the last moment");
        let left = now.contents(&Keep::All);
        let judged = Subject::new(&target).judge(&left, &oracle, &ran.allowed);
        if let Some(found) = judged.expect("a judgement").err() {
            panic!(
                "{}, {refused} refused: {}: {}",
                script.name(),
                found.0,
                found.1
            );
        }
    }
}

#[test]
fn after_a_failed_commit_nothing_can_be_changed() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let target = Target::new("jbd2", Some("journal"), EXT4_1K).expect("a target");
    let dev = Arc::new(
        SimOptions::default().build(
            target
                .contents()
                .expect("a volume")
                .volume()
                .expect("a volume"),
        ),
    );
    let mut library = mounted(&target, &dev).expect("a mount");
    let create = |path: &str| Op::Create {
        path: path.into(),
        mode: 0o644,
        exclusive: true,
    };
    library.apply(&create("before")).expect("create");
    library.apply(&Op::Sync).expect("sync");
    library.apply(&create("lost")).expect("create");
    dev.inject(Fault::nth(stetfs_media::Op::Write, 0).for_good());
    assert!(
        library.apply(&Op::Sync).is_err(),
        "the sync was not durable and said nothing"
    );
    dev.heal();
    assert!(
        library.apply(&Op::Sync).is_err(),
        "a later sync must not hide what was lost"
    );
    let refused = library.apply(&create("after"));
    assert!(
        matches!(refused, Err(Errno::ROFS | Errno::IO)),
        "{refused:?}"
    );
    library
        .apply(&Op::Stat {
            path: "before".into(),
        })
        .expect("reading goes on");
}

#[test]
fn a_device_that_cannot_be_written_is_mounted_read_only() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let target = Target::new("jbd2", Some("journal"), EXT4_4K).expect("a target");
    let image = target
        .contents()
        .expect("a volume")
        .volume()
        .expect("a volume");
    let options = SimOptions {
        read_only: true,
        ..SimOptions::default()
    };
    let (mut library, report) =
        Library::mount(Arc::new(options.build(image.clone())), target.options()).expect("a mount");
    assert!(
        report.read_only && !report.warnings.is_empty(),
        "{report:?}"
    );
    let op = Op::Create {
        path: "f".into(),
        mode: 0o644,
        exclusive: false,
    };
    assert_eq!(library.apply(&op), Err(Errno::ROFS));
    assert_eq!(
        library.apply(&Op::Mkdir {
            path: "d".into(),
            mode: 0o755
        }),
        Err(Errno::ROFS)
    );
    library.apply(&Op::Readdir { path: ".".into() }).ok();
    library.unmount().expect("unmount");
    // A dirty volume cannot be recovered on this device, and must not be shown as if it were clean.
    let dev = Arc::new(SimOptions::default().build(image));
    let mut library = mounted(&target, &dev).expect("a mount");
    library.apply(&op).expect("create");
    library.apply(&Op::Sync).expect("sync");
    drop(library);
    let dirty = dev.crash_point().crash(&Keep::All).image();
    let error = Fs::mount(Arc::new(options.build(dirty)), target.options())
        .map(drop)
        .expect_err("a dirty journal");
    assert!(error.to_string().contains("recover"), "{error}");
}

#[test]
fn an_image_in_use_is_refused() {
    skip_unless!(needs(true, true, &["mke2fs", "e2fsck"]));
    let dir = scratch().expect("a scratch directory");
    let at = |name: &str| dir.path().join(name);
    for name in ["a", "b"] {
        fs::create_dir(at(name)).expect("a mount point");
    }
    EXT4_4K.make(&at("image"), 32, 4).expect("a volume");
    let serve = env!("CARGO_BIN_EXE_serve");
    let first = Mounted::start(serve, &at("image"), &at("a"), "").expect("the first mount");
    Mounted::start(serve, &at("image"), &at("b"), "")
        .map(drop)
        .expect_err("a second mount");
    let busy = |path: &Path| match FileOptions::default().open(path) {
        Ok(_) => panic!("{} was opened although it is in use", path.display()),
        Err(error) => assert!(matches!(error, MediaError::Busy { .. }), "{error}"),
    };
    busy(&at("image"));
    first.unmount().expect("unmount");
    // A device that has the kernel's mount on it.
    let device = Loop::attach(&at("image")).expect("a loop device");
    let mount = KernelMount::ext4(device.device(), &at("a"), "").expect("the kernel's mount");
    busy(device.device());
    mount.unmount().expect("unmount");
    drop(device);
    check(&at("image")).expect("a clean volume");
}

/// Space and inodes run out: the writer is told at once, a sync never gets the error, and what was
/// confirmed stays.
#[test]
fn a_full_volume_tells_the_writer_and_keeps_what_it_has() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    for mode in ["journal", "ordered", "writeback"] {
        let dir = scratch().expect("a scratch directory");
        let path = dir.path().join("image");
        EXT4_1K
            .make_with(&path, 8, 1, &["-N", "64"])
            .expect("a volume");
        let dev = Arc::new(stetfs_media::RamDev::from_file(&path).expect("its content"));
        let options = MountOptions::parse(&format!("data={mode},noatime")).expect("options");
        let (mut library, _) = Library::mount(dev.clone(), options.clone()).expect("a mount");
        let mut files = 0;
        let full = loop {
            let name = format!("f{files}");
            let made = library.apply(&Op::Create {
                path: name,
                mode: 0o644,
                exclusive: true,
            });
            match made {
                Ok(_) => files += 1,
                Err(errno) => break errno,
            }
            assert!(files < 64, "{files} files on a volume of 64 inodes");
        };
        assert_eq!(full, Errno::NOSPC);
        library
            .apply(&Op::Open {
                slot: 0,
                path: "f0".into(),
                truncate: false,
            })
            .expect("open");
        let payload = stetfs_testkit::world::op::Payload {
            seed: 5,
            len: 10_000,
        };
        let mut written = 0;
        let full = loop {
            match library.apply(&Op::Write {
                slot: 0,
                offset: written,
                payload,
                durable: Durable::No,
            }) {
                Ok(Reply::Count(10_000)) => written += 10_000,
                // A short write; the next call will say that the rest does not fit.
                Ok(_) => {
                    let rest = Op::Append { slot: 0, payload };
                    break library.apply(&rest).expect_err("no room");
                }
                Err(errno) => break errno,
            }
            assert!(written < 8 << 20, "more was written than there is room");
        };
        assert_eq!(full, Errno::NOSPC, "after {written} bytes");
        library
            .apply(&Op::Fsync { slot: 0 })
            .expect("what was taken can be made durable");
        // Mount again without an unmount, as after a crash.
        drop(library);
        let (mut library, _) = Library::mount(dev.clone(), options).expect("recovery");
        library
            .apply(&Op::Open {
                slot: 0,
                path: "f0".into(),
                truncate: false,
            })
            .expect("open");
        for at in (0..written).step_by(10_000) {
            let read = library.apply(&Op::Read {
                slot: 0,
                offset: at,
                len: 10_000,
            });
            assert_eq!(read, Ok(Reply::Bytes(payload.bytes())), "{mode}: at {at}");
        }
        library
            .apply(&Op::Ftruncate { slot: 0, size: 0 })
            .expect("truncate");
        library.apply(&Op::Sync).expect("sync");
        library
            .apply(&Op::Write {
                slot: 0,
                offset: 0,
                payload,
                durable: Durable::No,
            })
            .expect("there is room again");
        library
            .apply(&Op::Unlink { path: "f1".into() })
            .expect("unlink");
        library.apply(&Op::Sync).expect("sync");
        library
            .apply(&Op::Create {
                path: "again".into(),
                mode: 0o644,
                exclusive: true,
            })
            .expect("an inode is free again");
        library.unmount().expect("unmount");
        dev.to_file(&path).expect("the image");
        check(&path).unwrap_or_else(|error| panic!("{mode}: {error:#}"));
    }
}
