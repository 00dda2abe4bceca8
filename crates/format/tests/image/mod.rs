//! Real images: made by mke2fs, filled by debugfs, judged by dumpe2fs, debugfs and
//! e2fsck. And [`Volume`], a plain reader of them on top of the crate under test.
#![allow(dead_code, unreachable_pub)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use stetfs_format::extent::Expected;
use stetfs_format::indirect::Pointers;
use stetfs_format::{
    BlockNo, Extent, ExtentNode, GroupDesc, GroupNo, Inode, InodeFlags, InodeNo, LBlock,
    SUPERBLOCK_OFFSET, Superblock,
};
use tempfile::TempDir;

/// What the tests run on: a name and the arguments of mke2fs.
pub const KINDS: [(&str, &[&str]); 17] = [
    ("ext4", &["-t", "ext4", "-b", "4096"]),
    ("ext4, 1 KiB", &["-t", "ext4", "-b", "1024"]),
    ("ext4, 2 KiB", &["-t", "ext4", "-b", "2048"]),
    ("no 64bit", &["-t", "ext4", "-b", "1024", "-O", "^64bit"]),
    (
        "uninit_bg",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    ),
    (
        "uninit_bg, no 64bit",
        &["-t", "ext4", "-O", "^metadata_csum,^64bit,uninit_bg"],
    ),
    (
        "no checksums",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    ),
    (
        "csum_seed",
        &["-t", "ext4", "-b", "1024", "-O", "metadata_csum_seed"],
    ),
    (
        "meta_bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "meta_bg,^resize_inode",
        ],
    ),
    (
        "no flex_bg",
        &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"],
    ),
    (
        "sparse_super2",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "sparse_super2,^resize_inode",
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
            "^sparse_super,^resize_inode",
        ],
    ),
    (
        "128-byte inodes",
        &["-t", "ext4", "-b", "1024", "-I", "128"],
    ),
    (
        "512-byte inodes",
        &["-t", "ext4", "-b", "4096", "-I", "512"],
    ),
    (
        "orphan_file",
        &["-t", "ext4", "-b", "1024", "-O", "orphan_file,large_dir"],
    ),
    ("ext3", &["-t", "ext3", "-b", "1024"]),
    ("ext2, 4 KiB", &["-t", "ext2", "-b", "4096"]),
];

/// An image file, removed when dropped.
pub struct Image {
    dir: TempDir,
    pub path: PathBuf,
}

/// Unmounts when dropped, after a failed test too.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // Another process may be looking into it.
        let unmounts = |_| {
            let out = Command::new("umount").arg(&self.0).output();
            let is_done = out.is_ok_and(|out| out.status.success());
            if !is_done {
                std::thread::sleep(Duration::from_millis(50));
            }
            is_done
        };
        assert!((0..1200).any(unmounts) || std::thread::panicking());
    }
}

/// Runs a tool of e2fsprogs and returns its status and output, errors too. `None`, with a message,
/// when it is not installed.
fn run(tool: &str, args: &[&str]) -> Option<(i32, String)> {
    let sbin = Path::new("/sbin").join(tool);
    let program = if sbin.exists() {
        sbin
    } else {
        PathBuf::from(tool)
    };
    match Command::new(program)
        .args(args)
        .env("DEBUGFS_PAGER", "__none__")
        .output()
    {
        Ok(output) => {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text += &String::from_utf8_lossy(&output.stderr);
            Some((output.status.code().unwrap_or(-1), text))
        }
        Err(error) => {
            eprintln!("SKIPPED: {tool} does not run ({error}); install e2fsprogs");
            None
        }
    }
}

impl Image {
    /// Makes a fresh image. `None`, with a message, when mke2fs is missing or does not know the
    /// options.
    pub fn make(args: &[&str], kib: u64) -> Option<Self> {
        let dir = TempDir::new().expect("a scratch directory");
        let path = dir.path().join("image");
        let file = std::fs::File::create(&path).expect("an image file");
        file.set_len(kib * 1024).expect("an image file");
        let path_text = path.to_str().expect("a plain path").to_owned();
        let args: Vec<&str> = ["-q", "-F"]
            .iter()
            .chain(args)
            .copied()
            .chain([&*path_text])
            .collect();
        let (status, output) = run("mke2fs", &args)?;
        if status != 0 {
            eprintln!("SKIPPED: mke2fs {args:?}: {output}");
            return None;
        }
        Some(Self { dir, path })
    }

