//! A volume and the memory beside it, each from another moment: a backup that was restored, a copy
//! that was mounted by mistake, a memory file that was lost and made anew.
//!
//! Every volume of a history is paired with every memory of it. A mount must find everything that
//! was confirmed by the time of the volume and by that of the memory; or it must be refused by
//! name, and leave both as they were. Pairs that belong together must mount; so must a closed
//! volume with any memory that is empty. Two pairs cannot be told apart from right ones: an older
//! memory beside a volume that has had no checkpoint since; and, where data go home by themselves,
//! an older volume. (Between checkpoints, nothing at all is written to a volume with a cache.)
//!
//! `--nocapture` prints the table.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stetfs::{Caller, Fs, Media, MountOptions, OpenFlags};
use stetfs_format::nvm_cache::{CACHE_GEOMETRY_LAYOUT, CacheGeometry, GEOMETRY_OFFSET};
use stetfs_format::{FeatureIncompat, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::sim::{Rig, SimOptions, SimPmemOptions};
use stetfs_media::{BlockDev, Cause, Class, Image, Pmem, SimDev, SimPmem, Tag};
use stetfs_scheme::DataMode;
use stetfs_schemes::SCHEMES;
use stetfs_testkit::ground::orders;
use stetfs_testkit::host::{needs, scratch};
use stetfs_testkit::image::{EXT4_1K, check};
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

const BYTES: u64 = 512 << 10;

/// Files by name, each with the byte that fills it and the number of these bytes.
type Files = BTreeMap<String, (u8, usize)>;

struct Machine {
    dev: Arc<SimDev>,
    pmem: Option<Arc<SimPmem>>,
}

impl Machine {
    fn of(home: &Image, nvm: Option<&Image>) -> Self {
        let options = SimPmemOptions {
            record: false,
            ..SimPmemOptions::default()
        };
        Self {
            dev: Arc::new(SimDev::new(home.clone())),
            pmem: nvm.map(|nvm| Arc::new(options.build(nvm.clone()))),
        }
    }

    fn mount(&self, scheme: &str) -> stetfs::Result<Fs> {
        let mut options = MountOptions::parse(&format!("{scheme},memory=8M")).expect("options");
        // Everything in one order.
        options.commit = Duration::MAX;
        let media = Media {
            home: self.dev.clone(),
            nvm: self.pmem.clone().map(|pmem| pmem as Arc<dyn Pmem>),
        };
        Fs::mount(media, options).map(|(fs, _)| fs)
    }

    /// Returns what a power cut leaves.
    fn left(&self) -> (Image, Image) {
        let pmem = self.pmem.as_ref().expect("memory");
        (self.dev.stable(), pmem.stable())
    }
}

/// Changes files; every change is confirmed.
fn work(fs: &Fs, files: &mut Files, seed: u64) {
    let (c, rw) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let mut rng = Rng::new(seed);
    for n in 0..12 {
        let name = format!("file{}", rng.below(24));
        if n % 4 == 3 && files.remove(&name).is_some() {
            fs.unlink(&c, fs.root(), name.as_bytes())
                .expect("an unlink");
            fs.sync().expect("a sync");
            continue;
        }
        let (byte, len) = (1 + rng.below(255) as u8, 1 + rng.below(5000) as usize);
        if files.contains_key(&name) {
            fs.unlink(&c, fs.root(), name.as_bytes())
                .expect("an unlink");
        }
        let made = fs.create(&c, fs.root(), name.as_bytes(), 0o644, rw);
        let ino = made.expect("a file").ino;
        fs.write(&c, ino, 0, &vec![byte; len]).expect("a write");
        fs.fsync(ino, false).expect("a sync");
        fs.release(ino).expect("a release");
        files.insert(name, (byte, len));
    }
}

/// Returns the number of files that are not as they were confirmed.
fn missing(fs: &Fs, files: &Files) -> usize {
    let c = Caller::root();
    let names = (0..24).map(|n| format!("file{n}"));
    let is_wrong = |name: &String| {
        let found = fs.lookup(&c, fs.root(), name.as_bytes());
        match (found, files.get(name)) {
            (Err(stetfs::Error::NotFound), None) => false,
            (Ok(entry), Some((byte, len))) => {
                let mut content = vec![0; len + 1];
                let read = fs.read(entry.ino, 0, &mut content);
                read.ok() != Some(*len) || content[..*len].iter().any(|b| b != byte)
            }
            _ => true,
        }
    };
    names.filter(is_wrong).count()
}

/// A moment in a volume's history.
#[derive(Clone)]
struct Moment {
    name: &'static str,
    image: Image,
    files: Files,
    /// True if everything is home.
    is_closed: bool,
    /// True if it is the same volume.
    is_ours: bool,
}

fn fresh() -> Image {
    let dir = scratch().expect("a directory");
    let path = dir.path().join("image");
    EXT4_1K.make(&path, 12, 1).expect("a volume");
    Image::from_file(&path).expect("its content")
}

/// Returns the epoch of a volume in use, and its newest checkpoint.
fn checkpoint(image: &Image) -> Option<(u64, u64)> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    image.read(SUPERBLOCK_OFFSET, &mut raw);
    let sb = Superblock::decode(&raw).expect("a superblock");
    if !sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG) {
        return None;
    }
    let dev = SimDev::new(image.clone());
    let log = stetfs::journal_extents(&dev, &sb).expect("a journal");
    let record = stetfs::memory_record(&dev, &sb, &log).expect("its block");
    record.map(|record| (record.epoch, record.checkpoint))
}

