//! The kernel's ext4 on our directories, and we on the kernel's. Needs root and loop devices;
//! prints that it skips the test without them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use stetfs::{Caller, OpenFlags};
use stetfs_format::InodeNo;
use tempfile::TempDir;

use crate::image::Volume;

const ROOT: InodeNo = InodeNo(2);

/// An image that the kernel has mounted. Unmounted when dropped.
pub(crate) struct Kernel {
    pub(crate) at: PathBuf,
}

impl Kernel {
    pub(crate) fn mount(image: &TempDir) -> Option<Self> {
        let at = image.path().join("mount");
        fs::create_dir_all(&at).unwrap();
        let output = Command::new("mount")
            .args(["-t", "ext4", "-o", "loop"])
            .arg(image.path().join("image"))
            .arg(&at)
            .output()
            .unwrap();
        if output.status.success() {
            return Some(Self { at });
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        eprintln!("SKIPPED: the kernel cannot mount the image: {why}");
        None
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // A process that another test is about to start may have a file of the mount.
        let unmounts = |_| {
            let out = Command::new("umount").arg(&self.at).output();
            out.is_ok_and(|out| out.status.success())
        };
        assert!((0..10_000).any(unmounts) || std::thread::panicking());
    }
}

fn listed(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Both add names to one directory in turn. Each finds all names of the other.
fn in_turn(mke2fs: &str) {
    let image = Volume::image(mke2fs, 64);
    let names = |who: &str, n: usize| {
        (0..n)
            .map(|i| format!("{who}-{i}-ü{}", "x".repeat(i % 90)))
            .collect::<Vec<_>>()
    };
    let (ours, theirs) = (names("ours", 3000), names("theirs", 3000));
    let v = Volume::again(image);
    let c = Caller::root();
    let d = v.fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
    let file =
        v.fs.create(&c, ROOT, b"file", 0o644, OpenFlags::WRITE)
            .unwrap()
            .ino;
    v.fs.release(file).unwrap();
    for name in &ours {
        v.fs.link(&c, file, d, name.as_bytes()).unwrap();
    }
    let image = v.checked();
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        let dir = kernel.at.join("d");
        assert_eq!(listed(&dir), ours.iter().cloned().collect());
        for name in &ours {
            assert!(dir.join(name).exists(), "the kernel does not find {name}");
        }
        for name in &theirs {
            fs::hard_link(kernel.at.join("file"), dir.join(name)).unwrap();
        }
        for name in ours.iter().step_by(3) {
            fs::remove_file(dir.join(name)).unwrap();
        }
    }
    let v = Volume::again(image);
    for name in &theirs {
        assert_eq!(
            v.fs.lookup(&c, d, name.as_bytes()).unwrap().ino,
            file,
            "{name}"
        );
    }
    for (i, name) in ours.iter().enumerate() {
        assert_eq!(
            v.fs.lookup(&c, d, name.as_bytes()).is_ok(),
            i % 3 != 0,
            "{name}"
        );
    }
    for name in theirs.iter().step_by(2) {
        v.fs.unlink(&c, d, name.as_bytes()).unwrap();
    }
    v.check();
}

#[test]
fn a_directory_in_turn_by_half_md4() {
    in_turn("-t ext4 -b 1024 -O metadata_csum");
}

#[test]
fn a_directory_in_turn_by_tea() {
    in_turn("-t ext4 -b 1024 hash_alg=tea");
}

#[test]
fn a_directory_in_turn_by_legacy_hash() {
    in_turn("-t ext3 -b 1024 hash_alg=legacy");
}

/// The device is copied while the kernel has files without names open. Our mount frees them.
fn orphans_of_the_kernel(mke2fs: &str) {
    let image = Volume::image(mke2fs, 32);
    let cut = TempDir::new().unwrap();
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        let open: Vec<File> = (0..40)
            .map(|i| {
                let path = kernel.at.join(format!("f{i}"));
                fs::write(&path, vec![i as u8; 10_000]).unwrap();
                File::open(&path).unwrap()
            })
            .collect();
        (0..40).for_each(|i| fs::remove_file(kernel.at.join(format!("f{i}"))).unwrap());
        assert!(
            Command::new("sync")
                .arg("-f")
                .arg(&kernel.at)
                .status()
                .unwrap()
                .success()
        );
        fs::copy(image.path().join("image"), cut.path().join("image")).unwrap();
        drop(open);
    }
    let v = Volume::again(cut);
    assert_eq!(v.report.orphans_deleted, 40);
    v.check();
}

#[test]
fn orphans_of_the_kernel_in_the_list() {
    orphans_of_the_kernel("-t ext4 -b 1024 -O metadata_csum,^orphan_file");
}

#[test]
fn orphans_of_the_kernel_in_the_orphan_file() {
    orphans_of_the_kernel("-t ext4 -b 1024 -O metadata_csum,orphan_file");
}

/// Our mount crashes while files without names are open. The kernel frees them.
fn our_orphans(mke2fs: &str) {
    let v = Volume::make(mke2fs, 32);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = v.fs.statfs().unwrap().files_free;
    for i in 0..40 {
        let name = format!("f{i}").into_bytes();
        let file =
            v.fs.create(&c, ROOT, &name, 0o644, OpenFlags::WRITE)
                .unwrap()
                .ino;
        v.fs.write(&c, file, 0, &[7; 10_000]).unwrap();
        v.fs.unlink(&c, ROOT, &name).unwrap();
    }
    v.fs.sync().unwrap();
    let image = v.cut();
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        assert_eq!(
            listed(&kernel.at),
            BTreeSet::from(["lost+found".to_owned()])
        );
    }
    let v = Volume::again(image);
    assert_eq!(v.report.orphans_deleted, 0, "the kernel has freed them");
    assert_eq!(v.fs.statfs().unwrap().files_free, before);
    v.check();
}

#[test]
fn the_kernel_frees_our_orphans() {
    our_orphans("-t ext4 -b 1024 -O metadata_csum");
    our_orphans("-t ext4 -b 1024 -O metadata_csum,orphan_file");
    our_orphans("-t ext3 -b 1024");
}