    /// A file beside the image.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).expect("a scratch file");
        path.to_str().expect("a plain path").to_owned()
    }

    fn path_text(&self) -> &str {
        self.path.to_str().expect("a plain path")
    }

    /// Runs one command of debugfs, without writing.
    pub fn debugfs(&self, command: &str) -> String {
        let (_, output) = run("debugfs", &["-R", command, self.path_text()]).expect("debugfs");
        output
    }

    /// Writes commands into a file of their own: tests that run at the same time share the image.
    fn script(&self, commands: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("script-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.file(&name, commands.as_bytes())
    }

    /// Runs many commands of debugfs, without writing.
    pub fn debugfs_all(&self, commands: &str) -> String {
        let script = self.script(commands);
        let (_, output) = run("debugfs", &["-f", &script, self.path_text()]).expect("debugfs");
        output
    }

    /// Runs commands of debugfs that write.
    pub fn change(&self, commands: &str) {
        let script = self.script(commands);
        let (status, output) =
            run("debugfs", &["-w", "-f", &script, self.path_text()]).expect("debugfs");
        assert_eq!(status, 0, "{output}");
    }

    pub fn dumpe2fs(&self) -> String {
        let (status, output) = run("dumpe2fs", &[self.path_text()]).expect("dumpe2fs");
        assert_eq!(status, 0, "{output}");
        output
    }

    /// Lets e2fsck repair or optimise.
    pub fn e2fsck(&self, options: &str) -> (i32, String) {
        run("e2fsck", &[options, self.path_text()]).expect("e2fsck")
    }

    /// Asserts that e2fsck finds nothing.
    pub fn assert_clean(&self, what: &str) {
        let (status, output) = self.e2fsck("-fn");
        assert_eq!(status, 0, "{what}: {output}");
    }

    /// Mounts the image with the kernel while `work` runs. False, with a message, when this machine
    /// cannot.
    pub fn while_mounted(&self, options: &[&str], work: impl FnOnce(&Path)) -> bool {
        let root = self.dir.path().join("mounted");
        std::fs::create_dir_all(&root).expect("a mount point");
        let options = ["loop"]
            .iter()
            .chain(options)
            .copied()
            .collect::<Vec<_>>()
            .join(",");
        let mut mount = Command::new("mount");
        mount.args(["-o", &options]).arg(&self.path).arg(&root);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            eprintln!("SKIPPED: the kernel does not mount the image here (root and loop needed)");
            return false;
        }
        let _guard = Unmount(root.clone());
        work(&root);
        true
    }

    /// Returns the bytes of the image while it is mounted, at a moment when nothing writes to it.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = std::fs::read(&self.path).expect("the image");
        for _ in 0..50 {
            let again = std::fs::read(&self.path).expect("the image");
            if again == bytes {
                break;
            }
            bytes = again;
        }
        bytes
    }

    pub fn read(&self) -> Volume {
        Volume::new(std::fs::read(&self.path).expect("the image"))
    }

    pub fn write(&self, volume: &Volume) {
        std::fs::write(&self.path, &volume.bytes).expect("the image");
    }

    /// Files of every kind: a large directory (indexed by e2fsck), a fragmented file with
    /// unwritten extents, a sparse one, symbolic links, devices, attributes.
    pub fn populate(&self) {
        let data: Vec<u8> = (0..600_000u32)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8)
            .collect();
        let big = self.file("big", &data);
        let value = self.file("value", &data[..700]);
        let sparse = self.file("sparse", b"");
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&sparse)
            .expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, b"end", 70 << 20).expect("a sparse file");
        std::os::unix::fs::FileExt::write_all_at(&file, b"start", 0).expect("a sparse file");

        let mut script = "mkdir d\ncd d\n".to_owned();
        for i in 0..700 {
            let name = format!("file-{i}-{}", "n".repeat(90 + i * 7 % 130));
            writeln!(script, "write /dev/null {name}").expect("a string");
        }
        script += "write /dev/null h\u{e4}\u{df}lich\u{2603}\n";
        writeln!(script, "cd /\nwrite {big} big\nwrite {sparse} sparse").expect("a string");
        writeln!(
            script,
            "symlink fast target\nsymlink slow {}",
            "x".repeat(200)
        )
        .expect("a string");
        script += "mknod char c 5 1\nmknod block b 7 200\nmknod pipe p\n";
        script += "write /dev/null attributes\nea_set attributes user.hello world\n";
        script += "ea_set attributes user.empty \"\"\nea_set attributes trusted.t 1\n";
        writeln!(script, "ea_set -f {value} attributes user.large").expect("a string");
        script += "ea_set attributes security.s secret\n";
        script += "set_inode_field big uid 100000\nset_inode_field big gid 70000\n";
        script += "set_inode_field big generation 0x89abcdef\n";
        script += "set_inode_field big mtime @0x9fffffff\n";
        script += "set_inode_field attributes projid 77\n";
        self.change(&script);
        if self.read().sb.geometry().extents {
            let mut script = "write /dev/null fragments\n".to_owned();
            for i in (0..1600).step_by(2) {
                writeln!(script, "fallocate fragments {i} {i}").expect("a string");
            }
            self.change(&script);
        }
        // The first pass repairs what the set fields broke, and indexes directories.
        let (status, output) = self.e2fsck("-fyD");
        assert!(status < 4, "{output}");
        self.assert_clean("after filling");
    }
}

