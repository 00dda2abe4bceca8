//! For tests: an image made by mke2fs, in memory, with a journal (scheme `null`) and an allocator
//! on it; e2fsck judges the result.

use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use stetfs_format::{BlockNo, InodeNo, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_journal::{Config, Handle, Journal, PlaceReq, Placer};
use stetfs_media::{BlockDev, Cause, Class, RamDev, Tag};
use stetfs_scheme::{OpenArgs, SchemeOptions};
use stetfs_schemes::find;
use tempfile::NamedTempFile;

use super::Alloc;

/// An image under test.
pub(crate) struct TestImage {
    dev: Arc<RamDev>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) alloc: Arc<Alloc>,
    _placer: Arc<Settles>,
}

/// The file system's part of a commit, without files.
struct Settles(Arc<Alloc>);

impl Placer for Settles {
    fn place(
        &self,
        _: &Handle,
        _: InodeNo,
        _: &[PlaceReq],
        _: &mut Vec<BlockNo>,
    ) -> stetfs_journal::Result<()> {
        unreachable!("no data is written")
    }

    fn settle(&self, handle: &Handle) -> stetfs_journal::Result<()> {
        self.0.store_descs(handle).expect("descriptors");
        Ok(())
    }
}

/// The options of mke2fs for each kind of volume that tests go through.
pub(crate) const KINDS: [(&str, &[&str]); 9] = [
    ("ext4", &["-t", "ext4"]),
    ("ext4, 1 KiB", &["-t", "ext4", "-b", "1024"]),
    (
        "ext4, 2 KiB, inodes of 128",
        &["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit"],
    ),
    (
        "gdt_csum",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    ),
    ("ext3", &["-t", "ext3", "-b", "1024"]),
    ("ext3, 4 KiB", &["-t", "ext3", "-b", "4096"]),
    (
        "meta_bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "meta_bg,^resize_inode",
        ],
    ),
    (
        "sparse_super2, no flex_bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "sparse_super2,^flex_bg,^resize_inode",
        ],
    ),
    (
        "no sparse_super",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^sparse_super,^metadata_csum,^resize_inode",
        ],
    ),
];

/// Returns the options with `^has_journal` among the features: mke2fs heeds only the last `-O`.
fn without_journal(options: &[&str]) -> Vec<String> {
    let mut options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
    match options.iter().position(|o| o == "-O") {
        Some(at) => options[at + 1].push_str(",^has_journal"),
        None => options.extend(["-O".to_owned(), "^has_journal".to_owned()]),
    }
    options
}

fn run(command: &mut Command) -> String {
    let out = command.output().expect("e2fsprogs is installed");
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {text}");
    text
}

impl TestImage {
    /// Makes an image of `mib` MiB with `mke2fs OPTIONS`, without a journal of its own.
    pub(crate) fn new(mib: u64, options: &[&str]) -> Self {
        Self::with(mib, options, "")
    }

    /// Makes the same image, and lets debugfs do `request` first.
    pub(crate) fn with(mib: u64, options: &[&str], request: &str) -> Self {
        let file = NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(mib << 20).expect("its size");
        run(Command::new("mke2fs")
            .args(["-q", "-F", "-U", "c5e4ae5a-0b3c-4a5e-9d1e-6a1f3b2c4d5e"])
            .args([
                "-E",
                "nodiscard,lazy_itable_init=1,hash_seed=c5e4ae5a-0b3c-4a5e-9d1e-6a1f3b2c4d5e",
            ])
            .args(without_journal(options))
            .arg(file.path()));
        if !request.is_empty() {
            run(Command::new("debugfs")
                .args(["-w", "-R", request])
                .arg(file.path()));
        }
        Self::open(Arc::new(
            RamDev::from_file(file.path()).expect("read the image"),
        ))
    }

