//! Random operation sequences through the library against the in-memory model, on every variety of
//! volume and in every mode: equal answers, equal trees; after unmount e2fsck finds nothing and the
//! kernel sees the same.
//!
//! A failure shrinks to a short list of operations. `STETFS_LAB_CASES` sets how many sequences are
//! run a variety and mode.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use stetfs::clock::Clock;
use stetfs::{Media, MountOptions};
use stetfs_ftl::{Ftl, FtlOptions};
use stetfs_media::nand::{NandOptions, parts};
use stetfs_media::sim::SimPmem;
use stetfs_media::{BlockDev, Class, Image, Pmem, PmemDev, RamDev, Tag};
use stetfs_schemes::find;
use stetfs_testkit::host::{KernelMount, needs, scratch};
use stetfs_testkit::image::{
    EXT3_1K, EXT3_4K, EXT4_1K, EXT4_2K, EXT4_4K, EXT4_PLAIN, EXT4_SMALL_INODES, Variety, check,
    copy_to,
};
use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::{Op, operation};
use stetfs_testkit::world::{BASE, World, moment, tree};

fn cases() -> u32 {
    std::env::var("STETFS_LAB_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(25)
}

/// `mode` is a data mode of scheme jbd2, or mount options that name a scheme.
fn options(mode: &str) -> MountOptions {
    let list = match mode {
        named if named.starts_with("scheme=") => format!("{named},noatime"),
        mode => format!("scheme=jbd2,data={mode},noatime"),
    };
    MountOptions {
        clock: Clock::still(0),
        ..MountOptions::parse(&list).expect("good options")
    }
}

/// What the volume is on.
enum Medium {
    /// And a little memory beside it, where the scheme has that: so little that it is full all the
    /// time.
    Ram(Arc<RamDev>, Option<Arc<SimPmem>>),
    Memory(Arc<SimPmem>),
    /// And how much of it is the volume.
    Flash(Arc<Ftl>, usize),
}

impl Medium {
    /// What `options` need, with this content.
    fn new(options: &MountOptions, content: &[u8], block: u32) -> Self {
        let about = find(&options.scheme).expect("a scheme").about;
        if about.needs_pmem {
            return Self::Memory(Arc::new(SimPmem::new(Image::from_bytes(content))));
        }
        if !about.needs_remap {
            // So little that caches evict.
            let bytes = if about.caches {
                512 * block as u64
            } else {
                512 << 10
            };
            let nvm = about.nvm.map(|_| Arc::new(SimPmem::new(Image::new(bytes))));
            return Self::Ram(Arc::new(RamDev::from_image(content)), nvm);
        }
        let nand = Arc::new(
            NandOptions {
                record: false,
                ..NandOptions::new(parts::JFTL)
            }
            .build(),
        );
        let ftl = Ftl::create(nand, [7; 16], &FtlOptions::default(), Default::default());
        let ftl = ftl.expect("a layer");
        copy_to(&Image::from_bytes(content), &ftl, 4096).expect("room");
        Self::Flash(Arc::new(ftl), content.len())
    }

    fn media(&self) -> Media {
        match self {
            Self::Ram(ram, nvm) => Media {
                home: ram.clone(),
                nvm: nvm.clone().map(|pmem| pmem as Arc<dyn Pmem>),
            },
            Self::Memory(pmem) => Arc::new(PmemDev::new(pmem.clone())).into(),
            Self::Flash(ftl, _) => ftl.clone().into(),
        }
    }

    fn to_file(&self, path: &Path) -> std::io::Result<()> {
        match self {
            Self::Ram(ram, _) => ram.to_file(path),
            Self::Memory(pmem) => pmem.newest().to_file(path),
            Self::Flash(ftl, len) => {
                let mut content = vec![0; *len];
                let tag = Tag::read(Class::Data);
                ftl.read_at(0, &mut content, tag).expect("readable");
                fs::write(path, content)
            }
        }
    }
}

struct Bed {
    variety: Variety,
    mode: &'static str,
    dir: tempfile::TempDir,
    fresh: Vec<u8>,
}

impl Bed {
    fn new(variety: Variety, mode: &'static str) -> Result<Self> {
        let dir = scratch()?;
        let image = dir.path().join("fresh");
        variety.make(&image, 48, if variety.block == 1024 { 1 } else { 4 })?;
        fs::create_dir(dir.path().join("mnt"))?;
        Ok(Self {
            variety,
            mode,
            fresh: fs::read(&image)?,
            dir,
        })
    }

    /// Runs one sequence; any difference is an error.
    fn run(&self, ops: &[Op]) -> Result<()> {
        let options = options(self.mode);
        let medium = Medium::new(&options, &self.fresh, self.variety.block);
        let (mut library, _) = Library::mount(medium.media(), options).context("mounting")?;
        let mut model = Model::new(self.variety.rules());
        for (i, op) in ops.iter().enumerate() {
            model.set_time(moment(i));
            library.set_time(moment(i));
            let (expected, found) = (model.apply(op), library.apply(op));
            ensure!(
                expected == found,
                "step {i} {op:?}: {found:?}, expected {expected:?}"
            );
        }
        let before = library.tree().context("reading the tree")?;
        equal("the model", &model.tree(), "the mount", &before)?;
        library.unmount().context("unmounting")?;
        let image = self.dir.path().join("image");
        medium.to_file(&image)?;
        check(&image)?;
        if needs(true, false, &[]).is_ok() {
            self.kernel(&image, &before).context("under the kernel")?;
        }
        Ok(())
    }

    fn kernel(&self, image: &Path, before: &tree::Tree) -> Result<()> {
        let mount = KernelMount::ext4(image, &self.dir.path().join("mnt"), "ro,noatime")?;
        let seen = tree::of_directory(&mount.dir().join(BASE))?;
        mount.unmount()?;
        equal("the mount", before, "the kernel", &seen)
    }
}

fn equal(expected: &str, a: &tree::Tree, found: &str, b: &tree::Tree) -> Result<()> {
    let differences = tree::differences(a, b);
    if !differences.is_empty() {
        bail!("{found} is not as {expected}:\n{}", differences.join("\n"));
    }
    Ok(())
}

/// Sequences on one variety of volume in one mode.
fn sequences(variety: Variety, mode: &'static str) {
    if let Err(missing) = needs(false, false, &["mke2fs", "e2fsck"]) {
        eprintln!("SKIPPED: model test: {missing}");
        return;
    }
    if let Err(missing) = needs(true, false, &[]) {
        eprintln!("SKIPPED: the kernel's view of the model test: {missing}");
    }
    let bed = Bed::new(variety, mode).expect("a volume");
    let config = Config {
        cases: cases(),
        max_shrink_iters: 20_000,
        max_shrink_time: 40_000,
        failure_persistence: None,
        ..Config::default()
    };
    let strategy = prop::collection::vec(operation(variety.profile()), 1..250);
    let mut runner = TestRunner::new(config);
    let result = runner.run(&strategy, |ops| {
        bed.run(&ops)
            .map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    if let Err(TestError::Fail(why, ops)) = result {
        let listed: Vec<_> = ops
            .iter()
            .enumerate()
            .map(|(i, op)| format!("{i}: {op:?}"))
            .collect();
        panic!(
            "{} in mode {mode}: {why}\nafter shrinking:\n{}",
            variety.name,
            listed.join("\n")
        );
    }
}

macro_rules! beds {
    ($($name:ident: $variety:ident, $mode:literal;)*) => {
        $(
            #[test]
            fn $name() {
                sequences($variety, $mode);
            }
        )*
    };
}

beds! {
    ext4_4k_journal: EXT4_4K, "journal";
    ext4_4k_ordered: EXT4_4K, "ordered";
    ext4_4k_writeback: EXT4_4K, "writeback";
    ext4_4k_null: EXT4_4K, "scheme=null";
    ext4_1k_journal: EXT4_1K, "journal";
    ext4_1k_ordered: EXT4_1K, "ordered";
    ext4_2k_journal: EXT4_2K, "journal";
    ext4_inode128_journal: EXT4_SMALL_INODES, "journal";
    ext4_plain_ordered: EXT4_PLAIN, "ordered";
    ext3_1k_journal: EXT3_1K, "journal";
    ext3_1k_ordered: EXT3_1K, "ordered";
    ext3_4k_writeback: EXT3_4K, "writeback";
    ext4_4k_jftl: EXT4_4K, "scheme=jftl";
    ext4_1k_jftl_batch: EXT4_1K, "scheme=jftl,remap=batch";
    ext4_1k_jftl_ordered: EXT4_1K, "scheme=jftl,data=ordered";
    ext3_1k_jftl: EXT3_1K, "scheme=jftl";
    ext3_4k_jftl_copying: EXT3_4K, "scheme=jftl,remap=off";
    ext4_4k_dj: EXT4_4K, "scheme=dj";
    ext4_1k_dj_ordered: EXT4_1K, "scheme=dj,data=ordered";
    ext3_1k_dj_lz4: EXT3_1K, "scheme=dj,compress=lz4,threshold=100";
    ext3_4k_dj_zstd: EXT3_4K, "scheme=dj,compress=zstd,decide=size";
    ext4_2k_dj_deflate: EXT4_2K, "scheme=dj,compress=deflate,nvm_checkpoint=20";
    ext4_4k_ubj: EXT4_4K, "scheme=ubj";
    ext3_1k_ubj: EXT3_1K, "scheme=ubj,frozen=20,cow=range";
    ext4_4k_tinca: EXT4_4K, "scheme=tinca";
    ext4_1k_tinca: EXT4_1K, "scheme=tinca";
    ext4_4k_spindle: EXT4_4K, "scheme=spindle";
    ext3_1k_spindle: EXT3_1K, "scheme=spindle,meta=40";
    ext4_inode128_spindle: EXT4_SMALL_INODES, "scheme=spindle";
    ext4_4k_shortcut: EXT4_4K, "scheme=shortcut";
    ext4_1k_shortcut: EXT4_1K, "scheme=shortcut";
    ext3_1k_shortcut: EXT3_1K, "scheme=shortcut";
    ext4_2k_shortcut_blk_s: EXT4_2K, "scheme=shortcut,variant=blk-s,fences=paper";
    ext3_4k_shortcut_diff: EXT3_4K, "scheme=shortcut,variant=diff";
    ext4_plain_shortcut_blk: EXT4_PLAIN, "scheme=shortcut,variant=blk";
    ext4_1k_template: EXT4_1K, "scheme=template";
    ext4_4k_shadow: EXT4_4K, "scheme=shadow";
    ext3_1k_shadow: EXT3_1K, "scheme=shadow,fill=5";
}