/// A whole image in memory, read through the crate under test. Everything in it is valid, so every
/// error is a failed test.
pub struct Volume {
    pub bytes: Vec<u8>,
    pub sb: Superblock,
}

impl Volume {
    pub fn new(bytes: Vec<u8>) -> Self {
        let sb = Superblock::decode(&bytes[SUPERBLOCK_OFFSET as usize..]).expect("a superblock");
        Self { bytes, sb }
    }

    pub fn block(&self, block: BlockNo) -> &[u8] {
        let size = self.sb.block_size();
        &self.bytes[block.0 as usize * size..][..size]
    }

    pub fn block_mut(&mut self, block: BlockNo) -> &mut [u8] {
        let size = self.sb.block_size();
        &mut self.bytes[block.0 as usize * size..][..size]
    }

    pub fn groups(&self) -> impl Iterator<Item = GroupNo> + use<> {
        (0..self.sb.groups_count()).map(GroupNo)
    }

    pub fn desc_raw(&self, g: GroupNo) -> &[u8] {
        let (block, offset) = self.sb.desc_position(g);
        &self.block(block)[offset..offset + self.sb.desc_size()]
    }

    pub fn desc(&self, g: GroupNo) -> GroupDesc {
        GroupDesc::decode(self.desc_raw(g), g, &self.sb).expect("a descriptor")
    }

    pub fn inode_offset(&self, ino: InodeNo) -> usize {
        let (g, index) = self.sb.group_of_inode(ino);
        let (block, offset) = self.sb.inode_position(index);
        let table = self.desc(g).inode_table;
        table.plus(block.into()).0 as usize * self.sb.block_size() + offset
    }

    pub fn inode_raw(&self, ino: InodeNo) -> &[u8] {
        &self.bytes[self.inode_offset(ino)..][..self.sb.inode_size()]
    }

    pub fn inode_raw_mut(&mut self, ino: InodeNo) -> &mut [u8] {
        let (offset, size) = (self.inode_offset(ino), self.sb.inode_size());
        &mut self.bytes[offset..][..size]
    }

    pub fn inode(&self, ino: InodeNo) -> Inode {
        Inode::decode(self.inode_raw(ino), ino, &self.sb).expect("an inode")
    }

    /// The inodes that the bitmaps say are in use and that have been written.
    pub fn inodes_in_use(&self) -> Vec<InodeNo> {
        let mut found = Vec::new();
        for g in self.groups() {
            let desc = self.desc(g);
            if desc
                .flags(&self.sb)
                .contains(stetfs_format::GroupFlags::INODE_UNINIT)
            {
                continue;
            }
            let bitmap = self.block(desc.inode_bitmap);
            for index in 0..self.sb.inodes_per_group() {
                if bitmap[index as usize / 8] & 1 << (index % 8) != 0 {
                    found.push(self.sb.inode_at(g, index));
                }
            }
        }
        found
    }