    fn open(dev: Arc<RamDev>) -> Self {
        let sb = superblock(&*dev);
        let args = OpenArgs {
            dev: dev.clone(),
            nvm: None,
            nvm_new: false,
            block_size: sb.block,
            blocks: sb.blocks_count,
            uuid: sb.uuid,
            has_64bit: sb.is_64bit,
            has_metadata_csum: sb.metadata_csum,
            log: Vec::new(),
            memory: 64 << 20,
            has_private_log: false,
            inode_size: 256,
            writable: true,
            options: SchemeOptions::default(),
        };
        let config = Config {
            commit_interval: None,
            memory: 64 << 20,
            dirty_expire: Duration::ZERO,
            max_batch_time: Duration::ZERO,
            min_batch_time: Duration::ZERO,
        };
        let opened = find("null").and_then(|null| null.open(args));
        let journal = Journal::open(opened.expect("a scheme"), &config);
        // Tests continue after the damage that they make.
        journal.go_on();
        let alloc = Alloc::new(&sb, journal.clone(), dev.clone()).expect("read the descriptors");
        let alloc = Arc::new(alloc);
        let placer = Arc::new(Settles(alloc.clone()));
        let weak: Weak<Settles> = Arc::downgrade(&placer);
        journal.attach(weak);
        Self {
            dev,
            journal,
            alloc,
            _placer: placer,
        }
    }

    /// Commits, writes the superblock's counts and runs `e2fsck -fn`, which must find nothing.
    pub(crate) fn e2fsck(&self) {
        self.save().e2fsck();
    }

    /// Commits, writes the superblock's counts and saves the image for the tools.
    pub(crate) fn save(&self) -> SavedImage {
        self.commit();
        let file = NamedTempFile::new().expect("a temporary file");
        self.dev.to_file(file.path()).expect("save the image");
        SavedImage(file)
    }

    fn commit(&self) {
        self.journal.commit_running().expect("commit");
        let mut sb = superblock(&*self.dev);
        sb.free_blocks_count = self.alloc.free_blocks_in_bitmaps();
        sb.free_inodes_count = self.alloc.free_inodes() as u32;
        let mut raw = [0; SUPERBLOCK_SIZE];
        let tag = Tag::new(Class::Superblock, Cause::Control);
        self.dev
            .read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, tag)
            .expect("read");
        sb.encode_into(&mut raw);
        self.dev
            .write_at(SUPERBLOCK_OFFSET, &raw, tag)
            .expect("write");
    }

    /// Returns the image as another mount would find it: commits, then gives up all memory.
    pub(crate) fn reopen(self) -> Self {
        self.commit();
        Self::open(self.dev)
    }

    /// Returns another allocator, for a changed copy of the volume's superblock.
    pub(crate) fn allocator(&self, change: impl FnOnce(&mut Superblock)) -> Alloc {
        let mut sb = superblock(&*self.dev);
        change(&mut sb);
        Alloc::new(&sb, self.journal.clone(), self.dev.clone()).expect("read the descriptors")
    }

    /// The device below.
    pub(crate) fn dev(&self) -> &RamDev {
        &self.dev
    }
}

/// An image in a file, for e2fsprogs to look at.
pub(crate) struct SavedImage(NamedTempFile);

impl SavedImage {
    /// Runs `e2fsck -fn`, which must find nothing.
    pub(crate) fn e2fsck(&self) {
        run(Command::new("e2fsck").arg("-fn").arg(self.0.path()));
    }

    /// Returns debugfs's answer to `request`.
    pub(crate) fn debugfs(&self, request: &str) -> String {
        run(Command::new("debugfs")
            .args(["-R", request])
            .arg(self.0.path()))
    }
}

fn superblock(dev: &dyn BlockDev) -> Superblock {
    let mut raw = [0; SUPERBLOCK_SIZE];
    dev.read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, Tag::read(Class::Superblock))
        .expect("read the superblock");
    Superblock::decode(&raw).expect("mke2fs made it")
}
