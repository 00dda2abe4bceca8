//! The images that mke2fs makes of the same arguments, compared byte for byte.
//!
//! Sizes and options are drawn at random; some corner cases are listed. Two things may differ, and
//! the test makes them equal before it compares:
//! - `s_kbytes_written`: mke2fs counts there what it wrote, through its cache;
//! - what a device held before in a block with a copy of the superblock, behind that: mke2fs leaves
//!   it, we clear it.
//!
//! Then e2fsck must find nothing in ours, up to 1 TiB.
//!
//! A failure prints the mke2fs line and the number of the case. `make mkfs-long` takes some
//! thousand cases, and volumes up to 16 TiB. By hand, `STETFS_MKFS_CASES=5000` sets the number of
//! drawn cases, and `STETFS_MKFS_SEED=7` the first one.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use stetfs_format::superblock::{SUPERBLOCK_LAYOUT, reseal};
use stetfs_format::{FeatureCompat, FeatureIncompat, FeatureRoCompat, GroupNo};
use stetfs_media::{FileDev, Image};
use stetfs_mkfs::{Content, Inodes, JournalSize, MkfsError, Params, Plan};
use stetfs_testkit::host::{KernelMount, Loop, needs, run, scratch};
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

/// Drawn cases of an ordinary run, and of a long one.
const CASES: u64 = 60;
const CASES_LONG: u64 = 3000;
/// Groups of the largest volume of an ordinary run, and of a long one.
const GROUPS: u64 = 12;
const GROUPS_LONG: u64 = 700;
const TIME: u64 = 1_700_000_000;
const HASH_SEED: &[u8; 16] = b"fedcba9876543210";
/// Larger volumes take e2fsck minutes and gigabytes.
const E2FSCK_MAX: u64 = 1 << 40;
/// Bytes that a device may hold before.
const OLD: u8 = 0xa5;

/// What Debian 12 has in `/etc/mke2fs.conf`, as far as the cases need it.
const CONFIG: &str = "\
[defaults]
base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
default_mntopts = acl,user_xattr
enable_periodic_fsck = 0
blocksize = 4096
inode_size = 256
inode_ratio = 16384
[fs_types]
ext3 = {
features = has_journal
}
ext4 = {
features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
}
small = {
inode_ratio = 4096
}
floppy = {
inode_ratio = 8192
}
big = {
inode_ratio = 32768
}
huge = {
inode_ratio = 65536
}
";

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// A volume for both.
#[derive(Clone, Debug)]
struct Case {
    kind: &'static str,
    params: Params,
    /// More arguments for mke2fs; `params` has the same.
    args: Vec<String>,
    extended: Vec<String>,
}