    /// Returns what a file maps, by extents or by pointers; runs of pointers are joined. Checks the
    /// checksums of mapping blocks too.
    pub fn map(&self, ino: InodeNo) -> Vec<Extent> {
        let inode = self.inode(ino);
        let mut map = Vec::new();
        if inode.flags.contains(InodeFlags::EXTENTS) {
            let root = ExtentNode::root(&inode.block, &self.sb).expect("an extent root");
            self.add_node(&root, inode.csum_seed(ino, &self.sb), &mut map);
        } else {
            let mut lblk = 0;
            for (index, level) in (0..12).map(|i| (i, 0)).chain([(12, 1), (13, 2), (14, 3)]) {
                let root = Pointers::new(&inode.block, &self.sb);
                self.add_pointer(
                    root.get(index).expect("a pointer"),
                    level,
                    &mut lblk,
                    &mut map,
                );
            }
        }
        map
    }

    fn add_node(&self, node: &ExtentNode<'_>, seed: u32, map: &mut Vec<Extent>) {
        if node.is_leaf() {
            map.extend(node.extents().map(|extent| extent.expect("an extent")));
            return;
        }
        for index in node.indexes() {
            let index = index.expect("an index");
            let expected = Expected {
                depth: node.depth() - 1,
                lblk: index.lblk,
            };
            let below = ExtentNode::decode(self.block(index.pblk), expected, seed, &self.sb);
            self.add_node(&below.expect("an extent block"), seed, map);
        }
    }

    fn add_pointer(
        &self,
        pointer: Option<BlockNo>,
        level: u32,
        lblk: &mut u64,
        map: &mut Vec<Extent>,
    ) {
        let Some(block) = pointer else {
            *lblk += stetfs_format::indirect::blocks_below(level, &self.sb);
            return;
        };
        if level > 0 {
            let pointers = Pointers::new(self.block(block), &self.sb);
            for index in 0..pointers.count() {
                let below = pointers.get(index).expect("a pointer");
                self.add_pointer(below, level - 1, lblk, map);
            }
            return;
        }
        let here = LBlock(u32::try_from(*lblk).expect("a logical block"));
        *lblk += 1;
        if let Some(last) = map.last_mut()
            && last.end() == here.0
            && last.pblk.plus(last.len.into()) == block
            && last.len < 32767
        {
            last.len += 1;
        } else {
            map.push(Extent {
                lblk: here,
                len: 1,
                pblk: block,
                unwritten: false,
            });
        }
    }

    /// Where logical block `lblk` of a file lies.
    pub fn find(&self, ino: InodeNo, lblk: u32) -> BlockNo {
        let extent = *self
            .map(ino)
            .iter()
            .find(|extent| extent.contains(LBlock(lblk)))
            .unwrap_or_else(|| panic!("inode {ino} has no block {lblk}"));
        extent.pblk.plus(u64::from(lblk - extent.lblk.0))
    }

    /// The blocks of a directory, in order.
    pub fn dir_blocks(&self, ino: InodeNo) -> Vec<BlockNo> {
        let blocks = self.inode(ino).size / self.sb.block_size() as u64;
        (0..blocks as u32)
            .map(|lblk| self.find(ino, lblk))
            .collect()
    }
}

/// Returns a filled image of each kind. Tests that run at the same time share the images; the last
/// one to drop them removes them.
fn every_kind() -> Arc<Vec<(&'static str, Image)>> {
    static SHARED: Mutex<Weak<Vec<(&str, Image)>>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(images) = shared.upgrade() {
        return images;
    }
    let images = KINDS.iter().filter_map(|(name, args)| {
        let image = Image::make(args, 96 * 1024)?;
        image.populate();
        Some((*name, image))
    });
    let images = Arc::new(images.collect());
    *shared = Arc::downgrade(&images);
    images
}

/// Runs `test` on a filled image of each kind; `test` must not change it.
pub fn on_every_kind(test: impl Fn(&str, &Image)) {
    for (name, image) in every_kind().iter() {
        eprintln!("image: {name}");
        test(name, image);
    }
}