fn is_sound(image: &Image) -> bool {
    let dir = scratch().expect("a directory");
    let path = dir.path().join("image");
    image.to_file(&path).expect("a file");
    check(&path).is_ok()
}

/// Returns the volumes and memories that two epochs of a volume leave. Those of the last crash
/// belong together.
fn history(scheme: &str) -> (Vec<Moment>, Vec<Moment>) {
    let (mut volumes, mut memories) = (Vec::new(), Vec::new());
    let mut note = |name, machine: &Machine, files: &Files, is_closed| {
        let (home, nvm) = machine.left();
        for (list, image) in [(&mut volumes, home), (&mut memories, nvm)] {
            list.push(Moment {
                name,
                image,
                files: files.clone(),
                is_closed,
                is_ours: true,
            });
        }
    };
    let machine = Machine::of(&fresh(), Some(&Image::new(BYTES)));
    let mut files = Files::new();
    let fs = machine.mount(scheme).expect("a mount");
    work(&fs, &mut files, 1);
    while fs.drain_some().expect("a checkpoint") > 0 {}
    work(&fs, &mut files, 2);
    note("an older epoch", &machine, &files, false);
    fs.unmount().expect("an unmount");
    note("closed before", &machine, &files, true);
    let fs = machine.mount(scheme).expect("a mount");
    work(&fs, &mut files, 3);
    note("before a checkpoint", &machine, &files, false);
    while fs.drain_some().expect("a checkpoint") > 0 {}
    work(&fs, &mut files, 4);
    note("after it", &machine, &files, false);
    work(&fs, &mut files, 5);
    note("crashed now", &machine, &files, false);
    work(&fs, &mut files, 6);
    note("still later", &machine, &files, false);
    fs.unmount().expect("an unmount");
    note("closed", &machine, &files, true);

    let changed = volumes.last().expect("a volume").clone();
    let other = Machine::of(&changed.image, None);
    let fs = other.mount("scheme=jbd2").expect("a mount");
    work(&fs, &mut files, 7);
    fs.unmount().expect("an unmount");
    volumes.push(Moment {
        name: "closed and changed",
        image: other.dev.stable(),
        files,
        ..changed
    });

    let foreign = |name, is_closed| {
        let machine = Machine::of(&fresh(), Some(&Image::new(BYTES)));
        let mut files = Files::new();
        let fs = machine.mount(scheme).expect("a mount");
        work(&fs, &mut files, 8);
        if is_closed {
            fs.unmount().expect("an unmount");
        }
        let (home, nvm) = machine.left();
        let moment = |image| Moment {
            name,
            image,
            files: files.clone(),
            is_closed,
            is_ours: false,
        };
        (moment(home), moment(nvm))
    };
    let (home, nvm) = foreign("foreign", false);
    volumes.push(home);
    memories.push(nvm);
    memories.push(foreign("foreign, closed", true).1);
    memories.push(Moment {
        name: "zeroed",
        image: Image::new(BYTES),
        files: Files::new(),
        is_closed: true,
        is_ours: true,
    });
    (volumes, memories)
}