impl Case {
    fn new(kind: &'static str, block_size: u32, blocks: u64) -> Self {
        let mut params = match kind {
            "ext3" => Params::ext3(block_size, blocks),
            _ => Params::ext4(block_size, blocks),
        };
        params.time = TIME;
        params.uuid = *b"0123456789abcdef";
        params.hash_seed = *HASH_SEED;
        Self {
            kind,
            params,
            args: Vec::new(),
            extended: vec![format!("hash_seed={}", uuid(HASH_SEED))],
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Params), args: &[&str]) -> Self {
        change(&mut self.params);
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    fn arguments(&self) -> Vec<String> {
        let params = &self.params;
        let mut args: Vec<String> = ["-q", "-F", "-t", self.kind].map(str::to_owned).to_vec();
        for (name, value) in [
            ("-b", params.block_size.to_string()),
            ("-I", params.inode_size.to_string()),
            ("-U", uuid(&params.uuid)),
        ] {
            args.extend([name.to_owned(), value]);
        }
        args.extend(self.args.iter().cloned());
        args.extend(["-E".to_owned(), self.extended.join(",")]);
        args
    }

    /// Draws a case of at most so many groups.
    fn draw(seed: u64, groups: u64) -> Self {
        let mut rng = Rng::new(seed);
        let kind = if rng.chance(25) { "ext3" } else { "ext4" };
        let block_size = *rng.pick(&[1024, 2048, 4096]);
        let group = 8 * u64::from(block_size);
        let blocks = match rng.below(10) {
            0 => 60 + rng.below(3000),
            // Around the end of a group, where the last one is too small.
            1..=3 => group * (1 + rng.below(groups.min(40))) + rng.below(1200),
            4..=7 => 2048 + rng.below(group * groups.min(20)),
            8 => group + rng.below(group * groups / 6),
            _ => group + rng.below(group * groups),
        };
        let mut case = Self::new(kind, block_size, blocks);
        case.draw_features(&mut rng);
        case.draw_sizes(&mut rng);
        case.draw_rest(&mut rng);
        case
    }

    fn draw_features(&mut self, rng: &mut Rng) {
        let params = &mut self.params;
        let mut changes = Vec::new();
        let is_ext4 = self.kind == "ext4";
        let mut off = |percent: u64, name: &str, clear: &mut dyn FnMut(&mut Params)| {
            if rng.chance(percent) {
                clear(params);
                changes.push(format!("^{name}"));
            }
        };
        off(10, "has_journal", &mut |p| {
            p.compat -= FeatureCompat::HAS_JOURNAL;
        });
        off(15, "resize_inode", &mut |p| {
            p.compat -= FeatureCompat::RESIZE_INODE;
        });
        off(8, "dir_index", &mut |p| {
            p.compat -= FeatureCompat::DIR_INDEX
        });
        off(5, "filetype", &mut |p| {
            p.incompat -= FeatureIncompat::FILETYPE
        });
        off(5, "large_file", &mut |p| {
            p.ro_compat -= FeatureRoCompat::LARGE_FILE
        });
        if is_ext4 {
            off(15, "64bit", &mut |p| {
                p.incompat -= FeatureIncompat::IS_64BIT
            });
            off(15, "flex_bg", &mut |p| {
                p.incompat -= FeatureIncompat::FLEX_BG
            });
            off(15, "metadata_csum", &mut |p| {
                p.ro_compat -= FeatureRoCompat::METADATA_CSUM;
            });
            off(5, "huge_file", &mut |p| {
                p.ro_compat -= FeatureRoCompat::HUGE_FILE
            });
            off(5, "extra_isize", &mut |p| {
                p.ro_compat -= FeatureRoCompat::EXTRA_ISIZE
            });
        }
        if is_ext4 && !params.incompat.contains(FeatureIncompat::IS_64BIT) && rng.chance(30) {
            params.incompat -= FeatureIncompat::EXTENTS;
            changes.push("^extent".into());
        }
        let has_csum = params.ro_compat.contains(FeatureRoCompat::METADATA_CSUM);
        if has_csum && rng.chance(8) {
            params.incompat |= FeatureIncompat::CSUM_SEED;
            changes.push("metadata_csum_seed".into());
        }
        if !has_csum && rng.chance(25) {
            params.ro_compat |= FeatureRoCompat::GDT_CSUM;
            changes.push("uninit_bg".into());
        }
        if !params.compat.contains(FeatureCompat::RESIZE_INODE) && rng.chance(30) {
            params.incompat |= FeatureIncompat::META_BG;
            changes.push("meta_bg".into());
        }
        if !params.compat.contains(FeatureCompat::RESIZE_INODE) && rng.chance(10) {
            params.ro_compat -= FeatureRoCompat::SPARSE_SUPER;
            changes.push("^sparse_super".into());
        }
        if !changes.is_empty() {
            self.args.extend(["-O".into(), changes.join(",")]);
        }
    }

    fn draw_sizes(&mut self, rng: &mut Rng) {
        let params = &mut self.params;
        let mut give = |name: &str, value: String| self.args.extend([name.to_owned(), value]);
        if rng.chance(25) {
            params.inode_size = *rng.pick(&[128, 256, 512, 1024]);
        }
        match rng.below(8) {
            0 => {
                let ratio = *rng.pick(&[1024, 2048, 4096, 8192, 65536, 1 << 20, 4 << 20]);
                let ratio = ratio.max(params.block_size);
                params.inodes = Inodes::Ratio(ratio);
                give("-i", ratio.to_string());
            }
            1 => {
                let count = 12 + rng.below(params.blocks / 2);
                params.inodes = Inodes::Count(count as u32);
                give("-N", count.to_string());
            }
            _ => {}
        }
        if rng.chance(25) {
            let percent = *rng.pick(&["0", "1", "0.5", "3.7", "12.25", "49", "50"]);
            params.reserved_percent = percent.parse().expect("a number");
            give("-m", percent.to_owned());
        }
        if rng.chance(15) {
            let most = 8 * u64::from(params.block_size);
            let blocks = (256 + rng.below(most - 256 + 1)) / 8 * 8;
            params.blocks_per_group = Some(blocks as u32);
            give("-g", blocks.to_string());
        }
        if params.incompat.contains(FeatureIncompat::FLEX_BG) && rng.chance(25) {
            params.flex_groups = 1 << rng.below(8);
            if params.flex_groups > 1 {
                give("-G", params.flex_groups.to_string());
            } else {
                params.flex_groups = 16;
            }
        }
        if params.compat.contains(FeatureCompat::HAS_JOURNAL) && rng.chance(25) {
            // mke2fs takes minutes to map a large one by pointers.
            let most = (params.blocks * u64::from(params.block_size)) >> 21;
            let mib = 1 + rng.below(most.min(512));
            let blocks = (mib << 20) / u64::from(params.block_size);
            params.journal = JournalSize::Blocks(blocks as u32);
            give("-J", format!("size={mib}"));
        }
    }

    fn draw_rest(&mut self, rng: &mut Rng) {
        let params = &mut self.params;
        rng.fill(&mut params.uuid);
        if rng.chance(50) {
            let label = *rng.pick(&["backup", "sixteen bytes ab", "\u{e4}\u{f6}\u{fc}"]);
            params.label[..label.len()].copy_from_slice(label.as_bytes());
            self.args.extend(["-L".into(), label.into()]);
        }
        if rng.chance(30) {
            params.root_owner = (1000, 70_000);
            self.extended.push("root_owner=1000:70000".into());
        }
        if rng.chance(15) {
            params.raid = (16, 64);
            self.extended.push("stride=16,stripe_width=64".into());
        }
        // What the device held before is on disk in full.
        if params.blocks * u64::from(params.block_size) < 48 << 20 && rng.chance(60) {
            params.content = *rng.pick(&[Content::Lazy, Content::Unknown]);
            let lazy = u8::from(params.content == Content::Lazy);
            self.extended
                .push(format!("nodiscard,lazy_itable_init={lazy}"));
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E2FSPROGS_FAKE_TIME={TIME} mke2fs")?;
        for arg in self.arguments() {
            if arg.contains(' ') {
                write!(f, " '{arg}'")?;
            } else {
                write!(f, " {arg}")?;
            }
        }
        write!(f, " IMAGE {}", self.params.blocks)
    }
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

/// What became of a case.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// Both made the same volume.
    Same,
    /// Both refused.
    Refused,
}

/// The directory of the images, and mke2fs's configuration.
struct Bench {
    dir: tempfile::TempDir,
    config: std::path::PathBuf,
}

impl Bench {
    fn new() -> Self {
        let dir = scratch().expect("a directory");
        let config = dir.path().join("mke2fs.conf");
        fs::write(&config, CONFIG).expect("the configuration");
        Self { dir, config }
    }

    /// Makes a file of the case's size with what the device held before.
    fn device(&self, case: &Case, name: &str) -> Result<std::path::PathBuf> {
        let path = self.dir.path().join(name);
        let _ = fs::remove_file(&path);
        let size = case.params.blocks * u64::from(case.params.block_size);
        let file = File::create(&path)?;
        file.set_len(size)?;
        if case.params.content != Content::Zero {
            file.write_all_at(&vec![OLD; usize::try_from(size)?], 0)?;
        }
        Ok(path)
    }

    /// Returns mke2fs's words if it refuses.
    fn theirs(&self, case: &Case, path: &Path) -> Result<Option<String>> {
        let out = Command::new("mke2fs")
            .args(case.arguments())
            .arg(path)
            .arg(case.params.blocks.to_string())
            .env("MKE2FS_CONFIG", &self.config)
            .env("E2FSPROGS_FAKE_TIME", TIME.to_string())
            .output()
            .context("mke2fs")?;
        let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        Ok((!out.status.success()).then_some(said))
    }

    fn judge(&self, case: &Case, name: &str) -> Result<Outcome> {
        let theirs = self.device(case, &format!("{name}.theirs"))?;
        let ours = self.device(case, &format!("{name}.ours"))?;
        let refused = self.theirs(case, &theirs)?;
        let plan = match (Plan::new(&case.params), refused) {
            (Err(_), Some(_)) => return Ok(Outcome::Refused),
            (Err(MkfsError::TooManyPieces(_)), None) => return Ok(Outcome::Refused),
            (Err(e), None) => bail!("only we refuse: {e}"),
            (Ok(_), Some(said)) => bail!("only mke2fs refuses: {said}"),
            (Ok(plan), None) => plan,
        };
        plan.write(&FileDev::options().direct(false).open(&ours)?)?;
        level_superblocks(&plan, &theirs, &ours)?;
        compare(&plan, &theirs, &ours)?;
        if plan.geometry().volume_bytes() <= E2FSCK_MAX {
            run("e2fsck", &[Path::new("-fn"), &ours])?;
        }
        fs::remove_file(&ours)?;
        fs::remove_file(&theirs)?;
        Ok(Outcome::Same)
    }
}

/// Makes equal what may differ in the superblocks: see the head of this file.
fn level_superblocks(plan: &Plan, theirs: &Path, ours: &Path) -> Result<()> {
    let geometry = plan.geometry();
    let found = SUPERBLOCK_LAYOUT.fields.iter();
    let mut found = found.filter(|field| field.name == "s_kbytes_written");
    let at = found.next().expect("a field").offset;
    let open = |path| File::options().read(true).write(true).open(path);
    let (theirs, ours) = (open(theirs)?, open(ours)?);
    let mut count = [0; 8];
    theirs.read_exact_at(&mut count, 1024 + at as u64)?;
    for g in (0..geometry.groups_count()).map(GroupNo) {
        if !geometry.has_super(g) {
            continue;
        }
        let start = match g.0 {
            0 => 1024,
            _ => geometry.block.start_of(geometry.group_first_block(g)),
        };
        let mut raw = [0; 1024];
        ours.read_exact_at(&mut raw, start)?;
        raw[at..at + 8].copy_from_slice(&count);
        if geometry.metadata_csum {
            reseal(&mut raw);
        }
        ours.write_all_at(&raw, start)?;
        if g.0 > 0 {
            theirs.write_all_at(&vec![0; geometry.block_size() - 1024], start + 1024)?;
        }
    }
    Ok(())
}

/// Fails at the first byte that differs.
fn compare(plan: &Plan, theirs: &Path, ours: &Path) -> Result<()> {
    let (theirs, ours) = (Image::from_file(theirs)?, Image::from_file(ours)?);
    let (mut a, mut b) = ([0; 4096], [0; 4096]);
    ensure!(theirs.size() == ours.size(), "sizes differ");
    for page in theirs.unshared_pages(&ours) {
        let len = usize::try_from((theirs.size() - page).min(4096))?;
        theirs.read(page, &mut a[..len]);
        ours.read(page, &mut b[..len]);
        if let Some(at) = (0..len).find(|&i| a[i] != b[i]) {
            let place = page + at as u64;
            let geometry = plan.geometry();
            let (block, within) = geometry.block.split(place);
            let end = (at + 16).min(len);
            bail!(
                "byte {place} (block {block}, byte {within:#x}) differs: theirs {:02x?}, ours \
                 {:02x?}\n{geometry:?}",
                &a[at..end],
                &b[at..end]
            );
        }
    }
    Ok(())
}

fn judge_all(cases: &[(String, Case)]) {
    let bench = Bench::new();
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let refused = AtomicU64::new(0);
    let work = || {
        while let Some((name, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            match bench.judge(case, name) {
                Ok(Outcome::Same) => {}
                Ok(Outcome::Refused) => {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => {
                    let failure = format!("{name}: {e:#}\n    {case}");
                    failures.lock().expect("no panic").push(failure);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
    let failures = failures.into_inner().expect("no panic");
    let refused = refused.into_inner();
    println!("{} cases, {refused} refused by both", cases.len());
    assert!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}",
        failures.len(),
        cases.len(),
        failures[..failures.len().min(10)].join("\n")
    );
    assert!(refused < cases.len() as u64 / 4 + 1, "most cases are made");
}

fn judge_drawn(count: u64, groups: u64) {
    let first = number("STETFS_MKFS_SEED", 1);
    let count = number("STETFS_MKFS_CASES", count);
    let cases: Vec<_> = (first..first + count)
        .map(|seed| (format!("seed {seed}"), Case::draw(seed, groups)))
        .collect();
    judge_all(&cases);
}

#[test]
fn drawn_volumes_are_those_of_mke2fs() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    judge_drawn(CASES, GROUPS);
}

#[test]
#[ignore = "takes a quarter of an hour: make mkfs-long"]
fn thousands_of_drawn_volumes_are_those_of_mke2fs() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    judge_drawn(CASES_LONG, GROUPS_LONG);
}

/// What is known to be a corner.
fn corners() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in ["ext4", "ext3"] {
        for block_size in [1024, 2048, 4096] {
            let group = 8 * u64::from(block_size);
            for blocks in [2047, 2048, group + 1, group + 600, 17 * group] {
                cases.push(Case::new(kind, block_size, blocks));
            }
        }
    }
    // Too few inodes; and the smallest with enough.
    cases.push(Case::new("ext4", 1024, 64));
    cases.push(Case::new("ext4", 1024, 64).with(|p| p.inodes = Inodes::Count(16), &["-N", "16"]));
    // A ratio that gives no inode.
    cases.push(
        Case::new("ext4", 2048, 500)
            .with(|p| p.inodes = Inodes::Ratio(4 << 20), &["-i", "4194304"]),
    );
    // Inodes in so small groups that the reserved ones fill more than one.
    cases.push(
        Case::new("ext4", 1024, 20_000)
            .with(|p| p.blocks_per_group = Some(512), &["-g", "512"])
            .with(|p| p.inodes = Inodes::Count(16), &["-N", "16"]),
    );
    cases
}

/// Corners of large volumes.
fn large_corners() -> Vec<Case> {
    vec![
        // More extents than an inode has: a journal of 262,144 blocks.
        Case::new("ext4", 4096, 34 << 20),
        // Three levels of pointers.
        Case::new("ext3", 1024, 600_000).with(
            |p| p.journal = JournalSize::Blocks(150 << 10),
            &["-J", "size=150"],
        ),
        // Other inode ratios; block numbers of more than 32 bits, inodes bounded by 32 bits.
        Case::new("ext4", 4096, 1 << 30),
        Case::new("ext3", 4096, (4 << 30) - 1),
        Case::new("ext4", 4096, (4 << 30) + 12345),
        Case::new("ext4", 4096, (4 << 30) + 12345)
            .with(|p| p.inodes = Inodes::Ratio(4096), &["-i", "4096"]),
    ]
}

fn judge_list(cases: Vec<Case>) {
    let named = |(i, case)| (format!("corner {i}"), case);
    judge_all(&cases.into_iter().enumerate().map(named).collect::<Vec<_>>());
}

#[test]
fn corner_cases_are_those_of_mke2fs() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    judge_list(corners());
}

#[test]
#[ignore = "takes a minute: make mkfs-long"]
fn large_corner_cases_are_those_of_mke2fs() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    judge_list(large_corners());
}

/// The kernel's ext4 mounts the volume, and what it writes leaves nothing for e2fsck.
#[test]
fn the_kernel_writes_to_them() {
    skip_unless!(needs(true, false, &["e2fsck", "losetup", "mount"]));
    let bench = Bench::new();
    let mnt = bench.dir.path().join("mnt");
    fs::create_dir(&mnt).expect("a mount point");
    for (kind, block_size, blocks) in [
        ("ext4", 4096, 20_000),
        ("ext4", 1024, 30_000),
        ("ext3", 2048, 9_000),
    ] {
        let case = Case::new(kind, block_size, blocks);
        let work = || -> Result<()> {
            let path = bench.device(&case, "kernel")?;
            stetfs_mkfs::make(&FileDev::options().direct(false).open(&path)?, &case.params)?;
            let device = Loop::attach(&path)?;
            let mount = KernelMount::ext4(device.device(), &mnt, "data=ordered")?;
            fs::create_dir(mnt.join("dir"))?;
            for i in 0..200 {
                fs::write(mnt.join(format!("dir/{i}")), vec![7; 9000])?;
            }
            mount.unmount()?;
            drop(device);
            run("e2fsck", &[Path::new("-fn"), &path]).map(drop)
        };
        work().unwrap_or_else(|e| panic!("{case}: {e:#}"));
    }
}
