//! Volumes with features that we understand, but do not keep right when we write: they are mounted
//! read-only, with the reason, also after a crash of the kernel. The kernel makes them; the judges
//! are what it wrote, and e2fsck. Needs root and loop devices.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use stetfs::{Caller, Fs, OpenFlags};
use stetfs_format::InodeNo;
use tempfile::TempDir;

use crate::image::Volume;
use crate::kernel::Kernel;

const ROOT: InodeNo = InodeNo(2);

/// The content of file number `n`.
fn content(n: usize) -> Vec<u8> {
    (0..n * 7_001).map(|i| (i * n % 251) as u8).collect()
}

fn read(fs: &Fs, path: &[u8]) -> Vec<u8> {
    let entry = fs.resolve(&Caller::root(), path, false).unwrap();
    let mut bytes = vec![1; entry.attr.size as usize];
    let len = fs.read(entry.ino, 0, &mut bytes).unwrap();
    assert_eq!(len, bytes.len());
    bytes
}

/// Mounts an image with `feature`, and checks what every such mount must do.
fn look(image: &TempDir, feature: &str, look: &dyn Fn(&Fs)) {
    let dev = Volume::device(image);
    let (fs, report) = Fs::mount(dev.clone(), stetfs::MountOptions::default()).unwrap();
    assert!(report.read_only);
    assert_eq!(report.orphans_deleted, 0);
    let why = report.warnings.join("; ");
    assert!(why.contains(feature), "{why}");
    for n in 0..20 {
        assert_eq!(read(&fs, format!("/dir/{n}").as_bytes()), content(n));
    }
    look(&fs);
    let made = fs.create(&Caller::root(), ROOT, b"new", 0o644, OpenFlags::WRITE);
    assert!(matches!(made, Err(stetfs::Error::ReadOnly)));
    fs.unmount().unwrap();
    drop(fs);
    dev.to_file(&image.path().join("image")).unwrap();
}

fn is_only_read(mke2fs: &str, feature: &str, make: &dyn Fn(&Path), look_further: &dyn Fn(&Fs)) {
    let image = Volume::image(mke2fs, 64);
    let cut = TempDir::new().unwrap();
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        fs::create_dir(kernel.at.join("dir")).unwrap();
        for n in 0..20 {
            fs::write(kernel.at.join(format!("dir/{n}")), content(n)).unwrap();
        }
        make(&kernel.at);
        let orphan = kernel.at.join("orphan");
        fs::write(&orphan, content(30)).unwrap();
        let open = File::open(&orphan).unwrap();
        fs::remove_file(orphan).unwrap();
        rustix::fs::syncfs(&open).unwrap();
        fs::copy(image.path().join("image"), cut.path().join("image")).unwrap();
    }
    let e2fsck = |image: &TempDir, how: &str| {
        let path = image.path().join("image");
        let out = Command::new("e2fsck").args([how, "-f"]).arg(path).output();
        let out = out.unwrap();
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stdout).into_owned(),
        )
    };
    let before = fs::read(image.path().join("image")).unwrap();
    look(&image, feature, look_further);
    assert!(fs::read(image.path().join("image")).unwrap() == before);
    look(&cut, feature, look_further);
    // It does by itself what is left to be done: the orphan.
    let (code, said) = e2fsck(&cut, "-p");
    assert!(matches!(code, Some(0 | 1)), "{code:?}: {said}");
    let (code, said) = e2fsck(&cut, "-n");
    assert_eq!(code, Some(0), "{said}");
    look(&cut, feature, look_further);
}

#[test]
fn clusters_of_blocks() {
    is_only_read("-t ext4 -O bigalloc -C 16384", "bigalloc", &|_| (), &|_| ());
}

/// The values of attributes, by their names.
fn values() -> [(&'static str, Vec<u8>); 5] {
    [
        ("user.short", b"value".to_vec()),
        ("user.block", vec![b'b'; 2000]),
        ("user.inode", content(1)),
        ("user.same", content(1)),
        ("user.long", content(9)[..60_000].to_vec()),
    ]
}

#[test]
fn values_of_attributes_in_inodes() {
    let set = |at: &Path| {
        for (name, value) in values() {
            let flags = rustix::fs::XattrFlags::empty();
            for file in ["dir/1", "dir/2", "dir"] {
                rustix::fs::setxattr(at.join(file), name, &value, flags).unwrap();
            }
        }
    };
    let found = |fs: &Fs| {
        let c = Caller::root();
        for path in [&b"/dir/1"[..], b"/dir/2", b"/dir"] {
            let ino = fs.resolve(&c, path, false).unwrap().ino;
            let listed = fs.listxattr(&c, ino).unwrap();
            assert_eq!(listed.split(|byte| *byte == 0).count(), 5 + 1);
            for (name, value) in values() {
                assert!(
                    fs.getxattr(&c, ino, name.as_bytes()).unwrap() == value,
                    "{name}"
                );
            }
        }
    };
    is_only_read("-t ext4 -O ea_inode", "ea_inode", &set, &found);
    let without = "ea_inode,^metadata_csum,^64bit";
    is_only_read(
        &format!("-t ext4 -b 1024 -O {without}"),
        "ea_inode",
        &set,
        &found,
    );
}

/// A bit of the inode with a value is wrong: the attribute is an error, not another value.
#[test]
fn a_damaged_value_is_an_error() {
    let image = Volume::image("-t ext4 -O ea_inode,^metadata_csum", 16);
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        let file = kernel.at.join("file");
        fs::write(&file, "").unwrap();
        let value = b"needle".repeat(2000);
        rustix::fs::setxattr(file, "user.a", &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    let bytes = fs::read(image.path().join("image")).unwrap();
    let at = bytes
        .windows(12)
        .rposition(|w| w == b"needleneedle")
        .unwrap();
    let patched = crate::image::patch(&image, at as u64, b"noodle");
    let (fs, _) = Volume::try_mount(&patched).unwrap();
    let c = Caller::root();
    let file = fs.lookup(&c, ROOT, b"file").unwrap().ino;
    let got = fs.getxattr(&c, file, b"user.a");
    assert!(got.is_err_and(|e| e.to_string().contains("value of an attribute")));
    fs.unmount().unwrap();
}