/// The result of a pair.
enum Outcome {
    Refused(String),
    /// It was mounted. The numbers are of files from the volume's and from the memory's time that
    /// are missing.
    Used(usize, usize),
    /// It was mounted, and failed later or left something that e2fsck must repair.
    Damaged,
}

fn pair(scheme: &str, volume: &Moment, memory: Option<&Moment>) -> Outcome {
    let machine = Machine::of(&volume.image, memory.map(|memory| &memory.image));
    match machine.mount(scheme) {
        Err(error) => {
            let name = error.to_string();
            // A refused pair is as it was.
            let nvm = machine.pmem.as_ref().map(|pmem| pmem.newest());
            let is_same = machine.dev.newest() == volume.image
                && nvm.as_ref() == memory.map(|memory| &memory.image);
            if !is_same {
                return Outcome::Damaged;
            }
            Outcome::Refused(name)
        }
        Ok(fs) => {
            let of_volume = missing(&fs, &volume.files);
            let of_memory = memory.map_or(0, |memory| missing(&fs, &memory.files));
            let is_closed = fs.unmount().is_ok();
            if is_closed && is_sound(&machine.dev.stable()) {
                Outcome::Used(of_volume, of_memory)
            } else {
                Outcome::Damaged
            }
        }
    }
}

/// A trial of a scheme with memory beside the volume.
struct Beside {
    /// Its mount options.
    options: String,
    /// True if that memory is a cache.
    caches: bool,
    /// True if data go home by themselves, before the commit.
    is_ordered: bool,
    /// True if an unmount leaves content in the memory.
    keeps: bool,
}

/// Returns each trial with memory beside the volume and an order of its own.
fn beside() -> impl Iterator<Item = Beside> {
    SCHEMES.iter().flat_map(|scheme| {
        let beside = orders(scheme).filter(|trial| trial.ground.has_nvm());
        beside.map(|trial| Beside {
            options: trial.mount_options(scheme.about),
            caches: scheme.about.caches,
            is_ordered: trial.parts().0 == Some(DataMode::Ordered.name()),
            keeps: trial.keeps_cache(),
        })
    })
}

/// Returns those trials whose memory is empty when the volume is closed.
fn emptied() -> impl Iterator<Item = Beside> {
    beside().filter(|way| !way.keeps)
}

