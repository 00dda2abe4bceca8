//! Each state that our own jbd2 leaves on a disk after a power cut is allowed by the model of its
//! mode, and each that the kernel's ext4 leaves. A model that promises more than a journal keeps
//! fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stetfs::{
    Caller, Change, FallocateMode, Fs, MountOptions, New, OpenFlags, RenameFlags, Result, SetAttr,
    WriteFlags,
};
use stetfs_format::InodeNo;
use stetfs_fuse::Backend;
use stetfs_media::sim::{CrashImage, Keep, SimDev, SimOptions};
use stetfs_media::{BlockDev, Image};
use stetfs_powercut::call::Recording;
use stetfs_powercut::effect::{Arrangement, Set};
use stetfs_powercut::kernel::Kernel;
use stetfs_powercut::marks::Marks;
use stetfs_powercut::model::Model;
use stetfs_powercut::recorder::Recorder;
use stetfs_powercut::states::{Effort, states};
use stetfs_powercut::system::System;
use stetfs_powercut::tree::Tree;
use stetfs_testkit::host::needs;
use stetfs_testkit::image::Variety;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

/// An operation of a program: one call each.
#[derive(Clone, Copy, Debug)]
enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Write(&'static str, u64, usize),
    Cut(&'static str, u64),
    Punch(&'static str, u64, u64),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Chmod(&'static str, u16),
    Close(&'static str),
    Fsync(&'static str),
    Fdatasync(&'static str),
}

const PROGRAM: [Op; 16] = [
    Op::Create("tmp"),
    Op::Write("tmp", 0, 6000),
    Op::Fsync("tmp"),
    Op::Rename("tmp", "config"),
    Op::Create("log"),
    Op::Write("log", 0, 100),
    Op::Write("log", 100, 700),
    Op::Fsync("log"),
    Op::Mkdir("d"),
    Op::Rename("config", "d"),
    Op::Create("tmp"),
    Op::Write("tmp", 0, 3000),
    Op::Cut("log", 40),
    Op::Write("log", 0, 1000),
    Op::Unlink("log"),
    Op::Fsync("tmp"),
];

fn carry_out(on: &impl Backend, op: Op) -> Result<()> {
    let (c, root) = (&Caller::root(), InodeNo(2));
    let ino = |name: &str| on.lookup(c, root, name.as_bytes()).map(|entry| entry.ino);
    let set;
    let change = match op {
        Op::Create(name) => {
            let flags = OpenFlags::WRITE;
            return on.create(c, root, name.as_bytes(), 0o644, flags).map(drop);
        }
        Op::Write(name, offset, len) => {
            let bytes: Vec<u8> = (0..len).map(|n| b'a' + (n % 23) as u8).collect();
            let none = WriteFlags::empty();
            return on.write_with(c, ino(name)?, offset, &bytes, none).map(drop);
        }
        Op::Punch(name, offset, len) => {
            let how = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            return on.fallocate(c, ino(name)?, how, offset, len);
        }
        Op::Close(name) => {
            on.writer_closes(ino(name)?);
            return Ok(());
        }
        Op::Fsync(name) => return on.fsync(ino(name)?, false),
        Op::Fdatasync(name) => return on.fsync(ino(name)?, true),
        Op::Mkdir(name) => Change::Make((root, name.as_bytes()), New::Directory(0o755)),
        Op::Cut(name, size) => {
            let size = Some(size);
            set = SetAttr {
                size,
                ..SetAttr::default()
            };
            Change::SetAttr(ino(name)?, &set)
        }
        Op::Rename(from, to) => {
            let to: (InodeNo, &[u8]) = match to {
                "d" => (ino("d")?, b"config"),
                _ => (root, to.as_bytes()),
            };
            Change::Rename((root, from.as_bytes()), to, RenameFlags::empty())
        }
        Op::Link(name, other) => Change::Link(ino(name)?, (root, other.as_bytes())),
        Op::Unlink(name) => Change::Unlink((root, name.as_bytes())),
        Op::Chmod(name, mode) => {
            set = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            Change::SetAttr(ino(name)?, &set)
        }
    };
    on.change(c, &change).map(drop)
}

fn options(data: &str) -> MountOptions {
    MountOptions {
        data: Some(data.to_owned()),
        commit: Duration::MAX,
        ..MountOptions::default()
    }
}

fn mounted(dev: Arc<impl BlockDev + 'static>, data: &str) -> Fs {
    Fs::mount(dev, options(data)).unwrap().0
}

/// Runs the program on a simulated disk, with a commit after each operation or only at its syncs.
/// Returns, for each state after a power cut, how many operations had returned, and the tree.
fn left(fresh: &Image, data: &str, commits: bool) -> BTreeMap<(usize, u128), Tree> {
    let dev = Arc::new(SimDev::new(fresh.clone()));
    let fs = mounted(dev.clone(), data);
    let mut returned = vec![dev.changes()];
    for op in PROGRAM {
        carry_out(&fs, op).unwrap();
        returned.push(dev.changes());
        if commits {
            fs.sync().unwrap();
        }
    }
    let tape = dev.tape();
    let mut found = BTreeMap::new();
    for point in tape.crash_points() {
        let moment = point.moment();
        if moment < returned[0] {
            continue;
        }
        let calls = returned.iter().rposition(|at| *at <= moment).unwrap();
        let pieces = point.pieces().len();
        // No pending piece, all pieces, and each alone where there are few.
        let mut keeps: Vec<Box<dyn Fn(usize) -> bool>> =
            vec![Box::new(|_| false), Box::new(|_| true)];
        for n in 0..pieces.min(4) {
            keeps.push(Box::new(move |i| i == n));
            keeps.push(Box::new(move |i| i != n));
        }
        for keep in keeps {
            let image = point.image(&keep);
            let device = Arc::new(CrashImage::new(image, SimOptions::default()));
            let (tree, _) = Tree::read(&mounted(device, data)).unwrap();
            found.insert((calls, tree.digest()), tree);
        }
    }
    found
}

/// Draws a program of some operations on three files.
fn drawn(seed: u64) -> Vec<Op> {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let (mut rng, mut there) = (Rng::new(seed), BTreeMap::<&str, u64>::new());
    let mut program = Vec::new();
    while program.len() < 9 {
        let (name, other) = (*rng.pick(&NAMES), *rng.pick(&NAMES));
        let Some(size) = there.get(name).copied() else {
            there.insert(name, 0);
            program.push(Op::Create(name));
            continue;
        };
        // Lengths and places around the ends of blocks and sectors, and some others.
        let near = |rng: &mut Rng, most: u64| {
            let edge = *rng.pick(&[0, 1, 511, 512, 700, 4095, 4096, 5000]);
            edge.min(most)
        };
        let op = match rng.below(16) {
            0..5 => {
                let at = if rng.chance(50) {
                    size
                } else {
                    near(&mut rng, size)
                };
                let len = near(&mut rng, 3000).max(3);
                there.insert(name, size.max(at + len));
                Op::Write(name, at, len as usize)
            }
            5 | 6 if size > 0 => {
                let to = near(&mut rng, size - 1);
                there.insert(name, to);
                Op::Cut(name, to)
            }
            7 => {
                let to = size + near(&mut rng, 4096) + 1;
                there.insert(name, to);
                Op::Cut(name, to)
            }
            8 if size > 2 => {
                let at = near(&mut rng, size - 2);
                Op::Punch(name, at, 1 + rng.below(size - at))
            }
            9 | 10 if name != other => {
                let size = there.remove(name).unwrap_or_default();
                there.insert(other, size);
                Op::Rename(name, other)
            }
            11 if !there.contains_key(other) => {
                // Two names of one file: nothing more is asked of the second.
                there.remove(name);
                there.insert(other, size);
                Op::Link(name, other)
            }
            12 => {
                there.remove(name);
                Op::Unlink(name)
            }
            13 => Op::Chmod(name, *rng.pick(&[0o600, 0o640])),
            14 => Op::Close(name),
            15 if rng.chance(50) => Op::Fdatasync(name),
            15 => Op::Fsync(name),
            _ => continue,
        };
        program.push(op);
    }
    program
}

/// A program's recording, on a fresh volume.
fn recorded(fresh: &Image, program: &[Op]) -> Recording {
    let volume = Arc::new(CrashImage::new(fresh.clone(), SimOptions::default()));
    let recorder = Recorder::new(mounted(volume, "ordered"), Marks::new());
    recorder.begin().unwrap();
    for op in program {
        // What is refused is no call.
        let _ = carry_out(&recorder, *op);
    }
    recorder.end()
}

/// What a model leaves of the program.
struct Allowed<'a> {
    recording: &'a Recording,
    model: Model,
    arrangement: Arrangement,
    /// After each number of calls; none where there are too many.
    digests: Vec<Option<BTreeSet<u128>>>,
}

impl<'a> Allowed<'a> {
    fn by(model: Model, recording: &'a Recording) -> Self {
        let arrangement = model.arrange(recording);
        let effort = Effort {
            all: 1 << 14,
            ..Effort::default()
        };
        let digests = (0..=recording.calls.len()).map(|calls| {
            let found = states(&arrangement, calls, &effort);
            let end = arrangement.ends[calls];
            let digest = |there| arrangement.tree(recording, there, end).digest();
            let cuts = found.cuts.iter();
            let digests = cuts.map(|cut| digest(&cut.there)).collect();
            found.complete.then_some(digests)
        });
        Self {
            digests: digests.collect(),
            recording,
            model,
            arrangement,
        }
    }

    /// A call under way may have happened.
    fn check(&self, calls: usize, tree: &Tree, of: &str) {
        let digest = tree.digest();
        let moments = self.digests[calls..].iter().take(2);
        let mut all = moments.map(|of| of.as_ref().is_none_or(|of| of.contains(&digest)));
        assert!(
            all.any(|is_there| is_there),
            "{of}, after {calls} calls: {} does not leave a tree with, against all of them:\n{}",
            self.model,
            {
                let end = self.arrangement.ends[calls];
                let all = self.arrangement.tree(self.recording, &Set::first(end), end);
                tree.differences(&all).join("\n")
            }
        );
    }
}

#[test]
fn what_a_journal_leaves_on_blocks_is_among_what_its_model_leaves() {
    let file = tempfile::NamedTempFile::new().unwrap();
    Variety::find("ext4-4k")
        .unwrap()
        .make_with(file.path(), 16, 4, &[])
        .unwrap();
    let fresh = Image::from_file(file.path()).unwrap();
    let recording = recorded(&fresh, &PROGRAM);
    assert_eq!(recording.calls.len(), PROGRAM.len());
    for data in ["ordered", "journal"] {
        let allowed = Allowed::by(format!("ext4-{data}").parse().unwrap(), &recording);
        for commits in [false, true] {
            let left = left(&fresh, data, commits);
            assert!(left.len() > 4, "{} states", left.len());
            for ((calls, _), tree) in left {
                allowed.check(calls, &tree, &format!("data={data}, commits {commits}"));
            }
        }
    }
}

/// Lets the kernel, alone and with a scheme of ours below it, leave states of a program, and checks
/// that its model allows them. Returns how many there were, and how many the kernel has recovered.
fn check_kernels(fresh: &Image, program: &[Op], of: &str) -> (usize, usize) {
    let recording = recorded(fresh, program);
    let (mut states, mut seconded) = (0, 0);
    for name in Kernel::EXAMPLES {
        let kernel: Kernel = name.parse().unwrap();
        let (above, _) = name.split_once('/').unwrap_or((name, ""));
        let model = above.replace("kernel", "ext4").parse().unwrap();
        let allowed = Allowed::by(model, &recording);
        let mut seen = BTreeSet::new();
        for pace in kernel.paces() {
            let played = kernel.play(fresh, &recording, *pace);
            let played = played.unwrap_or_else(|e| panic!("{of}, {name}, {pace}: {e:#}"));
            let mut moments = played.tapes.pre_flush_moments();
            moments.extend(&played.returned);
            moments.retain(|at| *at >= played.returned[0]);
            for moment in played.tapes.moments(moments) {
                let calls = played.returned.partition_point(|at| *at <= moment.at()) - 1;
                for keep in [Keep::None, Keep::All, Keep::Random(1), Keep::Random(2)] {
                    let at = moment.at();
                    let of = format!("{of}, {name}, {pace}, {at} changes, {keep}");
                    let left = moment.contents(&keep);
                    let recovered = kernel.recover(&left);
                    let (_, tree) = recovered.unwrap_or_else(|e| panic!("{of}: {e:#}"));
                    allowed.check(calls, &tree, &of);
                    if seen.insert(tree.digest()) && seen.len() % 8 == 1 {
                        let second = kernel.second_opinion(&left, &tree);
                        seconded += usize::from(second.unwrap_or_else(|e| panic!("{of}: {e:#}")));
                    }
                }
            }
        }
        println!("{of}, {name}: {} states", seen.len());
        states += seen.len();
    }
    (states, seconded)
}

#[test]
fn what_the_kernel_leaves_is_among_what_its_model_leaves() {
    skip_unless!(needs(true, true, &["losetup", "mount", "e2fsck"]));
    let fresh = stetfs_powercut::fresh::volume(16 << 20).unwrap();
    let (states, seconded) = check_kernels(&fresh, &PROGRAM, "the program");
    assert!(states > 60 && seconded > 10, "{states} states, {seconded}");
}

/// The same for drawn programs: `STETFS_KERNEL_CASES=N` from `STETFS_KERNEL_SEED=N` on.
#[test]
#[ignore = "takes minutes; make crash-kernel"]
fn what_the_kernel_leaves_of_any_program_is_among_what_its_model_leaves() {
    skip_unless!(needs(true, true, &["losetup", "mount", "e2fsck"]));
    let number = |name: &str, usual: u64| {
        let set = std::env::var(name).ok();
        set.map_or(usual, |text| text.parse().expect(name))
    };
    let first = number("STETFS_KERNEL_SEED", 1);
    let fresh = stetfs_powercut::fresh::volume(16 << 20).unwrap();
    let (mut states, mut seconded) = (0, 0);
    for seed in first..first + number("STETFS_KERNEL_CASES", 100) {
        let program = drawn(seed);
        let found = check_kernels(&fresh, &program, &format!("seed {seed}, {program:?}"));
        (states, seconded) = (states + found.0, seconded + found.1);
    }
    println!("{states} states, {seconded} of them also recovered by the kernel");
}