#[test]
fn nothing_confirmed_is_given_up_in_silence() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let mut wrong = Vec::new();
    for way in emptied() {
        let scheme = way.options.as_str();
        let (volumes, memories) = history(scheme);
        println!("\n{scheme}: volume | memory | outcome");
        let absent = std::iter::once(None);
        for volume in &volumes {
            for memory in memories.iter().map(Some).chain(absent.clone()) {
                let shown = memory.map_or("absent", |memory| memory.name);
                let same = memory.is_some_and(|memory| {
                    memory.name == volume.name && memory.is_ours == volume.is_ours
                });
                let twin = volumes
                    .iter()
                    .find(|twin| memory.is_some_and(|memory| twin.name == memory.name));
                let is_told = |twin: &Moment| {
                    let (a, b) = (checkpoint(&twin.image), checkpoint(&volume.image));
                    a.is_none() || a != b
                };
                let cannot_be_told = !same && twin.is_some_and(|twin| !is_told(twin));
                if cannot_be_told && way.caches {
                    assert!(twin.is_some_and(|twin| twin.image == volume.image));
                }
                let empty = memory.is_some_and(|memory| memory.is_closed && memory.is_ours);
                let must_mount = same || volume.is_closed && empty;
                let memory_is_newer = memory.is_some_and(|memory| {
                    let at = |name| volumes.iter().position(|v| v.name == name);
                    at(memory.name) > at(volume.name) && memory.is_ours && !memory.is_closed
                });
                let (said, is_right) = match pair(scheme, volume, memory) {
                    Outcome::Damaged => ("DAMAGED".into(), false),
                    Outcome::Refused(why) => (format!("refused: {why}"), !must_mount),
                    Outcome::Used(0, _) if !memory_is_newer => ("all is there".into(), true),
                    Outcome::Used(_, 0) if memory_is_newer => {
                        ("all is there, of the memory's time".into(), true)
                    }
                    Outcome::Used(_, 0) if cannot_be_told => {
                        ("of the memory's time: cannot be told".into(), true)
                    }
                    // Structure is as old as the memory; data are as old as either.
                    Outcome::Used(lost, of_memory) => (
                        format!("LOST {lost} files, {of_memory} of the memory's time"),
                        cannot_be_told && way.is_ordered,
                    ),
                };
                println!("{} | {shown} | {said}", volume.name);
                if !is_right {
                    wrong.push(format!("{scheme}: {} | {shown} | {said}", volume.name));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Flips bits in everything that recovery reads. None of them changes what is found, unless the
/// mount is refused. The content of cached blocks is not tested: ext4 has checksums of metadata,
/// nobody of data.
#[test]
fn no_flipped_bit_passes_unseen() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    const TRIES: u64 = 600;
    for way in emptied() {
        let scheme = way.options.as_str();
        let machine = Machine::of(&fresh(), Some(&Image::new(BYTES)));
        let mut files = Files::new();
        let fs = machine.mount(scheme).expect("a mount");
        work(&fs, &mut files, 1);
        while fs.drain_some().expect("a checkpoint") > 0 {}
        work(&fs, &mut files, 2);
        work(&fs, &mut files, 3);
        let home = machine.dev.stable();
        // After a while everything that was stored is in the memory.
        let nvm = machine.pmem.as_ref().expect("memory").newest();
        let content = nvm.to_bytes();
        let end = if way.caches {
            let raw = &content[GEOMETRY_OFFSET as usize..][..CACHE_GEOMETRY_LAYOUT.size];
            let raw = raw.try_into().expect("its size");
            let geometry = CacheGeometry::decode(raw).expect("a geometry");
            geometry.slot_at(0)
        } else {
            BYTES
        };
        // Bytes that are not zero are more likely to be read.
        let used: Vec<u64> = (0..end).filter(|at| content[*at as usize] != 0).collect();
        let (mut refused, mut harmless) = (0, 0);
        for seed in 0..TRIES {
            let mut rng = Rng::new(seed);
            let at = match seed % 4 {
                0 => rng.below(end),
                // Headers, states and words.
                1 => rng.below(704),
                _ => used[rng.below(used.len() as u64) as usize],
            };
            let bit = rng.below(8);
            let mut damaged = nvm.clone();
            damaged.write(at, &[content[at as usize] ^ 1 << bit]);
            let machine = Machine::of(&home, Some(&damaged));
            match machine.mount(scheme) {
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
                Ok(fs) => {
                    let lost = missing(&fs, &files);
                    assert_eq!(lost, 0, "{scheme}: byte {at}, bit {bit}");
                    harmless += 1;
                }
            }
        }
        println!("{scheme}: {refused} refused, {harmless} harmless, none unseen");
        assert!(refused > 0 && harmless > 0, "{scheme}");
    }
}

/// The cost of knowing from which time a volume is. A commit costs nothing, and no flush at all.
/// Each checkpoint costs one write of a sector to the volume, and in the memory two lines with a
/// fence each. Each commit of `dj` costs one line.
#[test]
fn a_checkpoint_costs_a_sector_and_two_fences() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for Beside {
        options: scheme, ..
    } in beside()
    {
        let scheme = scheme.as_str();
        let machine = Machine::of(&fresh(), Some(&Image::new(BYTES)));
        let fs = machine.mount(scheme).expect("a mount");
        let pmem = machine.pmem.as_ref().expect("memory");
        let counts = || {
            let (dev, nvm) = (machine.dev.meter().snapshot(), pmem.meter().snapshot());
            let record = dev.of(Tag::new(Class::Journal, Cause::Checkpoint));
            let (writes, flushes) = (dev.total().writes, dev.total_flushes());
            let (lines, fences) = (nvm.total().lines, nvm.total_fences());
            [
                record.writes,
                record.write_bytes,
                writes,
                flushes,
                lines,
                fences,
            ]
        };
        let since = |before: [u64; 6]| {
            let mut now = counts();
            now.iter_mut().zip(before).for_each(|(n, b)| *n -= b);
            now
        };
        let before = counts();
        work(&fs, &mut Files::new(), 1);
        let [record, _, writes, flushes, lines, fences] = since(before);
        println!(
            "{scheme}: 12 operations: {writes} writes, {flushes} flushes, {lines} lines, {fences} \
                fences"
        );
        assert_eq!(record, 0, "{scheme}");
        let before = counts();
        while fs.drain_some().expect("a checkpoint") > 0 {}
        let [record, bytes, writes, flushes, lines, fences] = since(before);
        println!(
            "{scheme}: a checkpoint: {writes} writes, {flushes} flushes, {lines} lines, {fences} \
                fences; of them {record} of {bytes} bytes for its number"
        );
        assert!(record > 0 && record <= flushes, "{scheme}");
        assert_eq!(bytes, record * 512, "{scheme}");
    }
}

/// The power goes off at every change that a mount and the following unmount make, of a volume that
/// is fresh, closed, kept or crashed. The pair that is left mounts, and everything is there.
#[test]
fn every_cut_of_a_mount_and_its_unmount_leaves_a_pair() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for Beside {
        options: scheme, ..
    } in beside()
    {
        let scheme = scheme.as_str();
        let machine = Machine::of(&fresh(), Some(&Image::new(BYTES)));
        let mut files = Files::new();
        let mut starts = vec![(machine.left(), files.clone())];
        let fs = machine.mount(scheme).expect("a mount");
        work(&fs, &mut files, 1);
        fs.unmount().expect("an unmount");
        starts.push((machine.left(), files.clone()));
        let fs = machine.mount(scheme).expect("a mount");
        work(&fs, &mut files, 2);
        starts.push((machine.left(), files.clone()));
        let mut cuts = 0;
        for (start, ((home, nvm), files)) in starts.iter().enumerate() {
            for cut in 0.. {
                let rig = Rig::default();
                let machine = Machine {
                    dev: Arc::new(SimOptions::default().build_on(&rig, home.clone())),
                    pmem: Some(Arc::new(
                        SimPmemOptions::default().build_on(&rig, nvm.clone()),
                    )),
                };
                machine.dev.cut_at(cut);
                if let Ok(fs) = machine.mount(scheme) {
                    let _ = fs.unmount();
                }
                let pmem = machine.pmem.as_ref().expect("memory");
                for home in [machine.dev.stable(), machine.dev.newest()] {
                    for nvm in [pmem.stable(), pmem.newest()] {
                        let after = Machine::of(&home, Some(&nvm));
                        let fs = after.mount(scheme);
                        let fs = fs.unwrap_or_else(|e| panic!("{scheme} {start} {cut}: {e}"));
                        assert_eq!(missing(&fs, files), 0, "{scheme} {start} {cut}");
                        cuts += 1;
                    }
                }
                if !machine.dev.is_cut() {
                    break;
                }
            }
        }
        println!("{scheme}: {cuts} states");
        assert!(cuts > 200, "{scheme}: {cuts}");
    }
}
